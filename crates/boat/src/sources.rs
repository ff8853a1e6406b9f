//! Those who push: one source a `Deliver` stream, and the outcomes that it is owed.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat::{Outcome, OutcomeKind};
use api::trace::Spans;
use parking_lot::{Mutex, RwLock};
use protocol::session::{self, Token};
use protocol::{MessageId, TraceContext};

use crate::traced::TracedPush;

#[derive(Debug, Default)]
pub(crate) struct Sources {
    open: RwLock<Open>,
    spans: Spans,
}

#[derive(Debug, Default)]
struct Open {
    next: u32,
    sources: HashMap<u32, Arc<Outcomes>>,
}

/// Outcomes that wait for the stream to take them. At most as many as the source has pushes under way.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    waiting: Mutex<Waiting>,
    spans: Spans,
}

#[derive(Debug, Default)]
struct Waiting {
    outcomes: Vec<Outcome>,
    reader: Option<Waker>,
    /// Pushes under way that are recorded, by their numbers. Nearly always empty.
    traced: HashMap<u64, TracedPush>,
}

/// One stream's place among the sources, until dropped.
#[derive(Debug)]
pub(crate) struct Source {
    id: u32,
    outcomes: Arc<Outcomes>,
}

impl Sources {
    pub(crate) fn new(spans: Spans) -> Sources {
        Sources {
            open: RwLock::default(),
            spans,
        }
    }

    pub(crate) fn open(&self) -> Source {
        let mut open = self.open.write();
        while open.sources.contains_key(&open.next) {
            open.next = open.next.wrapping_add(1);
        }
        let id = open.next;
        open.next = id.wrapping_add(1);
        let outcomes = Arc::new(Outcomes {
            waiting: Mutex::default(),
            spans: self.spans.clone(),
        });
        open.sources.insert(id, Arc::clone(&outcomes));
        Source { id, outcomes }
    }

    /// What was pushed by it finds nobody from now on: the carrier learns by its own deadline.
    pub(crate) fn close(&self, source: &Source) {
        self.open.write().sources.remove(&source.id);
    }

    pub(crate) fn resolve(&self, token: Token, outcome: session::Outcome) {
        let outcomes = self.open.read().sources.get(&token.source).cloned();
        if let Some(outcomes) = outcomes {
            outcomes.push(token.number, outcome);
        }
    }
}

impl Source {
    pub(crate) fn token(&self, number: u64) -> Option<Token> {
        (number != 0).then_some(Token {
            source: self.id,
            number,
        })
    }

    /// The end of this push is to be recorded.
    pub(crate) fn trace(&self, number: u64, delivery: TraceContext, message: MessageId) {
        if number != 0 {
            let push = TracedPush::new(delivery, number, message);
            self.outcomes.waiting.lock().traced.insert(number, push);
        }
    }

    pub(crate) fn resolve(&self, number: u64, outcome: session::Outcome) {
        if number != 0 {
            self.outcomes.push(number, outcome);
        }
    }

    /// All outcomes that wait, as soon as one does.
    pub(crate) fn poll_outcomes(&self, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let mut waiting = self.outcomes.waiting.lock();
        if waiting.outcomes.is_empty() {
            waiting.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut waiting.outcomes))
    }
}

impl Outcomes {
    fn push(&self, token: u64, outcome: session::Outcome) {
        let kind = match outcome {
            session::Outcome::Done => OutcomeKind::Done,
            session::Outcome::NoAck => OutcomeKind::NoAck,
            session::Outcome::NoSession => OutcomeKind::NoSession,
            session::Outcome::Full => OutcomeKind::Full,
        };
        let mut waiting = self.waiting.lock();
        waiting.outcomes.push(Outcome { token, kind });
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
