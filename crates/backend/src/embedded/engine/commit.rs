//! Group commit: who waits for an fsync, and how they are told.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::{Batch, SEAM, Then};
use crate::{Error, Result};

/// Why the store takes no more writes. Shared by all who waited.
pub(super) type Failure = Arc<str>;

pub(super) fn refused(why: &Failure) -> Error {
    Error::unavailable(SEAM, why.to_string())
}

/// Somebody who is told when an fsync covers what he wrote.
pub(super) struct Waiter {
    answer: oneshot::Sender<Result<(), Failure>>,
    then: Option<Then>,
}

impl Waiter {
    pub(super) fn new(then: Option<Then>) -> (Waiter, Committed) {
        let (answer, receiver) = oneshot::channel();
        (Waiter { answer, then }, Committed::Waiting(receiver))
    }

    pub(super) fn tell(self, outcome: &Result<(), Failure>) {
        if let (Ok(()), Some(then)) = (outcome, self.then) {
            then();
        }
        // Who dropped the future does not want to know.
        let _ = self.answer.send(outcome.clone());
    }
}

/// What gathers while an fsync is under way.
#[derive(Default)]
pub(super) struct Group {
    pub(super) batch: Batch,
    pub(super) waiters: Vec<Waiter>,
}

/// Resolves when the fsync is done.
pub(super) enum Committed {
    Now(Option<Result<()>>),
    Waiting(oneshot::Receiver<Result<(), Failure>>),
}

impl Committed {
    pub(super) fn now(outcome: Result<()>) -> Committed {
        Committed::Now(Some(outcome))
    }
}

impl Future for Committed {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.get_mut() {
            Committed::Now(outcome) => Poll::Ready(
                outcome
                    .take()
                    .unwrap_or_else(|| Err(refused(&"polled after its end".into()))),
            ),
            Committed::Waiting(receiver) => {
                Pin::new(receiver).poll(context).map(|told| match told {
                    Ok(outcome) => outcome.map_err(|why| refused(&why)),
                    Err(_) => Err(refused(&"the store was closed".into())),
                })
            }
        }
    }
}
