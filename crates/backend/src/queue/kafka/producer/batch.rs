//! A publish in progress: the answers of its records, and their waiter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::Result;
use crate::queue::Partition;

/// One answer per record, in order; `None` while it is open.
pub(super) type RecordAnswers = Vec<Option<Result<u64>>>;

/// Records handed over: their positions in the publish, and the channel of their answers.
pub(super) struct PendingAnswers {
    pub(super) places: Vec<usize>,
    pub(super) answers: oneshot::Receiver<Vec<Result<u64>>>,
}

/// Batches of a generation that await acknowledgement.
#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<InFlightState>,
}

#[derive(Default)]
struct InFlightState {
    next: u64,
    /// In order of age.
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

    /// Time at which the oldest batch was handed over.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let state = self.state.lock();
        state
            .batches
            .first_key_value()
            .map(|(_, (started_at, _))| *started_at)
    }

    pub(super) fn any_after(&self, time: Instant) -> bool {
        let state = self.state.lock();
        state
            .batches
            .values()
            .any(|(started_at, _)| *started_at > time)
    }

    /// Partitions with a batch handed over at `time` or earlier.
    pub(super) fn started_before(&self, time: Instant) -> BTreeSet<Partition> {
        let state = self.state.lock();
        let old = state
            .batches
            .values()
            .filter(|(started_at, _)| *started_at <= time);
        old.flat_map(|(_, partitions)| partitions.iter().copied())
            .collect()
    }

    pub(super) fn holds_any(&self, partitions: &BTreeSet<Partition>) -> bool {
        let state = self.state.lock();
        let mut batches = state.batches.values();
        batches.any(|(_, batch_partitions)| !batch_partitions.is_disjoint(partitions))
    }
}

/// Records of one publish. The batch ends when each of them is answered.
pub(super) struct Batch {
    id: u64,
    in_flight: Arc<InFlight>,
    state: Mutex<BatchState>,
    /// Permit for the batch's bytes, returned when it ends.
    _room: OwnedSemaphorePermit,
}

struct BatchState {
    answers: RecordAnswers,
    open: usize,
    waiter: Option<oneshot::Sender<Vec<Result<u64>>>>,
}

impl Batch {
    /// Creates a batch and the channel of its answers. The batch stays open until [`Batch::close`].
    pub(super) fn begin(
        count: usize,
        partitions: &BTreeSet<Partition>,
        in_flight: &Arc<InFlight>,
        room: OwnedSemaphorePermit,
    ) -> (Arc<Batch>, oneshot::Receiver<Vec<Result<u64>>>) {
        let (waiter, receiver) = oneshot::channel();
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
        (Arc::new(batch), receiver)
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
            // The waiter is gone if the publish was dropped.
            let _ = waiter.send(answers.flatten().collect());
        }
    }
}

impl Drop for Batch {
    /// Leaves the batches in flight: a generation must not wait for answers that will never come.
    fn drop(&mut self) {
        self.in_flight.leave(self.id);
    }
}
