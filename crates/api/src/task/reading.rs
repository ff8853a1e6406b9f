//! Reading of a record by a carrier: its task, or the reason why it is a dead letter at once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use protocol::keys;
use protocol::ledger::DeadReason;
use protocol::record::{Task, Work, publish_key};

use super::Value;

/// Reason of a dead letter, and its words.
pub type Flaw = (DeadReason, String);

/// Decodes the task of a record, and returns whatever the bytes are, even if the decoder panics.
///
/// # Errors
/// Bytes that are no task.
pub fn decode(value: Bytes) -> Result<Task, Flaw> {
    match catch_unwind(AssertUnwindSafe(|| Task::decode(value))) {
        Ok(Ok(task)) => Ok(task),
        Ok(Err(refusal)) => Err((DeadReason::Undecodable, refusal.to_string())),
        Err(_) => Err((DeadReason::HandlerPanic, "decoding it panicked".to_owned())),
    }
}

/// Flaw by which a task cannot be worked on: its value has this many bytes, and lies in `partition`
/// of a topic with this many.
pub fn flaw(task: &Task, bytes: usize, partition: u32, partitions: u32) -> Option<Flaw> {
    if let Some(error) = too_large(task, bytes) {
        return Some((DeadReason::TooLarge, error));
    }
    misplaced(task, partition, partitions).map(|error| (DeadReason::Misplaced, error))
}

/// Checks a message against the size limit of its acceptance. Any other record was written, and
/// split, by a carrier.
fn too_large(task: &Task, bytes: usize) -> Option<String> {
    let Work::Message(task) = &task.work else {
        return None;
    };
    let max_bytes = task.bounds.record_bytes;
    (bytes > max_bytes).then(|| format!("{bytes} bytes, at most {max_bytes} are taken"))
}

/// A conversation has one writer only while its records are in the partition of its key.
fn misplaced(task: &Task, partition: u32, partitions: u32) -> Option<String> {
    let Some(key) = publish_key(&task.work) else {
        return Some("it belongs to no conversation".to_owned());
    };
    let key_partition = keys::partition_of(&key, partitions);
    (key_partition != partition)
        .then(|| format!("its key belongs to partition {key_partition} of {partitions}"))
}
