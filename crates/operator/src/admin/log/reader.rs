//! A question to the log, from its first page to its last.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use anyhow::Result;
use api::task::Value;
use backend::queue::Record;
use protocol::ledger::audit::InFlight;
use protocol::record::Task;
use protocol::{MessageId, SendId, Timestamp};
use tokio::sync::SemaphorePermit;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{
    Busy, CarriedScan, Log, PAGE, PAGES, TURN_WAIT, Turn, message_of, partition_of_messages,
};

/// Limit of ids of one send, normally one.
const IDS_MAX: usize = 256;

/// One question. Its first turn may be refused; from then on it waits for each turn as long as
/// other readers need for theirs. Dropped with the request that asked.
pub(in crate::admin) struct Reader<'a> {
    log: &'a Log,
    begun: Option<SemaphorePermit<'a>>,
}

/// Messages that the log accepted in a window of time, oldest first.
#[derive(Debug, Default)]
pub(in crate::admin) struct Accepted {
    pub(in crate::admin) messages: Vec<MessageId>,
    /// Records of messages beyond the limit.
    pub(in crate::admin) left_off: u64,
    /// Start of the next window: no message accepted then or later is among `messages`.
    pub(in crate::admin) next: Option<Timestamp>,
    /// Records that do not decode.
    pub(in crate::admin) unreadable: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(log: &'a Log) -> Reader<'a> {
        Reader { log, begun: None }
    }

    /// Takes a turn for some pages: give it back soon.
    ///
    /// # Errors
    /// `Busy`, for the first turn only: other readers need long, or too many questions are under
    /// way.
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

    /// Oldest messages of a window, `most` at most, from records appended before `before`.
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
            // Cut at a whole millisecond, so that the next window begins where this one ends.
            accepted.left_off += ids.split_off(&MessageId::floor_of(next)).len() as u64;
        }
        accepted.messages = ids.into_iter().collect();
        Ok(accepted)
    }

    /// Finds the messages in flight among these (in order of their ids).
    pub(in crate::admin) async fn carried(&mut self, of: &[MessageId]) -> Result<InFlight> {
        let mut scan = CarriedScan::of(of);
        while !self.turn().await?.go_over(&mut scan).await? {}
        Ok(scan.end().0)
    }

    /// Ids under which the log has a send: normally one.
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

    /// True if the log has the message.
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

    /// Passes each record that may hold a message accepted at `since` or later to `seen`, oldest
    /// first in each partition, until `seen` breaks. Only records appended before `before`.
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

    /// Like `each_before`, up to the end of the log.
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
