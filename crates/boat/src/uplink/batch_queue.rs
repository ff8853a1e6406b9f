//! Batches items of many sessions into calls: items that queue up while a call is in flight go with
//! the next one. Only items that nobody waits for linger for a timer.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Item that can share a call with others.
pub(crate) trait QueuedBatch {
    /// Number of call items it stands for.
    fn items(&self) -> usize {
        1
    }

    /// Approximate size in a call, in bytes.
    fn bytes(&self) -> usize;
}

/// A bounded queue that is emptied in batches by one reader. Items that a call left unanswered wait
/// aside, within the same bounds, and are dropped first where room is short.
pub(crate) struct BatchQueue<T> {
    backlog: Mutex<BatchBacklog<T>>,
    item_arrival: Notify,
    max: BatchSize,
    linger: Duration,
}

struct BatchBacklog<T> {
    queue: VecDeque<T>,
    queue_size: BatchSize,
    /// Items to be repeated, each with the time from which it may be, in order.
    repeats: VecDeque<(Instant, T)>,
    repeat_size: BatchSize,
    /// Batches that the reader has in flight.
    in_flight: usize,
    /// Items dropped that nobody has counted yet.
    dropped_count: usize,
}

/// Sum over several items.
#[derive(Clone, Copy, Default)]
struct BatchSize {
    items: usize,
    bytes: usize,
}

/// Bytes of one batch, well below the largest message of a call.
const BATCH_BYTES: usize = 2 * 1024 * 1024;

impl BatchSize {
    fn from_item(item: &impl QueuedBatch) -> BatchSize {
        BatchSize {
            items: item.items(),
            bytes: item.bytes(),
        }
    }

    fn plus(self, other: BatchSize) -> BatchSize {
        BatchSize {
            items: self.items + other.items,
            bytes: self.bytes + other.bytes,
        }
    }

    fn minus(self, other: BatchSize) -> BatchSize {
        BatchSize {
            items: self.items - other.items,
            bytes: self.bytes - other.bytes,
        }
    }

    fn fits(self, max: BatchSize) -> bool {
        self.items <= max.items && self.bytes <= max.bytes
    }
}

impl<T: QueuedBatch> BatchBacklog<T> {
    /// Makes room in the queue for an item of this size, if need be in place of items to be
    /// repeated; false if there is none.
    fn make_room(&mut self, size: BatchSize, max: BatchSize) -> bool {
        let queue_size = self.queue_size.plus(size);
        if !queue_size.fits(max) {
            return false;
        }
        while !queue_size.plus(self.repeat_size).fits(max)
            && let Some((_, oldest)) = self.repeats.pop_front()
        {
            self.repeat_size = self.repeat_size.minus(BatchSize::from_item(&oldest));
            self.dropped_count += oldest.items();
        }
        self.queue_size = queue_size;
        true
    }
}

/// Number of the first of these items that go into one batch.
fn first_batch<'a, T: QueuedBatch + 'a>(
    items: impl Iterator<Item = &'a T>,
    items_max: usize,
) -> usize {
    let max = BatchSize {
        items: items_max,
        bytes: BATCH_BYTES,
    };
    let mut sum = BatchSize::default();
    let batch = items.enumerate().take_while(|(index, item)| {
        sum = sum.plus(BatchSize::from_item(*item));
        *index == 0 || sum.fits(max)
    });
    batch.count()
}

impl<T: QueuedBatch> BatchQueue<T> {
    pub(crate) fn new(items_max: usize, bytes_max: usize) -> BatchQueue<T> {
        BatchQueue::with_linger(items_max, bytes_max, Duration::ZERO)
    }

    /// A queue whose batches linger for more items; only for items that nobody waits for.
    pub(crate) fn with_linger(
        items_max: usize,
        bytes_max: usize,
        linger: Duration,
    ) -> BatchQueue<T> {
        BatchQueue {
            backlog: Mutex::new(BatchBacklog {
                queue: VecDeque::new(),
                queue_size: BatchSize::default(),
                repeats: VecDeque::new(),
                repeat_size: BatchSize::default(),
                in_flight: 0,
                dropped_count: 0,
            }),
            item_arrival: Notify::new(),
            max: BatchSize {
                items: items_max,
                bytes: bytes_max,
            },
            linger,
        }
    }

    /// Adds an item, or hands it back if the queue is full.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut backlog = self.backlog.lock();
        if !backlog.make_room(BatchSize::from_item(&item), self.max) {
            return Err(item);
        }
        backlog.queue.push_back(item);
        drop(backlog);
        self.item_arrival.notify_one();
        Ok(())
    }

    /// Waits for items and returns up to about `items_max` of them, a batch in flight. Cancel safe.
    pub(crate) async fn begin(&self, items_max: usize) -> Vec<T> {
        while self.backlog.lock().queue.is_empty() {
            self.item_arrival.notified().await;
        }
        // Lets sessions that are ready in this turn of the runtime join the batch.
        tokio::task::yield_now().await;
        if !self.linger.is_zero() && self.backlog.lock().queue_size.items < items_max {
            tokio::time::sleep(self.linger).await;
        }
        self.take(items_max)
    }

    /// Marks one batch as done.
    pub(crate) fn finish_batch(&self) {
        let mut backlog = self.backlog.lock();
        backlog.in_flight = backlog.in_flight.saturating_sub(1);
    }

    /// Puts a batch back at the front for a retry, as far as there is room.
    pub(crate) fn put_back(&self, batch: Vec<T>) {
        let mut backlog = self.backlog.lock();
        for item in batch.into_iter().rev() {
            if backlog.make_room(BatchSize::from_item(&item), self.max) {
                backlog.queue.push_front(item)
            } else {
                backlog.dropped_count += item.items()
            }
        }
        drop(backlog);
        self.item_arrival.notify_one();
    }

    /// Sets items aside that are to be repeated from `repeat_at` on, as far as there is room. Each
    /// call's `repeat_at` is no earlier than that of the calls before.
    pub(crate) fn set_aside(&self, items: Vec<T>, repeat_at: Instant) {
        let mut backlog = self.backlog.lock();
        for item in items {
            let size = BatchSize::from_item(&item);
            let repeat_size = backlog.repeat_size.plus(size);
            if repeat_size.plus(backlog.queue_size).fits(self.max) {
                backlog.repeat_size = repeat_size;
                backlog.repeats.push_back((repeat_at, item));
            } else {
                backlog.dropped_count += size.items;
            }
        }
    }

    /// Time from which the next items may be repeated; `None` if there are none.
    pub(crate) fn repeat_due(&self) -> Option<Instant> {
        self.backlog
            .lock()
            .repeats
            .front()
            .map(|(repeat_at, _)| *repeat_at)
    }

    /// Returns up to about `items_max` items whose time to be repeated has come. Unless there are
    /// none, they count as a batch in flight.
    pub(crate) fn begin_repeat(&self, items_max: usize) -> Vec<T> {
        let now = Instant::now();
        let mut backlog = self.backlog.lock();
        let due = backlog.repeats.iter().take_while(|(due, _)| *due <= now);
        let count = first_batch(due.map(|(_, item)| item), items_max);
        let batch: Vec<T> = (backlog.repeats.drain(..count))
            .map(|(_, item)| item)
            .collect();
        let size = total_size(&batch);
        backlog.repeat_size = backlog.repeat_size.minus(size);
        backlog.in_flight += usize::from(!batch.is_empty());
        batch
    }

    /// Number of items dropped for want of room since the last call; items that were handed back
    /// do not count.
    pub(crate) fn take_dropped(&self) -> usize {
        std::mem::take(&mut self.backlog.lock().dropped_count)
    }

    /// Whether nothing waits, to be repeated or not, and no batch is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let backlog = self.backlog.lock();
        backlog.queue.is_empty() && backlog.repeats.is_empty() && backlog.in_flight == 0
    }

    fn take(&self, items_max: usize) -> Vec<T> {
        let mut backlog = self.backlog.lock();
        let count = first_batch(backlog.queue.iter(), items_max);
        let batch: Vec<T> = backlog.queue.drain(..count).collect();
        backlog.queue_size = backlog.queue_size.minus(total_size(&batch));
        backlog.in_flight += usize::from(!batch.is_empty());
        batch
    }
}

fn total_size<T: QueuedBatch>(batch: &[T]) -> BatchSize {
    (batch.iter().map(BatchSize::from_item)).fold(BatchSize::default(), BatchSize::plus)
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
    async fn items_queued_meanwhile_share_a_batch_in_order() {
        let queue = BatchQueue::new(10, 100);
        queue.push(Parcel(1)).expect("room");
        assert_eq!(queue.begin(10).await, [Parcel(1)]);
        assert!(!queue.is_idle(), "the first is in flight");
        for bytes in 2..6 {
            queue.push(Parcel(bytes)).expect("room");
        }
        assert_eq!(queue.begin(3).await, [Parcel(2), Parcel(3), Parcel(4)]);
        assert_eq!(queue.begin(3).await, [Parcel(5)]);
        let outcome = tokio::time::timeout(Duration::ZERO, queue.begin(3)).await;
        assert!(outcome.is_err());
        for _ in 0..3 {
            assert!(!queue.is_idle());
            queue.finish_batch();
        }
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_items_wait_for_more() {
        let linger = Duration::from_millis(20);
        let queue = BatchQueue::with_linger(10, 100, linger);
        queue.push(Parcel(1)).expect("room");
        let start = tokio::time::Instant::now();
        let (batch, ()) = tokio::join!(queue.begin(10), async {
            tokio::time::sleep(linger / 2).await;
            queue.push(Parcel(2)).expect("room");
        });
        assert_eq!(batch, [Parcel(1), Parcel(2)]);
        assert!(start.elapsed() < linger * 2);
    }

    #[tokio::test]
    async fn items_and_bytes_are_bounded_and_a_batch_may_return() {
        let queue = BatchQueue::new(3, 10);
        for bytes in [4, 4] {
            queue.push(Parcel(bytes)).expect("room");
        }
        assert_eq!(queue.push(Parcel(3)), Err(Parcel(3)));
        queue.push(Parcel(1)).expect("room");
        assert_eq!(queue.push(Parcel(1)), Err(Parcel(1)));
        let batch = queue.begin(2).await;
        assert_eq!(batch, [Parcel(4), Parcel(4)]);
        queue.push(Parcel(5)).expect("room");
        queue.put_back(batch);
        assert_eq!(queue.take_dropped(), 1, "the oldest does not fit any more");
        assert_eq!(queue.begin(9).await, [Parcel(4), Parcel(1), Parcel(5)]);
    }

    #[tokio::test(start_paused = true)]
    async fn items_set_aside_are_repeated_when_due_and_in_order() {
        let queue = BatchQueue::new(10, 100);
        let pause = Duration::from_secs(1);
        let first = Instant::now() + pause;
        queue.set_aside(vec![Parcel(1), Parcel(2), Parcel(3)], first);
        queue.set_aside(vec![Parcel(4)], first + pause);
        assert!(queue.begin_repeat(2).is_empty() && !queue.is_idle());
        assert_eq!(queue.repeat_due(), Some(first));
        tokio::time::sleep(pause).await;
        assert_eq!(queue.begin_repeat(2), [Parcel(1), Parcel(2)]);
        assert_eq!(queue.begin_repeat(2), [Parcel(3)]);
        assert_eq!(queue.repeat_due(), Some(first + pause));
        tokio::time::sleep(pause).await;
        assert_eq!(queue.begin_repeat(2), [Parcel(4)]);
        assert_eq!(queue.repeat_due(), None);
        for _ in 0..3 {
            assert!(!queue.is_idle());
            queue.finish_batch();
        }
        assert!(queue.is_idle());
    }

    #[tokio::test]
    async fn items_set_aside_are_dropped_before_others() {
        let queue = BatchQueue::new(4, 100);
        let now = Instant::now();
        queue.push(Parcel(1)).expect("room");
        queue.set_aside((2..=5).map(Parcel).collect(), now);
        assert_eq!(queue.take_dropped(), 1, "no room for the last");
        queue
            .push(Parcel(6))
            .expect("room, in place of the oldest aside");
        assert_eq!(queue.take_dropped(), 1);
        queue.put_back(vec![Parcel(7)]);
        assert_eq!(queue.take_dropped(), 1);
        assert_eq!(queue.begin_repeat(9), [Parcel(4)]);
        assert_eq!(queue.begin(9).await, [Parcel(7), Parcel(1), Parcel(6)]);
        for bytes in 8..12 {
            queue.push(Parcel(bytes)).expect("room");
        }
        queue.set_aside(vec![Parcel(4)], now);
        assert_eq!(queue.push(Parcel(12)), Err(Parcel(12)));
        assert_eq!(queue.take_dropped(), 1, "the one set aside");
    }
}
