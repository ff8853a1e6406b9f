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
    pub(crate) raw: RawRecord,
}

impl DecodedRecord {
    /// Bytes of key and value in the log.
    pub(crate) fn bytes(&self) -> usize {
        self.raw.key.len() + self.raw.value.len()
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
            raw: self.raw.clone(),
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
    pub(crate) raw: RawRecord,
    pub(crate) reason: DeadReason,
    pub(crate) error: String,
    pub(crate) message: Option<MessageId>,
    pub(crate) conversation: Option<ConversationId>,
    /// Targets that miss it; empty if the whole record failed.
    pub(crate) targets: Vec<Target>,
    /// Whether live sessions miss it, too.
    pub(crate) is_live: bool,
    pub(crate) retry_count: u32,
    pub(crate) trace: Option<TraceContext>,
}

impl PoisonRecord {
    /// Gives up a record that was read but cannot be processed: of a retry its own recipients, of
    /// any other record the whole.
    pub(crate) fn of(
        record: DecodedRecord,
        reason: DeadReason,
        error: impl Into<String>,
    ) -> Box<PoisonRecord> {
        Box::new(PoisonRecord {
            source: record.source,
            message: record.task.work.message(),
            conversation: record.task.work.conversation(),
            targets: record.task.work.targets().to_vec(),
            is_live: record.task.work.is_live(),
            retry_count: record.task.retry_count,
            trace: record.task.trace,
            raw: record.raw,
            reason,
            error: error.into(),
        })
    }

    /// Gives up a retry that the log does not take, on behalf of the record at `source` whose rest
    /// it carries. `None` if the retry is no task.
    pub(crate) fn from_retry(
        source: Source,
        retry: &NewRecord,
        error: impl Into<String>,
    ) -> Option<Box<PoisonRecord>> {
        let task = Task::decode(retry.value.clone()).ok()?;
        let raw = RawRecord {
            key: retry.key.clone(),
            value: retry.value.clone(),
            appended_at: task.first_at,
            parent: task.work.letter().map(str::to_owned),
        };
        let record = DecodedRecord { source, task, raw };
        Some(PoisonRecord::of(record, DeadReason::TooLarge, error))
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
            first_failed_at: self.raw.appended_at,
            last_failed_at: now,
            reason: self.reason,
            error_message: self.error.clone(),
            carrier: carrier.to_owned(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            trace: self.trace,
            parent: self.raw.parent.clone(),
        }
    }
}

pub(crate) fn record_source(record: &Record) -> Source {
    Source {
        topic: record.partition.topic,
        partition: record.partition.number,
        offset: record.offset,
    }
}

pub(crate) fn partition_key(partition: Partition) -> (Topic, u32) {
    (partition.topic, partition.number)
}

/// Decodes a record of a topic with this many partitions. Bytes that cannot be read, or that make
/// the decoder panic, are returned as a record to be dead-lettered.
pub(crate) fn decode(record: Record, partitions: u32) -> Result<DecodedRecord, Box<PoisonRecord>> {
    let source = record_source(&record);
    let raw = RawRecord {
        key: record.key,
        value: record.value,
        appended_at: record.appended_at,
        parent: dead_letter::parent(&record.headers),
    };
    let poison = |reason, error: String| {
        Box::new(PoisonRecord {
            source,
            raw: raw.clone(),
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
        Err((reason, error)) => return Err(poison(reason, error)),
    };
    let mut read = DecodedRecord { source, raw, task };
    // After the first retry only the task itself names the letter.
    let letter = read.task.work.letter().map(str::to_owned);
    read.raw.parent = read.raw.parent.take().or(letter);
    let (bytes, partition) = (read.raw.value.len(), source.partition);
    match reading::flaw(&read.task, bytes, partition, partitions) {
        Some((reason, error)) => Err(PoisonRecord::of(read, reason, error)),
        None => Ok(read),
    }
}
