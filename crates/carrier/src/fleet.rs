//! Step 6 of a message's way: the boats that a shard speaks with, one long-lived stream for each life.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::boat;
use api::transport::Connector;
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use api::v1::outcome::Kind;
use backend::clock::Entropy;
use protocol::Timestamp;
use protocol::access::Role;
use protocol::delivery::{Notice, Outcome, Push, PushToken, Word};
use protocol::frame::ServerFrame;
use protocol::presence::BoatLife;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::backoff::Backoff;
use crate::outbox::Outbox;
use crate::roster::{Roster, View};

/// What a boat's stream says to its shard.
#[derive(Debug)]
pub(crate) enum Heard {
    Outcomes(Vec<(PushToken, Outcome)>),
    /// The stream broke, or could not be opened.
    Lost(BoatLife),
}

pub(crate) struct Fleet {
    boats: BTreeMap<BoatLife, Boat>,
    connector: Connector,
    roster: Roster,
    heard: mpsc::Sender<Heard>,
    tasks: TaskTracker,
    entropy: Arc<dyn Entropy>,
    config: Arc<Config>,
}

struct Boat {
    outbox: Arc<Outbox>,
    /// Of this turn.
    deliveries: Vec<(Instant, boat::Delivery)>,
    notices: Vec<boat::Notice>,
    _ends_stream: DropGuard,
}

impl Fleet {
    pub(crate) fn new(
        connector: Connector,
        roster: Roster,
        heard: mpsc::Sender<Heard>,
        tasks: TaskTracker,
        entropy: Arc<dyn Entropy>,
        config: Arc<Config>,
    ) -> Fleet {
        Fleet {
            boats: BTreeMap::new(),
            connector,
            roster,
            heard,
            tasks,
            entropy,
            config,
        }
    }

    /// False where nobody knows how to reach the boat.
    pub(crate) fn push(&mut self, push: Push, now: Timestamp) -> bool {
        let Some(boat) = self.boat(&push.life) else {
            return false;
        };
        let until = Instant::now() + push.deadline.since(now);
        let delivery = boat::Delivery {
            token: push.token.number(),
            session: push.session,
            id: push.message,
            frame: push.frame,
            needs_ack: push.needs_ack,
            trace: push.trace,
        };
        boat.deliveries.push((until, delivery));
        true
    }

    /// To a boat that nobody can reach, nothing is said.
    pub(crate) fn notice(&mut self, notice: Notice) {
        let kind = match notice.word {
            Word::Placed(echo) => {
                let frame = api::codec::encode_server(&ServerFrame::Placed(echo));
                boat::NoticeKind::Frame(frame)
            }
            Word::Refused { send_id, refusal } => {
                let frame = api::codec::encode_server(&ServerFrame::Refused { send_id, refusal });
                boat::NoticeKind::Frame(frame)
            }
            Word::Hint => boat::NoticeKind::Hint,
            Word::Close(refusal) => boat::NoticeKind::Close(refusal),
        };
        if let Some(boat) = self.boat(&notice.life) {
            boat.notices.push(boat::Notice {
                session: notice.session,
                kind,
            });
        }
    }

    /// Hands over what gathered.
    pub(crate) fn flush(&mut self) {
        for boat in self.boats.values_mut() {
            if !boat.deliveries.is_empty() || !boat.notices.is_empty() {
                boat.outbox.fill(&mut boat.deliveries, &mut boat.notices);
            }
        }
    }

    /// What waited for this boat is handled otherwise.
    pub(crate) fn clear(&mut self, life: &BoatLife) {
        if let Some(boat) = self.boats.get_mut(life) {
            boat.outbox.clear();
            boat.deliveries.clear();
            boat.notices.clear();
        }
    }

    /// Ends the streams to boats that are over; answers which.
    pub(crate) fn follow(&mut self, view: &View) -> Vec<BoatLife> {
        let over: Vec<BoatLife> = self
            .boats
            .keys()
            .filter(|life| !view.addresses.contains_key(life) || view.denied.contains(life))
            .cloned()
            .collect();
        for life in &over {
            self.boats.remove(life);
        }
        over
    }

    fn boat(&mut self, life: &BoatLife) -> Option<&mut Boat> {
        if !self.boats.contains_key(life) {
            let Some(address) = self.roster.address(life) else {
                self.roster.met(life);
                return None;
            };
            let boat = self.sail(life, &address);
            self.boats.insert(life.clone(), boat);
        }
        self.boats.get_mut(life)
    }

    fn sail(&self, life: &BoatLife, address: &str) -> Boat {
        let config = &self.config;
        let outbox = Arc::new(Outbox::new(life, config.push_batch_max, config.notices_max));
        let stop = CancellationToken::new();
        let stream = Stream {
            life: life.clone(),
            outbox: Arc::clone(&outbox),
            client: BoatServiceClient::new(self.connector.channel(Role::Boat, address)),
            heard: self.heard.clone(),
            backoff: Backoff::new(config),
            entropy: Arc::clone(&self.entropy),
        };
        let until = stop.clone();
        self.tasks.spawn(async move {
            until.run_until_cancelled(stream.run()).await;
        });
        Boat {
            outbox,
            deliveries: Vec::new(),
            notices: Vec::new(),
            _ends_stream: stop.drop_guard(),
        }
    }
}

/// Keeps a `Deliver` stream to one life of one boat open.
struct Stream {
    life: BoatLife,
    outbox: Arc<Outbox>,
    client: BoatServiceClient<api::transport::Channel>,
    heard: mpsc::Sender<Heard>,
    backoff: Backoff,
    entropy: Arc<dyn Entropy>,
}

impl Stream {
    async fn run(mut self) {
        loop {
            match self.converse().await {
                Ok(()) => tracing::debug!(boat = %self.life.boat, "the boat ended its stream"),
                Err(status) => {
                    tracing::debug!(boat = %self.life.boat, error = %status, "no stream to a boat");
                }
            }
            if self
                .heard
                .send(Heard::Lost(self.life.clone()))
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
        let mut outcomes = self.client.deliver(self.outbox.open()).await?.into_inner();
        while let Some(batch) = outcomes.message().await? {
            self.backoff.succeeded();
            let outcomes = batch.outcomes.iter().map(outcome).collect();
            if self.heard.send(Heard::Outcomes(outcomes)).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// An outcome of a kind that this version does not know is none that succeeded.
fn outcome(wire: &v1::Outcome) -> (PushToken, Outcome) {
    let outcome = match Kind::try_from(wire.kind) {
        Ok(Kind::Done) => Outcome::Done,
        Ok(Kind::NoAck) => Outcome::NoAck,
        Ok(Kind::NoSession) => Outcome::NoSession,
        Ok(Kind::Full) => Outcome::Full,
        Ok(Kind::Unspecified) | Err(_) => Outcome::Unreachable,
    };
    (PushToken::from_number(wire.token), outcome)
}
