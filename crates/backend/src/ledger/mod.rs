//! Ledger: the fate of every message.

#[cfg(test)]
mod contract;
mod embedded;
mod packed_entries;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::MessageId;
use protocol::ledger::{LedgerEntry, LedgerEvent};

pub use self::embedded::EmbeddedLedger;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaLedger;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Appends entries; entries of one message in one call keep their order.
    async fn append(&self, entries: Vec<LedgerEntry>) -> Result<()>;

    /// All entries of each message, oldest first. An entry may appear twice after a crash.
    async fn trace(&self, messages: &[MessageId]) -> Result<Vec<Vec<LedgerEntry>>>;

    /// Removes entries of messages below `first_kept`, about `limit` rows at most; returns the
    /// number removed. Repeat until it is 0. A backend whose rows expire by themselves returns 0 at
    /// once.
    async fn forget(&self, first_kept: MessageId, limit: usize) -> Result<usize>;
}

hooked! { LedgerStore as "ledger" of ["fetched", "notified", "redriven", "delivered"]:
    write append(entries: Vec<LedgerEntry>) of entries.iter().map(|entry| entry.message.get()), as kind(&entries) => ();
    read trace(messages: &[MessageId]) of messages.iter().map(|id| id.get()) => Vec<Vec<LedgerEntry>>;
    write forget(before: MessageId, limit: usize) => usize;
}

/// Services record different events: the first entry shows which service writes.
fn kind(entries: &[LedgerEntry]) -> &'static str {
    match entries.first().map(|entry| &entry.event) {
        Some(LedgerEvent::Fetched { .. }) => "fetched",
        Some(LedgerEvent::NotificationSent { .. }) => "notified",
        Some(LedgerEvent::Redriven { .. }) => "redriven",
        _ => "delivered",
    }
}
