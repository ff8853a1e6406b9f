//! What became of every message.

#[cfg(test)]
mod contract;
mod embedded;
mod said;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::MessageId;
use protocol::ledger::{Event, LedgerEntry};

pub use self::embedded::EmbeddedLedger;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaLedger;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Adds entries; the order of one message's entries in one call is kept.
    async fn append(&self, entries: Vec<LedgerEntry>) -> Result<()>;

    /// All entries of each message, oldest first. The same entry may stand twice after a crash.
    async fn trace(&self, messages: &[MessageId]) -> Result<Vec<Vec<LedgerEntry>>>;

    /// Forgets what was said of messages below `before`, about `limit` rows at most; answers how many.
    /// Repeat until it answers 0. A backend whose rows expire by themselves answers 0 at once.
    async fn forget(&self, before: MessageId, limit: usize) -> Result<usize>;
}

hooked! { LedgerStore as "ledger":
    write append(entries: Vec<LedgerEntry>) of entries.iter().map(|entry| entry.message.get()), as kind(&entries) => ();
    read trace(messages: &[MessageId]) of messages.iter().map(|id| id.get()) => Vec<Vec<LedgerEntry>>;
    write forget(before: MessageId, limit: usize) => usize;
}

/// Services tell of different things: the first entry shows who writes them.
fn kind(entries: &[LedgerEntry]) -> &'static str {
    match entries.first().map(|entry| &entry.event) {
        Some(Event::Fetched { .. }) => "fetched",
        Some(Event::NotificationSent { .. }) => "notified",
        Some(Event::Redriven { .. }) => "redriven",
        _ => "delivered",
    }
}
