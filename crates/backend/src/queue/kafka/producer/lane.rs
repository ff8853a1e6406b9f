//! Publishes of one partition: a batch in flight, and the next one gathering.
//!
//! librdkafka sends nothing more for a partition while five of its records are in flight, and the
//! thread of that broker spins as long as any record waits (librdkafka#3692): on a slow broker that
//! takes CPU away from everything else. So librdkafka gets only as much as it can send at once, and
//! the rest waits here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Result;
use crate::queue::NewRecord;

/// Maximum number of records in a batch: librdkafka puts this many into one request.
const RECORDS_MAX: usize = 10_000;

type Answers = Vec<Result<u64>>;

/// Queue of publishes for one partition.
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    publishes: VecDeque<Publish>,
    is_carried: bool,
}

struct Publish {
    records: Vec<NewRecord>,
    bytes: usize,
    queued_at: Instant,
    waiter: oneshot::Sender<Answers>,
}

/// Publishes that go together.
pub(super) struct LaneBatch {
    pub(super) records: Vec<NewRecord>,
    /// Record count of each publish, and the channel of its answers.
    publishes: Vec<(usize, oneshot::Sender<Answers>)>,
}

impl Lane {
    /// Adds a publish; returns the channel of its answers and, if nobody carries the lane, the
    /// right to do so, which the caller must use.
    pub(super) fn add(
        self: &Arc<Lane>,
        records: Vec<NewRecord>,
        bytes: usize,
    ) -> (oneshot::Receiver<Answers>, Option<LaneGuard>) {
        let (waiter, answers) = oneshot::channel();
        let mut state = self.state.lock();
        // The caller of such a publish gave up; only publishes with a waiter take up memory.
        while state
            .publishes
            .front()
            .is_some_and(|oldest| oldest.waiter.is_closed())
        {
            state.publishes.pop_front();
        }
        state.publishes.push_back(Publish {
            records,
            bytes,
            queued_at: Instant::now(),
            waiter,
        });
        let is_free = !std::mem::replace(&mut state.is_carried, true);
        let guard = is_free.then(|| LaneGuard {
            lane: self.clone(),
            has_ended: false,
        });
        (answers, guard)
    }
}

/// The right to carry a lane, held by one task at a time.
pub(super) struct LaneGuard {
    lane: Arc<Lane>,
    has_ended: bool,
}

impl LaneGuard {
    /// Takes the next batch, of up to `bytes_max` bytes unless a single publish has more; `None`
    /// ends the guard's work. Skips publishes that were dropped or are older than
    /// `publish_timeout`.
    pub(super) fn next(
        &mut self,
        bytes_max: usize,
        publish_timeout: Duration,
    ) -> Option<LaneBatch> {
        let mut state = self.lane.state.lock();
        let mut batch = LaneBatch {
            records: Vec::new(),
            publishes: Vec::new(),
        };
        let mut bytes = 0;
        while let Some(publish) = state.publishes.pop_front() {
            if publish.waiter.is_closed() || publish.queued_at.elapsed() >= publish_timeout {
                continue;
            }
            let count = batch.records.len() + publish.records.len();
            bytes += publish.bytes;
            if !batch.records.is_empty() && (bytes > bytes_max || count > RECORDS_MAX) {
                state.publishes.push_front(publish);
                break;
            }
            let waiter = (publish.records.len(), publish.waiter);
            batch.records.extend(publish.records);
            batch.publishes.push(waiter);
        }
        if batch.publishes.is_empty() {
            state.is_carried = false;
            self.has_ended = true;
            return None;
        }
        Some(batch)
    }
}

impl Drop for LaneGuard {
    /// Frees the lane of a carrier that ended midway, so that the next one can start.
    fn drop(&mut self) {
        if !self.has_ended {
            self.lane.state.lock().is_carried = false;
        }
    }
}

impl LaneBatch {
    /// Positions of records whose publish was dropped.
    pub(super) fn dropped(&self) -> impl Iterator<Item = usize> {
        let mut end = 0;
        self.publishes.iter().flat_map(move |(count, waiter)| {
            let places = end..end + count;
            end = places.end;
            if waiter.is_closed() { places } else { 0..0 }
        })
    }

    /// Sends each publish its answers, one per record, in order.
    pub(super) fn answer(self, answers: Answers) {
        let mut answers = answers.into_iter();
        for (count, waiter) in self.publishes {
            // The waiter is gone if the publish was dropped.
            let _ = waiter.send(answers.by_ref().take(count).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::keys::Topic;

    use super::*;
    use crate::queue::Partition;

    const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

    fn records(values: std::ops::Range<u8>) -> Vec<NewRecord> {
        let record = |n: u8| NewRecord {
            partition: Partition {
                topic: Topic::Message,
                number: 0,
            },
            key: Bytes::from_static(b"key"),
            headers: Vec::new(),
            value: vec![n].into(),
        };
        values.map(record).collect()
    }

    fn values(batch: &LaneBatch) -> Vec<u8> {
        batch.records.iter().map(|r| r.value[0]).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn publishes_during_a_batch_go_with_the_next() {
        let lane = Arc::new(Lane::default());
        let (first, guard) = lane.add(records(0..2), 10);
        let mut guard = guard.expect("nobody carries it");
        let batch = guard.next(100, PUBLISH_TIMEOUT).expect("one waits");
        assert_eq!(values(&batch), [0, 1]);
        let (second, second_guard) = lane.add(records(2..3), 10);
        assert!(second_guard.is_none(), "one at a time");
        let (dropped_answers, _) = lane.add(records(3..4), 10);
        let (third, _) = lane.add(records(4..6), 10);
        drop(dropped_answers);
        batch.answer(vec![Ok(7), Ok(8)]);
        assert_eq!(first.await.unwrap().into_iter().flatten().sum::<u64>(), 15);

        let batch = guard.next(100, PUBLISH_TIMEOUT).expect("two wait");
        assert_eq!(values(&batch), [2, 4, 5]);
        drop(third);
        assert_eq!(batch.dropped().collect::<Vec<_>>(), [1, 2]);
        batch.answer(vec![Ok(9), Ok(10), Ok(11)]);
        assert_eq!(second.await.unwrap().into_iter().flatten().sum::<u64>(), 9);
        assert!(guard.next(100, PUBLISH_TIMEOUT).is_none());
        assert!(lane.add(records(0..1), 10).1.is_some(), "free again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_bounded_and_nobody_waits_for_ever() {
        let lane = Arc::new(Lane::default());
        let (_large, guard) = lane.add(records(0..1), 1000);
        let mut guard = guard.expect("nobody carries it");
        let (_one, _) = lane.add(records(1..2), 60);
        let (_two, _) = lane.add(records(2..3), 60);
        for expected in [[0], [1]] {
            let batch = guard.next(100, PUBLISH_TIMEOUT).expect("one waits");
            assert_eq!(values(&batch), expected);
        }
        tokio::time::advance(PUBLISH_TIMEOUT).await;
        assert!(
            guard.next(100, PUBLISH_TIMEOUT).is_none(),
            "it waited too long"
        );
        assert!(_two.await.is_err());
        drop(guard);

        let (_answers, broken) = lane.add(records(0..1), 10);
        drop(broken.expect("free"));
        assert!(
            lane.add(records(1..2), 10).1.is_some(),
            "it may be carried again"
        );
    }
}
