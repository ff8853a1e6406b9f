//! View of the desk in this process: the log of operations, read up to its end.

use std::sync::Arc;

use backend::Error;
use backend::queue::{NewRecord, Partition, Queue, Record};
use bytes::Bytes;
use protocol::keys::Topic;
use tokio::sync::Mutex;

use super::rules::{OperationEntry, Operations, OperatorAction};
use super::{Result, read_on};

/// Entries read at a time.
const PAGE: usize = 500;

/// All operations share one partition, so that they have one order and one process works.
pub(super) const OPERATIONS: Partition = Partition {
    topic: Topic::Operation,
    number: 0,
};

pub(super) struct View {
    queue: Arc<dyn Queue>,
    snapshot: Mutex<DeskSnapshot>,
}

#[derive(Default)]
struct DeskSnapshot {
    operations: Arc<Operations>,
    next: u64,
}

impl View {
    pub(super) fn new(queue: Arc<dyn Queue>) -> View {
        View {
            queue,
            snapshot: Mutex::default(),
        }
    }

    /// The desk after everything that was written before this call.
    pub(super) async fn now(&self) -> Result<Arc<Operations>> {
        let mut snapshot = self.snapshot.lock().await;
        let (first, end) = self.queue.bounds(OPERATIONS).await?;
        let mut next = snapshot.next.max(first);
        while next < end {
            let (records, next_offset) = read_on(&*self.queue, OPERATIONS, next, PAGE).await?;
            next = next_offset;
            // Taken out meanwhile: a panic in between leaves nothing half read, and the next call
            // begins at the beginning.
            let mut operations = std::mem::take(&mut *snapshot).operations;
            let entries = records.iter().filter_map(entry);
            entries.for_each(|entry| Arc::make_mut(&mut operations).read(&entry));
            *snapshot = DeskSnapshot { operations, next };
        }
        Ok(snapshot.operations.clone())
    }
}

/// Reads an entry of the log; `None` if the record is no entry of ours.
pub(super) fn entry(record: &Record) -> Option<OperationEntry> {
    let read = serde_json::from_slice(&record.value);
    read.inspect_err(|error| {
        tracing::warn!(offset = record.offset, %error, "cannot decode an entry of the operations log");
    })
    .ok()
}

/// Entry as a record, readable with ordinary tools.
pub(super) fn record(entry: &OperationEntry) -> Result<NewRecord> {
    let value = serde_json::to_vec(entry).map_err(|error| Error::corrupt("operation", error))?;
    let key = match &entry.act {
        OperatorAction::Begun(begun) => begun.task.to_string(),
        OperatorAction::Chosen { task, .. }
        | OperatorAction::Claimed { task, .. }
        | OperatorAction::Done { task, .. }
        | OperatorAction::Paused { task, .. }
        | OperatorAction::DiedAgain { task, .. }
        | OperatorAction::Resumed { task }
        | OperatorAction::Cancelled { task } => task.to_string(),
        OperatorAction::Looked { letter, .. } => letter.clone(),
        OperatorAction::Exported { from, .. } => from.clone(),
        OperatorAction::Imported { letters, .. } => letters.first().cloned().unwrap_or_default(),
        OperatorAction::Repaired { user, .. } | OperatorAction::SignedOut { user, .. } => {
            user.to_string()
        }
        OperatorAction::Drained { boat, .. } => boat.to_string(),
        OperatorAction::Edited(edited) => edited.letter.clone(),
        OperatorAction::Forgotten { letters } => letters.first().cloned().unwrap_or_default(),
    };
    Ok(NewRecord {
        partition: OPERATIONS,
        key: Bytes::from(key),
        headers: vec![("by".to_owned(), Bytes::from(entry.by.clone()))],
        value: Bytes::from(value),
    })
}
