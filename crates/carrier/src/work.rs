//! Reading a record: what it asks for, or why it is a dead letter at once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use api::dead_letter::{self, DeadLetter, Origin};
use api::task::{DeliverTask, KickoutTask, MessageTask, Task, Work};
use backend::queue::{NewRecord, Partition, Record};
use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::{self, Topic};
use protocol::ledger::DeadReason;
use protocol::message::Target;
use protocol::trace::Step;
use protocol::{ConversationId, MessageId, Timestamp, TraceContext};

/// A record that can be worked on.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) source: Source,
    pub(crate) task: Task,
    /// As it lies in the log, for the dead letter that it may become.
    pub(crate) record: Raw,
}

impl Read {
    /// As it lies in the log.
    pub(crate) fn bytes(&self) -> usize {
        self.record.key.len() + self.record.value.len()
    }

    /// The context of giving it its place: its deliveries go on from there.
    pub(crate) fn placing(&self) -> Option<TraceContext> {
        let place = [u64::from(self.source.partition), self.source.offset];
        (self.task.trace).map(|trace| trace.step(Step::Place, &place))
    }
}

/// What a dead letter keeps of its record.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
    pub(crate) appended_at: Timestamp,
    /// The letter that it sends on its way again.
    pub(crate) parent: Option<String>,
}

/// A record that is given up.
#[derive(Debug)]
pub(crate) struct Spoilt {
    pub(crate) source: Source,
    pub(crate) record: Raw,
    pub(crate) reason: DeadReason,
    pub(crate) error: String,
    pub(crate) message: Option<MessageId>,
    pub(crate) conversation: Option<ConversationId>,
    /// Who misses it; nobody in particular where the whole record failed.
    pub(crate) targets: Vec<Target>,
    pub(crate) retry_count: u32,
    pub(crate) trace: Option<TraceContext>,
}

impl Spoilt {
    /// A record that was read, and that something cannot be done with.
    pub(crate) fn of(read: Read, reason: DeadReason, error: impl Into<String>) -> Box<Spoilt> {
        Box::new(Spoilt {
            source: read.source,
            message: message_of(&read.task.work),
            conversation: conversation_of(&read.task.work),
            targets: Vec::new(),
            retry_count: read.task.retry_count,
            trace: read.task.trace,
            record: read.record,
            reason,
            error: error.into(),
        })
    }

    /// What is left of the record at `source`, in a record that the log does not take; `None` where that
    /// is no task.
    pub(crate) fn of_retry(
        source: Source,
        retry: &NewRecord,
        error: impl Into<String>,
    ) -> Option<Box<Spoilt>> {
        let task = Task::decode(retry.value.clone()).ok()?;
        let targets = match &task.work {
            Work::Deliver(deliver) => deliver.targets.clone(),
            Work::Message(_) | Work::Kickout(_) => Vec::new(),
        };
        let record = Raw {
            key: retry.key.clone(),
            value: retry.value.clone(),
            appended_at: task.first_at,
            parent: parent_of(&task.work),
        };
        let read = Read {
            source,
            task,
            record,
        };
        let mut spoilt = Spoilt::of(read, DeadReason::TooLarge, error);
        spoilt.targets = targets;
        Some(spoilt)
    }

    pub(crate) fn letter(&self, now: Timestamp, carrier: &str) -> DeadLetter {
        DeadLetter {
            origin: Origin {
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

/// Reads a record of a topic with so many partitions. Whatever the bytes are, this returns.
pub(crate) fn read(record: Record, partitions: u32) -> Result<Read, Box<Spoilt>> {
    let source = source_of(&record);
    let raw = Raw {
        key: record.key,
        value: record.value,
        appended_at: record.appended_at,
        parent: dead_letter::parent(&record.headers),
    };
    let spoilt = |reason, error: String| {
        Box::new(Spoilt {
            source,
            record: raw.clone(),
            reason,
            error,
            message: None,
            conversation: None,
            targets: Vec::new(),
            retry_count: 0,
            trace: None,
        })
    };
    let task = match catch_unwind(AssertUnwindSafe(|| Task::decode(raw.value.clone()))) {
        Ok(Ok(task)) => task,
        Ok(Err(refusal)) => return Err(spoilt(DeadReason::Undecodable, refusal.to_string())),
        Err(_) => {
            let error = "reading it panicked".to_owned();
            return Err(spoilt(DeadReason::HandlerPanic, error));
        }
    };
    let mut read = Read {
        source,
        record: raw,
        task,
    };
    // Behind the first retry only the task itself says so.
    let named = parent_of(&read.task.work);
    read.record.parent = read.record.parent.take().or(named);
    if let Some(error) = too_large(&read) {
        return Err(Spoilt::of(read, DeadReason::TooLarge, error));
    }
    match misplaced(&read, partitions) {
        Some(error) => Err(Spoilt::of(read, DeadReason::Misplaced, error)),
        None => Ok(read),
    }
}

/// A message is as large as it was when it was accepted; what else is read was made by a carrier, and split.
fn too_large(read: &Read) -> Option<String> {
    let Work::Message(task) = &read.task.work else {
        return None;
    };
    let (bytes, most) = (read.record.value.len(), task.bounds.record_bytes);
    (bytes > most).then(|| format!("{bytes} bytes, at most {most} are taken"))
}

/// A conversation has one writer only while its records are in the partition of its key.
fn misplaced(read: &Read, partitions: u32) -> Option<String> {
    let Some(key) = key_of(&read.task.work) else {
        return Some("it belongs to no conversation".to_owned());
    };
    let belongs = keys::partition_of(&key, partitions);
    (belongs != read.source.partition)
        .then(|| format!("its key belongs to partition {belongs} of {partitions}"))
}

/// Under which key a task is published; `None` where it concerns nobody.
pub(crate) fn key_of(work: &Work) -> Option<[u8; 17]> {
    match work {
        Work::Message(MessageTask { message, .. }) => message.conversation().map(keys::record_key),
        Work::Deliver(DeliverTask { placed, .. }) => Some(keys::record_key(placed.conversation)),
        Work::Kickout(KickoutTask { sessions, .. }) => {
            sessions.first().map(|key| keys::control_key(key.user))
        }
    }
}

/// The letter that it sends on its way again.
fn parent_of(work: &Work) -> Option<String> {
    match work {
        Work::Message(task) => task.letter.clone(),
        Work::Deliver(task) => task.letter.clone(),
        Work::Kickout(_) => None,
    }
}

pub(crate) fn message_of(work: &Work) -> Option<MessageId> {
    match work {
        Work::Message(task) => Some(task.message.id),
        Work::Deliver(task) => Some(task.placed.message.id),
        Work::Kickout(_) => None,
    }
}

pub(crate) fn conversation_of(work: &Work) -> Option<ConversationId> {
    match work {
        Work::Message(task) => task.message.conversation(),
        Work::Deliver(task) => Some(task.placed.conversation),
        Work::Kickout(_) => None,
    }
}
