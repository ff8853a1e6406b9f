//! Partitions that a member holds: handed-out and committed offsets, and records waiting.

use std::collections::{BTreeMap, VecDeque};

use crate::queue::{Partition, Record};

/// Change of a partition's flow from the broker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartitionFlow {
    Stop,
    Go,
}

#[derive(Default)]
pub(super) struct Assignments {
    held: BTreeMap<Partition, AssignedPartition>,
    /// Partition served last; the next take starts after it.
    last: Option<Partition>,
}

struct AssignedPartition {
    /// Lower bound on the next offset from librdkafka; smaller offsets are repeats.
    next: u64,
    /// End of the records handed out.
    taken: u64,
    committed: Option<u64>,
    paused: bool,
    /// Paused at the broker as well.
    stopped: bool,
    /// Reported as *revoked*: nothing more is handed out.
    revoked: bool,
    waiting: VecDeque<Record>,
    waiting_bytes: usize,
}

impl Assignments {
    /// Adds a partition. `start` is its committed offset, `None` if the group has none.
    pub(super) fn add(&mut self, partition: Partition, start: Option<u64>) {
        let held = AssignedPartition {
            next: start.unwrap_or(0),
            taken: start.unwrap_or(0),
            committed: start,
            paused: false,
            stopped: false,
            revoked: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        };
        self.held.insert(partition, held);
    }

    pub(super) fn remove(&mut self, partitions: &[Partition]) {
        for partition in partitions {
            self.held.remove(partition);
        }
    }

    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        for partition in partitions {
            if let Some(held) = self.held.get_mut(partition) {
                held.revoked = true;
                held.waiting.clear();
                held.waiting_bytes = 0;
            }
        }
    }

    pub(super) fn partitions(&self) -> impl Iterator<Item = Partition> + '_ {
        self.held.keys().copied()
    }

    pub(super) fn contains(&self, partition: Partition) -> bool {
        self.held.contains_key(&partition)
    }

    /// True if any record could be handed out now.
    pub(super) fn any_waiting(&self) -> bool {
        let mut all = self.held.values();
        all.any(|held| !held.paused && !held.waiting.is_empty())
    }

    /// Takes in a record. Returns `Stop` once a paused partition has enough at hand
    /// (`pause_bytes`).
    pub(super) fn receive(&mut self, record: Record, pause_bytes: usize) -> Option<PartitionFlow> {
        let held = self.held.get_mut(&record.partition)?;
        if held.revoked || record.offset < held.next {
            return None;
        }
        held.next = record.offset + 1;
        held.waiting_bytes += size_of(&record);
        held.waiting.push_back(record);
        if held.paused && !held.stopped && held.waiting_bytes >= pause_bytes {
            held.stopped = true;
            return Some(PartitionFlow::Stop);
        }
        None
    }

    pub(super) fn pause(&mut self, partition: Partition) {
        if let Some(held) = self.held.get_mut(&partition) {
            held.paused = true;
        }
    }

    pub(super) fn resume(&mut self, partition: Partition) -> Option<PartitionFlow> {
        let held = self.held.get_mut(&partition)?;
        held.paused = false;
        std::mem::take(&mut held.stopped).then_some(PartitionFlow::Go)
    }

    /// Takes at most `max` records and about `bytes_max` bytes, starting with another partition
    /// each time.
    pub(super) fn take(&mut self, max: usize, bytes_max: usize) -> Vec<Record> {
        let mut taken: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let last = self.last;
        let mut order: Vec<Partition> = self.held.keys().copied().collect();
        let first = order.partition_point(|partition| last.is_some_and(|last| *partition <= last));
        order.rotate_left(first);
        for partition in order {
            let Some(held) = self.held.get_mut(&partition) else {
                continue;
            };
            while !held.paused && taken.len() < max && bytes < bytes_max {
                let Some(record) = held.waiting.pop_front() else {
                    break;
                };
                let size = size_of(&record);
                held.waiting_bytes = held.waiting_bytes.saturating_sub(size);
                held.taken = record.offset + 1;
                bytes += size;
                taken.push(record);
                self.last = Some(partition);
            }
        }
        taken
    }

    /// True if committing `next` would move the partition forward.
    pub(super) fn is_ahead(&self, partition: Partition, next: u64) -> bool {
        let held = self.held.get(&partition);
        held.is_some_and(|held| held.committed.is_none_or(|committed| committed < next))
    }

    /// True if `next` is beyond the records handed out.
    pub(super) fn is_beyond(&self, partition: Partition, next: u64) -> bool {
        self.held
            .get(&partition)
            .is_some_and(|held| held.taken < next)
    }

    pub(super) fn committed(&mut self, partition: Partition, next: u64) {
        if let Some(held) = self.held.get_mut(&partition) {
            held.committed = held.committed.max(Some(next));
        }
    }

    /// Next offset librdkafka reads in each partition.
    pub(super) fn positions(&self) -> Vec<(Partition, u64)> {
        let kept = self.held.iter().filter(|(_, held)| !held.revoked);
        kept.map(|(&partition, held)| (partition, held.next))
            .collect()
    }
}

fn size_of(record: &Record) -> usize {
    /// Overhead of a record, so that many small ones count too.
    const OVERHEAD: usize = 128;
    let headers = record.headers.iter();
    let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
    OVERHEAD + record.key.len() + record.value.len() + headers
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::Timestamp;
    use protocol::keys::Topic;

    use super::*;

    fn at(number: u32) -> Partition {
        Partition {
            topic: Topic::Message,
            number,
        }
    }

    fn record(number: u32, offset: u64) -> Record {
        Record {
            partition: at(number),
            offset,
            appended_at: Timestamp::from_millis(0),
            key: Bytes::new(),
            headers: Vec::new(),
            value: Bytes::from(vec![0; 872]),
        }
    }

    fn holdings() -> Assignments {
        let mut holdings = Assignments::default();
        holdings.add(at(0), None);
        holdings.add(at(1), Some(5));
        holdings
    }

    fn places(records: &[Record]) -> Vec<(u32, u64)> {
        let records = records.iter();
        records.map(|r| (r.partition.number, r.offset)).collect()
    }

    const MANY: usize = usize::MAX;

    #[test]
    fn partitions_take_turns_and_bytes_count() {
        let mut holdings = holdings();
        for offset in 5..8 {
            holdings.receive(record(0, offset), MANY);
            holdings.receive(record(1, offset), MANY);
        }
        assert_eq!(places(&holdings.take(2, MANY)), [(0, 5), (0, 6)]);
        assert_eq!(places(&holdings.take(MANY, 1500)), [(1, 5), (1, 6)]);
        assert_eq!(places(&holdings.take(MANY, MANY)), [(0, 7), (1, 7)]);
        assert!(holdings.take(MANY, MANY).is_empty() && !holdings.any_waiting());
    }

    #[test]
    fn repeats_strangers_and_what_is_revoked_are_not_handed_out() {
        let mut holdings = holdings();
        for (number, offset) in [(1, 4), (1, 5), (1, 5), (2, 0), (0, 0)] {
            holdings.receive(record(number, offset), MANY);
        }
        holdings.revoke(&[at(0)]);
        holdings.receive(record(0, 1), MANY);
        assert_eq!(places(&holdings.take(MANY, MANY)), [(1, 5)]);
        assert!(holdings.contains(at(0)), "may still commit");
        assert_eq!(holdings.positions(), [(at(1), 6)]);
    }

    #[test]
    fn a_paused_partition_keeps_a_little_and_then_stops_at_the_broker() {
        let mut holdings = holdings();
        holdings.pause(at(0));
        assert_eq!(holdings.receive(record(0, 0), 2000), None);
        assert_eq!(
            holdings.receive(record(0, 1), 2000),
            Some(PartitionFlow::Stop)
        );
        assert_eq!(holdings.receive(record(0, 2), 2000), None, "once");
        assert!(holdings.take(MANY, MANY).is_empty() && !holdings.any_waiting());
        assert_eq!(holdings.resume(at(0)), Some(PartitionFlow::Go));
        assert_eq!(holdings.resume(at(0)), None);
        assert_eq!(holdings.take(MANY, MANY).len(), 3);
    }

    #[test]
    fn commits_only_go_forward() {
        let mut holdings = holdings();
        assert!(holdings.is_ahead(at(0), 0), "the first of all");
        assert!(!holdings.is_ahead(at(1), 5) && holdings.is_ahead(at(1), 6));
        assert!(!holdings.is_beyond(at(1), 5) && holdings.is_beyond(at(1), 6));
        holdings.committed(at(1), 7);
        holdings.committed(at(1), 6);
        assert!(!holdings.is_ahead(at(1), 7) && holdings.is_ahead(at(1), 8));
    }
}
