//! A question to the log, from its first page to its last.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use anyhow::Result;
use api::task::Value;
use backend::queue::Record;
use protocol::ledger::audit::InFlight;
use protocol::ledger::minute::minute_of;
use protocol::record::Task;
use protocol::{MessageId, SendId, Timestamp};
use tokio::sync::SemaphorePermit;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{
    Busy, CarriedScan, Log, PAGE, PAGES, TURN_WAIT, Turn, message_of, partition_of_messages,
};
use crate::admin::audit::MESSAGES_MAX;

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
pub(in crate::admin) struct AcceptedMessages {
    pub(in crate::admin) messages: Vec<MessageId>,
    /// Records of messages beyond the limit.
    pub(in crate::admin) left_off: u64,
    /// Start of the next window: no message accepted then or later is among `messages`. A whole
    /// minute, unless one minute has more messages than an audit holds.
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

    /// Oldest messages of a window, from records appended before `before`: `most` at most, but
    /// those of the first minute at least.
    pub(in crate::admin) async fn accepted(
        &mut self,
        window: &Range<Timestamp>,
        before: Timestamp,
        most: usize,
    ) -> Result<AcceptedMessages> {
        let mut oldest = OldestIds::new(most, MESSAGES_MAX);
        let mut unreadable = 0;
        self.each_before(window.start, before, |record| {
            match Task::decode(record.value) {
                Ok(task) => {
                    let id = message_of(task).map(|message| message.id);
                    if let Some(id) = id.filter(|id| window.contains(&id.timestamp())) {
                        oldest.insert(id);
                    }
                }
                Err(_) => unreadable += 1,
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(AcceptedMessages {
            unreadable,
            ..oldest.accepted()
        })
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

/// Oldest ids of a window, and the number of those left off.
struct OldestIds {
    ids: BTreeSet<MessageId>,
    /// Limit of ids, beyond those of the first minute.
    most: usize,
    /// Limit of ids, beyond those of the first millisecond.
    max: usize,
    left_off: u64,
    /// Earliest time of an id left off.
    next: Option<Timestamp>,
}

impl OldestIds {
    fn new(most: usize, max: usize) -> OldestIds {
        OldestIds {
            ids: BTreeSet::new(),
            most,
            max,
            left_off: 0,
            next: None,
        }
    }

    fn insert(&mut self, id: MessageId) {
        self.ids.insert(id);
        while self.is_over() {
            let left = self.ids.pop_last().map(MessageId::timestamp);
            self.next = self.next.min(left).or(left);
            self.left_off += 1;
        }
    }

    /// True if the newest id is to be left off. The oldest never is, so that a next page goes on.
    fn is_over(&self) -> bool {
        let count = self.ids.len();
        if count <= self.most {
            return false;
        }
        let (first, last) = (self.ids.first(), self.ids.last());
        let times = first.zip(last);
        times.is_some_and(|(first, last)| {
            let (first, last) = (first.timestamp(), last.timestamp());
            minute_of(first) < minute_of(last) || (count > self.max && first < last)
        })
    }

    fn accepted(mut self) -> AcceptedMessages {
        if let Some(left) = self.next {
            // Cut at a whole minute: a closed one is counted as a whole by the next question.
            let minute = minute_of(left);
            let first = self.ids.first();
            let is_behind = first.is_some_and(|first| first.timestamp() < minute);
            let next = if is_behind { minute } else { left };
            self.left_off += self.ids.split_off(&MessageId::floor_of(next)).len() as u64;
            self.next = Some(next);
        }
        AcceptedMessages {
            messages: self.ids.into_iter().collect(),
            left_off: self.left_off,
            next: self.next,
            unreadable: 0,
        }
    }
}

fn enough(enough: bool) -> ControlFlow<()> {
    if enough {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::ledger::minute::MINUTE;

    use super::*;

    const NOON: Timestamp = Timestamp::from_millis(1_790_000_040_000);

    /// Accepts one message at each of these times after noon, in this order.
    fn read(most: usize, max: usize, after: &[Duration]) -> AcceptedMessages {
        let mut oldest = OldestIds::new(most, max);
        for (number, after) in (0..).zip(after) {
            let floor = MessageId::floor_of(NOON + *after).get();
            oldest.insert(MessageId::new(floor + number).expect("positive"));
        }
        oldest.accepted()
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_page_ends_with_a_minute() {
        assert_eq!(minute_of(NOON), NOON);
        let times = [0, 30, 61, 90, 150].map(secs);
        for most in [3, 2] {
            let page = read(most, 9, &times);
            assert_eq!((page.messages.len(), page.left_off), (2, 3), "{most}");
            assert_eq!(page.next, Some(NOON + MINUTE), "{most}");
        }
        let page = read(4, 9, &times);
        assert_eq!((page.messages.len(), page.left_off), (4, 1));
        assert_eq!(page.next, Some(NOON + MINUTE * 2));
        let page = read(5, 9, &times);
        assert_eq!((page.messages.len(), page.next), (5, None));
    }

    #[test]
    fn the_first_minute_is_on_its_page_whatever_the_limit() {
        let page = read(1, 9, &[130, 0, 10, 20, 70].map(secs));
        assert_eq!((page.messages.len(), page.left_off), (3, 2));
        assert_eq!(page.next, Some(NOON + MINUTE));
    }

    #[test]
    fn a_minute_that_is_too_much_for_an_audit_is_cut_and_its_first_millisecond_is_not() {
        let page = read(1, 3, &[0, 10, 20, 30, 40].map(secs));
        assert_eq!((page.messages.len(), page.left_off), (3, 2));
        assert_eq!(page.next, Some(NOON + secs(30)));
        let page = read(1, 3, &[0, 0, 0, 0, 0, 10].map(secs));
        assert_eq!((page.messages.len(), page.left_off), (5, 1));
        assert_eq!(page.next, Some(NOON + secs(10)));
    }
}
