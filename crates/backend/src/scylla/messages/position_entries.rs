//! Messages by position, in blocks of positions: the writing.
//!
//! Writers go upward: a write becomes visible at once (it is in one partition), and the next begins
//! when it is acknowledged. The row of a block is written between the last position of the block
//! before and its own first one. A position missing below an existing one will therefore never come
//! by waiting.

use std::collections::BTreeMap;

use super::{Key, KeyedValues};
use crate::Result;
use crate::scylla::{SeamCql, Statement, WrittenCache};

/// Positions per write: some kilobytes.
const MAX_ENTRIES_PER_WRITE: usize = 50;

/// Message at a position, and the version that put it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PositionEntry {
    pub(crate) ver: i64,
    pub(crate) id: i64,
}

/// Entries to be written: of two versions of a position the later.
pub(crate) struct PositionEntries<K>(BTreeMap<K, BTreeMap<i64, PositionEntry>>);

impl<K: Key> PositionEntries<K> {
    pub(crate) fn of(
        items: impl IntoIterator<Item = (K, i64, PositionEntry)>,
    ) -> PositionEntries<K> {
        let mut by_key: BTreeMap<K, BTreeMap<i64, PositionEntry>> = BTreeMap::new();
        for (key, seq, candidate) in items {
            let entry = by_key.entry(key).or_default().entry(seq);
            let entry = entry.or_insert(candidate);
            *entry = candidate.max(*entry);
        }
        PositionEntries(by_key)
    }
}

/// Writes to the tables of one kind of key.
pub(crate) struct Entries<K: Key> {
    insert: Statement,
    insert_block: Statement,
    known_blocks: WrittenCache<(K, i64)>,
}

impl<K: Key> Entries<K> {
    pub(crate) fn new() -> Entries<K> {
        let (entries, blocks, columns) = (K::ENTRIES, K::BLOCKS, K::COLUMNS.join(", "));
        let marks = "?, ".repeat(K::COLUMNS.len());
        Entries {
            insert: Statement::new(format!(
                "INSERT INTO {entries} ({columns}, block, seq, id) VALUES ({marks}?, ?, ?) USING TIMESTAMP ?"
            )),
            insert_block: Statement::new(format!(
                "INSERT INTO {blocks} ({columns}, block) VALUES ({marks}?)"
            )),
            known_blocks: WrittenCache::default(),
        }
    }

    /// Saves the entries, keys concurrently, each upward.
    pub(crate) async fn save(&self, cql: &SeamCql, entries: PositionEntries<K>) -> Result<()> {
        let keys = entries.0.into_iter();
        let saves = keys.map(|(key, entries)| self.save_one(cql, key, entries));
        cql.all(saves.collect()).await.map(drop)
    }

    async fn save_one(
        &self,
        cql: &SeamCql,
        key: K,
        by_seq: BTreeMap<i64, PositionEntry>,
    ) -> Result<()> {
        let entries: Vec<_> = by_seq
            .into_iter()
            .map(|(seq, PositionEntry { ver, id })| (K::to_block(seq), seq, id, ver))
            .collect();
        let blocks = entries.chunk_by(|one, other| one.0 == other.0);
        for chunk in blocks.flat_map(|in_block| in_block.chunks(MAX_ENTRIES_PER_WRITE)) {
            self.open(cql, key, chunk[0].0).await?;
            let writes = chunk
                .iter()
                .map(|&entry| (&self.insert, KeyedValues(key, entry)));
            cql.write_together(writes.collect()).await?;
        }
        Ok(())
    }

    async fn open(&self, cql: &SeamCql, key: K, block: i64) -> Result<()> {
        if !self.known_blocks.has(&(key, block)) {
            cql.write(&self.insert_block, KeyedValues(key, (block,)))
                .await?;
            self.known_blocks.add((key, block));
        }
        Ok(())
    }
}
