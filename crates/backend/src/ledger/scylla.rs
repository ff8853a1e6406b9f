//! The ledger in ScyllaDB or Cassandra: table `ledger`, a partition per message, a row per call
//! about it.
//!
//! Writes read nothing: each call has a number unique in the life of its process, and each life a
//! random number, so that no call meets the row of another. Rows expire by themselves.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use protocol::MessageId;
use protocol::ledger::LedgerEntry;
use scylla::response::PagingState;

use super::{LedgerStore, packed_entries};
use crate::Result;
use crate::clock::{Entropy, SystemEntropy};
use crate::scylla::{Cql, SeamCql, Statement};

const SEAM: &str = "ledger";

/// Entries per row: a message to many has many, and a row stays at some kilobytes.
const ENTRIES_MAX: usize = 256;

/// Rows per answer.
const PAGE: usize = 500;

/// The ledger in ScyllaDB or Cassandra.
pub struct ScyllaLedger {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
    life: i64,
    calls: AtomicI64,
    /// Time to live of a row, in seconds.
    retention: i32,
}

impl ScyllaLedger {
    pub fn new(cql: Cql) -> ScyllaLedger {
        let retention = cql.config().ledger_retention.as_secs();
        ScyllaLedger {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO ledger (message, life, n, said) VALUES (?, ?, ?, ?) USING TTL ?",
            ),
            select: Statement::new("SELECT said FROM ledger WHERE message = ?"),
            life: (SystemEntropy.next() >> 1) as i64,
            calls: AtomicI64::new(0),
            // Bounds were checked with the settings.
            retention: i32::try_from(retention).unwrap_or(i32::MAX),
        }
    }

    async fn add(&self, message: MessageId, n: i64, entries: &[&LedgerEntry]) -> Result<()> {
        let bytes = packed_entries::to_bytes(SEAM, message, entries)?;
        let values = (message.get(), self.life, n, bytes, self.retention);
        self.cql.write(&self.insert, values).await
    }

    async fn entries(&self, message: MessageId) -> Result<Vec<LedgerEntry>> {
        let mut entries = Vec::new();
        let mut from = Some(PagingState::start());
        while let Some(start) = from.take() {
            let page = self.cql.page(&self.select, (message.get(),), start, PAGE);
            let (rows, next): (Vec<(Vec<u8>,)>, _) = page.await?;
            for (bytes,) in rows {
                entries.extend(packed_entries::from_bytes(SEAM, message, &bytes)?);
            }
            from = next;
        }
        // Clocks of services differ; entries of one time keep the order of writing.
        entries.sort_by_key(|entry| entry.at);
        Ok(entries)
    }
}

#[async_trait]
impl LedgerStore for ScyllaLedger {
    async fn append(&self, entries: Vec<LedgerEntry>) -> Result<()> {
        let mut by_message: Vec<&LedgerEntry> = entries.iter().collect();
        by_message.sort_by_key(|entry| entry.message);
        let mut writes = Vec::new();
        for message_entries in by_message.chunk_by(|one, other| one.message == other.message) {
            for row_entries in message_entries.chunks(ENTRIES_MAX) {
                let n = self.calls.fetch_add(1, Ordering::Relaxed);
                writes.push(self.add(row_entries[0].message, n, row_entries));
            }
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn trace(&self, messages: &[MessageId]) -> Result<Vec<Vec<LedgerEntry>>> {
        let reads = messages.iter().map(|&message| self.entries(message));
        self.cql.all(reads.collect()).await
    }

    async fn forget(&self, _end: MessageId, _limit: usize) -> Result<usize> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::ledger::LedgerEvent;
    use tokio::time::sleep;

    use super::*;
    use crate::ledger::contract;
    use crate::scylla::fixture::{config, cql, fresh, on_cql};

    contract::checks!(on_cql!("ledger", ScyllaLedger::new));

    #[tokio::test]
    #[ignore = "needs the real parts: make e2e"]
    async fn expired_entries_are_forgotten() {
        cql().await;
        let config = crate::scylla::ScyllaConfig {
            ledger_retention: Duration::from_secs(2),
            ..config()
        };
        let ledger = ScyllaLedger::new(Cql::connect(&config).await.expect("connects"));
        let message = fresh().message();
        let entry = LedgerEntry {
            message,
            at: message.timestamp(),
            target: None,
            event: LedgerEvent::Settled,
        };
        ledger.append(vec![entry]).await.expect("appends");
        let count = async || ledger.trace(&[message]).await.expect("reads")[0].len();
        assert_eq!(count().await, 1);
        let end = MessageId::new(i64::MAX).expect("positive");
        assert_eq!(ledger.forget(end, 100).await.expect("answers"), 0);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(count().await, 0);
    }
}
