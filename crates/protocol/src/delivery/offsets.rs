//! Commit offsets of partitions: the contiguous prefix of settled records.

use std::collections::{BTreeMap, VecDeque};

use super::Source;
use crate::keys::Topic;

/// One partition of one topic.
pub type PartitionKey = (Topic, u32);

/// Uncommitted records of each assigned partition.
#[derive(Clone, Debug, Default)]
pub struct OffsetTracker {
    partitions: BTreeMap<PartitionKey, Prefix>,
}

#[derive(Clone, Debug, Default)]
struct Prefix {
    /// Records in offset order; true once settled.
    open: VecDeque<(u64, bool)>,
    /// Offset after the last record of the settled prefix.
    next: Option<u64>,
    committed_offset: Option<u64>,
}

impl Prefix {
    fn settle(&mut self, offset: u64) -> bool {
        let Ok(index) = self
            .open
            .binary_search_by_key(&offset, |(offset, _)| *offset)
        else {
            return false;
        };
        let is_fresh = !std::mem::replace(&mut self.open[index].1, true);
        while let Some((offset, true)) = self.open.front() {
            self.next = Some(offset + 1);
            self.open.pop_front();
        }
        is_fresh
    }
}

impl OffsetTracker {
    /// Begins a polled record. Records of a partition begin in offset order; a record that was
    /// begun before (the log handed it out again) is ignored.
    pub fn begin(&mut self, source: Source) {
        let prefix = self
            .partitions
            .entry((source.topic, source.partition))
            .or_default();
        let last = prefix.open.back().map(|(offset, _)| *offset);
        if last.is_none_or(|last| last < source.offset) {
            prefix.open.push_back((source.offset, false));
        }
    }

    /// Settles a record whose effects are all durable. False if it is not open: its partition was
    /// revoked, or it was settled before.
    pub fn settle(&mut self, source: Source) -> bool {
        self.partitions
            .get_mut(&(source.topic, source.partition))
            .is_some_and(|prefix| prefix.settle(source.offset))
    }

    /// Forgets a revoked partition: its records are no longer ours to commit, whenever they settle.
    pub fn revoke(&mut self, partition: PartitionKey) {
        self.partitions.remove(&partition);
    }

    /// Offsets to commit, for partitions that moved since [`committed`](Self::committed): every
    /// record before the offset is settled.
    pub fn due(&self) -> Vec<(PartitionKey, u64)> {
        self.partitions
            .iter()
            .filter(|(_, prefix)| prefix.next > prefix.committed_offset)
            .filter_map(|(key, prefix)| Some((*key, prefix.next?)))
            .collect()
    }

    /// Notes a commit that the log has recorded.
    pub fn committed(&mut self, partition: PartitionKey, next: u64) {
        if let Some(prefix) = self.partitions.get_mut(&partition) {
            prefix.committed_offset = prefix.committed_offset.max(Some(next));
        }
    }

    /// Unsettled records of the partition.
    pub fn unsettled(&self, partition: PartitionKey) -> usize {
        self.partitions.get(&partition).map_or(0, |prefix| {
            prefix
                .open
                .iter()
                .filter(|(_, is_settled)| !is_settled)
                .count()
        })
    }

    /// Records of the partition beyond the settled prefix: the number that the tracker must hold.
    pub fn open(&self, partition: PartitionKey) -> usize {
        self.partitions
            .get(&partition)
            .map_or(0, |prefix| prefix.open.len())
    }

    /// Partitions with begun records.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionKey> + '_ {
        self.partitions.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(offset: u64) -> Source {
        Source {
            topic: Topic::Message,
            partition: 0,
            offset,
        }
    }

    /// I13: a commit never passes a record that is not settled.
    fn passes_unsettled(next: u64, begun_offsets: &[u64], settled_offsets: &BTreeSet<u64>) -> bool {
        begun_offsets
            .iter()
            .any(|o| *o < next && !settled_offsets.contains(o))
    }

    #[test]
    fn a_gap_holds_the_commit_until_it_is_filled() {
        let mut offsets = OffsetTracker::default();
        (4..8).for_each(|offset| offsets.begin(at(offset)));
        assert!(offsets.settle(at(5)));
        assert!(offsets.settle(at(6)));
        assert_eq!(offsets.due(), []);
        assert!(offsets.settle(at(4)));
        assert_eq!(offsets.due(), [((Topic::Message, 0), 7)]);
        offsets.committed((Topic::Message, 0), 7);
        assert_eq!(offsets.due(), []);
        assert_eq!(offsets.unsettled((Topic::Message, 0)), 1);
        assert!(!offsets.settle(at(4)), "settled before");
    }

    #[test]
    fn records_settled_after_revocation_are_not_committed() {
        let mut offsets = OffsetTracker::default();
        offsets.begin(at(0));
        offsets.revoke((Topic::Message, 0));
        assert!(!offsets.settle(at(0)));
        assert_eq!(offsets.due(), []);
    }

    proptest! {
        #[test]
        fn commits_follow_the_settled_prefix_in_any_order_of_settling(
            gaps in prop::collection::vec(1u64..4, 1..60),
            order in any::<prop::sample::Index>(),
            seed in any::<u64>(),
        ) {
            let begun_offsets: Vec<u64> = gaps.iter().scan(0, |sum, gap| { *sum += gap; Some(*sum) }).collect();
            let mut offsets = OffsetTracker::default();
            begun_offsets.iter().for_each(|o| offsets.begin(at(*o)));
            let mut settle_order = begun_offsets.clone();
            settle_order.sort_by_key(|o| o.wrapping_mul(seed | 1).rotate_left(17));
            let stop = order.index(settle_order.len() + 1);
            let mut settled_offsets = BTreeSet::new();
            let mut last = 0;
            let mut naive_passed = false;
            for offset in &settle_order[..stop] {
                offsets.settle(at(*offset));
                settled_offsets.insert(*offset);
                for (partition, next) in offsets.due() {
                    prop_assert!(next > last, "commits only move forward");
                    prop_assert!(!passes_unsettled(next, &begun_offsets, &settled_offsets));
                    offsets.committed(partition, next);
                    last = next;
                }
                // The negative twin: committing the highest settled offset.
                let naive_commit = settled_offsets.last().map_or(0, |o| o + 1);
                naive_passed |= passes_unsettled(naive_commit, &begun_offsets, &settled_offsets);
            }
            let out_of_order = settle_order[..stop].iter().zip(&begun_offsets).any(|(a, b)| a != b);
            prop_assert_eq!(naive_passed, out_of_order, "the judge sees an early commit");
            if stop == settle_order.len() {
                prop_assert_eq!(last, begun_offsets[begun_offsets.len() - 1] + 1);
            }
        }
    }
}
