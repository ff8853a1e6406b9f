//! `Deliver` streams, one per pushing peer, and the outcomes it waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat::Outcome;
use api::trace::Spans;
use parking_lot::{Mutex, RwLock};
use protocol::session::{self, Token};
use protocol::{MessageId, TraceContext};

use crate::traced::PushTrace;

#[derive(Debug, Default)]
pub(crate) struct DeliverStreams {
    open: RwLock<Open>,
    spans: Spans,
}

#[derive(Debug, Default)]
struct Open {
    next: u32,
    sources: HashMap<u32, Arc<OutcomeSender>>,
}

/// Outcomes waiting for the stream to take them; at most as many as the stream has pushes in
/// flight.
#[derive(Debug, Default)]
pub(crate) struct OutcomeSender {
    waiting: Mutex<Waiting>,
    spans: Spans,
}

#[derive(Debug, Default)]
struct Waiting {
    outcomes: Vec<Outcome>,
    reader: Option<Waker>,
    /// Traced pushes in flight, by number. Nearly always empty.
    traced: HashMap<u64, PushTrace>,
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
        let mut open = self.open.write();
        while open.sources.contains_key(&open.next) {
            open.next = open.next.wrapping_add(1);
        }
        let id = open.next;
        open.next = id.wrapping_add(1);
        let outcomes = Arc::new(OutcomeSender {
            waiting: Mutex::default(),
            spans: self.spans.clone(),
        });
        open.sources.insert(id, Arc::clone(&outcomes));
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
    /// Source of the pushes of this stream.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Records the span of this push once its outcome is known.
    pub(crate) fn trace(&self, number: u64, delivery: TraceContext, message: MessageId) {
        if number != 0 {
            let push = PushTrace::new(delivery, number, message);
            self.outcomes.waiting.lock().traced.insert(number, push);
        }
    }

    pub(crate) fn resolve(&self, number: u64, outcome: session::Outcome) {
        if number != 0 {
            self.outcomes.push(number, outcome);
        }
    }

    /// Returns all waiting outcomes as soon as there is one.
    pub(crate) fn poll_outcomes(&self, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let mut waiting = self.outcomes.waiting.lock();
        if waiting.outcomes.is_empty() {
            waiting.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut waiting.outcomes))
    }
}

impl OutcomeSender {
    fn push(&self, token: u64, outcome: session::Outcome) {
        let mut waiting = self.waiting.lock();
        waiting.outcomes.push(Outcome {
            token,
            kind: outcome,
        });
        let waker = waiting.reader.take();
        let traced = match waiting.traced.is_empty() {
            true => None,
            false => waiting.traced.remove(&token),
        };
        drop(waiting);
        if let Some(push) = traced {
            push.end(outcome, &self.spans);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
