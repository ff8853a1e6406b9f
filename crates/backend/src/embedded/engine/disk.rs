//! The store in a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::commit::{CommitFailure, CommitFuture, CommitGroup, Waiter, write_refused};
use super::damage;
use super::journal::Journal;
use super::{
    Bounds, EngineOptions, KeyValue, MAX_PENDING_BYTES, OnDurable, SEAM, ScanOrder, Table,
    WriteBatch, WriteMark,
};
use crate::{Error, Result};

const FORMAT_KEY: &[u8] = b"format";
const FORMAT: u32 = 4;

/// Threads that write out and compact tables. With several, fjall's first one only flushes: it
/// spins while another compacts, which took a tenth of all CPU under load.
const WORKERS: usize = 1;

/// Tables of the newest level merged at a time.
const L0_TABLES: u8 = 8;

pub(super) struct Disk {
    state: Arc<DiskState>,
    syncer: Option<JoinHandle<()>>,
}

struct DiskState {
    dir: PathBuf,
    database: Database,
    /// In the order of [`Table::ALL`].
    tables: Vec<Keyspace>,
    fsync: bool,
    /// Marks handed out: a direct write takes its mark once it is in the journal, a gathered one
    /// when it joins the group, under the group's lock.
    marks: AtomicU64,
    durable: AtomicU64,
    group: Mutex<GatherState>,
    work: Condvar,
    failure: Mutex<Option<CommitFailure>>,
    /// False once poisoned.
    takes_writes: watch::Sender<bool>,
    fail_syncs: AtomicBool,
}

#[derive(Default)]
struct GatherState {
    group: CommitGroup,
    is_closing: bool,
}

impl Disk {
    pub(super) fn open(dir: &Path, options: &EngineOptions) -> Result<Disk> {
        let mark = damage::check(dir)?;
        let database = match open_database(dir, options) {
            // fjall cuts most torn writes off, and refuses those whose middle is missing.
            Err(fjall::Error::JournalRecovery(_)) if mark.is_some() => {
                damage::cut_torn_write(dir)?;
                open_database(dir, options)
            }
            outcome => outcome,
        }
        .map_err(|error| open_error(dir, error))?;
        let tables = Table::ALL
            .iter()
            .map(|table| database.keyspace(table.name(), || layout(*table, options)))
            .collect::<fjall::Result<Vec<_>>>()
            .map_err(|error| open_error(dir, error))?;
        let state = Arc::new(DiskState {
            dir: dir.to_path_buf(),
            database,
            tables,
            fsync: options.fsync,
            marks: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            group: Mutex::default(),
            work: Condvar::new(),
            failure: Mutex::default(),
            takes_writes: watch::Sender::new(true),
            fail_syncs: AtomicBool::new(false),
        });
        state.check_format(dir, mark.is_some_and(|mark| !mark.is_empty()))?;
        let journal = Journal::open(dir).map_err(|error| Error::unavailable(SEAM, error))?;
        let syncer = std::thread::Builder::new()
            .name("store-commit".into())
            .spawn({
                let state = state.clone();
                move || state.commit_groups(journal)
            })
            .map_err(|error| Error::unavailable(SEAM, error))?;
        Ok(Disk {
            state,
            syncer: Some(syncer),
        })
    }

    pub(super) fn write(&self, batch: WriteBatch) -> Result<WriteMark> {
        let state = &self.state;
        state.check_usable()?;
        state.apply(batch).map_err(|error| state.poison(&error))?;
        Ok(WriteMark(state.marks.fetch_add(1, Ordering::AcqRel) + 1))
    }

    pub(super) fn durable(&self, mark: WriteMark) -> CommitFuture {
        let state = &self.state;
        if !state.fsync || state.durable.load(Ordering::Acquire) >= mark.0 {
            return CommitFuture::now(Ok(()));
        }
        match self.join(WriteBatch::new(), None) {
            Ok(future) => future,
            Err(error) => CommitFuture::now(Err(error)),
        }
    }

    pub(super) fn commit(
        &self,
        batch: WriteBatch,
        on_durable: Option<OnDurable>,
    ) -> Result<CommitFuture> {
        self.join(batch, on_durable)
    }

    fn join(&self, batch: WriteBatch, on_durable: Option<OnDurable>) -> Result<CommitFuture> {
        let state = &self.state;
        let mut pending = state.group.lock();
        state.check_usable()?;
        if pending.group.batch.bytes() + batch.bytes() > MAX_PENDING_BYTES
            && !pending.group.batch.is_empty()
        {
            return Err(Error::unavailable(
                SEAM,
                "too many writes are waiting for the disk; try again later",
            ));
        }
        let (waiter, future) = Waiter::new(on_durable);
        if !batch.is_empty() {
            state.marks.fetch_add(1, Ordering::AcqRel);
            pending.group.batch.append(batch);
        }
        pending.group.waiters.push(waiter);
        if pending.group.waiters.len() == 1 {
            state.work.notify_one();
        }
        Ok(future)
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        let row = self.state.table(table).get(key).map_err(read_error)?;
        Ok(row.map(|value| Bytes::copy_from_slice(&value)))
    }

    pub(super) fn multi_get<K: AsRef<[u8]>>(
        &self,
        table: Table,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        let snapshot = self.state.database.snapshot();
        let keyspace = self.state.table(table);
        keys.iter()
            .map(|key| {
                let row = snapshot.get(keyspace, key).map_err(read_error)?;
                Ok(row.map(|value| Bytes::copy_from_slice(&value)))
            })
            .collect()
    }

    pub(super) fn range(
        &self,
        table: Table,
        bounds: Bounds<'_>,
        order: ScanOrder,
        limit: usize,
    ) -> Result<Vec<KeyValue>> {
        // The keyspace's own range sees half of a batch during its application; a snapshot does
        // not.
        let snapshot = self.state.database.snapshot();
        let rows = snapshot.range::<&[u8], _>(self.state.table(table), bounds);
        let copy_pair = |guard: fjall::Guard| {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        };
        match order {
            ScanOrder::Forward => rows.take(limit).map(copy_pair).collect(),
            ScanOrder::Backward => rows.rev().take(limit).map(copy_pair).collect(),
        }
    }

    pub(super) fn takes_writes(&self) -> watch::Receiver<bool> {
        self.state.takes_writes.subscribe()
    }

    pub(super) fn fail_syncs(&self) {
        self.state.fail_syncs.store(true, Ordering::Release);
    }
}

impl Drop for Disk {
    /// Answers all waiting callers before the directory is given back.
    fn drop(&mut self) {
        self.state.group.lock().is_closing = true;
        self.state.work.notify_one();
        // A callback on the thread itself may drop the last clone: the thread then ends by itself.
        let own = std::thread::current().id();
        if let Some(syncer) = self.syncer.take().filter(|s| s.thread().id() != own) {
            let _ = syncer.join();
        }
    }
}

impl DiskState {
    fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }

    /// Writes a batch to the journal, flushed to the operating system, and to the tables.
    fn apply(&self, batch: WriteBatch) -> fjall::Result<()> {
        let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
        for change in batch.changes {
            let keyspace = self.table(change.table);
            match change.value {
                Some(value) => writes.insert(keyspace, change.key.as_ref(), value.as_ref()),
                None => writes.remove(keyspace, change.key.as_ref()),
            }
        }
        writes.commit()
    }

    /// Loop of the thread that writes and fsyncs for all waiting callers.
    fn commit_groups(&self, mut journal: Journal) {
        loop {
            let (group, target) = {
                let mut pending = self.group.lock();
                while pending.group.waiters.is_empty() {
                    if pending.is_closing {
                        drop(pending);
                        return self.close(journal);
                    }
                    self.work.wait(&mut pending);
                }
                // Every mark up to this one is in the journal already or in the group taken here.
                let target = self.marks.load(Ordering::Acquire);
                (std::mem::take(&mut pending.group), target)
            };
            let outcome = self.commit_group(group.batch, &mut journal);
            if outcome.is_ok() {
                self.durable.fetch_max(target, Ordering::AcqRel);
            }
            for waiter in group.waiters {
                waiter.notify(&outcome);
            }
        }
    }

    /// After a clean stop the mark covers what nobody waited for, too.
    fn close(&self, mut journal: Journal) {
        if self.check_usable().is_ok()
            && let Err(error) = journal.sync()
        {
            self.poison_because(&error);
        }
    }

    fn commit_group(&self, batch: WriteBatch, journal: &mut Journal) -> Result<(), CommitFailure> {
        if let Some(why) = self.failure.lock().clone() {
            return Err(why);
        }
        self.apply(batch)
            .map_err(|error| self.poison_because(&error))?;
        if self.fail_syncs.load(Ordering::Acquire) {
            return Err(self.poison_because(&"fsync was told to fail"));
        }
        if self.fsync {
            journal
                .sync()
                .map_err(|error| self.poison_because(&error))?;
        }
        Ok(())
    }

    fn check_usable(&self) -> Result<()> {
        match self.failure.lock().as_ref() {
            None => Ok(()),
            Some(why) => Err(write_refused(why)),
        }
    }

    fn poison(&self, error: &dyn std::fmt::Display) -> Error {
        write_refused(&self.poison_because(error))
    }

    fn poison_because(&self, error: &dyn std::fmt::Display) -> CommitFailure {
        let mut failure = self.failure.lock();
        failure
            .get_or_insert_with(|| {
                tracing::error!(
                    %error,
                    data = %self.dir.display(),
                    "a write to the embedded store failed; no further writes until a restart. Is \
                     the disk full or failing? No accepted message is lost"
                );
                self.takes_writes.send_replace(false);
                format!("write failed, no further writes until a restart: {error}").into()
            })
            .clone()
    }

    /// `is_old`: something was written before, so the store has a format.
    fn check_format(&self, dir: &Path, is_old: bool) -> Result<()> {
        let stored_format = self
            .table(Table::Meta)
            .get(FORMAT_KEY)
            .map_err(read_error)?;
        match stored_format {
            Some(format) if *format == FORMAT.to_be_bytes() => Ok(()),
            Some(format) => Err(Error::conflict(
                SEAM,
                format!(
                    "{} has format {format:?}, but this program supports format {FORMAT}",
                    dir.display()
                ),
            )),
            None if is_old => Err(Error::corrupt(
                SEAM,
                format!(
                    "the tables in {} are missing: restore a backup of the directory",
                    dir.display()
                ),
            )),
            None => {
                let mut batch = WriteBatch::new();
                batch.put(Table::Meta, FORMAT_KEY, FORMAT.to_be_bytes().to_vec());
                self.apply(batch).map_err(read_error)?;
                self.database
                    .persist(PersistMode::SyncAll)
                    .map_err(read_error)
            }
        }
    }
}

/// Size of the journal at which the tables that need its oldest part are written out. Bounds the time
/// of a restart after a crash.
const JOURNAL_BYTES: u64 = 256 << 20;

fn open_database(dir: &Path, options: &EngineOptions) -> fjall::Result<Database> {
    Database::builder(dir)
        .cache_size(options.cache_bytes)
        .max_journaling_size(JOURNAL_BYTES)
        .worker_threads(WORKERS)
        .open()
}

/// Options of a new table: filters small enough to be cheap to make.
fn layout(table: Table, options: &EngineOptions) -> KeyspaceCreateOptions {
    let filter = if table.is_read_by_key() {
        FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))
    } else {
        FilterPolicyEntry::None
    };
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_bytes)
        .filter_policy(FilterPolicy::all(filter))
        .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(L0_TABLES)))
}

fn open_error(dir: &Path, error: fjall::Error) -> Error {
    let path = dir.display();
    match error {
        fjall::Error::Locked => damage::in_use(dir),
        fjall::Error::Io(error) => Error::unavailable(SEAM, format!("{path}: {error}")),
        error @ fjall::Error::JournalRecovery(_) => Error::corrupt(
            SEAM,
            format!(
                "{path}: {error}. Restore a backup of the directory, or see what can be saved: \
                 packetboat repair --data {path}"
            ),
        ),
        error => Error::corrupt(SEAM, format!("{path}: {error}")),
    }
}

fn read_error(error: fjall::Error) -> Error {
    match error {
        fjall::Error::Io(error) => Error::unavailable(SEAM, error),
        fjall::Error::Storage(fjall::LsmError::Io(error)) => Error::unavailable(SEAM, error),
        error @ fjall::Error::Poisoned => Error::unavailable(SEAM, error),
        error => Error::corrupt(SEAM, error),
    }
}
