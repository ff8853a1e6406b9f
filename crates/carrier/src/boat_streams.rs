//! Step 6 of a message's way: the boats that a shard talks to, one long-lived stream per life.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::boat;
use api::transport::Connector;
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use api::v1::outcome::Kind;
use backend::Backends;
use backend::clock::Entropy;
use protocol::access::Role;
use protocol::delivery::{Notice, Push, PushOutcome, PushToken, SessionEvent};
use protocol::frame::ServerFrame;
use protocol::presence::BoatLife;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::backoff::Backoff;
use crate::boat_directory::{BoatDirectory, DirectoryView};
use crate::boat_outbox::BoatOutbox;

/// Longest opening of a stream; a boat answers at once. Without an answer every push would be sent
/// into the same silence.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Deliveries and notices in one batch to a boat.
const PUSH_BATCH_MAX: usize = 512;
/// Notices that wait for one boat. Further ones are dropped: the delivery guarantee does not need
/// them.
const NOTICES_MAX: usize = 4096;
const UNANSWERED: &str = "the boat does not answer the call for a stream";

/// Report of a boat's stream to its shard.
#[derive(Debug)]
pub(crate) enum BoatMessage {
    Outcomes(Vec<(PushToken, PushOutcome)>),
    /// The stream broke, or could not be opened.
    Lost(BoatLife),
}

pub(crate) struct BoatStreams {
    boats: BTreeMap<BoatLife, Boat>,
    connector: Connector,
    directory: BoatDirectory,
    messages: mpsc::Sender<BoatMessage>,
    tasks: TaskTracker,
    entropy: Arc<dyn Entropy>,
    config: Arc<Config>,
}

struct Boat {
    outbox: Arc<BoatOutbox>,
    /// Pushes of this turn, until [`BoatStreams::flush`].
    pushes: Vec<(Instant, Push)>,
    notices: Vec<boat::Notice>,
    _ends_stream: DropGuard,
}

impl BoatStreams {
    pub(crate) fn new(
        backends: &Backends,
        config: Arc<Config>,
        connector: Connector,
        directory: BoatDirectory,
        messages: mpsc::Sender<BoatMessage>,
        tasks: TaskTracker,
    ) -> BoatStreams {
        BoatStreams {
            boats: BTreeMap::new(),
            connector,
            directory,
            messages,
            tasks,
            entropy: backends.entropy.clone(),
            config,
        }
    }

    /// Queues a push, which its machine waits for so long. Returns false if no address of the boat
    /// is known.
    pub(crate) fn push(&mut self, life: &BoatLife, push: Push, wait: Duration) -> bool {
        let Some(boat) = self.boat(life) else {
            return false;
        };
        boat.pushes.push((Instant::now() + wait, push));
        true
    }

    /// Queues a notice, or drops it if no address of the boat is known.
    pub(crate) fn notice(&mut self, notice: Notice) {
        let kind = match notice.event {
            SessionEvent::Placed(echo) => {
                let frame = api::codec::encode_server(&ServerFrame::Placed(echo));
                boat::NoticeKind::Frame(frame)
            }
            SessionEvent::Refused { send_id, refusal } => {
                let frame = api::codec::encode_server(&ServerFrame::Refused { send_id, refusal });
                boat::NoticeKind::Frame(frame)
            }
            SessionEvent::Hint => boat::NoticeKind::Hint,
            SessionEvent::Resync => boat::NoticeKind::Resync,
        };
        if let Some(boat) = self.boat(&notice.life) {
            boat.notices.push(boat::Notice {
                session: notice.session,
                kind,
            });
        }
    }

    /// Moves this turn's pushes and notices to the outboxes.
    pub(crate) fn flush(&mut self) {
        for boat in self.boats.values_mut() {
            if !boat.pushes.is_empty() || !boat.notices.is_empty() {
                boat.outbox.fill(&mut boat.pushes, &mut boat.notices);
            }
        }
    }

    /// Drops everything queued for this boat; the executor handles it otherwise.
    pub(crate) fn clear(&mut self, life: &BoatLife) {
        if let Some(boat) = self.boats.get_mut(life) {
            boat.outbox.clear();
            boat.pushes.clear();
            boat.notices.clear();
        }
    }

    /// Ends the streams to boats that are over, and returns those lives.
    pub(crate) fn follow(&mut self, view: &DirectoryView) -> Vec<BoatLife> {
        let ended_lives: Vec<BoatLife> = self
            .boats
            .keys()
            .filter(|life| !view.addresses.contains_key(life) || view.denied.contains(life))
            .cloned()
            .collect();
        for life in &ended_lives {
            self.boats.remove(life);
        }
        ended_lives
    }

    fn boat(&mut self, life: &BoatLife) -> Option<&mut Boat> {
        if !self.boats.contains_key(life) {
            let Some(address) = self.directory.address(life) else {
                self.directory.report_unknown(life);
                return None;
            };
            let boat = self.open_stream(life, &address);
            self.boats.insert(life.clone(), boat);
        }
        self.boats.get_mut(life)
    }

    fn open_stream(&self, life: &BoatLife, address: &str) -> Boat {
        let config = &self.config;
        let outbox = Arc::new(BoatOutbox::new(life, PUSH_BATCH_MAX, NOTICES_MAX));
        let stop = CancellationToken::new();
        let stream = Stream {
            life: life.clone(),
            outbox: Arc::clone(&outbox),
            client: BoatServiceClient::new(self.connector.channel(Role::Boat, address)),
            messages: self.messages.clone(),
            backoff: Backoff::new(config),
            entropy: Arc::clone(&self.entropy),
        };
        let stream_stop = stop.clone();
        self.tasks.spawn(async move {
            stream_stop.run_until_cancelled(stream.run()).await;
        });
        Boat {
            outbox,
            pushes: Vec::new(),
            notices: Vec::new(),
            _ends_stream: stop.drop_guard(),
        }
    }
}

/// Keeps a `Deliver` stream to one life of one boat open.
struct Stream {
    life: BoatLife,
    outbox: Arc<BoatOutbox>,
    client: BoatServiceClient<api::transport::Channel>,
    messages: mpsc::Sender<BoatMessage>,
    backoff: Backoff,
    entropy: Arc<dyn Entropy>,
}

impl Stream {
    async fn run(mut self) {
        loop {
            match self.converse().await {
                Ok(()) => tracing::debug!(boat = %self.life.boat, "the boat ended its stream"),
                Err(status) => {
                    tracing::debug!(boat = %self.life.boat, error = %status, "cannot open a stream to a boat");
                }
            }
            if self
                .messages
                .send(BoatMessage::Lost(self.life.clone()))
                .await
                .is_err()
            {
                return;
            }
            tokio::time::sleep(self.backoff.failed(&*self.entropy)).await;
        }
    }

    /// Reads outcomes until the stream ends.
    async fn converse(&mut self) -> Result<(), tonic::Status> {
        let opening = self.client.deliver(self.outbox.open());
        let response = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
        let response =
            response.unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded(UNANSWERED)));
        let mut outcomes = response?.into_inner();
        while let Some(batch) = outcomes.message().await? {
            self.backoff.succeeded();
            let outcomes = batch.outcomes.iter().map(outcome).collect();
            if self
                .messages
                .send(BoatMessage::Outcomes(outcomes))
                .await
                .is_err()
            {
                break;
            }
        }
        Ok(())
    }
}

/// Reads an outcome. A kind that this version does not know counts as unreachable.
fn outcome(wire: &v1::Outcome) -> (PushToken, PushOutcome) {
    let outcome = match Kind::try_from(wire.kind) {
        Ok(Kind::Done) => PushOutcome::Done,
        Ok(Kind::NoAck) => PushOutcome::NoAck,
        Ok(Kind::NoSession) => PushOutcome::NoSession,
        Ok(Kind::Full) => PushOutcome::Full,
        Ok(Kind::Unspecified) | Err(_) => PushOutcome::Unreachable,
    };
    (PushToken::from_number(wire.token), outcome)
}
