//! The ordered key-value store under every embedded seam: one database, one journal.
//!
//! Writes are atomic across tables and kept in one order, so that a crash always leaves a prefix of
//! the writes: no reader ever finds an effect without its cause. Two degrees of safety:
//!
//! - [`Engine::write`] returns when the batch is readable and in the page cache of the system: a
//!   `kill -9` of this process loses nothing of it, a power cut may lose the newest writes.
//! - [`Engine::durable`] and [`Engine::commit`] return when an fsync covers it. One thread does
//!   that for all callers waiting at the time, so they share the cost of an fsync.
//!
//! What was durable and is no longer there is damage: a file beside the journals says how far they
//! were durable, and a store that has less does not open ([`Engine::repair`]).
//!
//! A failed fsync may have lost any page it covered, and a retry would hide that. It therefore
//! fails all waiting callers and ends all later writes of this engine (`Unavailable`); reads go on.
//! Only a new process heals that: [`Engine::takes_writes`] tells when one is needed.

mod commit;
mod damage;
#[cfg(test)]
mod damage_tests;
mod disk;
mod journal;
mod mark;
mod memory;
mod records;
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
use tokio::sync::watch;

pub use self::damage::JournalDamage;
use self::disk::Disk;
use self::memory::Memory;
pub use self::table::Table;
use crate::{Error, Result};

pub(crate) const SEAM: &str = "embedded store";

/// Bytes of commits that may wait for an fsync; a commit beyond is refused.
pub const MAX_PENDING_BYTES: usize = 64 << 20;

/// The store on disk.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Bytes of new writes that each table buffers in memory before it writes them out.
    #[serde(skip)]
    pub memtable_bytes: u64,
    /// Size of the block cache for reads in bytes, shared by all tables.
    pub cache_bytes: u64,
    /// Flushes each commit to disk. Without it, *accepted* survives a kill but not a power cut.
    pub fsync: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            memtable_bytes: 64 << 20,
            cache_bytes: 32 << 20,
            fsync: true,
        }
    }
}

/// A point in the order of writes: [`Engine::durable`] waits until an fsync covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteMark(u64);

/// Order in which a range is read; a limit counts from its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOrder {
    Forward,
    Backward,
}

pub type KeyValue = (Bytes, Bytes);

/// Callback of [`Engine::commit`], run when the batch is durable.
pub type OnDurable = Box<dyn FnOnce() + Send + Sync>;

/// Puts and removes over several tables, written as one. The later of two changes of one key
/// counts.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    changes: Vec<KeyChange>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct KeyChange {
    table: Table,
    key: Bytes,
    /// `None` removes.
    value: Option<Bytes>,
}

impl WriteBatch {
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    pub fn put(&mut self, table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(table, key.into(), Some(value.into()));
    }

    pub fn remove(&mut self, table: Table, key: impl Into<Bytes>) {
        self.push(table, key.into(), None);
    }

    /// Appends all changes of `other`.
    pub fn append(&mut self, mut other: WriteBatch) {
        self.bytes += other.bytes;
        self.changes.append(&mut other.changes);
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of puts and removes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.changes.push(KeyChange { table, key, value });
    }
}

/// The store; clones share it. The last clone that is dropped closes it.
///
/// A trait object, because the compiler proves anew in every async function that what it holds is
/// `Send` and `Sync`: through all types of the database, that was a quarter of this crate's build.
#[derive(Clone)]
pub struct Engine {
    store: Arc<dyn AsRef<Store> + Send + Sync>,
}

enum Store {
    Disk(Disk),
    Memory(Memory),
}

impl AsRef<Store> for Store {
    fn as_ref(&self) -> &Store {
        self
    }
}

impl Engine {
    /// Opens the store in a directory, made if missing. `Conflict` if another process runs on it or
    /// another version wrote it; `Corrupt` if it cannot be read, or lost something that was durable.
    pub fn open(dir: &Path, options: EngineOptions) -> Result<Engine> {
        Ok(Engine::from_store(Store::Disk(Disk::open(dir, &options)?)))
    }

    /// What the journals in a directory lost, if anything. Changes nothing. `Conflict` if a process
    /// runs on it.
    pub fn examine(dir: &Path) -> Result<Option<JournalDamage>> {
        damage::examine(dir)
    }

    /// Cuts the journals in a directory to the part before their damage, so that the store opens
    /// again, and keeps copies of the rest. `Conflict` if a process runs on it.
    pub fn repair(dir: &Path) -> Result<Option<JournalDamage>> {
        damage::repair(dir)
    }

    /// A store that ends with the process. Everything is durable at once, unless
    /// [`Engine::hold_syncs`] delays it; no thread is involved, so paused time stays exact.
    pub fn memory() -> Engine {
        Engine::from_store(Store::Memory(Memory::default()))
    }

    fn from_store(store: Store) -> Engine {
        Engine {
            store: Arc::new(store),
        }
    }

    fn store(&self) -> &Store {
        (*self.store).as_ref()
    }

    /// Writes the batch as one. It is readable at once and safe from a kill of this process, not
    /// yet from a power cut: see [`Engine::durable`]. Takes microseconds; blocks while the disk
    /// cannot keep up with the tables, which bounds memory.
    pub fn write(&self, batch: WriteBatch) -> Result<WriteMark> {
        match self.store() {
            Store::Disk(disk) => disk.write(batch),
            Store::Memory(memory) => memory.write(batch),
        }
    }

    /// Waits until everything up to `mark` is fsynced. The call itself requests the fsync, so a
    /// dropped future only stops waiting.
    pub fn durable(&self, mark: WriteMark) -> impl Future<Output = Result<()>> + Send + use<> {
        match self.store() {
            Store::Disk(disk) => disk.durable(mark),
            Store::Memory(memory) => memory.durable(mark),
        }
    }

    /// Writes the batch and waits for its fsync, together with all concurrent commits: one write
    /// and one fsync for all of them, which is the cheapest way to many small durable writes.
    /// Batches are written in the order of the calls but may become readable only when they are
    /// durable.
    ///
    /// `on_durable` runs when the batch is durable, even if the future was dropped, in the order of
    /// the calls and before any later one; it must be quick and must not call the engine. It does
    /// not run after a failure.
    ///
    /// Refused at once, with nothing written, if the store has failed or too much waits already.
    pub fn commit(
        &self,
        batch: WriteBatch,
        on_durable: Option<OnDurable>,
    ) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
        match self.store() {
            Store::Disk(disk) => disk.commit(batch, on_durable),
            Store::Memory(memory) => memory.commit(batch, on_durable),
        }
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        match self.store() {
            Store::Disk(disk) => disk.get(table, key),
            Store::Memory(memory) => Ok(memory.get(table, key)),
        }
    }

    /// Values of all keys at one moment, in request order.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        table: Table,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        match self.store() {
            Store::Disk(disk) => disk.multi_get(table, keys),
            Store::Memory(memory) => Ok(memory.multi_get(table, keys)),
        }
    }

    /// Reads at most `limit` pairs of a range at one moment. Scans over many removed keys are slow:
    /// start at a low-water key if the front of a range is removed again and again.
    pub fn range<'a>(
        &self,
        table: Table,
        range: impl RangeBounds<&'a [u8]>,
        order: ScanOrder,
        limit: usize,
    ) -> Result<Vec<KeyValue>> {
        let bounds = (
            range.start_bound().map(|key| *key),
            range.end_bound().map(|key| *key),
        );
        if limit == 0 || is_empty(bounds) {
            return Ok(Vec::new());
        }
        match self.store() {
            Store::Disk(disk) => disk.range(table, bounds, order, limit),
            Store::Memory(memory) => Ok(memory.range(table, bounds, order, limit)),
        }
    }

    /// At most `limit` pairs whose keys begin with `prefix`.
    pub fn prefix(
        &self,
        table: Table,
        prefix: &[u8],
        order: ScanOrder,
        limit: usize,
    ) -> Result<Vec<KeyValue>> {
        match after_prefix(prefix) {
            Some(end) => self.range(table, prefix..end.as_slice(), order, limit),
            None => self.range(table, prefix.., order, limit),
        }
    }

    /// Removes at most `limit` keys of a range, lowest first, as one batch; returns the number
    /// removed. Repeat until it is less than `limit`.
    pub fn remove_range<'a>(
        &self,
        table: Table,
        range: impl RangeBounds<&'a [u8]>,
        limit: usize,
    ) -> Result<usize> {
        let rows = self.range(table, range, ScanOrder::Forward, limit)?;
        let mut batch = WriteBatch::new();
        for (key, _) in &rows {
            batch.remove(table, key.clone());
        }
        if !batch.is_empty() {
            self.write(batch)?;
        }
        Ok(rows.len())
    }

    /// True until a write or an fsync fails, and false from then on: the process should end, and be
    /// started again. The receiver does not keep the store open.
    pub fn takes_writes(&self) -> watch::Receiver<bool> {
        match self.store() {
            Store::Disk(disk) => disk.takes_writes(),
            Store::Memory(memory) => memory.takes_writes(),
        }
    }

    /// Number of newest writes that no fsync covers yet and a crash may take. Known only in memory.
    pub fn undurable(&self) -> usize {
        match self.store() {
            Store::Disk(_) => 0,
            Store::Memory(memory) => memory.undurable(),
        }
    }

    /// Simulates a power cut, for tests: returns an engine with all durable writes and the first
    /// `kept_count` of the writes after those ([`Engine::undurable`] is the most there are). This
    /// engine refuses all later writes. `Conflict` on disk.
    pub fn crash(&self, kept_count: usize) -> Result<Engine> {
        match self.store() {
            Store::Disk(_) => Err(Error::conflict(
                SEAM,
                "only an in-memory store supports this",
            )),
            Store::Memory(memory) => {
                Ok(Engine::from_store(Store::Memory(memory.crash(kept_count))))
            }
        }
    }

    /// For tests, in memory only: nothing becomes durable until [`Engine::release_syncs`].
    pub fn hold_syncs(&self) {
        if let Store::Memory(memory) = self.store() {
            memory.hold_syncs();
        }
    }

    pub fn release_syncs(&self) {
        if let Store::Memory(memory) = self.store() {
            memory.release_syncs();
        }
    }

    /// For tests: the next fsync fails, as a broken disk's would.
    pub fn fail_syncs(&self) {
        match self.store() {
            Store::Disk(disk) => disk.fail_syncs(),
            Store::Memory(memory) => memory.fail_syncs(),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.store() {
            Store::Disk(_) => "Engine(disk)",
            Store::Memory(_) => "Engine(memory)",
        })
    }
}

type Bounds<'a> = (std::ops::Bound<&'a [u8]>, std::ops::Bound<&'a [u8]>);

/// Whether no key can lie in the range; a BTreeMap may panic on such bounds.
fn is_empty(bounds: Bounds<'_>) -> bool {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    match bounds {
        (Unbounded, _) | (_, Unbounded) => false,
        (Included(start), Included(end)) => start > end,
        (Included(start) | Excluded(start), Included(end) | Excluded(end)) => start >= end,
    }
}

/// First key after all that begin with `prefix`.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
