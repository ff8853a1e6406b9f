//! Queue towards one boat: the body of its `Deliver` stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat::Notice;
use api::v1;
use futures_util::Stream;
use parking_lot::Mutex;
use protocol::delivery::Push;
use protocol::presence::BoatLife;
use tokio::time::Instant;

/// Bytes of frames in one batch, roughly.
const BATCH_BYTES: usize = 1 << 20;

/// Filled by the shard's executor, emptied by the currently open stream. Pushes are bounded by the
/// executor's records in flight, as those that it has given up are dropped. Notices have a limit of
/// their own.
#[derive(Debug)]
pub(crate) struct BoatOutbox {
    life: v1::BoatLife,
    batch_max: usize,
    notices_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Each with the time until which the executor waits for it. All wait equally long, so the
    /// first to expire is in front.
    pushes: VecDeque<(Instant, Push)>,
    notices: VecDeque<Notice>,
    reader: Option<Waker>,
    /// Number of the stream that may read. An older stream that the boat still holds may not.
    stream: u64,
}

impl BoatOutbox {
    pub(crate) fn new(life: &BoatLife, batch_max: usize, notices_max: usize) -> BoatOutbox {
        BoatOutbox {
            life: life.into(),
            batch_max,
            notices_max,
            state: Mutex::default(),
        }
    }

    /// Adds the pushes and notices of one turn, and wakes the stream once.
    pub(crate) fn fill(&self, pushes: &mut Vec<(Instant, Push)>, notices: &mut Vec<Notice>) {
        let mut state = self.state.lock();
        state.drop_expired();
        state.pushes.extend(pushes.drain(..));
        let room = self.notices_max.saturating_sub(state.notices.len());
        let dropped_count = notices.len().saturating_sub(room);
        if dropped_count > 0 {
            metrics::counter!("carrier_notices_dropped_total").increment(dropped_count as u64);
        }
        state.notices.extend(notices.drain(..).take(room));
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Drops everything queued: the boat is lost, and the executor handles the deliveries
    /// otherwise.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        state.pushes.clear();
        state.notices.clear();
    }

    /// Opens the next stream, and ends the one before.
    pub(crate) fn open(self: &Arc<Self>) -> OutboxBatches {
        let mut state = self.state.lock();
        state.stream += 1;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        OutboxBatches {
            stream: state.stream,
            outbox: Arc::clone(self),
        }
    }
}

impl State {
    /// Drops pushes that the delivery machine has given up and handles otherwise.
    fn drop_expired(&mut self) {
        let now = Instant::now();
        let expired_count = self
            .pushes
            .partition_point(|(deadline, _)| *deadline <= now);
        if expired_count > 0 {
            self.pushes.drain(..expired_count);
            metrics::counter!("carrier_pushes_expired_total").increment(expired_count as u64);
        }
    }

    fn next_batch(&mut self, life: &v1::BoatLife, batch_max: usize) -> v1::DeliverBatch {
        let mut bytes = 0;
        let mut deliveries = Vec::new();
        while let Some((_, push)) = self.pushes.front()
            && deliveries.len() < batch_max
            && (bytes == 0 || bytes + push.frame.len() <= BATCH_BYTES)
        {
            bytes += push.frame.len();
            let next = self.pushes.pop_front();
            deliveries.extend(next.map(|(_, push)| v1::Delivery::from(push)));
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
pub(crate) struct OutboxBatches {
    outbox: Arc<BoatOutbox>,
    stream: u64,
}

impl Stream for OutboxBatches {
    type Item = v1::DeliverBatch;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let outbox = &self.outbox;
        let mut state = outbox.state.lock();
        if state.stream != self.stream {
            return Poll::Ready(None);
        }
        state.drop_expired();
        if state.pushes.is_empty() && state.notices.is_empty() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(state.next_batch(&outbox.life, outbox.batch_max)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use protocol::delivery::PushToken;
    use protocol::{BoatId, Incarnation, MessageId, SessionId};
    use std::time::Duration;

    use super::*;

    fn push(number: i64) -> (Instant, Push) {
        let push = Push {
            token: PushToken::from_number(number as u64),
            session: SessionId::new(1).expect("positive"),
            message: MessageId::new(number).expect("positive"),
            frame: bytes::Bytes::from_static(b"frame"),
            needs_ack: true,
            trace: None,
        };
        (Instant::now() + Duration::from_secs(3), push)
    }

    // A boat that takes nothing for a long time neither fills memory nor gets stale deliveries.
    #[tokio::test(start_paused = true)]
    async fn expired_pushes_are_dropped() {
        let life = BoatLife {
            boat: BoatId::new("boat-1").expect("short"),
            incarnation: Incarnation(1),
        };
        let outbox = Arc::new(BoatOutbox::new(&life, 10, 10));
        for number in 1..100 {
            outbox.fill(&mut vec![push(number)], &mut Vec::new());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(outbox.state.lock().pushes.len(), 3);
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut batches = outbox.open();
        let batch = batches.next().now_or_never().flatten();
        let tokens: Vec<u64> = (batch.expect("some").deliveries.iter())
            .map(|delivery| delivery.token)
            .collect();
        assert_eq!(tokens, [99]);
        outbox.fill(&mut vec![push(100)], &mut Vec::new());
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(batches.next().now_or_never().is_none());
    }
}
