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
    partitions: BTreeMap<Partition, AssignedPartition>,
    /// Partition served last; the next take starts after it.
    last: Option<Partition>,
}

struct AssignedPartition {
    /// Lower bound on the next offset from librdkafka; smaller offsets are repeats.
    next: u64,
    /// End of the records handed out.
    handed_out_end: u64,
    committed_offset: Option<u64>,
    is_paused: bool,
    /// Paused at the broker as well.
    is_stopped: bool,
    /// Reported as *revoked*: nothing more is handed out.
    is_revoked: bool,
    pending_records: VecDeque<Record>,
    pending_bytes: usize,
}

impl Assignments {
    /// Adds a partition. `start` is its committed offset, `None` if the group has none.
    pub(super) fn add(&mut self, partition: Partition, start: Option<u64>) {
        let state = AssignedPartition {
            next: start.unwrap_or(0),
            handed_out_end: start.unwrap_or(0),
            committed_offset: start,
            is_paused: false,
            is_stopped: false,
            is_revoked: false,
            pending_records: VecDeque::new(),
            pending_bytes: 0,
        };
        self.partitions.insert(partition, state);
    }

    pub(super) fn remove(&mut self, partitions: &[Partition]) {
        for partition in partitions {
            self.partitions.remove(partition);
        }
    }

    pub(super) fn revoke(&mut self, partitions: &[Partition]) {
        for partition in partitions {
            if let Some(state) = self.partitions.get_mut(partition) {
                state.is_revoked = true;
                state.pending_records.clear();
                state.pending_bytes = 0;
            }
        }
    }

    pub(super) fn partitions(&self) -> impl Iterator<Item = Partition> + '_ {
        self.partitions.keys().copied()
    }

    pub(super) fn contains(&self, partition: Partition) -> bool {
        self.partitions.contains_key(&partition)
    }

    /// Whether any record could be handed out now.
    pub(super) fn has_pending(&self) -> bool {
        let mut all = self.partitions.values();
        all.any(|state| !state.is_paused && !state.pending_records.is_empty())
    }

    /// Takes in a record. Returns `Stop` once a paused partition has enough at hand
    /// (`pause_bytes`).
    pub(super) fn receive(&mut self, record: Record, pause_bytes: usize) -> Option<PartitionFlow> {
        let state = self.partitions.get_mut(&record.partition)?;
        if state.is_revoked || record.offset < state.next {
            return None;
        }
        state.next = record.offset + 1;
        state.pending_bytes += record_size(&record);
        state.pending_records.push_back(record);
        if state.is_paused && !state.is_stopped && state.pending_bytes >= pause_bytes {
            state.is_stopped = true;
            return Some(PartitionFlow::Stop);
        }
        None
    }

    pub(super) fn pause(&mut self, partition: Partition) {
        if let Some(state) = self.partitions.get_mut(&partition) {
            state.is_paused = true;
        }
    }

    pub(super) fn resume(&mut self, partition: Partition) -> Option<PartitionFlow> {
        let state = self.partitions.get_mut(&partition)?;
        state.is_paused = false;
        std::mem::take(&mut state.is_stopped).then_some(PartitionFlow::Go)
    }

    /// Takes at most `max` records and about `bytes_max` bytes, starting with another partition
    /// each time.
    pub(super) fn take(&mut self, max: usize, bytes_max: usize) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let last = self.last;
        let mut order: Vec<Partition> = self.partitions.keys().copied().collect();
        let first = order.partition_point(|partition| last.is_some_and(|last| *partition <= last));
        order.rotate_left(first);
        for partition in order {
            let Some(state) = self.partitions.get_mut(&partition) else {
                continue;
            };
            while !state.is_paused && records.len() < max && bytes < bytes_max {
                let Some(record) = state.pending_records.pop_front() else {
                    break;
                };
                let size = record_size(&record);
                state.pending_bytes = state.pending_bytes.saturating_sub(size);
                state.handed_out_end = record.offset + 1;
                bytes += size;
                records.push(record);
                self.last = Some(partition);
            }
        }
        records
    }

    /// Whether committing `next` would move the partition forward.
    pub(super) fn is_ahead(&self, partition: Partition, next: u64) -> bool {
        let state = self.partitions.get(&partition);
        state.is_some_and(|state| state.committed_offset.is_none_or(|offset| offset < next))
    }

    /// Whether `next` is beyond the records handed out.
    pub(super) fn is_beyond(&self, partition: Partition, next: u64) -> bool {
        self.partitions
            .get(&partition)
            .is_some_and(|state| state.handed_out_end < next)
    }

    pub(super) fn set_committed(&mut self, partition: Partition, next: u64) {
        if let Some(state) = self.partitions.get_mut(&partition) {
            state.committed_offset = state.committed_offset.max(Some(next));
        }
    }

    /// Next offset librdkafka reads in each partition.
    pub(super) fn positions(&self) -> Vec<(Partition, u64)> {
        let active = self
            .partitions
            .iter()
            .filter(|(_, state)| !state.is_revoked);
        active
            .map(|(&partition, state)| (partition, state.next))
            .collect()
    }
}

fn record_size(record: &Record) -> usize {
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

    fn partition(number: u32) -> Partition {
        Partition {
            topic: Topic::Message,
            number,
        }
    }

    fn record(number: u32, offset: u64) -> Record {
        Record {
            partition: partition(number),
            offset,
            appended_at: Timestamp::from_millis(0),
            key: Bytes::new(),
            headers: Vec::new(),
            value: Bytes::from(vec![0; 872]),
        }
    }

    fn assignments() -> Assignments {
        let mut assignments = Assignments::default();
        assignments.add(partition(0), None);
        assignments.add(partition(1), Some(5));
        assignments
    }

    fn places(records: &[Record]) -> Vec<(u32, u64)> {
        let records = records.iter();
        records.map(|r| (r.partition.number, r.offset)).collect()
    }

    const UNLIMITED: usize = usize::MAX;

    #[test]
    fn partitions_take_turns_and_bytes_count() {
        let mut assignments = assignments();
        for offset in 5..8 {
            assignments.receive(record(0, offset), UNLIMITED);
            assignments.receive(record(1, offset), UNLIMITED);
        }
        assert_eq!(places(&assignments.take(2, UNLIMITED)), [(0, 5), (0, 6)]);
        assert_eq!(places(&assignments.take(UNLIMITED, 1500)), [(1, 5), (1, 6)]);
        assert_eq!(
            places(&assignments.take(UNLIMITED, UNLIMITED)),
            [(0, 7), (1, 7)]
        );
        assert!(assignments.take(UNLIMITED, UNLIMITED).is_empty() && !assignments.has_pending());
    }

    #[test]
    fn repeated_foreign_and_revoked_records_are_not_handed_out() {
        let mut assignments = assignments();
        for (number, offset) in [(1, 4), (1, 5), (1, 5), (2, 0), (0, 0)] {
            assignments.receive(record(number, offset), UNLIMITED);
        }
        assignments.revoke(&[partition(0)]);
        assignments.receive(record(0, 1), UNLIMITED);
        assert_eq!(places(&assignments.take(UNLIMITED, UNLIMITED)), [(1, 5)]);
        assert!(assignments.contains(partition(0)), "may still commit");
        assert_eq!(assignments.positions(), [(partition(1), 6)]);
    }

    #[test]
    fn paused_partition_buffers_little_then_pauses_at_the_broker() {
        let mut assignments = assignments();
        assignments.pause(partition(0));
        assert_eq!(assignments.receive(record(0, 0), 2000), None);
        assert_eq!(
            assignments.receive(record(0, 1), 2000),
            Some(PartitionFlow::Stop)
        );
        assert_eq!(assignments.receive(record(0, 2), 2000), None, "once");
        assert!(assignments.take(UNLIMITED, UNLIMITED).is_empty() && !assignments.has_pending());
        assert_eq!(assignments.resume(partition(0)), Some(PartitionFlow::Go));
        assert_eq!(assignments.resume(partition(0)), None);
        assert_eq!(assignments.take(UNLIMITED, UNLIMITED).len(), 3);
    }

    #[test]
    fn commits_only_go_forward() {
        let mut assignments = assignments();
        assert!(assignments.is_ahead(partition(0), 0), "the first of all");
        assert!(!assignments.is_ahead(partition(1), 5) && assignments.is_ahead(partition(1), 6));
        assert!(!assignments.is_beyond(partition(1), 5) && assignments.is_beyond(partition(1), 6));
        assignments.set_committed(partition(1), 7);
        assignments.set_committed(partition(1), 6);
        assert!(!assignments.is_ahead(partition(1), 7) && assignments.is_ahead(partition(1), 8));
    }
}
