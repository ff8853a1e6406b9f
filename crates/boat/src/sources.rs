//! Those who push: one source a `Deliver` stream, and the outcomes that it is owed.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::boat::{Outcome, OutcomeKind};
use parking_lot::{Mutex, RwLock};
use protocol::session::{self, Token};

#[derive(Debug, Default)]
pub(crate) struct Sources {
    open: RwLock<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u32,
    sources: HashMap<u32, Arc<Outcomes>>,
}

/// Outcomes that wait for the stream to take them. At most as many as the source has pushes under way.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    waiting: Mutex<(Vec<Outcome>, Option<Waker>)>,
}

/// One stream's place among the sources, until dropped.
#[derive(Debug)]
pub(crate) struct Source {
    id: u32,
    outcomes: Arc<Outcomes>,
}

impl Sources {
    pub(crate) fn open(&self) -> Source {
        let mut open = self.open.write();
        while open.sources.contains_key(&open.next) {
            open.next = open.next.wrapping_add(1);
        }
        let id = open.next;
        open.next = id.wrapping_add(1);
        let outcomes = Arc::<Outcomes>::default();
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

    pub(crate) fn resolve(&self, number: u64, outcome: session::Outcome) {
        if number != 0 {
            self.outcomes.push(number, outcome);
        }
    }

    /// All outcomes that wait, as soon as one does.
    pub(crate) fn poll_outcomes(&self, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let mut waiting = self.outcomes.waiting.lock();
        let (outcomes, waker) = &mut *waiting;
        if outcomes.is_empty() {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(outcomes))
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
        waiting.0.push(Outcome { token, kind });
        let waker = waiting.1.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
