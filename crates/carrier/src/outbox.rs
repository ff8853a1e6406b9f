//! What waits for one boat: the body of its `Deliver` stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat;
use api::v1;
use futures_util::Stream;
use parking_lot::Mutex;
use protocol::presence::BoatLife;

/// Bytes of frames in one batch, roughly.
const BATCH_BYTES: usize = 1 << 20;

/// Filled by the shard's executor, emptied by the stream that is open at the moment. Deliveries are
/// bounded by what the executor has in flight, notices by a number of their own.
#[derive(Debug)]
pub(crate) struct Outbox {
    life: v1::BoatLife,
    batch_max: usize,
    notices_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deliveries: VecDeque<boat::Delivery>,
    notices: VecDeque<boat::Notice>,
    reader: Option<Waker>,
    /// Of the stream that may read; an older one, that the other side still holds, may not.
    stream: u64,
}

impl Outbox {
    pub(crate) fn new(life: &BoatLife, batch_max: usize, notices_max: usize) -> Outbox {
        Outbox {
            life: life.into(),
            batch_max: batch_max.max(1),
            notices_max,
            state: Mutex::default(),
        }
    }

    /// Adds what gathered in one turn, and wakes the stream once.
    pub(crate) fn fill(
        &self,
        deliveries: &mut Vec<boat::Delivery>,
        notices: &mut Vec<boat::Notice>,
    ) {
        let mut state = self.state.lock();
        state.deliveries.extend(deliveries.drain(..));
        let room = self.notices_max.saturating_sub(state.notices.len());
        let dropped = notices.len().saturating_sub(room);
        if dropped > 0 {
            metrics::counter!("carrier_notices_dropped_total").increment(dropped as u64);
        }
        state.notices.extend(notices.drain(..).take(room));
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The boat is lost: what waits will be handled otherwise.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        state.deliveries.clear();
        state.notices.clear();
    }

    /// Opens the next stream, and ends the one before.
    pub(crate) fn open(self: &Arc<Self>) -> Batches {
        let mut state = self.state.lock();
        state.stream += 1;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        Batches {
            stream: state.stream,
            outbox: Arc::clone(self),
        }
    }
}

impl State {
    fn next_batch(&mut self, life: &v1::BoatLife, batch_max: usize) -> v1::DeliverBatch {
        let mut bytes = 0;
        let mut deliveries = Vec::new();
        while let Some(delivery) = self.deliveries.front()
            && deliveries.len() < batch_max
            && (bytes == 0 || bytes + delivery.frame.len() <= BATCH_BYTES)
        {
            bytes += delivery.frame.len();
            deliveries.extend(self.deliveries.pop_front().map(v1::Delivery::from));
        }
        let notices = self.notices.len().min(batch_max);
        v1::DeliverBatch {
            life: Some(life.clone()),
            deliveries,
            notices: self
                .notices
                .drain(..notices)
                .map(v1::Notice::from)
                .collect(),
        }
    }
}

/// One stream's reading of an outbox.
#[derive(Debug)]
pub(crate) struct Batches {
    outbox: Arc<Outbox>,
    stream: u64,
}

impl Stream for Batches {
    type Item = v1::DeliverBatch;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let outbox = &self.outbox;
        let mut state = outbox.state.lock();
        if state.stream != self.stream {
            return Poll::Ready(None);
        }
        if state.deliveries.is_empty() && state.notices.is_empty() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(state.next_batch(&outbox.life, outbox.batch_max)))
    }
}
