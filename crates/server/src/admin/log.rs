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
use protocol::ledger::minute::{Closed, Stretch};
use protocol::{Message, MessageId, SendId, Timestamp};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Records read at a time, before others have their turn on the thread.
const PAGE: usize = 200;
/// Pages read before another question may have its turn.
pub(super) const PAGES: usize = 20;
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

/// What is carried of some messages by records that nobody has committed: they will be done, or done again.
/// Goes on for as long as a turn is held, and may be gone on with in another. Reads in the order in which a
/// message moves from topic to topic.
pub(super) struct CarriedScan<'a> {
    /// In order of their ids.
    of: &'a [MessageId],
    carried: Carried,
    /// The topics that are left, the next one last, and the next partition of that.
    topics: Vec<Topic>,
    number: u32,
    /// The partition that is read, and what is left of it.
    at: Option<(Partition, Range<u64>)>,
}

impl<'a> CarriedScan<'a> {
    pub(super) fn of(of: &'a [MessageId]) -> CarriedScan<'a> {
        CarriedScan {
            of,
            carried: Carried::default(),
            topics: (1..=RETRY_TIERS)
                .rev()
                .map(Topic::Retry)
                .chain([Topic::Message])
                .collect(),
            number: 0,
            at: None,
        }
    }

    /// What was found, once it is over.
    pub(super) fn carried(self) -> Carried {
        self.carried
    }

    fn next_partition(&mut self, queue: &dyn Queue) -> Option<Partition> {
        loop {
            let topic = *self.topics.last()?;
            let number = self.number;
            if number < queue.partitions(topic) {
                self.number += 1;
                return Some(Partition { topic, number });
            }
            self.topics.pop();
            self.number = 0;
        }
    }

    fn add(&mut self, record: Record) {
        let wanted = |id: MessageId| self.of.binary_search(&id).is_ok();
        match Task::decode(record.value).map(|task| task.work) {
            Ok(Work::Message(task)) if wanted(task.message.id) => {
                self.carried.add_message(task.message.id);
            }
            Ok(Work::Deliver(task)) if wanted(task.placed.message.id) => {
                let id = task.placed.message.id;
                self.carried.add_targets(id, task.targets);
            }
            _ => {}
        }
    }
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
    fn partitions(&self) -> usize {
        self.queue.partitions(Topic::Message) as usize
    }

    /// Shows each record that may hold a message accepted `since`, oldest first in each partition,
    /// until told to stop; of each partition those that were appended before that time.
    async fn each_before(
        &self,
        since: Timestamp,
        before: Timestamp,
        mut seen: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        for number in 0..self.partitions() {
            let partition = partition_of_messages(number);
            let (first, end) = self.queue.bounds(partition).await?;
            let mut next = self.appended_since(partition, first..end, since).await?;
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

    /// Shows each record that may hold a message accepted `since`, oldest first in each partition,
    /// until told to stop.
    async fn each(
        &self,
        since: Timestamp,
        seen: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        self.each_before(since, Timestamp::MAX, seen).await
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
        if closed.epoch != self.queue.epoch() || closed.stretches.len() != self.partitions() {
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
        self.each_before(window.start, before, |record| {
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

    /// Goes on with a scan, for some pages. False: there is more.
    pub(super) async fn go_over(&self, scan: &mut CarriedScan<'_>) -> Result<bool> {
        for _ in 0..PAGES {
            let Some((partition, offsets)) = &mut scan.at else {
                let Some(partition) = scan.next_partition(self.queue) else {
                    return Ok(true);
                };
                let (first, end) = self.queue.bounds(partition).await?;
                let committed = self.queue.committed(carrier::GROUP, partition).await?;
                scan.at = Some((partition, committed.unwrap_or(0).max(first)..end));
                continue;
            };
            let records = self.queue.read(*partition, offsets.start, PAGE).await?;
            match records.last() {
                Some(last) if last.offset + 1 < offsets.end => offsets.start = last.offset + 1,
                _ => scan.at = None,
            }
            records.into_iter().for_each(|record| scan.add(record));
            yield_now().await;
        }
        Ok(false)
    }

    /// What is carried of these messages (in order of their ids).
    pub(super) async fn carried(&self, of: &[MessageId]) -> Result<Carried> {
        let mut scan = CarriedScan::of(of);
        while !self.go_over(&mut scan).await? {}
        Ok(scan.carried)
    }

    /// Whether the log has all records that a minute was read from, and carriers have committed none of them:
    /// then all of it is in flight, and nothing else needs to be asked.
    pub(super) async fn is_untouched(&self, epoch: u32, stretches: &[Stretch]) -> Result<bool> {
        if epoch != self.queue.epoch() || stretches.len() != self.partitions() {
            return Ok(false);
        }
        for (number, stretch) in stretches.iter().enumerate() {
            let partition = partition_of_messages(number);
            if stretch.from >= stretch.to {
                continue;
            }
            let (first, end) = self.queue.bounds(partition).await?;
            let committed = self.queue.committed(carrier::GROUP, partition).await?;
            let is_there = first <= stretch.from && stretch.to <= end;
            if !is_there || committed.unwrap_or(0) > stretch.from {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The ids under which the log has a send: normally one.
    pub(super) async fn sent_as(&self, send_id: SendId) -> Result<Vec<MessageId>> {
        let mut ids = BTreeSet::new();
        self.each(Timestamp::ZERO, |record| {
            let message = Task::decode(record.value).ok().and_then(message_of);
            ids.extend(message.filter(|m| m.send_id == send_id).map(|m| m.id));
            enough(ids.len() == IDS_MAX)
        })
        .await?;
        Ok(ids.into_iter().collect())
    }

    /// Whether the log has a message.
    pub(super) async fn has(&self, id: MessageId) -> Result<bool> {
        let mut found = false;
        self.each(id.timestamp(), |record| {
            let message = Task::decode(record.value).ok().and_then(message_of);
            found = message.is_some_and(|message| message.id == id);
            enough(found)
        })
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
