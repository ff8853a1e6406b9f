//! Group commit: callers that wait for an fsync, and their notification.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::{OnDurable, SEAM, WriteBatch};
use crate::{Error, Result};

/// Reason why the store takes no more writes, shared by all waiting callers.
pub(super) type CommitFailure = Arc<str>;

pub(super) fn write_refused(why: &CommitFailure) -> Error {
    Error::unavailable(SEAM, why.to_string())
}

/// Caller waiting for an fsync that covers its write.
pub(super) struct Waiter {
    answer: oneshot::Sender<Result<(), CommitFailure>>,
    on_durable: Option<OnDurable>,
}

impl Waiter {
    pub(super) fn new(on_durable: Option<OnDurable>) -> (Waiter, CommitFuture) {
        let (answer, receiver) = oneshot::channel();
        (
            Waiter { answer, on_durable },
            CommitFuture::Waiting(receiver),
        )
    }

    pub(super) fn notify(self, outcome: &Result<(), CommitFailure>) {
        if let (Ok(()), Some(then)) = (outcome, self.on_durable) {
            then();
        }
        // A dropped future needs no answer.
        let _ = self.answer.send(outcome.clone());
    }
}

/// Writes gathered during an fsync, for the next one.
#[derive(Default)]
pub(super) struct CommitGroup {
    pub(super) batch: WriteBatch,
    pub(super) waiters: Vec<Waiter>,
}

/// Resolves when the fsync is done.
pub(super) enum CommitFuture {
    Now(Option<Result<()>>),
    Waiting(oneshot::Receiver<Result<(), CommitFailure>>),
}

impl CommitFuture {
    pub(super) fn now(outcome: Result<()>) -> CommitFuture {
        CommitFuture::Now(Some(outcome))
    }
}

impl Future for CommitFuture {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.get_mut() {
            CommitFuture::Now(outcome) => Poll::Ready(
                outcome
                    .take()
                    .unwrap_or_else(|| Err(write_refused(&"polled after its end".into()))),
            ),
            CommitFuture::Waiting(receiver) => {
                Pin::new(receiver).poll(context).map(|answer| match answer {
                    Ok(outcome) => outcome.map_err(|why| write_refused(&why)),
                    Err(_) => Err(write_refused(&"the store was closed".into())),
                })
            }
        }
    }
}
