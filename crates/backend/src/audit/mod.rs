//! Closed minutes: the rows of the audit's chain, and its one head.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use std::ops::Range;

use async_trait::async_trait;
use protocol::Timestamp;
use protocol::ledger::chain::ChainHead;
use protocol::ledger::minute::{Amendment, ClosedMinute, MinuteRow};

pub use self::embedded::EmbeddedAudit;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaAudit;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Returns the current head; `None` before the first.
    async fn head(&self) -> Result<Option<ChainHead>>;

    /// Replaces the head of the previous turn (none before turn 1) by `head`. False if another
    /// writer was first: nothing changed. True also if exactly this head is stored already, so that
    /// a retry is safe.
    async fn advance(&self, head: &ChainHead) -> Result<bool>;

    /// Writes the row of a closed minute: only what a head carries, so that a second write is
    /// identical.
    async fn save(&self, closed_minute: &ClosedMinute) -> Result<()>;

    /// Writes the amendment of a closed minute. An earlier look never replaces a later one.
    async fn amend(&self, minute: Timestamp, amendment: &Amendment) -> Result<()>;

    /// The first `limit` rows of these minutes, oldest first.
    async fn rows(&self, minutes: Range<Timestamp>, limit: usize) -> Result<Vec<MinuteRow>>;

    /// Removes the rows of these minutes.
    async fn forget(&self, minutes: Range<Timestamp>) -> Result<()>;
}

hooked! { AuditStore as "audit" of ["begun", "closed"]:
    read head() => Option<ChainHead>;
    write advance(head: &ChainHead) of [head.worker.cast_signed()], as kind(head), if |advanced| *advanced => bool;
    write save(closed: &ClosedMinute) => ();
    write amend(minute: Timestamp, amendment: &Amendment) of [minute.millis()] => ();
    read rows(minutes: Range<Timestamp>, limit: usize) => Vec<MinuteRow>;
    write forget(minutes: Range<Timestamp>) => ();
}

/// The first head begins the chain; later ones close minutes.
fn kind(head: &ChainHead) -> &'static str {
    head.last.as_ref().map_or("begun", |_| "closed")
}
