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
    waiting: Mutex<BatchBacklog<T>>,
    came: Notify,
    max: BatchSize,
    linger: Duration,
}

struct BatchBacklog<T> {
    queue: VecDeque<T>,
    queued: BatchSize,
    /// Items to be repeated, each with the time from which it may be, in order.
    repeats: VecDeque<(Instant, T)>,
    repeated: BatchSize,
    /// Batches that the reader has in flight.
    in_flight: usize,
    /// Items dropped that nobody has counted yet.
    dropped: usize,
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
    fn of(one: &impl QueuedBatch) -> BatchSize {
        BatchSize {
            items: one.items(),
            bytes: one.bytes(),
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
    fn make_room(&mut self, one: BatchSize, max: BatchSize) -> bool {
        let queued = self.queued.plus(one);
        if !queued.fits(max) {
            return false;
        }
        while !queued.plus(self.repeated).fits(max)
            && let Some((_, oldest)) = self.repeats.pop_front()
        {
            self.repeated = self.repeated.minus(BatchSize::of(&oldest));
            self.dropped += oldest.items();
        }
        self.queued = queued;
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
    let within = items.enumerate().take_while(|(at, one)| {
        sum = sum.plus(BatchSize::of(*one));
        *at == 0 || sum.fits(max)
    });
    within.count()
}

impl<T: QueuedBatch> BatchQueue<T> {
    pub(crate) fn new(items_max: usize, bytes_max: usize) -> BatchQueue<T> {
        BatchQueue::lingering(items_max, bytes_max, Duration::ZERO)
    }

    /// A queue whose batches linger for more items; only for items that nobody waits for.
    pub(crate) fn lingering(items_max: usize, bytes_max: usize, linger: Duration) -> BatchQueue<T> {
        BatchQueue {
            waiting: Mutex::new(BatchBacklog {
                queue: VecDeque::new(),
                queued: BatchSize::default(),
                repeats: VecDeque::new(),
                repeated: BatchSize::default(),
                in_flight: 0,
                dropped: 0,
            }),
            came: Notify::new(),
            max: BatchSize {
                items: items_max,
                bytes: bytes_max,
            },
            linger,
        }
    }

    /// Adds an item, or hands it back if the queue is full.
    pub(crate) fn push(&self, one: T) -> Result<(), T> {
        let mut waiting = self.waiting.lock();
        if !waiting.make_room(BatchSize::of(&one), self.max) {
            return Err(one);
        }
        waiting.queue.push_back(one);
        drop(waiting);
        self.came.notify_one();
        Ok(())
    }

    /// Waits for items and returns up to about `items_max` of them, a batch in flight. Cancel safe.
    pub(crate) async fn begin(&self, items_max: usize) -> Vec<T> {
        while self.waiting.lock().queue.is_empty() {
            self.came.notified().await;
        }
        // Lets sessions that are ready in this turn of the runtime join the batch.
        tokio::task::yield_now().await;
        if !self.linger.is_zero() && self.waiting.lock().queued.items < items_max {
            tokio::time::sleep(self.linger).await;
        }
        self.take(items_max)
    }

    /// Marks one batch as done.
    pub(crate) fn done(&self) {
        let mut waiting = self.waiting.lock();
        waiting.in_flight = waiting.in_flight.saturating_sub(1);
    }

    /// Puts a batch back at the front for a retry, as far as there is room.
    pub(crate) fn put_back(&self, batch: Vec<T>) {
        let mut waiting = self.waiting.lock();
        for one in batch.into_iter().rev() {
            match waiting.make_room(BatchSize::of(&one), self.max) {
                true => waiting.queue.push_front(one),
                false => waiting.dropped += one.items(),
            }
        }
        drop(waiting);
        self.came.notify_one();
    }

    /// Sets items aside that are to be repeated from `due` on, as far as there is room. Each call's
    /// `due` is no earlier than that of the calls before.
    pub(crate) fn set_aside(&self, items: Vec<T>, due: Instant) {
        let mut waiting = self.waiting.lock();
        for one in items {
            let size = BatchSize::of(&one);
            let repeated = waiting.repeated.plus(size);
            if repeated.plus(waiting.queued).fits(self.max) {
                waiting.repeated = repeated;
                waiting.repeats.push_back((due, one));
            } else {
                waiting.dropped += size.items;
            }
        }
    }

    /// Time from which the next items may be repeated; `None` if there are none.
    pub(crate) fn repeat_due(&self) -> Option<Instant> {
        self.waiting.lock().repeats.front().map(|(due, _)| *due)
    }

    /// Returns up to about `items_max` items whose time to be repeated has come, a batch in flight;
    /// may be empty, and is none then.
    pub(crate) fn begin_repeat(&self, items_max: usize) -> Vec<T> {
        let now = Instant::now();
        let mut waiting = self.waiting.lock();
        let due = waiting.repeats.iter().take_while(|(due, _)| *due <= now);
        let count = first_batch(due.map(|(_, one)| one), items_max);
        let batch: Vec<T> = (waiting.repeats.drain(..count))
            .map(|(_, one)| one)
            .collect();
        let size = size_of(&batch);
        waiting.repeated = waiting.repeated.minus(size);
        waiting.in_flight += usize::from(!batch.is_empty());
        batch
    }

    /// Number of items dropped for want of room since the last call; an item that was handed back
    /// is none.
    pub(crate) fn take_dropped(&self) -> usize {
        std::mem::take(&mut self.waiting.lock().dropped)
    }

    /// True if nothing waits, to be repeated or not, and no batch is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.queue.is_empty() && waiting.repeats.is_empty() && waiting.in_flight == 0
    }

    fn take(&self, items_max: usize) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let count = first_batch(waiting.queue.iter(), items_max);
        let batch: Vec<T> = waiting.queue.drain(..count).collect();
        waiting.queued = waiting.queued.minus(size_of(&batch));
        waiting.in_flight += usize::from(!batch.is_empty());
        batch
    }
}

fn size_of<T: QueuedBatch>(batch: &[T]) -> BatchSize {
    (batch.iter().map(BatchSize::of)).fold(BatchSize::default(), BatchSize::plus)
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
        assert_eq!(gather.begin(10).await, [Parcel(1)]);
        assert!(!gather.is_idle(), "the first is in flight");
        for bytes in 2..6 {
            gather.push(Parcel(bytes)).expect("room");
        }
        assert_eq!(gather.begin(3).await, [Parcel(2), Parcel(3), Parcel(4)]);
        assert_eq!(gather.begin(3).await, [Parcel(5)]);
        let nothing = tokio::time::timeout(Duration::ZERO, gather.begin(3)).await;
        assert!(nothing.is_err());
        for _ in 0..3 {
            assert!(!gather.is_idle());
            gather.done();
        }
        assert!(gather.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_waits_for_company() {
        let linger = Duration::from_millis(20);
        let gather = BatchQueue::lingering(10, 100, linger);
        gather.push(Parcel(1)).expect("room");
        let begun = tokio::time::Instant::now();
        let (batch, ()) = tokio::join!(gather.begin(10), async {
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
        let batch = gather.begin(2).await;
        assert_eq!(batch, [Parcel(4), Parcel(4)]);
        gather.push(Parcel(5)).expect("room");
        gather.put_back(batch);
        assert_eq!(gather.take_dropped(), 1, "the oldest does not fit any more");
        assert_eq!(gather.begin(9).await, [Parcel(4), Parcel(1), Parcel(5)]);
    }

    #[tokio::test(start_paused = true)]
    async fn items_set_aside_are_repeated_when_due_and_in_order() {
        let gather = BatchQueue::new(10, 100);
        let pause = Duration::from_secs(1);
        let first = Instant::now() + pause;
        gather.set_aside(vec![Parcel(1), Parcel(2), Parcel(3)], first);
        gather.set_aside(vec![Parcel(4)], first + pause);
        assert!(gather.begin_repeat(2).is_empty() && !gather.is_idle());
        assert_eq!(gather.repeat_due(), Some(first));
        tokio::time::sleep(pause).await;
        assert_eq!(gather.begin_repeat(2), [Parcel(1), Parcel(2)]);
        assert_eq!(gather.begin_repeat(2), [Parcel(3)]);
        assert_eq!(gather.repeat_due(), Some(first + pause));
        tokio::time::sleep(pause).await;
        assert_eq!(gather.begin_repeat(2), [Parcel(4)]);
        assert_eq!(gather.repeat_due(), None);
        for _ in 0..3 {
            assert!(!gather.is_idle());
            gather.done();
        }
        assert!(gather.is_idle());
    }

    #[tokio::test]
    async fn items_set_aside_are_dropped_before_others() {
        let gather = BatchQueue::new(4, 100);
        let now = Instant::now();
        gather.push(Parcel(1)).expect("room");
        gather.set_aside((2..=5).map(Parcel).collect(), now);
        assert_eq!(gather.take_dropped(), 1, "no room for the last");
        gather
            .push(Parcel(6))
            .expect("room, in place of the oldest aside");
        assert_eq!(gather.take_dropped(), 1);
        gather.put_back(vec![Parcel(7)]);
        assert_eq!(gather.take_dropped(), 1);
        assert_eq!(gather.begin_repeat(9), [Parcel(4)]);
        assert_eq!(gather.begin(9).await, [Parcel(7), Parcel(1), Parcel(6)]);
        for bytes in 8..12 {
            gather.push(Parcel(bytes)).expect("room");
        }
        gather.set_aside(vec![Parcel(4)], now);
        assert_eq!(gather.push(Parcel(12)), Err(Parcel(12)));
        assert_eq!(gather.take_dropped(), 1, "the one set aside");
    }
}
