//! Reads the log for operators' commands, page by page, one reader at a time.
//!
//! A reader holds a [`Turn`] for some pages and gives it back, so that others get theirs; turns go
//! in order of arrival. A question that has begun (`Reader`) waits for its next turn as long as it
//! takes; only a new one is refused after a long wait.

mod in_flight;
mod reader;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::task::Value;
use backend::queue::{Partition, Queue};
use protocol::keys::Topic;
use protocol::ledger::minute::ClosedMinute;
use protocol::record::{MessageTask, Task, Work};
use protocol::{Message, MessageId, Timestamp};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::timeout;

pub(super) use self::in_flight::{CarriedScan, MinuteRest};
pub(super) use self::reader::{AcceptedMessages, Reader};

/// Records read before the task yields its thread.
const PAGE: usize = 200;
/// Pages read before another question may have its turn.
pub(super) const PAGES: usize = 20;
/// Questions under way at once, each of which may hold as much as an audit. Others wait to begin.
const QUESTIONS: usize = 3;
/// Longest wait of a new question for the readers before it.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// Largest difference between two clocks: a record is appended after its message was accepted, but
/// the two times come from different clocks.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(600);

/// Another question is reading the log.
#[derive(Debug, Error)]
#[error("another query is reading the log: try again in a moment")]
pub struct Busy;

/// The log, for one reader at a time.
pub struct Log {
    queue: Arc<dyn Queue>,
    /// One permit: its holder reads.
    turns: Semaphore,
    /// A permit for each question that has begun.
    questions: Semaphore,
}

/// The right to go over the log for some pages.
pub struct Turn<'a> {
    queue: &'a dyn Queue,
    _permit: SemaphorePermit<'a>,
}

/// A record of topic `message`: offset, append time, and id of the message in it.
pub(super) type MessageRecord = (u64, Timestamp, Option<MessageId>);

impl Log {
    pub fn new(queue: Arc<dyn Queue>) -> Log {
        Log {
            queue,
            turns: Semaphore::new(1),
            questions: Semaphore::new(QUESTIONS),
        }
    }

    /// Partitions of topic `message`.
    pub(super) fn partitions(&self) -> usize {
        self.queue.partitions(Topic::Message) as usize
    }

    pub(super) fn epoch(&self) -> u32 {
        self.queue.epoch()
    }

    /// Takes a turn; waits a few seconds for readers before.
    ///
    /// # Errors
    /// `Busy` after a longer wait: ask again.
    pub async fn turn(&self) -> Result<Turn<'_>, Busy> {
        timeout(TURN_WAIT, self.next_turn())
            .await
            .unwrap_or(Err(Busy))
    }

    /// A question that has not begun yet.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(self)
    }

    /// Takes a turn, however long the wait.
    pub(super) async fn next_turn(&self) -> Result<Turn<'_>, Busy> {
        let permit = self.turns.acquire().await.map_err(|_| Busy)?;
        Ok(Turn {
            queue: self.queue.as_ref(),
            _permit: permit,
        })
    }
}

impl Turn<'_> {
    fn partitions(&self) -> usize {
        self.queue.partitions(Topic::Message) as usize
    }

    /// First offset that a partition of topic `message` keeps, and the one after its last.
    pub(super) async fn bounds(&self, number: usize) -> Result<(u64, u64)> {
        Ok(self.queue.bounds(message_partition(number)).await?)
    }

    /// Offset of the first record that may hold a message accepted at `at` or later, and the end.
    pub(super) async fn since(&self, number: usize, at: Timestamp) -> Result<(u64, u64)> {
        let (first, end) = self.bounds(number).await?;
        let partition = message_partition(number);
        let lower_bound = self.appended_since(partition, first..end, at).await?;
        Ok((lower_bound, end))
    }

    /// Next records of a partition of topic `message`, within these offsets; none at the end.
    pub(super) async fn page(
        &self,
        number: usize,
        offsets: Range<u64>,
    ) -> Result<Vec<MessageRecord>> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let partition = message_partition(number);
        let limit = (offsets.end - offsets.start).min(PAGE as u64) as usize;
        let records = self.queue.read(partition, offsets.start, limit).await?;
        yield_now().await;
        let in_range = records.into_iter().filter(|r| offsets.contains(&r.offset));
        Ok(in_range
            .map(|record| {
                let task = Task::decode(record.value).ok();
                let message = task.and_then(message_of).map(|message| message.id);
                (record.offset, record.appended_at, message)
            })
            .collect())
    }

    /// Ids that a closed minute counted; `None` if the log has not kept all of its records.
    pub(super) async fn read_ids(
        &self,
        closed_minute: &ClosedMinute,
    ) -> Result<Option<BTreeSet<MessageId>>> {
        if closed_minute.epoch != self.queue.epoch()
            || closed_minute.stretches.len() != self.partitions()
        {
            return Ok(None);
        }
        let mut ids = BTreeSet::new();
        for (number, stretch) in closed_minute.stretches.iter().enumerate() {
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
                    let counts = |id: &MessageId| {
                        stretch.counts(closed_minute.minute, offset, id.timestamp())
                    };
                    ids.extend(message.filter(counts));
                }
            }
        }
        Ok(Some(ids))
    }

    /// First of these offsets whose record may hold a message accepted at `at` or later. Time grows
    /// along a partition: neither ids nor append times of a process go back with its clock.
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
}

fn message_partition(number: usize) -> Partition {
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
