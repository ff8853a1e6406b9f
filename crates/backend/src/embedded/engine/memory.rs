//! The store in memory, which tests can crash: the newest writes can be taken back.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::commit::{CommitFailure, CommitFuture, Waiter, write_refused};
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
    write_count: u64,
    durable: u64,
    holds_syncs: bool,
    waiters: Vec<Waiter>,
    fail_syncs: bool,
    failure: Option<CommitFailure>,
    /// False once an fsync has failed.
    takes_writes: watch::Sender<bool>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::from_tables(vec![Rows::new(); Table::ALL.len()])
    }
}

impl Memory {
    fn from_tables(tables: Vec<Rows>) -> Memory {
        Memory(RwLock::new(State {
            tables,
            undo: VecDeque::new(),
            write_count: 0,
            durable: 0,
            holds_syncs: false,
            waiters: Vec::new(),
            fail_syncs: false,
            failure: None,
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
        let (waiter, future) = Waiter::new(None);
        state.waiters.push(waiter);
        let notice = state.sync();
        drop(state);
        notice.notify();
        future
    }

    pub(super) fn commit(
        &self,
        batch: WriteBatch,
        on_durable: Option<OnDurable>,
    ) -> Result<CommitFuture> {
        let mut state = self.0.write();
        state.apply(batch)?;
        let (waiter, future) = Waiter::new(on_durable);
        state.waiters.push(waiter);
        // Under the lock: concurrent commits must be notified in the order of their writes.
        state.sync().notify();
        Ok(future)
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
        let rows = state.tables[table as usize].range::<[u8], _>(bounds);
        let copy_pair = |(key, value): (&Bytes, &Bytes)| (key.clone(), value.clone());
        match order {
            ScanOrder::Forward => rows.take(limit).map(copy_pair).collect(),
            ScanOrder::Backward => rows.rev().take(limit).map(copy_pair).collect(),
        }
    }

    pub(super) fn undurable(&self) -> usize {
        self.0.read().undo.len()
    }

    pub(super) fn crash(&self, kept_count: usize) -> Memory {
        let mut state = self.0.write();
        state.failure = Some("the store has crashed".into());
        let notice = state.sync();
        let mut tables = state.tables.clone();
        for changes in state.undo.iter().skip(kept_count).rev() {
            for change in changes.iter().rev() {
                put(&mut tables, change.clone());
            }
        }
        drop(state);
        notice.notify();
        Memory::from_tables(tables)
    }

    pub(super) fn hold_syncs(&self) {
        self.0.write().holds_syncs = true;
    }

    pub(super) fn release_syncs(&self) {
        let mut state = self.0.write();
        state.holds_syncs = false;
        state.sync().notify();
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
        if let Some(why) = &self.failure {
            return Err(write_refused(why));
        }
        let old_values = batch
            .changes
            .into_iter()
            .map(|change| put(&mut self.tables, change))
            .collect();
        self.undo.push_back(old_values);
        self.write_count += 1;
        if self.undo.len() > MAX_UNDURABLE {
            self.undo.pop_front();
            self.durable += 1;
        }
        Ok(WriteMark(self.write_count))
    }

    /// Simulates an fsync; returns the waiting callers and their result.
    fn sync(&mut self) -> CommitNotice {
        if self.fail_syncs && self.failure.is_none() {
            self.failure = Some("fsync was told to fail".into());
            self.takes_writes.send_replace(false);
        }
        let outcome = match &self.failure {
            Some(why) => Err(why.clone()),
            None if self.holds_syncs => return CommitNotice::default(),
            None => {
                self.durable = self.write_count;
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
    fn notify(self) {
        if let Some(outcome) = self.outcome {
            for waiter in self.waiters {
                waiter.notify(&outcome);
            }
        }
    }
}

/// Applies a change and returns its inverse.
fn put(tables: &mut [Rows], change: KeyChange) -> KeyChange {
    let KeyChange { table, key, value } = change;
    let rows = &mut tables[table as usize];
    let old_value = match value {
        Some(value) => rows.insert(key.clone(), value),
        None => rows.remove(&key),
    };
    KeyChange {
        table,
        key,
        value: old_value,
    }
}
