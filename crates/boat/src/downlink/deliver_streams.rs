//! `Deliver` streams, one per pushing peer: batches in, and the outcomes it waits for.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat::{DeliverBatch, Notice, NoticeKind, Outcome};
use api::status::from_refusal;
use api::trace::Spans;
use api::v1;
use futures_util::Stream;
use parking_lot::{Mutex, RwLock};
use protocol::delivery::Push;
use protocol::session::{self, Token};
use protocol::{MessageId, TraceContext};
use tonic::{Status, Streaming};
use tracing::warn;

use crate::boat::{Boat, Shortage};
use crate::tracing::PushTrace;

/// Batches taken from a stream before its outcomes get a turn.
const BATCHES_A_TURN: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct DeliverStreams {
    open: RwLock<SourceTable>,
    spans: Spans,
}

#[derive(Debug, Default)]
struct SourceTable {
    next: u32,
    sources: HashMap<u32, Arc<OutcomeSender>>,
}

/// Outcomes waiting for the stream to take them; at most as many as the stream has pushes in
/// flight.
#[derive(Debug, Default)]
pub(crate) struct OutcomeSender {
    queue: Mutex<OutcomeQueue>,
    spans: Spans,
}

#[derive(Debug, Default)]
struct OutcomeQueue {
    outcomes: Vec<Outcome>,
    reader: Option<Waker>,
    /// Traced pushes in flight, by number. Nearly always empty.
    traces: HashMap<u64, PushTrace>,
}

/// Registration of one stream, until dropped.
#[derive(Debug)]
pub(crate) struct DeliverStream {
    id: u32,
    outcomes: Arc<OutcomeSender>,
}

impl DeliverStreams {
    pub(crate) fn new(spans: Spans) -> DeliverStreams {
        DeliverStreams {
            open: RwLock::default(),
            spans,
        }
    }

    pub(crate) fn open(&self) -> DeliverStream {
        let mut table = self.open.write();
        while table.sources.contains_key(&table.next) {
            table.next = table.next.wrapping_add(1);
        }
        let id = table.next;
        table.next = id.wrapping_add(1);
        let outcomes = Arc::new(OutcomeSender {
            queue: Mutex::default(),
            spans: self.spans.clone(),
        });
        table.sources.insert(id, Arc::clone(&outcomes));
        DeliverStream { id, outcomes }
    }

    /// Closes a stream. Outcomes of its pushes are dropped from now on: the carrier's own deadline
    /// decides.
    pub(crate) fn close(&self, source: &DeliverStream) {
        self.open.write().sources.remove(&source.id);
    }

    pub(crate) fn resolve(&self, token: Token, outcome: session::Outcome) {
        let outcomes = self.open.read().sources.get(&token.source).cloned();
        if let Some(outcomes) = outcomes {
            outcomes.push(token.number, outcome);
        }
    }
}

impl DeliverStream {
    /// Records the span of this push once its outcome is known.
    pub(crate) fn trace(&self, number: u64, delivery: TraceContext, message: MessageId) {
        if number != 0 {
            let push = PushTrace::new(delivery, number, message);
            self.outcomes.queue.lock().traces.insert(number, push);
        }
    }

    pub(crate) fn resolve(&self, number: u64, outcome: session::Outcome) {
        if number != 0 {
            self.outcomes.push(number, outcome);
        }
    }

    /// Returns all waiting outcomes as soon as there is one.
    pub(crate) fn poll_outcomes(&self, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let mut queue = self.outcomes.queue.lock();
        if queue.outcomes.is_empty() {
            queue.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut queue.outcomes))
    }
}

impl OutcomeSender {
    fn push(&self, token: u64, outcome: session::Outcome) {
        let mut queue = self.queue.lock();
        queue.outcomes.push(Outcome {
            token,
            kind: outcome,
        });
        let waker = queue.reader.take();
        let trace = if queue.traces.is_empty() {
            None
        } else {
            queue.traces.remove(&token)
        };
        drop(queue);
        if let Some(push) = trace {
            push.end(outcome, &self.spans);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Boat {
    /// False: no such session here.
    pub(crate) fn notify(&self, notice: Notice) -> bool {
        let Some(connection) = self.connections.get(notice.session) else {
            return false;
        };
        connection.update(|session| {
            if session.is_closed() {
                return false;
            }
            match notice.kind {
                NoticeKind::Frame(frame) => session.notice(frame, self.now()),
                NoticeKind::Hint => session.hint(),
                NoticeKind::Resync => session.resync(self.now()),
                NoticeKind::Close(refusal) => session.close(refusal, self.now()),
            }
            true
        })
    }

    /// False: no such session here.
    fn push(&self, source: u32, push: Push) -> bool {
        let Some(connection) = self.connections.get(push.session) else {
            return false;
        };
        let room = self.limits.outgoing_bytes_max as usize / 2;
        connection.update(|session| {
            // The loop has polled the last outcomes: a push accepted now would never get one.
            if session.is_closed() {
                return false;
            }
            // Under memory shortage half of the usual limit is enough.
            if self.is_short_of(Shortage::Memory) && session.waiting() >= room {
                session.refuse_push(source, &push);
            } else {
                session.push(source, push, self.now());
            }
            true
        })
    }
}

/// Stream of a carrier: batches in, outcomes out. Its end loses nothing: pushes in flight still
/// reach the clients, and the carrier's own deadlines decide.
pub(crate) struct DeliverService {
    boat: Arc<Boat>,
    source: DeliverStream,
    /// `None` once the carrier has closed its side.
    batches: Option<Streaming<v1::DeliverBatch>>,
}

impl DeliverService {
    pub(crate) fn new(boat: Arc<Boat>, batches: Streaming<v1::DeliverBatch>) -> DeliverService {
        DeliverService {
            source: boat.sources.open(),
            boat,
            batches: Some(batches),
        }
    }

    /// Takes received batches; an error ends the stream.
    fn poll_batches(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..BATCHES_A_TURN {
            let Some(batches) = &mut self.batches else {
                return Ok(());
            };
            match Pin::new(batches).poll_next(cx) {
                Poll::Ready(Some(Ok(batch))) => self.deliver(batch)?,
                Poll::Ready(Some(Err(_)) | None) => self.batches = None,
                Poll::Pending => return Ok(()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn deliver(&self, batch: v1::DeliverBatch) -> Result<(), Status> {
        let batch = DeliverBatch::try_from(batch).map_err(|refusal| {
            warn!(text = %refusal.text, "cannot decode a batch from a carrier");
            from_refusal(&refusal)
        })?;
        let is_mine = self.boat.is_mine(&batch.life);
        for push in batch.pushes {
            let number = push.token.number();
            if let Some(trace) = self.boat.tracer.spans().sampled(push.trace) {
                self.source.trace(number, trace, push.message);
            }
            if !is_mine || !self.boat.push(self.source.id, push) {
                let outcome = session::Outcome::NoSession;
                self.boat.metrics.outcome(outcome).increment(1);
                self.source.resolve(number, outcome);
            }
        }
        if is_mine {
            for notice in batch.notices {
                self.boat.notify(notice);
            }
        }
        Ok(())
    }
}

impl Stream for DeliverService {
    type Item = Result<v1::OutcomeBatch, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Err(status) = this.poll_batches(cx) {
            this.batches = None;
            return Poll::Ready(Some(Err(status)));
        }
        match this.source.poll_outcomes(cx) {
            Poll::Ready(outcomes) => Poll::Ready(Some(Ok(v1::OutcomeBatch {
                outcomes: outcomes.into_iter().map(v1::Outcome::from).collect(),
            }))),
            Poll::Pending if this.batches.is_none() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for DeliverService {
    fn drop(&mut self) {
        self.boat.sources.close(&self.source);
    }
}
