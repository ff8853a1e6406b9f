//! The term of one process as auditor, in which it alone moves the head.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use backend::audit::AuditStore;
use backend::clock::Clock;
use protocol::ledger::chain::ChainHead;
use thiserror::Error;
use tokio::time::timeout;

use crate::audit::log::{Log, Turn};

/// Another process has moved the head: this one's copy of it is stale.
#[derive(Debug, Error)]
#[error("another process has taken over closing audit minutes")]
pub(super) struct LeaseLoss;

pub(in crate::audit) struct Term {
    store: Arc<dyn AuditStore>,
    clock: Arc<dyn Clock>,
    worker: u64,
    head: ChainHead,
    /// Interval of heartbeats: the head moves at least this often, so that no other process takes
    /// over.
    heartbeat_interval: Duration,
}

impl Term {
    /// Begins a term: writes the head with the new worker, and no other change to the chain.
    pub(super) async fn begin(
        store: Arc<dyn AuditStore>,
        clock: Arc<dyn Clock>,
        worker: u64,
        standing: ChainHead,
        takeover: Duration,
    ) -> Result<Term> {
        let mut term = Term {
            store,
            clock,
            worker,
            head: standing,
            heartbeat_interval: takeover / 3,
        };
        term.advance(|_| {}).await?;
        Ok(term)
    }

    pub(super) fn head(&self) -> &ChainHead {
        &self.head
    }

    /// Moves the head on.
    ///
    /// # Errors
    /// `LeaseLoss`, or a store that does not answer; either way this term is over.
    pub(super) async fn advance(&mut self, change: impl FnOnce(&mut ChainHead)) -> Result<()> {
        let mut next = self.head.clone();
        change(&mut next);
        next.turn += 1;
        next.worker = self.worker;
        next.at = self.clock.now();
        if !self.store.advance(&next).await? {
            return Err(LeaseLoss.into());
        }
        self.head = next;
        Ok(())
    }

    /// Waits for a turn at the log as long as other readers take, and sends heartbeats meanwhile.
    ///
    /// # Errors
    /// As `advance`.
    pub(in crate::audit) async fn turn_at<'a>(&mut self, log: &'a Log) -> Result<Turn<'a>> {
        // One place in the queue, however long it takes: a new call would stand behind all others.
        let mut turn = pin!(log.next_turn());
        loop {
            match timeout(self.heartbeat_interval, &mut turn).await {
                Ok(turn) => return Ok(turn?),
                Err(_) => self.go_on().await?,
            }
        }
    }

    /// Sends a heartbeat if one is due, or if the last one is of a clock that was set back since; for
    /// the middle of long work.
    pub(in crate::audit) async fn go_on(&mut self) -> Result<()> {
        let (now, last) = (self.clock.now(), self.head.at);
        if now.since(last).max(last.since(now)) >= self.heartbeat_interval {
            self.advance(|_| {}).await?;
        }
        Ok(())
    }
}
