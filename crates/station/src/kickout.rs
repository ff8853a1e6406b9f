//! Kickouts: published in the background, retried within bounds.
//!
//! Nobody waits for a kickout (S1-22). A lost one is made good: a displaced session is registered
//! nowhere, so its boat's next sweep finds it.

use std::sync::Arc;
use std::time::Duration;

use backend::clock::Clock;
use backend::queue::{NewRecord, Producer};
use metrics::Counter;
use protocol::keys::control_key;
use protocol::mailbox::signed_in_again;
use protocol::presence::SessionKey;
use protocol::record::{KickoutTask, Task, Work};
use protocol::{Code, Refusal, UserId};
use tokio::time::sleep;

use crate::publisher::Records;

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
            refusal: signed_in_again(),
        }
    }
}

/// Publishes kickouts.
#[derive(Clone)]
pub(crate) struct KickoutQueue {
    pub(crate) producer: Arc<dyn Producer>,
    pub(crate) records: Records,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    pub(crate) attempts: u32,
    pub(crate) published: Counter,
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl KickoutQueue {
    /// Publishes one kickout once, for callers that wait for the answer.
    pub(crate) async fn publish(&self, kick: KickoutRequest) -> Result<(), Refusal> {
        match self.publish_once(vec![self.record(kick)]).await.is_empty() {
            true => Ok(()),
            false => Err(Refusal::new(
                Code::Unavailable,
                "the log cannot take the kickout now",
            )),
        }
    }

    /// Publishes all, and retries those that fail, with growing pauses, until it gives them up.
    pub(crate) async fn publish_all(self, kicks: Vec<KickoutRequest>) {
        let mut left: Vec<_> = kicks.into_iter().map(|kick| self.record(kick)).collect();
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=self.attempts.max(1) {
            left = self.publish_once(left).await;
            if left.is_empty() {
                return;
            }
            if attempt < self.attempts {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        metrics::counter!("station_kickouts_given_up_total").increment(left.len() as u64);
        tracing::warn!(
            kickouts = left.len(),
            "kickouts given up; the boats' sweep will find the displaced sessions"
        );
    }

    fn record(&self, kick: KickoutRequest) -> NewRecord {
        let key = control_key(kick.user);
        let work = Work::Kickout(KickoutTask {
            sessions: kick.sessions,
            refusal: kick.refusal,
        });
        self.records.record(key, &Task::new(work, self.clock.now()))
    }

    /// Returns the records that were not acknowledged. A kickout names exact sessions, so a second
    /// one does no more.
    async fn publish_once(&self, records: Vec<NewRecord>) -> Vec<NewRecord> {
        let published = self.producer.publish_within(records.clone(), self.deadline);
        let answers = published.await;
        let offered = records.len();
        let mut answers = answers.into_iter();
        let left: Vec<_> = records
            .into_iter()
            .filter(|_| !matches!(answers.next(), Some(Some(Ok(_)))))
            .collect();
        self.published.increment((offered - left.len()) as u64);
        left
    }
}
