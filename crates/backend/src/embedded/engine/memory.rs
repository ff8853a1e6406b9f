//! The store in memory, which tests can crash: the newest writes can be taken back.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::commit::{CommitFailure, CommitFuture, Waiter, refused};
use super::{Bounds, KeyChange, KeyValue, OnDurable, ScanOrder, Table, WriteBatch, WriteMark};
use crate::Result;

/// Writes that can be taken back. Beyond this number the oldest count as durable: an operating
/// system also writes its pages back in time.
const MAX_UNDURABLE: usize = 65_536;

type Rows = BTreeMap<Bytes, Bytes>;

pub(super) struct Memory(RwLock<State>);

struct State {
    /// In the order of [`Table::ALL`].
    tables: Vec<Rows>,
    /// Replaced values of each write that no fsync covers, oldest first.
    undo: VecDeque<Vec<KeyChange>>,
    written: u64,
    durable: u64,
    held: bool,
    waiters: Vec<Waiter>,
    fail_syncs: bool,
    poisoned: Option<CommitFailure>,
    /// False once an fsync has failed.
    takes_writes: watch::Sender<bool>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::with(vec![Rows::new(); Table::ALL.len()])
    }
}

impl Memory {
    fn with(tables: Vec<Rows>) -> Memory {
        Memory(RwLock::new(State {
            tables,
            undo: VecDeque::new(),
            written: 0,
            durable: 0,
            held: false,
            waiters: Vec::new(),
            fail_syncs: false,
            poisoned: None,
            takes_writes: watch::Sender::new(true),
        }))
    }

    pub(super) fn write(&self, batch: WriteBatch) -> Result<WriteMark> {
        self.0.write().apply(batch)
    }

    pub(super) fn durable(&self, mark: WriteMark) -> CommitFuture {
        let mut state = self.0.write();
        if state.durable >= mark.0 {
            return CommitFuture::now(Ok(()));
        }
        let (waiter, committed) = Waiter::new(None);
        state.waiters.push(waiter);
        let told = state.sync();
        drop(state);
        told.tell();
        committed
    }

    pub(super) fn commit(
        &self,
        batch: WriteBatch,
        then: Option<OnDurable>,
    ) -> Result<CommitFuture> {
        let mut state = self.0.write();
        state.apply(batch)?;
        let (waiter, committed) = Waiter::new(then);
        state.waiters.push(waiter);
        // Under the lock: concurrent commits must be notified in the order of their writes.
        state.sync().tell();
        Ok(committed)
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<Bytes> {
        self.0.read().tables[table as usize].get(key).cloned()
    }

    pub(super) fn multi_get<K: AsRef<[u8]>>(&self, table: Table, keys: &[K]) -> Vec<Option<Bytes>> {
        let state = self.0.read();
        let rows = &state.tables[table as usize];
        keys.iter()
            .map(|key| rows.get(key.as_ref()).cloned())
            .collect()
    }

    pub(super) fn range(
        &self,
        table: Table,
        bounds: Bounds<'_>,
        order: ScanOrder,
        limit: usize,
    ) -> Vec<KeyValue> {
        let state = self.0.read();
        let found = state.tables[table as usize].range::<[u8], _>(bounds);
        let copied = |(key, value): (&Bytes, &Bytes)| (key.clone(), value.clone());
        match order {
            ScanOrder::Forward => found.take(limit).map(copied).collect(),
            ScanOrder::Backward => found.rev().take(limit).map(copied).collect(),
        }
    }

    pub(super) fn undurable(&self) -> usize {
        self.0.read().undo.len()
    }

    pub(super) fn crash(&self, kept: usize) -> Memory {
        let mut state = self.0.write();
        state.poisoned = Some("the store has crashed".into());
        let told = state.sync();
        let mut tables = state.tables.clone();
        for changes in state.undo.iter().skip(kept).rev() {
            for change in changes.iter().rev() {
                put(&mut tables, change.clone());
            }
        }
        drop(state);
        told.tell();
        Memory::with(tables)
    }

    pub(super) fn hold_syncs(&self) {
        self.0.write().held = true;
    }

    pub(super) fn release_syncs(&self) {
        let mut state = self.0.write();
        state.held = false;
        state.sync().tell();
    }

    pub(super) fn takes_writes(&self) -> watch::Receiver<bool> {
        self.0.read().takes_writes.subscribe()
    }

    pub(super) fn fail_syncs(&self) {
        self.0.write().fail_syncs = true;
    }
}

impl State {
    fn apply(&mut self, batch: WriteBatch) -> Result<WriteMark> {
        if let Some(why) = &self.poisoned {
            return Err(refused(why));
        }
        let replaced = batch
            .changes
            .into_iter()
            .map(|change| put(&mut self.tables, change))
            .collect();
        self.undo.push_back(replaced);
        self.written += 1;
        if self.undo.len() > MAX_UNDURABLE {
            self.undo.pop_front();
            self.durable += 1;
        }
        Ok(WriteMark(self.written))
    }

    /// Simulates an fsync; returns the waiting callers and their result.
    fn sync(&mut self) -> CommitNotice {
        if self.fail_syncs && self.poisoned.is_none() {
            self.poisoned = Some("fsync was told to fail".into());
            self.takes_writes.send_replace(false);
        }
        let outcome = match &self.poisoned {
            Some(why) => Err(why.clone()),
            None if self.held => return CommitNotice::default(),
            None => {
                self.durable = self.written;
                self.undo.clear();
                Ok(())
            }
        };
        CommitNotice {
            waiters: std::mem::take(&mut self.waiters),
            outcome: Some(outcome),
        }
    }
}

#[derive(Default)]
struct CommitNotice {
    waiters: Vec<Waiter>,
    outcome: Option<Result<(), CommitFailure>>,
}

impl CommitNotice {
    fn tell(self) {
        if let Some(outcome) = self.outcome {
            for waiter in self.waiters {
                waiter.tell(&outcome);
            }
        }
    }
}

/// Applies a change and returns its inverse.
fn put(tables: &mut [Rows], change: KeyChange) -> KeyChange {
    let KeyChange { table, key, value } = change;
    let rows = &mut tables[table as usize];
    let replaced = match value {
        Some(value) => rows.insert(key.clone(), value),
        None => rows.remove(&key),
    };
    KeyChange {
        table,
        key,
        value: replaced,
    }
}
