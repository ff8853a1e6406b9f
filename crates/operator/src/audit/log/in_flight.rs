//! Messages in flight: carriers will process uncommitted records, or process them again.
//!
//! A message's first record lies in the stretch of its minute. Others may follow in the same
//! partition: a redriven dead letter, a retry of a publish whose outcome the station did not learn,
//! a copy that an operator appended. A message found in the stretch is in flight; one not found
//! there may be in flight nevertheless, and the whole partition is searched for it.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use api::task::Value;
use backend::queue::{Partition, Queue, Record};
use protocol::MessageId;
use protocol::keys::{CARRIERS, RETRY_TIERS, Topic};
use protocol::ledger::audit::InFlight;
use protocol::ledger::minute::OffsetRange;
use protocol::record::{Task, Work};
use tokio::task::yield_now;

use super::{PAGE, PAGES, Turn, message_partition};

/// Rest of a minute's stretch in one partition that carriers have not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::audit) struct MinuteRest {
    pub(in crate::audit) offsets: Range<u64>,
    /// Whether the log has every record of the stretch, and carriers have committed none: all
    /// messages that the minute counted there are in flight, without a further look.
    pub(in crate::audit) is_untouched: bool,
}

/// Search for the messages in flight among some. Goes on while a turn is held, and may continue in
/// another. Reads topics in the order in which a message moves through them.
pub(in crate::audit) struct CarriedScan<'a> {
    /// Message ids, in ascending order.
    ids: &'a [MessageId],
    in_flight: InFlight,
    /// Partition of topic `message` in which each message was found.
    found_in: BTreeMap<MessageId, usize>,
    /// Ranges of topic `message` to read, the next one last.
    parts: Vec<(Partition, Range<u64>)>,
    /// Topics left to read whole, the next one last; `number` is its next partition.
    topics: Vec<Topic>,
    number: u32,
    /// Partition under way, and the offsets left of it.
    at: Option<(Partition, Range<u64>)>,
}

impl<'a> CarriedScan<'a> {
    /// Searches all uncommitted records.
    pub(in crate::audit) fn of(ids: &'a [MessageId]) -> CarriedScan<'a> {
        let mut scan = CarriedScan::within(ids, &[]);
        scan.topics.push(Topic::Message);
        scan
    }

    /// Searches topic `message` only within these ranges of several minutes, and retry topics
    /// whole.
    pub(in crate::audit) fn within(
        ids: &'a [MessageId],
        backlogs: &[Vec<MinuteRest>],
    ) -> CarriedScan<'a> {
        CarriedScan {
            ids,
            in_flight: InFlight::default(),
            found_in: BTreeMap::new(),
            parts: parts(backlogs),
            topics: (1..=RETRY_TIERS).rev().map(Topic::Retry).collect(),
            number: 0,
            at: None,
        }
    }

    /// Result of a finished scan: messages in flight, and the partition of each that was found in
    /// topic `message`.
    pub(in crate::audit) fn end(self) -> (InFlight, BTreeMap<MessageId, usize>) {
        (self.in_flight, self.found_in)
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
        let is_wanted = |id: MessageId| self.ids.binary_search(&id).is_ok();
        match Task::decode(record.value).map(|task| task.work) {
            Ok(Work::Message(task)) if is_wanted(task.message.id) => {
                let id = task.message.id;
                self.in_flight.add_message(id);
                self.found_in.insert(id, record.partition.number as usize);
            }
            Ok(Work::Deliver(task)) if is_wanted(task.placed.message.id) => {
                let id = task.placed.message.id;
                self.in_flight.add_targets(id, task.targets);
            }
            _ => {}
        }
    }
}

/// Merges the ranges of several minutes, so that each record is read once. Stretches overlap:
/// records of a minute arrive while the minute before it is still read, too.
fn parts(backlogs: &[Vec<MinuteRest>]) -> Vec<(Partition, Range<u64>)> {
    let partitions = backlogs.iter().map(Vec::len).max().unwrap_or(0);
    let mut parts: Vec<(Partition, Range<u64>)> = Vec::new();
    for number in 0..partitions {
        let partition = message_partition(number);
        let of_partition = backlogs.iter().filter_map(|backlog| backlog.get(number));
        let mut ranges: Vec<_> = of_partition.map(|rest| rest.offsets.clone()).collect();
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        for range in ranges {
            match parts.last_mut() {
                Some((last_partition, last))
                    if *last_partition == partition && range.start <= last.end =>
                {
                    last.end = last.end.max(range.end);
                }
                _ => parts.push((partition, range)),
            }
        }
    }
    parts.reverse();
    parts
}

impl Turn<'_> {
    /// Continues a scan for some pages; false if there is more.
    pub(in crate::audit) async fn go_over(&self, scan: &mut CarriedScan<'_>) -> Result<bool> {
        for _ in 0..PAGES {
            let Some((partition, offsets)) = &mut scan.at else {
                scan.at = match scan.parts.pop() {
                    Some(part) => Some(part),
                    None => match scan.next_partition(self.queue) {
                        Some(partition) => Some((partition, self.uncommitted(partition).await?)),
                        None => return Ok(true),
                    },
                };
                continue;
            };
            let count = (offsets.end.saturating_sub(offsets.start)).min(PAGE as u64) as usize;
            let records = match count {
                0 => Vec::new(),
                count => self.queue.read(*partition, offsets.start, count).await?,
            };
            match records.last() {
                Some(last) if last.offset + 1 < offsets.end => offsets.start = last.offset + 1,
                _ => scan.at = None,
            }
            records.into_iter().for_each(|record| scan.add(record));
            yield_now().await;
        }
        Ok(false)
    }

    async fn uncommitted(&self, partition: Partition) -> Result<Range<u64>> {
        let (first, end) = self.queue.bounds(partition).await?;
        let committed_offset = self.queue.committed(CARRIERS, partition).await?;
        Ok(committed_offset.unwrap_or(0).max(first)..end)
    }

    /// Rest of each stretch of a minute that carriers have not committed; `None` if the offsets
    /// belong to another log.
    pub(in crate::audit) async fn read_backlog(
        &self,
        epoch: u32,
        stretches: &[OffsetRange],
    ) -> Result<Option<Vec<MinuteRest>>> {
        if epoch != self.queue.epoch() || stretches.len() != self.partitions() {
            return Ok(None);
        }
        let mut backlog = Vec::with_capacity(stretches.len());
        for (number, stretch) in stretches.iter().enumerate() {
            backlog.push(if stretch.from < stretch.to {
                self.read_partition_backlog(number, *stretch).await?
            } else {
                MinuteRest {
                    offsets: stretch.to..stretch.to,
                    is_untouched: true,
                }
            });
        }
        Ok(Some(backlog))
    }

    async fn read_partition_backlog(
        &self,
        number: usize,
        stretch: OffsetRange,
    ) -> Result<MinuteRest> {
        let partition = message_partition(number);
        let (first, end) = self.queue.bounds(partition).await?;
        let committed_offset = self.queue.committed(CARRIERS, partition).await?;
        let committed_offset = committed_offset.unwrap_or(0);
        let is_there = first <= stretch.from && stretch.to <= end;
        Ok(MinuteRest {
            offsets: stretch.from.max(committed_offset).max(first)..stretch.to.min(end),
            is_untouched: is_there && committed_offset <= stretch.from,
        })
    }
}
