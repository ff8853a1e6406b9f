//! The time in which one process closes minutes: it moves the head, and nobody else does.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use backend::audit::AuditStore;
use backend::clock::Clock;
use protocol::ledger::chain::Head;
use thiserror::Error;
use tokio::time::timeout;

use crate::admin::log::{Log, Turn};

/// Another process moved the head: this one knows an old chain.
#[derive(Debug, Error)]
#[error("another process closes minutes now")]
pub(super) struct Overtaken;

pub(in crate::admin) struct Term {
    store: Arc<dyn AuditStore>,
    clock: Arc<dyn Clock>,
    worker: u64,
    head: Head,
    /// The head moves at least so often, so that others leave it alone.
    heard_every: Duration,
}

impl Term {
    /// Begins with a head that only bears the new worker.
    pub(super) async fn begin(
        store: Arc<dyn AuditStore>,
        clock: Arc<dyn Clock>,
        worker: u64,
        standing: Head,
        takeover: Duration,
    ) -> Result<Term> {
        let mut term = Term {
            store,
            clock,
            worker,
            head: standing,
            heard_every: takeover / 3,
        };
        term.advance(|_| {}).await?;
        Ok(term)
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Moves the head on.
    ///
    /// # Errors
    /// `Overtaken`, or a store that does not answer; either way this term is over.
    pub(super) async fn advance(&mut self, change: impl FnOnce(&mut Head)) -> Result<()> {
        let mut next = self.head.clone();
        change(&mut next);
        next.turn += 1;
        next.worker = self.worker;
        next.at = self.clock.now();
        if !self.store.advance(&next).await? {
            return Err(Overtaken.into());
        }
        self.head = next;
        Ok(())
    }

    /// Waits for the turn at the log as long as others take theirs.
    ///
    /// # Errors
    /// As of `advance`.
    pub(in crate::admin) async fn turn_at<'a>(&mut self, log: &'a Log) -> Result<Turn<'a>> {
        // One place in the line, however long it takes: who asks anew stands behind all others.
        let mut turn = pin!(log.next_turn());
        loop {
            match timeout(self.heard_every, &mut turn).await {
                Ok(turn) => return Ok(turn?),
                Err(_) => self.go_on().await?,
            }
        }
    }

    /// In the middle of long work: lets others hear of this one, where it is time.
    pub(in crate::admin) async fn go_on(&mut self) -> Result<()> {
        if self.clock.now().since(self.head.at) >= self.heard_every {
            self.advance(|_| {}).await?;
        }
        Ok(())
    }
}
