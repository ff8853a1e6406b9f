//! What is still carried: records that nobody has committed will be done, or done again.
//!
//! A message's first record lies in the stretch of its minute. There may be others, later in the same
//! partition: a dead letter that was sent on its way again, a repeat of a send whose outcome its station did
//! not learn, a copy that an operator appended. So what the stretch alone shows to be carried is carried, and
//! what it does not show may be carried nevertheless: that is looked for in all of the partition.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use api::task::{Task, Work};
use backend::queue::{Partition, Queue, Record};
use protocol::MessageId;
use protocol::keys::{RETRY_TIERS, Topic};
use protocol::ledger::audit::Carried;
use protocol::ledger::minute::Stretch;
use tokio::task::yield_now;

use super::{PAGE, PAGES, Turn, partition_of_messages};

/// What carriers have left of the records that a minute was read from: offsets, and whether these are all of
/// them. One a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::admin) struct Left {
    pub(in crate::admin) offsets: Range<u64>,
    /// The log has every record of the stretch, and carriers have committed none of them: what the minute
    /// counted there is in flight, and nothing else needs to be asked.
    pub(in crate::admin) is_untouched: bool,
}

/// What is carried of some messages. Goes on for as long as a turn is held, and may be gone on with in
/// another. Reads in the order in which a message moves from topic to topic.
pub(in crate::admin) struct CarriedScan<'a> {
    /// In order of their ids.
    of: &'a [MessageId],
    carried: Carried,
    /// The partition of topic `message` that each was found in.
    found_in: BTreeMap<MessageId, usize>,
    /// Parts of topic `message` to be read, the next one last.
    parts: Vec<(Partition, Range<u64>)>,
    /// The topics that are left to be read whole, the next one last, and the next partition of that.
    topics: Vec<Topic>,
    number: u32,
    /// The partition that is read, and what is left of it.
    at: Option<(Partition, Range<u64>)>,
}

impl<'a> CarriedScan<'a> {
    /// By any record that is not committed.
    pub(in crate::admin) fn of(of: &'a [MessageId]) -> CarriedScan<'a> {
        let mut scan = CarriedScan::within(of, &[]);
        scan.topics.push(Topic::Message);
        scan
    }

    /// Of topic `message` only by these records, those of several minutes.
    pub(in crate::admin) fn within(of: &'a [MessageId], left: &[Vec<Left>]) -> CarriedScan<'a> {
        CarriedScan {
            of,
            carried: Carried::default(),
            found_in: BTreeMap::new(),
            parts: parts(left),
            topics: (1..=RETRY_TIERS).rev().map(Topic::Retry).collect(),
            number: 0,
            at: None,
        }
    }

    /// What was found, once it is over; and where, of what topic `message` has.
    pub(in crate::admin) fn end(self) -> (Carried, BTreeMap<MessageId, usize>) {
        (self.carried, self.found_in)
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
                let id = task.message.id;
                self.carried.add_message(id);
                self.found_in.insert(id, record.partition.number as usize);
            }
            Ok(Work::Deliver(task)) if wanted(task.placed.message.id) => {
                let id = task.placed.message.id;
                self.carried.add_targets(id, task.targets);
            }
            _ => {}
        }
    }
}

/// What is left of several minutes, each record once. Minutes overlap: a record comes while the one before
/// it is read, too.
fn parts(left: &[Vec<Left>]) -> Vec<(Partition, Range<u64>)> {
    let partitions = left.iter().map(Vec::len).max().unwrap_or(0);
    let mut parts: Vec<(Partition, Range<u64>)> = Vec::new();
    for number in 0..partitions {
        let partition = partition_of_messages(number);
        let of_partition = left.iter().filter_map(|left| left.get(number));
        let mut ranges: Vec<_> = of_partition.map(|left| left.offsets.clone()).collect();
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        for range in ranges {
            match parts.last_mut() {
                Some((of, last)) if *of == partition && range.start <= last.end => {
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
    /// Goes on with a scan, for some pages. False: there is more.
    pub(in crate::admin) async fn go_over(&self, scan: &mut CarriedScan<'_>) -> Result<bool> {
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
            let most = (offsets.end.saturating_sub(offsets.start)).min(PAGE as u64) as usize;
            let records = match most {
                0 => Vec::new(),
                most => self.queue.read(*partition, offsets.start, most).await?,
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
        let committed = self.queue.committed(carrier::GROUP, partition).await?;
        Ok(committed.unwrap_or(0).max(first)..end)
    }

    /// What carriers have left of the records that a minute was read from; `None` where these offsets are those
    /// of another log.
    pub(in crate::admin) async fn left(
        &self,
        epoch: u32,
        stretches: &[Stretch],
    ) -> Result<Option<Vec<Left>>> {
        if epoch != self.queue.epoch() || stretches.len() != self.partitions() {
            return Ok(None);
        }
        let mut left = Vec::with_capacity(stretches.len());
        for (number, stretch) in stretches.iter().enumerate() {
            left.push(match stretch.from < stretch.to {
                true => self.left_of(number, *stretch).await?,
                false => Left {
                    offsets: stretch.to..stretch.to,
                    is_untouched: true,
                },
            });
        }
        Ok(Some(left))
    }

    async fn left_of(&self, number: usize, stretch: Stretch) -> Result<Left> {
        let partition = partition_of_messages(number);
        let (first, end) = self.queue.bounds(partition).await?;
        let committed = self.queue.committed(carrier::GROUP, partition).await?;
        let committed = committed.unwrap_or(0);
        let is_there = first <= stretch.from && stretch.to <= end;
        Ok(Left {
            offsets: stretch.from.max(committed).max(first)..stretch.to.min(end),
            is_untouched: is_there && committed <= stretch.from,
        })
    }
}
