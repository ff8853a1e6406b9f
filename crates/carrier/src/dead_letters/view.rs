//! What this process knows of the desk: the log of operations, read as far as it goes.

use std::sync::Arc;

use backend::Error;
use backend::queue::{NewRecord, Partition, Queue, Record};
use bytes::Bytes;
use protocol::desk::{Act, Desk, Entry};
use protocol::keys::Topic;
use tokio::sync::Mutex;

use super::{Result, read_on};

/// Entries read at a time.
const PAGE: usize = 500;

/// All operations are in one partition: they have one order, and one process works.
pub(super) const OPERATIONS: Partition = Partition {
    topic: Topic::Operation,
    number: 0,
};

pub(super) struct View {
    queue: Arc<dyn Queue>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    desk: Arc<Desk>,
    next: u64,
}

impl View {
    pub(super) fn new(queue: Arc<dyn Queue>) -> View {
        View {
            queue,
            known: Mutex::default(),
        }
    }

    /// The desk after all that was written before this call.
    pub(super) async fn now(&self) -> Result<Arc<Desk>> {
        let mut known = self.known.lock().await;
        let (first, end) = self.queue.bounds(OPERATIONS).await?;
        let mut next = known.next.max(first);
        while next < end {
            let (records, behind) = read_on(&*self.queue, OPERATIONS, next, PAGE).await?;
            next = behind;
            // Taken out meanwhile: what panics in between leaves nothing half read, and the next call
            // begins at the beginning.
            let mut desk = std::mem::take(&mut *known).desk;
            let entries = records.iter().filter_map(entry);
            entries.for_each(|entry| Arc::make_mut(&mut desk).read(&entry));
            *known = Known { desk, next };
        }
        Ok(known.desk.clone())
    }
}

/// An entry of the log; what is none of ours is passed over.
pub(super) fn entry(record: &Record) -> Option<Entry> {
    let read = serde_json::from_slice(&record.value);
    read.inspect_err(|error| {
        tracing::warn!(offset = record.offset, %error, "an operation cannot be read");
    })
    .ok()
}

/// As a record, readable with ordinary tools.
pub(super) fn record(entry: &Entry) -> Result<NewRecord> {
    let value = serde_json::to_vec(entry).map_err(|error| Error::corrupt("operation", error))?;
    let key = match &entry.act {
        Act::Begun(begun) => begun.task.to_string(),
        Act::Chosen { task, .. }
        | Act::Claimed { task, .. }
        | Act::Done { task, .. }
        | Act::Paused { task, .. }
        | Act::DiedAgain { task, .. }
        | Act::Resumed { task }
        | Act::Cancelled { task } => task.to_string(),
        Act::Looked { letter, .. } => letter.clone(),
        Act::Exported { from, .. } => from.clone(),
        Act::Imported { letters, .. } => letters.first().cloned().unwrap_or_default(),
        Act::Repaired { user, .. } | Act::SignedOut { user, .. } => user.to_string(),
        Act::Drained { boat, .. } => boat.to_string(),
        Act::Edited(edited) => edited.letter.clone(),
        Act::Forgotten { letters } => letters.first().cloned().unwrap_or_default(),
    };
    Ok(NewRecord {
        partition: OPERATIONS,
        key: Bytes::from(key),
        headers: vec![("by".to_owned(), Bytes::from(entry.by.clone()))],
        value: Bytes::from(value),
    })
}
