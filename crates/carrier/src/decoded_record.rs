//! Decodes a record: its task, or the reason why it is a dead letter at once.

use api::dead_letter::{self, DeadLetter, LetterOrigin};
use api::task::{Value, reading};
use backend::queue::{NewRecord, Partition, Record};
use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::message::Target;
use protocol::record::{Task, TaskRecord};
use protocol::{ConversationId, MessageId, Timestamp, TraceContext};

/// A record that can be worked on.
#[derive(Debug)]
pub(crate) struct DecodedRecord {
    pub(crate) source: Source,
    pub(crate) task: Task,
    /// Bytes in the log, for the dead letter that the record may become.
    pub(crate) record: RawRecord,
}

impl DecodedRecord {
    /// Bytes of key and value in the log.
    pub(crate) fn bytes(&self) -> usize {
        self.record.key.len() + self.record.value.len()
    }

    pub(crate) fn as_task(&self) -> TaskRecord<'_> {
        TaskRecord {
            source: self.source,
            task: &self.task,
        }
    }

    pub(crate) fn copy(&self) -> DecodedRecord {
        DecodedRecord {
            source: self.source,
            task: self.task.clone(),
            record: self.record.clone(),
        }
    }
}

/// Parts of a record that its dead letter keeps.
#[derive(Clone, Debug)]
pub(crate) struct RawRecord {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
    pub(crate) appended_at: Timestamp,
    /// Letter that the record redrives.
    pub(crate) parent: Option<String>,
}

/// A record to be dead-lettered.
#[derive(Debug)]
pub(crate) struct PoisonRecord {
    pub(crate) source: Source,
    pub(crate) record: RawRecord,
    pub(crate) reason: DeadReason,
    pub(crate) error: String,
    pub(crate) message: Option<MessageId>,
    pub(crate) conversation: Option<ConversationId>,
    /// Targets that miss it; empty if the whole record failed.
    pub(crate) targets: Vec<Target>,
    /// True if live sessions miss it, too.
    pub(crate) is_live: bool,
    pub(crate) retry_count: u32,
    pub(crate) trace: Option<TraceContext>,
}

impl PoisonRecord {
    /// Gives up a record that was read but cannot be processed: of a retry its own recipients, of
    /// any other record the whole.
    pub(crate) fn of(
        read: DecodedRecord,
        reason: DeadReason,
        error: impl Into<String>,
    ) -> Box<PoisonRecord> {
        Box::new(PoisonRecord {
            source: read.source,
            message: read.task.work.message(),
            conversation: read.task.work.conversation(),
            targets: read.task.work.targets().to_vec(),
            is_live: read.task.work.is_live(),
            retry_count: read.task.retry_count,
            trace: read.task.trace,
            record: read.record,
            reason,
            error: error.into(),
        })
    }

    /// Gives up a retry that the log does not take, on behalf of the record at `source` whose rest
    /// it carries. `None` if the retry is no task.
    pub(crate) fn of_retry(
        source: Source,
        retry: &NewRecord,
        error: impl Into<String>,
    ) -> Option<Box<PoisonRecord>> {
        let task = Task::decode(retry.value.clone()).ok()?;
        let record = RawRecord {
            key: retry.key.clone(),
            value: retry.value.clone(),
            appended_at: task.first_at,
            parent: task.work.letter().map(str::to_owned),
        };
        let read = DecodedRecord {
            source,
            task,
            record,
        };
        Some(PoisonRecord::of(read, DeadReason::TooLarge, error))
    }

    pub(crate) fn letter(&self, now: Timestamp, carrier: &str) -> DeadLetter {
        DeadLetter {
            origin: LetterOrigin {
                topic: self.source.topic,
                partition: self.source.partition,
                offset: self.source.offset,
            },
            message: self.message,
            conversation: self.conversation,
            targets: self.targets.clone(),
            retry_count: self.retry_count,
            first_failed_at: self.record.appended_at,
            last_failed_at: now,
            reason: self.reason,
            error_message: self.error.clone(),
            carrier: carrier.to_owned(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            trace: self.trace,
            parent: self.record.parent.clone(),
        }
    }
}

pub(crate) fn source_of(record: &Record) -> Source {
    Source {
        topic: record.partition.topic,
        partition: record.partition.number,
        offset: record.offset,
    }
}

pub(crate) fn partition_key(partition: Partition) -> (Topic, u32) {
    (partition.topic, partition.number)
}

/// Reads a record of a topic with this many partitions. Returns whatever the bytes are, even if the
/// decoder panics.
pub(crate) fn read(record: Record, partitions: u32) -> Result<DecodedRecord, Box<PoisonRecord>> {
    let source = source_of(&record);
    let raw = RawRecord {
        key: record.key,
        value: record.value,
        appended_at: record.appended_at,
        parent: dead_letter::parent(&record.headers),
    };
    let spoilt = |reason, error: String| {
        Box::new(PoisonRecord {
            source,
            record: raw.clone(),
            reason,
            error,
            message: None,
            conversation: None,
            targets: Vec::new(),
            is_live: false,
            retry_count: 0,
            trace: None,
        })
    };
    let task = match reading::decode(raw.value.clone()) {
        Ok(task) => task,
        Err((reason, error)) => return Err(spoilt(reason, error)),
    };
    let mut read = DecodedRecord {
        source,
        record: raw,
        task,
    };
    // After the first retry only the task itself names the letter.
    let named = read.task.work.letter().map(str::to_owned);
    read.record.parent = read.record.parent.take().or(named);
    let (bytes, partition) = (read.record.value.len(), source.partition);
    match reading::flaw(&read.task, bytes, partition, partitions) {
        Some((reason, error)) => Err(PoisonRecord::of(read, reason, error)),
        None => Ok(read),
    }
}
