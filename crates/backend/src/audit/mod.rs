//! Closed minutes: the rows of the audit's chain, and its one head.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use std::ops::Range;

use async_trait::async_trait;
use protocol::Timestamp;
use protocol::ledger::chain::Head;
use protocol::ledger::minute::{Amendment, Closed, Row};

pub use self::embedded::EmbeddedAudit;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaAudit;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait AuditStore: Send + Sync {
    /// The head, as the last who moved it left it; `None` before the first.
    async fn head(&self) -> Result<Option<Head>>;

    /// Puts `head` where the head of the turn before stands (none before turn 1). False: another was first,
    /// and nothing changed. True also where exactly this head stands already, so that it may be repeated.
    async fn advance(&self, head: &Head) -> Result<bool>;

    /// Writes the row of a closed minute. Only what a head bears is written, so that a second write is the
    /// same.
    async fn save(&self, closed: &Closed) -> Result<()>;

    /// Writes what has become of a closed minute. One of an earlier look never replaces one of a later.
    async fn amend(&self, minute: Timestamp, amendment: &Amendment) -> Result<()>;

    /// The first `limit` rows of these minutes, oldest first.
    async fn rows(&self, minutes: Range<Timestamp>, limit: usize) -> Result<Vec<Row>>;

    /// Removes the rows of these minutes.
    async fn forget(&self, minutes: Range<Timestamp>) -> Result<()>;
}

hooked! { AuditStore as "audit":
    read head() => Option<Head>;
    write advance(head: &Head) of [head.worker.cast_signed()], as kind(head), if |advanced| *advanced => bool;
    write save(closed: &Closed) => ();
    write amend(minute: Timestamp, amendment: &Amendment) of [minute.millis()] => ();
    read rows(minutes: Range<Timestamp>, limit: usize) => Vec<Row>;
    write forget(minutes: Range<Timestamp>) => ();
}

/// The first head begins the chain, others close minutes.
fn kind(head: &Head) -> &'static str {
    head.last.as_ref().map_or("begun", |_| "closed")
}
