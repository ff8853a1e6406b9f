//! One publish under way: its records' answers, and who waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::Result;
use crate::queue::Partition;

/// One a record, in order; `None` is not answered yet.
pub(super) type Answers = Vec<Option<Result<u64>>>;

/// Records that were handed over: their places in the publish, and where their answers will come.
pub(super) struct Sent {
    pub(super) places: Vec<usize>,
    pub(super) answered: oneshot::Receiver<Vec<Result<u64>>>,
}

/// The batches of a generation that wait for an acknowledgement.
#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<InFlightState>,
}

#[derive(Default)]
struct InFlightState {
    next: u64,
    /// By age.
    batches: BTreeMap<u64, (Instant, BTreeSet<Partition>)>,
}

impl InFlight {
    fn enter(&self, partitions: &BTreeSet<Partition>) -> u64 {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state
            .batches
            .insert(id, (Instant::now(), partitions.clone()));
        id
    }

    fn leave(&self, id: u64) {
        self.state.lock().batches.remove(&id);
    }

    /// Since when the oldest waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let state = self.state.lock();
        state
            .batches
            .first_key_value()
            .map(|(_, (since, _))| *since)
    }

    pub(super) fn any_after(&self, time: Instant) -> bool {
        let state = self.state.lock();
        state.batches.values().any(|(since, _)| *since > time)
    }

    /// What waits since `time` or longer.
    pub(super) fn before(&self, time: Instant) -> BTreeSet<Partition> {
        let state = self.state.lock();
        let old = state.batches.values().filter(|(since, _)| *since <= time);
        old.flat_map(|(_, partitions)| partitions.iter().copied())
            .collect()
    }

    pub(super) fn holds_any(&self, partitions: &BTreeSet<Partition>) -> bool {
        let state = self.state.lock();
        let mut batches = state.batches.values();
        batches.any(|(_, held)| !held.is_disjoint(partitions))
    }
}

/// The records of one publish. It ends when each of them is answered.
pub(super) struct Batch {
    id: u64,
    in_flight: Arc<InFlight>,
    state: Mutex<BatchState>,
    /// Its share of the room.
    _room: OwnedSemaphorePermit,
}

struct BatchState {
    answers: Answers,
    open: usize,
    waiter: Option<oneshot::Sender<Vec<Result<u64>>>>,
}

impl Batch {
    /// A batch, and where its answers will come. It holds itself open until [`Batch::close`].
    pub(super) fn begin(
        count: usize,
        partitions: &BTreeSet<Partition>,
        in_flight: &Arc<InFlight>,
        room: OwnedSemaphorePermit,
    ) -> (Arc<Batch>, oneshot::Receiver<Vec<Result<u64>>>) {
        let (waiter, answered) = oneshot::channel();
        let batch = Batch {
            id: in_flight.enter(partitions),
            in_flight: in_flight.clone(),
            state: Mutex::new(BatchState {
                answers: (0..count).map(|_| None).collect(),
                open: count + 1,
                waiter: Some(waiter),
            }),
            _room: room,
        };
        (Arc::new(batch), answered)
    }

    pub(super) fn answer(&self, place: usize, answer: Result<u64>) {
        let mut state = self.state.lock();
        if let Some(open @ None) = state.answers.get_mut(place) {
            *open = Some(answer);
            self.count_down(&mut state);
        }
    }

    pub(super) fn close(&self) {
        self.count_down(&mut self.state.lock());
    }

    fn count_down(&self, state: &mut BatchState) {
        state.open = state.open.saturating_sub(1);
        if state.open > 0 {
            return;
        }
        self.in_flight.leave(self.id);
        if let Some(waiter) = state.waiter.take() {
            let answers = std::mem::take(&mut state.answers).into_iter();
            // Nobody waits when the publish was dropped.
            let _ = waiter.send(answers.flatten().collect());
        }
    }
}

impl Drop for Batch {
    /// A record whose answer will never come must not keep its generation waiting.
    fn drop(&mut self) {
        self.in_flight.leave(self.id);
    }
}
