//! The ledger in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `ledger` | message, stamp | entries of one call about the message |
//!
//! Writes read nothing: the stamp is new at each call (the store's life in its upper 24 bits), so
//! that no call meets the row of another. Times in a row are distances from the message's own.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use protocol::MessageId;
use protocol::ledger::LedgerEntry;

use super::{LedgerStore, packed_entries};
use crate::Result;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};

const SEAM: &str = "ledger";

/// Key of the number of lives of the store; sorts before every message.
const LIFE_KEY: [u8; 8] = [0; 8];

/// A life has 2^40 calls.
const CALL_BITS: u32 = 40;

/// Rows of one message per read.
const SCAN: usize = 256;

/// The ledger in the embedded store.
pub struct EmbeddedLedger {
    engine: Engine,
    stamp: AtomicU64,
    /// First message that may have rows: scans start here, past the removed keys below.
    first_message: AtomicU64,
}

impl EmbeddedLedger {
    /// Begins a new life of the ledger in this store: its stamps exceed all earlier ones.
    pub fn open(engine: Engine) -> Result<EmbeddedLedger> {
        let life: u64 = match engine.get(Table::Ledger, &LIFE_KEY)? {
            Some(value) => decode(SEAM, &value)?,
            None => 0,
        };
        let mut batch = WriteBatch::new();
        batch.put(Table::Ledger, LIFE_KEY.to_vec(), encode(SEAM, &(life + 1))?);
        engine.write(batch)?;
        Ok(EmbeddedLedger {
            engine,
            stamp: AtomicU64::new(life << CALL_BITS),
            // First key of the first message: the count of lives lies below it.
            first_message: AtomicU64::new(1),
        })
    }

    fn add(&self, batch: &mut WriteBatch, entries: &[&LedgerEntry]) -> Result<()> {
        let Some(message) = entries.first().map(|entry| entry.message) else {
            return Ok(());
        };
        let stamp = self.stamp.fetch_add(1, Ordering::Relaxed);
        let key = pair(message.get().to_be_bytes(), stamp.to_be_bytes());
        batch.put(
            Table::Ledger,
            key,
            packed_entries::to_bytes(SEAM, message, entries)?,
        );
        Ok(())
    }

    fn entries(&self, message: MessageId) -> Result<Vec<LedgerEntry>> {
        let prefix = message.get().to_be_bytes();
        let end = (message.get() as u64 + 1).to_be_bytes();
        let mut from = prefix.to_vec();
        let mut entries = Vec::new();
        loop {
            let page =
                self.engine
                    .range(Table::Ledger, &from[..]..&end[..], ScanOrder::Forward, SCAN)?;
            for (_, value) in &page {
                entries.extend(packed_entries::from_bytes(SEAM, message, value)?);
            }
            match page.last() {
                // First key after the last one read.
                Some((key, _)) if page.len() == SCAN => from = [&key[..], &[0]].concat(),
                _ => break,
            }
        }
        // Clocks of services differ; entries of one time keep the order of writing.
        entries.sort_by_key(|entry| entry.at);
        Ok(entries)
    }
}

#[async_trait]
impl LedgerStore for EmbeddedLedger {
    async fn append(&self, entries: Vec<LedgerEntry>) -> Result<()> {
        let mut by_message: Vec<&LedgerEntry> = entries.iter().collect();
        by_message.sort_by_key(|entry| entry.message);
        let mut batch = WriteBatch::new();
        for message_entries in by_message.chunk_by(|one, other| one.message == other.message) {
            self.add(&mut batch, message_entries)?;
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    async fn trace(&self, messages: &[MessageId]) -> Result<Vec<Vec<LedgerEntry>>> {
        messages
            .iter()
            .map(|&message| self.entries(message))
            .collect()
    }

    async fn forget(&self, first_kept: MessageId, limit: usize) -> Result<usize> {
        let start = self.first_message.load(Ordering::Relaxed).to_be_bytes();
        let end = first_kept.get().to_be_bytes();
        let rows = self.engine.range(
            Table::Ledger,
            &start[..]..&end[..],
            ScanOrder::Forward,
            limit,
        )?;
        let mut batch = WriteBatch::new();
        for (key, _) in &rows {
            batch.remove(Table::Ledger, key.clone());
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        if let Some(last) = rows.last().and_then(|(key, _)| key.first_chunk()) {
            let last = u64::from_be_bytes(*last);
            self.first_message.fetch_max(last, Ordering::Relaxed);
        }
        Ok(rows.len())
    }
}

fn pair(first: [u8; 8], second: [u8; 8]) -> Vec<u8> {
    [first, second].concat()
}

#[cfg(test)]
mod tests {
    use protocol::ledger::LedgerEvent;

    use super::*;
    use crate::ledger::contract;
    use crate::test_ids::{TestIds, at, on_memory_and_disk};

    fn open(engine: Engine) -> EmbeddedLedger {
        EmbeddedLedger::open(engine).expect("opens")
    }

    contract::checks!(on_memory_and_disk!(super::open) and forgotten_messages_leave_nothing);

    /// Each life of the store writes beside earlier lives, even in the same millisecond.
    #[tokio::test]
    async fn a_restart_overwrites_nothing() {
        let engine = Engine::memory();
        let message = TestIds::new(1).message();
        for life in 1..=3 {
            let ledger = open(engine.clone());
            let entry = LedgerEntry {
                message,
                at: at(1),
                target: None,
                event: LedgerEvent::Settled,
            };
            ledger.append(vec![entry]).await.expect("appends");
            let trace = ledger.trace(&[message]).await.expect("reads");
            assert_eq!(trace[0].len(), life);
        }
    }

    /// A call makes one row per message, in one write.
    #[tokio::test]
    async fn a_call_is_one_write() {
        let engine = Engine::memory();
        let ledger = open(engine.clone());
        engine.hold_syncs();
        let fresh = TestIds::new(1);
        let entries = fresh.messages(5).into_iter().flat_map(|message| {
            [LedgerEvent::StoredOffline, LedgerEvent::Settled].map(|event| LedgerEntry {
                message,
                at: at(1),
                target: None,
                event,
            })
        });
        let old_count = engine.undurable();
        ledger.append(entries.collect()).await.expect("appends");
        assert_eq!(engine.undurable(), old_count + 1);
        let rows = engine.range(Table::Ledger, .., ScanOrder::Forward, 100);
        assert_eq!(rows.expect("reads").len(), 5 + 1, "five rows and the life");
    }
}
