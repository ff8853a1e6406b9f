//! Connections of one loop that are due for a turn.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// Slots of ready connections, in the order in which they became ready.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue(Mutex<ReadySlots>);

#[derive(Debug, Default)]
struct ReadySlots {
    slots: Vec<u32>,
    /// Waker of the loop while it sleeps.
    waker: Option<Waker>,
}

impl ReadyQueue {
    pub(crate) fn push(&self, slot: u32) {
        self.add(Some(slot));
    }

    /// Wakes the loop if it sleeps.
    pub(crate) fn wake(&self) {
        self.add(None);
    }

    fn add(&self, slot: Option<u32>) {
        let mut queue = self.0.lock();
        queue.slots.extend(slot);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves the ready slots behind those in `ready`. If it stays empty, the next push wakes the
    /// loop.
    pub(crate) fn take(&self, ready: &mut Vec<u32>, cx: &Context<'_>) {
        let mut queue = self.0.lock();
        if ready.is_empty() {
            std::mem::swap(ready, &mut queue.slots);
        } else {
            ready.append(&mut queue.slots);
        }
        if ready.is_empty() {
            queue.waker = Some(cx.waker().clone());
        }
    }
}
