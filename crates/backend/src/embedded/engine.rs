//! The ordered key-value store under every embedded seam: one database, one journal.
//!
//! Writes are atomic over tables and kept in one order, so that what a crash leaves is always a prefix of
//! what was written: nobody ever finds an effect without its cause. Two degrees of safety:
//!
//! - [`Engine::write`] returns when the batch is readable and in the operating system's page cache: a
//!   `kill -9` of this process loses nothing of it, a power cut may lose the newest writes.
//! - [`Engine::durable`] and [`Engine::commit`] return when an fsync covers it. One thread does that for
//!   everybody who waits at the time, so the cost of an fsync is shared.
//!
//! A failed fsync may have lost any page it covered, and trying again would hide that. So it fails
//! everybody who waits and ends all later writes of this engine (`Unavailable`); reads go on.

mod commit;
mod disk;
mod journal;
mod memory;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::future::Future;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::disk::Disk;
use self::memory::Memory;
pub use self::table::Table;
use crate::{Error, Result};

pub(crate) const SEAM: &str = "embedded store";

/// What one commit of the engine may keep waiting for its fsync; beyond it, commits are refused.
pub const MAX_PENDING_BYTES: usize = 64 << 20;

/// The store on disk.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Bytes of new writes that a table keeps in memory before it writes them out.
    pub memtable_bytes: u64,
    /// Bytes of blocks in memory for reads, over all tables.
    pub cache_bytes: u64,
    /// Bytes of journal before the tables that need its oldest part are written out. Bounds the
    /// time of a restart after a crash.
    pub journal_bytes: u64,
    /// Flush of each commit to disk. Without it *accepted* survives a kill but not a power cut.
    pub fsync: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            memtable_bytes: 64 << 20,
            cache_bytes: 32 << 20,
            journal_bytes: 256 << 20,
            fsync: true,
        }
    }
}

/// A point in the order of writes: [`Engine::durable`] waits until an fsync covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The order in which a range is read; a limit counts from its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
}

pub type Pair = (Bytes, Bytes);

/// What [`Engine::commit`] does when the batch is durable.
pub type Then = Box<dyn FnOnce() + Send + Sync>;

/// Puts and removes over several tables, written as one. Of two for the same key the later counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    changes: Vec<Change>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Change {
    table: Table,
    key: Bytes,
    /// `None` removes.
    value: Option<Bytes>,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn put(&mut self, table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(table, key.into(), Some(value.into()));
    }

    pub fn remove(&mut self, table: Table, key: impl Into<Bytes>) {
        self.push(table, key.into(), None);
    }

    /// Adds everything of `other` after what is here.
    pub fn append(&mut self, mut other: Batch) {
        self.bytes += other.bytes;
        self.changes.append(&mut other.changes);
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many puts and removes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.changes.push(Change { table, key, value });
    }
}

/// The store; clones share it. The last clone that is dropped closes it.
#[derive(Clone)]
pub struct Engine {
    store: Arc<Store>,
}

enum Store {
    Disk(Disk),
    Memory(Memory),
}

impl Engine {
    /// Opens the store in a directory, made where it is missing. `Conflict` when another process runs on
    /// it or when it was written by another version; `Corrupt` when it cannot be read.
    pub fn open(dir: &Path, options: EngineOptions) -> Result<Engine> {
        Ok(Engine::of(Store::Disk(Disk::open(dir, &options)?)))
    }

    /// A store that ends with the process. Everything is durable at once, unless [`Engine::hold_syncs`]
    /// says otherwise; no thread is involved, so paused time stays exact.
    pub fn memory() -> Engine {
        Engine::of(Store::Memory(Memory::default()))
    }

    fn of(store: Store) -> Engine {
        Engine {
            store: Arc::new(store),
        }
    }

    /// Writes the batch as one. Readable at once and safe from a kill of this process, not yet from a power
    /// cut: see [`Engine::durable`]. Takes microseconds; when the disk cannot keep up with the tables it
    /// blocks until it can, which bounds memory.
    pub fn write(&self, batch: Batch) -> Result<Mark> {
        match self.store.as_ref() {
            Store::Disk(disk) => disk.write(batch),
            Store::Memory(memory) => memory.write(batch),
        }
    }

    /// Waits until everything up to `mark` is fsynced. The fsync is asked for by the call itself, so a
    /// dropped future only stops waiting.
    pub fn durable(&self, mark: Mark) -> impl Future<Output = Result<()>> + Send + use<> {
        match self.store.as_ref() {
            Store::Disk(disk) => disk.durable(mark),
            Store::Memory(memory) => memory.durable(mark),
        }
    }

    /// Writes the batch and waits for its fsync, together with all others that come meanwhile: one write
    /// and one fsync for all of them, which is the cheapest way to many small durable writes. Batches are
    /// written in the order of the calls but may become readable only when they are durable.
    ///
    /// `then` runs when it is durable, even if the future was dropped, in the order of the calls and before
    /// any later one; it must be quick and must not call the engine. It does not run after a failure.
    ///
    /// Refused at once, with nothing written, when the store has failed or too much waits already.
    pub fn commit(
        &self,
        batch: Batch,
        then: Option<Then>,
    ) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
        match self.store.as_ref() {
            Store::Disk(disk) => disk.commit(batch, then),
            Store::Memory(memory) => memory.commit(batch, then),
        }
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        match self.store.as_ref() {
            Store::Disk(disk) => disk.get(table, key),
            Store::Memory(memory) => Ok(memory.get(table, key)),
        }
    }

    /// All keys at one moment, in order of the question.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        table: Table,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        match self.store.as_ref() {
            Store::Disk(disk) => disk.multi_get(table, keys),
            Store::Memory(memory) => Ok(memory.multi_get(table, keys)),
        }
    }

    /// At most `limit` pairs of a range at one moment. Scanning over many removed keys is slow: start at
    /// a low-water key where the front of a range is removed again and again.
    pub fn range<'a>(
        &self,
        table: Table,
        range: impl RangeBounds<&'a [u8]>,
        order: Order,
        limit: usize,
    ) -> Result<Vec<Pair>> {
        let bounds = (
            range.start_bound().map(|key| *key),
            range.end_bound().map(|key| *key),
        );
        if limit == 0 || is_empty(bounds) {
            return Ok(Vec::new());
        }
        match self.store.as_ref() {
            Store::Disk(disk) => disk.range(table, bounds, order, limit),
            Store::Memory(memory) => Ok(memory.range(table, bounds, order, limit)),
        }
    }

    /// At most `limit` pairs whose keys begin with `prefix`.
    pub fn prefix(
        &self,
        table: Table,
        prefix: &[u8],
        order: Order,
        limit: usize,
    ) -> Result<Vec<Pair>> {
        match after_prefix(prefix) {
            Some(end) => self.range(table, prefix..end.as_slice(), order, limit),
            None => self.range(table, prefix.., order, limit),
        }
    }

    /// Removes at most `limit` keys of a range, lowest first, as one batch; answers how many. Repeat until
    /// it answers less than `limit`.
    pub fn remove_range<'a>(
        &self,
        table: Table,
        range: impl RangeBounds<&'a [u8]>,
        limit: usize,
    ) -> Result<usize> {
        let found = self.range(table, range, Order::Forward, limit)?;
        let mut batch = Batch::new();
        for (key, _) in &found {
            batch.remove(table, key.clone());
        }
        if !batch.is_empty() {
            self.write(batch)?;
        }
        Ok(found.len())
    }

    /// How many of the newest writes no fsync covers yet: what a crash may take. Only known in memory.
    pub fn undurable(&self) -> usize {
        match self.store.as_ref() {
            Store::Disk(_) => 0,
            Store::Memory(memory) => memory.undurable(),
        }
    }

    /// A power cut, for tests: a new engine with everything durable and the first `kept` of the writes
    /// after that ([`Engine::undurable`] is the most there are). This one refuses all later writes.
    /// `Conflict` on disk.
    pub fn crash(&self, kept: usize) -> Result<Engine> {
        match self.store.as_ref() {
            Store::Disk(_) => Err(Error::conflict(SEAM, "only a store in memory can do that")),
            Store::Memory(memory) => Ok(Engine::of(Store::Memory(memory.crash(kept)))),
        }
    }

    /// For tests, in memory only: until [`Engine::release_syncs`] nothing becomes durable.
    pub fn hold_syncs(&self) {
        if let Store::Memory(memory) = self.store.as_ref() {
            memory.hold_syncs();
        }
    }

    pub fn release_syncs(&self) {
        if let Store::Memory(memory) = self.store.as_ref() {
            memory.release_syncs();
        }
    }

    /// For tests: the next fsync fails, as a broken disk's would.
    pub fn fail_syncs(&self) {
        match self.store.as_ref() {
            Store::Disk(disk) => disk.fail_syncs(),
            Store::Memory(memory) => memory.fail_syncs(),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.store.as_ref() {
            Store::Disk(_) => "Engine(disk)",
            Store::Memory(_) => "Engine(memory)",
        })
    }
}

type Bounds<'a> = (std::ops::Bound<&'a [u8]>, std::ops::Bound<&'a [u8]>);

/// Whether no key can lie in the range: what a BTreeMap would panic on.
fn is_empty(bounds: Bounds<'_>) -> bool {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    match bounds {
        (Unbounded, _) | (_, Unbounded) => false,
        (Included(start), Included(end)) => start > end,
        (Included(start) | Excluded(start), Included(end) | Excluded(end)) => start >= end,
    }
}

/// The first key after all that begin with `prefix`.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
