//! Queues of calls to stations, in lanes by session. A session has at most one submission and one
//! acknowledgement in flight, which keeps its order; calls of other sessions overtake a slow call.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, MailAck, ReceiptItem};
use protocol::session::Submit;

use super::batch_queue::{BatchQueue, QueuedBatch};
use super::pace::Pace;
use crate::Config;
use crate::connection::Connection;

/// Bytes of one kind that wait for a station in one lane. Sends and acknowledgements beyond them are
/// refused as `unavailable`.
const LANE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Time that acknowledgements and receipts wait for others, so that they share a call.
const RECEIPTS_LINGER: Duration = Duration::from_millis(20);

pub(crate) struct StationQueues {
    lanes: Vec<StationQueue>,
    pub(crate) batch_items_max: usize,
    /// Pause before a failed call is repeated.
    pub(super) retry_pause: Duration,
    pub(super) sign_offs: Pace,
}

pub(crate) struct StationQueue {
    pub(crate) sends: BatchQueue<Submission>,
    pub(crate) receipts: BatchQueue<Receipt>,
    pub(crate) mail_acks: BatchQueue<MailAck>,
    pub(crate) leaves: BatchQueue<Disconnect>,
}

/// The sends of one session that wait for their answers.
pub(crate) struct Submission {
    pub(crate) connection: Arc<Connection>,
    pub(crate) items: Vec<Submit>,
}

/// Acknowledgement of one session.
pub(crate) struct Receipt {
    pub(crate) connection: Arc<Connection>,
    pub(crate) item: ReceiptItem,
}

impl QueuedBatch for Submission {
    fn items(&self) -> usize {
        self.items.len()
    }

    fn bytes(&self) -> usize {
        (self.items.iter())
            .map(|item| 160 + item.send.content.data.len())
            .sum()
    }
}

impl QueuedBatch for Receipt {
    fn items(&self) -> usize {
        self.item.ack.items.len()
    }

    fn bytes(&self) -> usize {
        80 + 40 * self.item.ack.items.len()
    }
}

impl QueuedBatch for MailAck {
    fn bytes(&self) -> usize {
        64 + 10 * self.ids.len()
    }
}

impl QueuedBatch for Disconnect {
    fn bytes(&self) -> usize {
        64 + self.key.life.boat.as_str().len()
    }
}

impl StationQueues {
    pub(crate) fn new(config: &Config) -> StationQueues {
        let (items, bytes) = (config.lane_items_max, LANE_BYTES_MAX);
        let lane = || StationQueue {
            sends: BatchQueue::new(items, bytes),
            receipts: BatchQueue::with_linger(items, bytes, RECEIPTS_LINGER),
            mail_acks: BatchQueue::with_linger(items, bytes, RECEIPTS_LINGER),
            leaves: BatchQueue::new(items, bytes),
        };
        StationQueues {
            lanes: (0..config.lanes).map(|_| lane()).collect(),
            batch_items_max: config.batch_items_max,
            retry_pause: config.retry_pause,
            sign_offs: Pace::new(config.presence_writes_per_second.get()),
        }
    }

    pub(crate) fn get(&self, lane: usize) -> &StationQueue {
        &self.lanes[lane]
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether nothing waits and nothing is in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.lanes.iter().all(|lane| {
            lane.sends.is_idle()
                && lane.receipts.is_idle()
                && lane.mail_acks.is_idle()
                && lane.leaves.is_idle()
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::presence::{BoatLife, SessionKey};
    use protocol::{BoatId, Incarnation, SessionId, UserId};

    use super::*;

    // proves S1-08 in part: whoever leaves with a hundred thousand others is signed off with a thousand of them in a call,
    // and nobody is left out for want of room.
    #[tokio::test]
    async fn a_hundred_thousand_leave_in_a_hundred_calls() {
        const SESSION_COUNT: i64 = 100_000;
        let config = Config::default();
        let lanes = StationQueues::new(&config);
        let life = BoatLife {
            boat: BoatId::new("boat-1").expect("short"),
            incarnation: Incarnation(1),
        };
        for n in 1..=SESSION_COUNT {
            let key = SessionKey {
                user: UserId::new(n).expect("positive"),
                session: SessionId::new(n << 6).expect("positive"),
                life: life.clone(),
            };
            let queue = &lanes.get(n as usize % lanes.len()).leaves;
            let leave = Disconnect { key, ticket: None };
            assert_eq!(queue.push(leave), Ok(()), "{n}");
        }
        let mut calls = Vec::new();
        for lane in 0..lanes.len() {
            let queue = &lanes.get(lane).leaves;
            while !queue.is_idle() {
                calls.push(queue.begin(config.batch_items_max).await.len());
                queue.finish_batch();
            }
        }
        assert_eq!(calls.iter().sum::<usize>(), SESSION_COUNT as usize);
        assert!(calls.len() <= 100, "{}", calls.len());
    }
}
