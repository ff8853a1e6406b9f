//! Kickouts: published in the background, retried within bounds.
//!
//! Nobody waits for a kickout (S1-22). A lost one is made good: a displaced session is registered
//! nowhere, so its boat's next sweep finds it.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::Clock;
use backend::queue::{NewRecord, Producer};
use metrics::{Counter, counter};
use protocol::keys::control_key;
use protocol::mailbox::replaced_session_refusal;
use protocol::pause::Backoff;
use protocol::presence::SessionKey;
use protocol::record::{KickoutTask, Task, Work};
use protocol::{Code, Refusal, UserId};
use tokio::time::sleep;

use crate::accept::Records;
use crate::config::Config;
use crate::part_spawner::PartSpawner;
use crate::work_queue::{WAITING_MAX, WorkQueue};

/// Attempts to kick out a displaced session; then the boats' sweep does it.
const KICKOUT_ATTEMPTS: u32 = 8;

/// Sessions of one user to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KickoutRequest {
    pub(crate) user: UserId,
    pub(crate) sessions: Vec<SessionKey>,
    pub(crate) refusal: Refusal,
}

impl KickoutRequest {
    /// Ends the older sessions of a platform, after another device signed in.
    pub(crate) fn displaced(user: UserId, sessions: Vec<SessionKey>) -> KickoutRequest {
        let text = "signed in elsewhere on the same platform";
        KickoutRequest {
            user,
            sessions,
            refusal: Refusal::new(Code::Displaced, text),
        }
    }

    /// Ends the older sessions of a device, after it signed in again.
    pub(crate) fn replaced(user: UserId, sessions: Vec<SessionKey>) -> KickoutRequest {
        KickoutRequest {
            user,
            sessions,
            refusal: replaced_session_refusal(),
        }
    }
}

/// Kickouts to be published.
pub(crate) struct KickoutQueue {
    publisher: KickoutPublisher,
    queue: WorkQueue<KickoutRequest>,
}

/// Publishes kickouts.
#[derive(Clone)]
struct KickoutPublisher {
    producer: Arc<dyn Producer>,
    records: Records,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    published_total: Counter,
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl KickoutQueue {
    /// Starts the publisher.
    pub(crate) fn start(
        backends: &Backends,
        config: &Config,
        spawner: &PartSpawner,
    ) -> KickoutQueue {
        let publisher = KickoutPublisher {
            producer: backends.queue.producer(),
            records: Records::new(backends),
            clock: backends.clock.clone(),
            deadline: config.publish_deadline,
            published_total: counter!("station_kickouts_published_total"),
        };
        let worker = publisher.clone();
        let publish = move |batch| worker.clone().publish_all(batch);
        let queue = WorkQueue::spawn(spawner, "kickout", WAITING_MAX, publish);
        KickoutQueue { publisher, queue }
    }

    /// Publishes a kickout in the background.
    pub(crate) fn offer(&self, request: KickoutRequest) {
        self.queue.offer(request);
    }

    /// Publishes one kickout once, for callers that wait for the answer.
    pub(crate) async fn publish(&self, request: KickoutRequest) -> Result<(), Refusal> {
        let record = self.publisher.record(request);
        if self.publisher.publish_once(vec![record]).await.is_empty() {
            Ok(())
        } else {
            Err(Refusal::new(
                Code::Unavailable,
                "the log cannot accept the kickout now",
            ))
        }
    }
}

impl KickoutPublisher {
    /// Publishes all, and retries those that fail, with growing pauses, until it gives them up.
    async fn publish_all(self, requests: Vec<KickoutRequest>) {
        let mut pending: Vec<_> = requests
            .into_iter()
            .map(|request| self.record(request))
            .collect();
        let mut backoff = Backoff::new(FIRST_PAUSE, PAUSE_MAX);
        for attempt in 1..=KICKOUT_ATTEMPTS {
            pending = self.publish_once(pending).await;
            if pending.is_empty() {
                return;
            }
            if attempt < KICKOUT_ATTEMPTS {
                sleep(backoff.failed()).await;
            }
        }
        metrics::counter!("station_kickouts_given_up_total").increment(pending.len() as u64);
        tracing::warn!(
            kickouts = pending.len(),
            "gave up publishing kickouts; the boats' sweep will end the displaced sessions"
        );
    }

    fn record(&self, request: KickoutRequest) -> NewRecord {
        let key = control_key(request.user);
        let work = Work::Kickout(KickoutTask {
            sessions: request.sessions,
            refusal: request.refusal,
        });
        self.records.record(key, &Task::new(work, self.clock.now()))
    }

    /// Returns the records that were not acknowledged. A kickout names exact sessions, so a second
    /// one does no more.
    async fn publish_once(&self, records: Vec<NewRecord>) -> Vec<NewRecord> {
        let request = self.producer.publish_within(records.clone(), self.deadline);
        let answers = request.await;
        let total = records.len();
        let mut answers = answers.into_iter();
        let pending: Vec<_> = records
            .into_iter()
            .filter(|_| !matches!(answers.next(), Some(Some(Ok(_)))))
            .collect();
        self.published_total
            .increment((total - pending.len()) as u64);
        pending
    }
}
