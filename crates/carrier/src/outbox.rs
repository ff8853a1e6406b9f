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
use tokio::time::Instant;

/// Bytes of frames in one batch, roughly.
const BATCH_BYTES: usize = 1 << 20;

/// Filled by the shard's executor, emptied by the stream that is open at the moment. Deliveries are
/// bounded by what the executor has in flight: those that it has given up are dropped. Notices are bounded
/// by a number of their own.
#[derive(Debug)]
pub(crate) struct Outbox {
    life: v1::BoatLife,
    batch_max: usize,
    notices_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// With the time until which somebody waits for it: all wait equally long, so the first is in front.
    deliveries: VecDeque<(Instant, boat::Delivery)>,
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
        deliveries: &mut Vec<(Instant, boat::Delivery)>,
        notices: &mut Vec<boat::Notice>,
    ) {
        let mut state = self.state.lock();
        state.drop_expired();
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
    /// The machine has given these up, and handles them otherwise.
    fn drop_expired(&mut self) {
        let now = Instant::now();
        let expired = self.deliveries.partition_point(|(until, _)| *until <= now);
        if expired > 0 {
            self.deliveries.drain(..expired);
            metrics::counter!("carrier_pushes_expired_total").increment(expired as u64);
        }
    }

    fn next_batch(&mut self, life: &v1::BoatLife, batch_max: usize) -> v1::DeliverBatch {
        let mut bytes = 0;
        let mut deliveries = Vec::new();
        while let Some((_, delivery)) = self.deliveries.front()
            && deliveries.len() < batch_max
            && (bytes == 0 || bytes + delivery.frame.len() <= BATCH_BYTES)
        {
            bytes += delivery.frame.len();
            let next = self.deliveries.pop_front();
            deliveries.extend(next.map(|(_, delivery)| v1::Delivery::from(delivery)));
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
        state.drop_expired();
        if state.deliveries.is_empty() && state.notices.is_empty() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(state.next_batch(&outbox.life, outbox.batch_max)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use protocol::{BoatId, Incarnation, MessageId, SessionId};
    use std::time::Duration;

    use super::*;

    fn delivery(number: i64) -> (Instant, boat::Delivery) {
        let delivery = boat::Delivery {
            token: number as u64,
            session: SessionId::new(1).expect("positive"),
            id: MessageId::new(number).expect("positive"),
            frame: bytes::Bytes::from_static(b"frame"),
            needs_ack: true,
            trace: None,
        };
        (Instant::now() + Duration::from_secs(3), delivery)
    }

    // A boat that takes nothing for a long time does not fill the memory, and is not told old things then.
    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_is_dropped() {
        let life = BoatLife {
            boat: BoatId::new("boat-1").expect("short"),
            incarnation: Incarnation(1),
        };
        let outbox = Arc::new(Outbox::new(&life, 10, 10));
        for number in 1..100 {
            outbox.fill(&mut vec![delivery(number)], &mut Vec::new());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(outbox.state.lock().deliveries.len(), 3);
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut batches = outbox.open();
        let batch = batches.next().now_or_never().flatten();
        let tokens: Vec<u64> = (batch.expect("some").deliveries.iter())
            .map(|delivery| delivery.token)
            .collect();
        assert_eq!(tokens, [99]);
        outbox.fill(&mut vec![delivery(100)], &mut Vec::new());
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(batches.next().now_or_never().is_none());
    }
}
