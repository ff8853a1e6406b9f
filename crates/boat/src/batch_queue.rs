//! Batches items of many sessions into calls: items that queue up while a call is in flight go with
//! the next one. Only items that nobody waits for linger for a timer.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Item that can share a call with others.
pub(crate) trait QueuedBatch {
    /// Number of call items it stands for.
    fn items(&self) -> usize {
        1
    }

    /// Approximate size in a call, in bytes.
    fn bytes(&self) -> usize;
}

/// A bounded queue that is emptied in batches by one reader.
pub(crate) struct BatchQueue<T> {
    waiting: Mutex<BatchBacklog<T>>,
    came: Notify,
    items_max: usize,
    bytes_max: usize,
    linger: Duration,
}

struct BatchBacklog<T> {
    queue: VecDeque<T>,
    items: usize,
    bytes: usize,
    /// Batches that the reader has in flight.
    in_flight: usize,
}

/// Bytes of one batch, well below the largest message of a call.
const BATCH_BYTES: usize = 2 * 1024 * 1024;

impl<T: QueuedBatch> BatchQueue<T> {
    pub(crate) fn new(items_max: usize, bytes_max: usize) -> BatchQueue<T> {
        BatchQueue::lingering(items_max, bytes_max, Duration::ZERO)
    }

    /// A queue whose batches linger for more items; only for items that nobody waits for.
    pub(crate) fn lingering(items_max: usize, bytes_max: usize, linger: Duration) -> BatchQueue<T> {
        BatchQueue {
            waiting: Mutex::new(BatchBacklog {
                queue: VecDeque::new(),
                items: 0,
                bytes: 0,
                in_flight: 0,
            }),
            came: Notify::new(),
            items_max,
            bytes_max,
            linger,
        }
    }

    /// Adds an item, or hands it back if the queue is full.
    pub(crate) fn push(&self, one: T) -> Result<(), T> {
        let mut waiting = self.waiting.lock();
        let items = waiting.items + one.items();
        let bytes = waiting.bytes + one.bytes();
        if items > self.items_max || bytes > self.bytes_max {
            return Err(one);
        }
        waiting.items = items;
        waiting.bytes = bytes;
        waiting.queue.push_back(one);
        drop(waiting);
        self.came.notify_one();
        Ok(())
    }

    /// Waits for items and returns up to about `items_max` of them. Marks earlier batches as done.
    /// Cancel safe.
    pub(crate) async fn next(&self, items_max: usize) -> Vec<T> {
        self.waiting.lock().in_flight = 0;
        self.begin(items_max).await
    }

    /// Like [`BatchQueue::next`], but leaves the batches in flight as they are.
    pub(crate) async fn begin(&self, items_max: usize) -> Vec<T> {
        while self.waiting.lock().queue.is_empty() {
            self.came.notified().await;
        }
        // Lets sessions that are ready in this turn of the runtime join the batch.
        tokio::task::yield_now().await;
        if !self.linger.is_zero() && self.waiting.lock().items < items_max {
            tokio::time::sleep(self.linger).await;
        }
        self.take(items_max)
    }

    /// Marks one batch as done.
    pub(crate) fn done(&self) {
        let mut waiting = self.waiting.lock();
        waiting.in_flight = waiting.in_flight.saturating_sub(1);
    }

    /// Puts a batch back at the front for a retry, as far as there is room. Returns the number of
    /// items dropped.
    pub(crate) fn put_back(&self, batch: Vec<T>) -> usize {
        let mut waiting = self.waiting.lock();
        let mut lost = 0;
        for one in batch.into_iter().rev() {
            let items = waiting.items + one.items();
            let bytes = waiting.bytes + one.bytes();
            if items > self.items_max || bytes > self.bytes_max {
                lost += one.items();
                continue;
            }
            waiting.items = items;
            waiting.bytes = bytes;
            waiting.queue.push_front(one);
        }
        lost
    }

    /// True if the queue is empty and no batch is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.queue.is_empty() && waiting.in_flight == 0
    }

    fn take(&self, items_max: usize) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let (mut items, mut bytes, mut count) = (0, 0, 0);
        for one in &waiting.queue {
            items += one.items();
            bytes += one.bytes();
            if count > 0 && (items > items_max || bytes > BATCH_BYTES) {
                break;
            }
            count += 1;
        }
        let batch: Vec<T> = waiting.queue.drain(..count).collect();
        waiting.items -= batch.iter().map(T::items).sum::<usize>();
        waiting.bytes -= batch.iter().map(T::bytes).sum::<usize>();
        waiting.in_flight += usize::from(!batch.is_empty());
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Parcel(usize);

    impl QueuedBatch for Parcel {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[tokio::test]
    async fn what_came_meanwhile_goes_together_and_in_order() {
        let gather = BatchQueue::new(10, 100);
        gather.push(Parcel(1)).expect("room");
        assert_eq!(gather.next(10).await, [Parcel(1)]);
        assert!(!gather.is_idle(), "the first is in flight");
        for bytes in 2..6 {
            gather.push(Parcel(bytes)).expect("room");
        }
        assert_eq!(gather.next(3).await, [Parcel(2), Parcel(3), Parcel(4)]);
        assert_eq!(gather.next(3).await, [Parcel(5)]);
        let nothing = tokio::time::timeout(Duration::ZERO, gather.next(3)).await;
        assert!(nothing.is_err() && gather.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_waits_for_company() {
        let linger = Duration::from_millis(20);
        let gather = BatchQueue::lingering(10, 100, linger);
        gather.push(Parcel(1)).expect("room");
        let begun = tokio::time::Instant::now();
        let (batch, ()) = tokio::join!(gather.next(10), async {
            tokio::time::sleep(linger / 2).await;
            gather.push(Parcel(2)).expect("room");
        });
        assert_eq!(batch, [Parcel(1), Parcel(2)]);
        assert!(begun.elapsed() < linger * 2);
    }

    #[tokio::test]
    async fn items_and_bytes_are_bounded_and_a_batch_may_return() {
        let gather = BatchQueue::new(3, 10);
        for bytes in [4, 4] {
            gather.push(Parcel(bytes)).expect("room");
        }
        assert_eq!(gather.push(Parcel(3)), Err(Parcel(3)));
        gather.push(Parcel(1)).expect("room");
        assert_eq!(gather.push(Parcel(1)), Err(Parcel(1)));
        let batch = gather.next(2).await;
        assert_eq!(batch, [Parcel(4), Parcel(4)]);
        gather.push(Parcel(5)).expect("room");
        assert_eq!(
            gather.put_back(batch),
            1,
            "the oldest does not fit any more"
        );
        assert_eq!(gather.next(9).await, [Parcel(4), Parcel(1), Parcel(5)]);
    }
}
