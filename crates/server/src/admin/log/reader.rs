//! A question to the log, from its first page to its last.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use anyhow::Result;
use api::task::Task;
use backend::queue::Record;
use protocol::ledger::audit::Carried;
use protocol::{MessageId, SendId, Timestamp};
use tokio::sync::SemaphorePermit;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{
    Busy, CarriedScan, Log, PAGE, PAGES, TURN_WAIT, Turn, message_of, partition_of_messages,
};

/// Ids of one send, normally one.
const IDS_MAX: usize = 256;

/// One question. It begins with its first turn, and that may be refused; from then on it waits for each turn
/// as long as the others need for theirs, and ends when whoever asked is gone.
pub(in crate::admin) struct Reader<'a> {
    log: &'a Log,
    begun: Option<SemaphorePermit<'a>>,
}

/// What the log accepted in a window of time, oldest first.
#[derive(Debug, Default)]
pub(in crate::admin) struct Accepted {
    pub(in crate::admin) messages: Vec<MessageId>,
    /// Records of messages that found no room.
    pub(in crate::admin) left_off: u64,
    /// Where to go on: nothing accepted then or later is among `messages`.
    pub(in crate::admin) next: Option<Timestamp>,
    /// Records that are none of ours.
    pub(in crate::admin) unreadable: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(log: &'a Log) -> Reader<'a> {
        Reader { log, begun: None }
    }

    /// The right to read some pages: give it back soon.
    ///
    /// # Errors
    /// `Busy`, for the first one only: the others need long, or too many have begun.
    pub(in crate::admin) async fn turn(&mut self) -> Result<Turn<'a>, Busy> {
        if self.begun.is_some() {
            return self.log.next_turn().await;
        }
        let begin = async {
            let place = self.log.questions.acquire().await.map_err(|_| Busy)?;
            let turn = self.log.next_turn().await?;
            Ok((place, turn))
        };
        let (place, turn) = timeout(TURN_WAIT, begin).await.unwrap_or(Err(Busy))?;
        self.begun = Some(place);
        Ok(turn)
    }

    /// The oldest messages of a window, at most so many; only of records that were appended before that time.
    pub(in crate::admin) async fn accepted(
        &mut self,
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

    /// What is carried of these messages (in order of their ids).
    pub(in crate::admin) async fn carried(&mut self, of: &[MessageId]) -> Result<Carried> {
        let mut scan = CarriedScan::of(of);
        while !self.turn().await?.go_over(&mut scan).await? {}
        Ok(scan.end().0)
    }

    /// The ids under which the log has a send: normally one.
    pub(in crate::admin) async fn sent_as(&mut self, send_id: SendId) -> Result<Vec<MessageId>> {
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
    pub(in crate::admin) async fn has(&mut self, id: MessageId) -> Result<bool> {
        let mut found = false;
        self.each(id.timestamp(), |record| {
            let message = Task::decode(record.value).ok().and_then(message_of);
            found = message.is_some_and(|message| message.id == id);
            enough(found)
        })
        .await?;
        Ok(found)
    }

    /// Shows each record that may hold a message accepted `since`, oldest first in each partition,
    /// until told to stop; of each partition those that were appended before that time.
    async fn each_before(
        &mut self,
        since: Timestamp,
        before: Timestamp,
        mut seen: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        for number in 0..self.log.partitions() {
            let (mut next, end) = self.turn().await?.since(number, since).await?;
            while next < end {
                let turn = self.turn().await?;
                for _ in 0..PAGES {
                    let partition = partition_of_messages(number);
                    let records = turn.queue.read(partition, next, PAGE).await?;
                    next = records.last().map_or(end, |last| last.offset + 1);
                    for record in records {
                        if record.appended_at >= before {
                            next = end;
                        } else if seen(record).is_break() {
                            return Ok(());
                        }
                    }
                    yield_now().await;
                    if next >= end {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Shows each record that may hold a message accepted `since`, oldest first in each partition,
    /// until told to stop.
    async fn each(
        &mut self,
        since: Timestamp,
        seen: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        self.each_before(since, Timestamp::MAX, seen).await
    }
}

fn enough(enough: bool) -> ControlFlow<()> {
    if enough {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
