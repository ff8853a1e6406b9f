//! Reads the log as the operators' commands need it: what was accepted, and what is still carried.
//!
//! One question reads the log at a time. It goes on page by page and lets others run in between, and it
//! keeps of each record only what was asked for.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::task::{MessageTask, Task, Work};
use backend::queue::{Partition, Queue, Record};
use protocol::keys::{RETRY_TIERS, Topic};
use protocol::ledger::audit::Carried;
use protocol::ledger::minute::Closed;
use protocol::{Message, MessageId, SendId, Timestamp};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Records read at a time, before others have their turn on the thread.
const PAGE: usize = 200;
/// How long a question waits for the one before it.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// A record is appended after its message was accepted, but two clocks say when.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(600);
/// Ids of one send, normally one.
const IDS_MAX: usize = 256;

/// Somebody else's question is reading the log.
#[derive(Debug, Error)]
#[error("another question is reading the log: ask again in a moment")]
pub struct Busy;

/// The log, for one reader at a time.
pub struct Log {
    queue: Arc<dyn Queue>,
    readers: Semaphore,
}

/// The right to go over the log.
pub struct Turn<'a> {
    queue: &'a dyn Queue,
    _permit: SemaphorePermit<'a>,
}

/// Where to begin in a partition.
#[derive(Clone, Copy)]
enum Begin {
    /// With the first record that carriers have not committed.
    Uncommitted,
    /// With the first record that may hold a message accepted then.
    AcceptedAt(Timestamp),
}

/// A record of topic `message`: its offset, when it was appended, and the message in it.
pub(super) type Seen = (u64, Timestamp, Option<MessageId>);

/// What the log accepted in a window of time, oldest first.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    pub(super) messages: Vec<MessageId>,
    /// Records of messages that found no room.
    pub(super) left_off: u64,
    /// Where to go on: nothing accepted then or later is among `messages`.
    pub(super) next: Option<Timestamp>,
    /// Records that are none of ours.
    pub(super) unreadable: u64,
}

impl Log {
    pub fn new(queue: Arc<dyn Queue>) -> Log {
        Log {
            queue,
            readers: Semaphore::new(1),
        }
    }

    /// Partitions of topic `message`.
    pub(super) fn partitions(&self) -> usize {
        self.queue.partitions(Topic::Message) as usize
    }

    pub(super) fn epoch(&self) -> u32 {
        self.queue.epoch()
    }

    /// Waits a few seconds for the question before this one.
    ///
    /// # Errors
    /// It takes longer: ask again.
    pub async fn turn(&self) -> Result<Turn<'_>, Busy> {
        match timeout(TURN_WAIT, self.readers.acquire()).await {
            Ok(Ok(permit)) => Ok(Turn {
                queue: self.queue.as_ref(),
                _permit: permit,
            }),
            _ => Err(Busy),
        }
    }
}

impl Turn<'_> {
    /// Shows each record of a topic, oldest first in each partition, until told to stop; of each partition
    /// those that were appended before that time.
    async fn each_before(
        &self,
        topic: Topic,
        begin: Begin,
        before: Timestamp,
        mut seen: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        for number in 0..self.queue.partitions(topic) {
            let partition = Partition { topic, number };
            let (first, end) = self.queue.bounds(partition).await?;
            let mut next = match begin {
                Begin::Uncommitted => {
                    let committed = self.queue.committed(carrier::GROUP, partition).await?;
                    committed.unwrap_or(0).max(first)
                }
                Begin::AcceptedAt(at) => self.appended_since(partition, first..end, at).await?,
            };
            while next < end {
                let records = self.queue.read(partition, next, PAGE).await?;
                let Some(last) = records.last() else { break };
                next = last.offset + 1;
                for record in records {
                    if record.appended_at >= before {
                        next = end;
                    } else if seen(record).is_break() {
                        return Ok(());
                    }
                }
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Shows each record of a topic, oldest first in each partition, until told to stop.
    async fn each(
        &self,
        topic: Topic,
        begin: Begin,
        seen: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        self.each_before(topic, begin, Timestamp::MAX, seen).await
    }

    /// The first offset that a partition of topic `message` keeps, and the one after its last.
    pub(super) async fn bounds(&self, number: usize) -> Result<(u64, u64)> {
        Ok(self.queue.bounds(partition_of_messages(number)).await?)
    }

    /// The first record that may hold a message accepted at `at` or later, and the end.
    pub(super) async fn since(&self, number: usize, at: Timestamp) -> Result<(u64, u64)> {
        let (first, end) = self.bounds(number).await?;
        let partition = partition_of_messages(number);
        let since = self.appended_since(partition, first..end, at).await?;
        Ok((since, end))
    }

    /// The next records of a partition of topic `message`, from these offsets; none at the end.
    pub(super) async fn page(&self, number: usize, offsets: Range<u64>) -> Result<Vec<Seen>> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let partition = partition_of_messages(number);
        let records = self.queue.read(partition, offsets.start, PAGE).await?;
        yield_now().await;
        let within = records.into_iter().filter(|r| offsets.contains(&r.offset));
        Ok(within
            .map(|record| {
                let task = Task::decode(record.value).ok();
                let message = task.and_then(message_of).map(|message| message.id);
                (record.offset, record.appended_at, message)
            })
            .collect())
    }

    /// The ids that a closed minute counted; `None` where the log has not kept all of its records.
    pub(super) async fn ids_of(&self, closed: &Closed) -> Result<Option<BTreeSet<MessageId>>> {
        let partitions = self.queue.partitions(Topic::Message) as usize;
        if closed.epoch != self.queue.epoch() || closed.stretches.len() != partitions {
            return Ok(None);
        }
        let mut ids = BTreeSet::new();
        for (number, stretch) in closed.stretches.iter().enumerate() {
            let (first, _) = self.bounds(number).await?;
            if first > stretch.from && stretch.from < stretch.to {
                return Ok(None);
            }
            let mut next = stretch.from;
            loop {
                let page = self.page(number, next..stretch.to).await?;
                let Some((last, ..)) = page.last() else { break };
                next = last + 1;
                for (offset, _, message) in page {
                    let counts =
                        |id: &MessageId| stretch.counts(closed.minute, offset, id.timestamp());
                    ids.extend(message.filter(counts));
                }
            }
        }
        Ok(Some(ids))
    }

    /// The first of these offsets whose record may hold a message accepted at `at` or later. Time grows
    /// along a partition: no ids are made while the clock is behind the last one.
    async fn appended_since(
        &self,
        partition: Partition,
        offsets: Range<u64>,
        at: Timestamp,
    ) -> Result<u64> {
        let at = at - CLOCKS_APART;
        let Range {
            start: mut low,
            end: mut high,
        } = offsets;
        while low < high && at > Timestamp::ZERO {
            let middle = low + (high - low) / 2;
            let records = self.queue.read(partition, middle, 1).await?;
            match records.first() {
                Some(record) if record.appended_at < at => low = record.offset + 1,
                _ => high = middle,
            }
            yield_now().await;
        }
        Ok(low)
    }

    /// The oldest messages of a window, at most so many; only of records that were appended before that time.
    pub(super) async fn accepted(
        &self,
        window: &Range<Timestamp>,
        before: Timestamp,
        most: usize,
    ) -> Result<Accepted> {
        let mut ids = BTreeSet::new();
        let mut accepted = Accepted::default();
        let begin = Begin::AcceptedAt(window.start);
        self.each_before(Topic::Message, begin, before, |record| {
            match Task::decode(record.value) {
                Ok(task) => {
                    let id = message_of(task).map(|message| message.id);
                    ids.extend(id.filter(|id| window.contains(&id.timestamp())));
                }
                Err(_) => accepted.unreadable += 1,
            }
            while ids.len() > most {
                let left = ids.pop_last().map(MessageId::timestamp);
                accepted.next = accepted.next.min(left).or(left);
                accepted.left_off += 1;
            }
            ControlFlow::Continue(())
        })
        .await?;
        if let Some(next) = accepted.next {
            // Whole milliseconds, so that the next window begins where this one ends.
            accepted.left_off += ids.split_off(&MessageId::floor_of(next)).len() as u64;
        }
        accepted.messages = ids.into_iter().collect();
        Ok(accepted)
    }

    /// What is carried of these messages (in order of their ids) by records that nobody has committed:
    /// they will be done, or done again. Reads in the order in which a message moves from topic to topic.
    pub(super) async fn carried(&self, of: &[MessageId]) -> Result<Carried> {
        let wanted = |id: MessageId| of.binary_search(&id).is_ok();
        let mut carried = Carried::default();
        let retries = (1..=RETRY_TIERS).map(Topic::Retry);
        for topic in [Topic::Message].into_iter().chain(retries) {
            self.each(topic, Begin::Uncommitted, |record| {
                match Task::decode(record.value).map(|task| task.work) {
                    Ok(Work::Message(task)) if wanted(task.message.id) => {
                        carried.add_message(task.message.id);
                    }
                    Ok(Work::Deliver(task)) if wanted(task.placed.message.id) => {
                        carried.add_targets(task.placed.message.id, task.targets);
                    }
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .await?;
        }
        Ok(carried)
    }

    /// The ids under which the log has a send: normally one.
    pub(super) async fn sent_as(&self, send_id: SendId) -> Result<Vec<MessageId>> {
        let mut ids = BTreeSet::new();
        self.each(
            Topic::Message,
            Begin::AcceptedAt(Timestamp::ZERO),
            |record| {
                let message = Task::decode(record.value).ok().and_then(message_of);
                ids.extend(message.filter(|m| m.send_id == send_id).map(|m| m.id));
                enough(ids.len() == IDS_MAX)
            },
        )
        .await?;
        Ok(ids.into_iter().collect())
    }

    /// Whether the log has a message.
    pub(super) async fn has(&self, id: MessageId) -> Result<bool> {
        let mut found = false;
        self.each(
            Topic::Message,
            Begin::AcceptedAt(id.timestamp()),
            |record| {
                let message = Task::decode(record.value).ok().and_then(message_of);
                found = message.is_some_and(|message| message.id == id);
                enough(found)
            },
        )
        .await?;
        Ok(found)
    }
}

fn partition_of_messages(number: usize) -> Partition {
    Partition {
        topic: Topic::Message,
        number: number as u32,
    }
}

fn message_of(task: Task) -> Option<Message> {
    match task.work {
        Work::Message(MessageTask { message, .. }) => Some(message),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}

fn enough(enough: bool) -> ControlFlow<()> {
    if enough {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
