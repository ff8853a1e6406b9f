//! A question to the log, from its first page to its last.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use anyhow::Result;
use api::task::Value;
use backend::queue::Record;
use protocol::ledger::audit::InFlight;
use protocol::ledger::minute::minute_start;
use protocol::record::Task;
use protocol::{MessageId, SendId, Timestamp};
use tokio::sync::SemaphorePermit;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{Busy, CarriedScan, Log, PAGE, PAGES, TURN_WAIT, Turn, message_of, message_partition};
use crate::audit::MESSAGES_MAX;

/// Limit of ids of one send, normally one.
const IDS_MAX: usize = 256;

/// One question. Its first turn may be refused; from then on it waits for each turn as long as
/// other readers need for theirs. Dropped with the request that asked.
pub(in crate::audit) struct Reader<'a> {
    log: &'a Log,
    permit: Option<SemaphorePermit<'a>>,
}

/// Messages that the log accepted in a window of time, oldest first.
#[derive(Debug, Default)]
pub(in crate::audit) struct AcceptedMessages {
    pub(in crate::audit) messages: Vec<MessageId>,
    /// Records of messages beyond the limit.
    pub(in crate::audit) left_off: u64,
    /// Start of the next window: no message accepted then or later is among `messages`. A whole
    /// minute, unless one minute has more messages than an audit holds.
    pub(in crate::audit) next: Option<Timestamp>,
    /// Records that do not decode.
    pub(in crate::audit) unreadable: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(log: &'a Log) -> Reader<'a> {
        Reader { log, permit: None }
    }

    /// Takes a turn for some pages: give it back soon.
    ///
    /// # Errors
    /// `Busy`, for the first turn only: other readers need long, or too many questions are under
    /// way.
    pub(in crate::audit) async fn turn(&mut self) -> Result<Turn<'a>, Busy> {
        if self.permit.is_some() {
            return self.log.next_turn().await;
        }
        let begin = async {
            let place = self.log.questions.acquire().await.map_err(|_| Busy)?;
            let turn = self.log.next_turn().await?;
            Ok((place, turn))
        };
        let (place, turn) = timeout(TURN_WAIT, begin).await.unwrap_or(Err(Busy))?;
        self.permit = Some(place);
        Ok(turn)
    }

    /// Oldest messages of a window, from records appended before `upper_bound`: `limit` at
    /// most, but those of the first minute at least.
    pub(in crate::audit) async fn accepted(
        &mut self,
        window: &Range<Timestamp>,
        upper_bound: Timestamp,
        limit: usize,
    ) -> Result<AcceptedMessages> {
        let mut oldest = OldestIds::new(limit, MESSAGES_MAX);
        let mut unreadable = 0;
        self.each_before(window.start, upper_bound, |record| {
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
    pub(in crate::audit) async fn find_in_flight(&mut self, of: &[MessageId]) -> Result<InFlight> {
        let mut scan = CarriedScan::of(of);
        while !self.turn().await?.go_over(&mut scan).await? {}
        Ok(scan.end().0)
    }

    /// Ids under which the log has a send: normally one.
    pub(in crate::audit) async fn sent_as(&mut self, send_id: SendId) -> Result<Vec<MessageId>> {
        let mut ids = BTreeSet::new();
        self.each(Timestamp::ZERO, |record| {
            let message = Task::decode(record.value).ok().and_then(message_of);
            ids.extend(message.filter(|m| m.send_id == send_id).map(|m| m.id));
            enough(ids.len() == IDS_MAX)
        })
        .await?;
        Ok(ids.into_iter().collect())
    }

    /// Whether the log has the message.
    pub(in crate::audit) async fn has(&mut self, id: MessageId) -> Result<bool> {
        let mut is_found = false;
        self.each(id.timestamp(), |record| {
            let message = Task::decode(record.value).ok().and_then(message_of);
            is_found = message.is_some_and(|message| message.id == id);
            enough(is_found)
        })
        .await?;
        Ok(is_found)
    }

    /// Passes each record that may hold a message accepted at `start` or later to `visit`, oldest
    /// first in each partition, until `visit` breaks. Only records appended before `upper_bound`.
    async fn each_before(
        &mut self,
        start: Timestamp,
        upper_bound: Timestamp,
        mut visit: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        for number in 0..self.log.partitions() {
            let (mut next, end) = self.turn().await?.since(number, start).await?;
            while next < end {
                let turn = self.turn().await?;
                for _ in 0..PAGES {
                    let partition = message_partition(number);
                    let records = turn.queue.read(partition, next, PAGE).await?;
                    next = records.last().map_or(end, |last| last.offset + 1);
                    for record in records {
                        if record.appended_at >= upper_bound {
                            next = end;
                        } else if visit(record).is_break() {
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
        start: Timestamp,
        visit: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        self.each_before(start, Timestamp::MAX, visit).await
    }
}

/// Oldest ids of a window, and the number of those left off.
struct OldestIds {
    ids: BTreeSet<MessageId>,
    /// Limit of ids, beyond those of the first minute.
    soft_limit: usize,
    /// Limit of ids, beyond those of the first millisecond.
    hard_limit: usize,
    left_off: u64,
    /// Earliest time of an id left off.
    next: Option<Timestamp>,
}

impl OldestIds {
    fn new(limit: usize, max: usize) -> OldestIds {
        OldestIds {
            ids: BTreeSet::new(),
            soft_limit: limit,
            hard_limit: max,
            left_off: 0,
            next: None,
        }
    }

    fn insert(&mut self, id: MessageId) {
        self.ids.insert(id);
        while self.is_over() {
            let cut_at = self.ids.pop_last().map(MessageId::timestamp);
            self.next = self.next.min(cut_at).or(cut_at);
            self.left_off += 1;
        }
    }

    /// Whether the newest id is to be left off. The oldest never is, so that a next page goes on.
    fn is_over(&self) -> bool {
        let count = self.ids.len();
        if count <= self.soft_limit {
            return false;
        }
        let (first, last) = (self.ids.first(), self.ids.last());
        let times = first.zip(last);
        times.is_some_and(|(first, last)| {
            let (first, last) = (first.timestamp(), last.timestamp());
            minute_start(first) < minute_start(last) || (count > self.hard_limit && first < last)
        })
    }

    fn accepted(mut self) -> AcceptedMessages {
        if let Some(cut_at) = self.next {
            // Cut at a whole minute: a closed one is counted as a whole by the next question.
            let minute = minute_start(cut_at);
            let first = self.ids.first();
            let is_behind = first.is_some_and(|first| first.timestamp() < minute);
            let next = if is_behind { minute } else { cut_at };
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
    fn read(limit: usize, max: usize, delay: &[Duration]) -> AcceptedMessages {
        let mut oldest = OldestIds::new(limit, max);
        for (number, delay) in (0..).zip(delay) {
            let floor = MessageId::floor_of(NOON + *delay).get();
            oldest.insert(MessageId::new(floor + number).expect("positive"));
        }
        oldest.accepted()
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_page_ends_with_a_minute() {
        assert_eq!(minute_start(NOON), NOON);
        let times = [0, 30, 61, 90, 150].map(secs);
        for limit in [3, 2] {
            let page = read(limit, 9, &times);
            assert_eq!((page.messages.len(), page.left_off), (2, 3), "{limit}");
            assert_eq!(page.next, Some(NOON + MINUTE), "{limit}");
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
    fn an_oversized_minute_is_cut_but_its_first_millisecond_is_kept() {
        let page = read(1, 3, &[0, 10, 20, 30, 40].map(secs));
        assert_eq!((page.messages.len(), page.left_off), (3, 2));
        assert_eq!(page.next, Some(NOON + secs(30)));
        let page = read(1, 3, &[0, 0, 0, 0, 0, 10].map(secs));
        assert_eq!((page.messages.len(), page.left_off), (5, 1));
        assert_eq!(page.next, Some(NOON + secs(10)));
    }
}
