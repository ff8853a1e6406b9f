//! `Deliver` streams, one per pushing peer: batches in, and the outcomes it waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat::Outcome;
use api::trace::Spans;
use metrics::{Counter, counter};
use parking_lot::{Mutex, RwLock};
use protocol::session::{self, Token};
use protocol::{MessageId, TraceContext};

use crate::traces::PushTrace;

#[derive(Debug)]
pub(crate) struct DeliverStreams {
    open: RwLock<SourceTable>,
    spans: Spans,
    outcome_counters: [Counter; 4],
}

#[derive(Debug, Default)]
struct SourceTable {
    next: u32,
    sources: HashMap<u32, Arc<OutcomeSender>>,
}

/// Outcomes waiting for the stream to take them; at most as many as the stream has pushes in
/// flight.
#[derive(Debug, Default)]
struct OutcomeSender {
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
pub(super) struct DeliverStream {
    pub(super) id: u32,
    outcomes: Arc<OutcomeSender>,
}

impl DeliverStreams {
    pub(crate) fn new(spans: Spans) -> DeliverStreams {
        let outcome = |name: &'static str| counter!("boat_deliveries_total", "outcome" => name);
        DeliverStreams {
            open: RwLock::default(),
            spans,
            outcome_counters: ["done", "no_ack", "no_session", "full"].map(outcome),
        }
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    pub(crate) fn count(&self, outcome: session::Outcome) {
        self.outcome_counters[outcome as usize].increment(1);
    }

    pub(super) fn open(&self) -> DeliverStream {
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
    pub(super) fn close(&self, source: &DeliverStream) {
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
    pub(super) fn trace(&self, number: u64, delivery: TraceContext, message: MessageId) {
        if number != 0 {
            let push = PushTrace::new(delivery, number, message);
            self.outcomes.queue.lock().traces.insert(number, push);
        }
    }

    pub(super) fn resolve(&self, number: u64, outcome: session::Outcome) {
        if number != 0 {
            self.outcomes.push(number, outcome);
        }
    }

    /// Returns all waiting outcomes as soon as there is one.
    pub(super) fn poll_outcomes(&self, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
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
