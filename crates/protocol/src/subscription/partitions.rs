//! Who serves each partition: the stream that brings its records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::Timestamp;

/// Time without a word that a partition is served; then its groups are asked for. Carriers say it
/// every 5 seconds.
const UNSERVED_AFTER: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Default)]
pub(super) struct Partitions(BTreeMap<u32, Partition>);

#[derive(Clone, Debug)]
struct Partition {
    /// `None`: no stream serves it.
    stream: Option<u32>,
    /// Time at which it was last said to be served, or its groups were last asked for.
    heard_at: Timestamp,
}

impl Partitions {
    /// Notes the partitions that a stream serves now, all of them. Returns those that another
    /// stream served before, or that this one no longer serves.
    pub(super) fn serve(&mut self, stream: u32, partitions: &[u32], now: Timestamp) -> Vec<u32> {
        let served: BTreeSet<u32> = partitions.iter().copied().collect();
        let mut moved = Vec::new();
        for (number, partition) in &mut self.0 {
            if partition.stream == Some(stream) && !served.contains(number) {
                (partition.stream, partition.heard_at) = (None, now);
                moved.push(*number);
            }
        }
        for number in served {
            self.expect(number, now);
            if let Some(partition) = self.0.get_mut(&number) {
                partition.heard_at = now;
                if partition.stream.replace(stream) != Some(stream) {
                    moved.push(number);
                }
            }
        }
        moved
    }

    /// Notes that a group of this partition has seats.
    pub(super) fn expect(&mut self, number: u32, now: Timestamp) {
        self.0.entry(number).or_insert(Partition {
            stream: None,
            heard_at: now,
        });
    }

    pub(super) fn served_by(&self, stream: u32) -> Vec<u32> {
        let served = (self.0.iter()).filter(|(_, it)| it.stream == Some(stream));
        served.map(|(number, _)| *number).collect()
    }

    /// Notes the end of a stream. Returns the partitions that it served.
    pub(super) fn end(&mut self, stream: u32, now: Timestamp) -> Vec<u32> {
        self.serve(stream, &[], now)
    }

    /// Partitions that nobody was said to serve for long. They are returned again after the same
    /// time, until somebody does.
    pub(super) fn unserved(&mut self, now: Timestamp) -> Vec<u32> {
        let mut unserved = Vec::new();
        for (number, partition) in &mut self.0 {
            if now >= partition.heard_at + UNSERVED_AFTER {
                (partition.stream, partition.heard_at) = (None, now);
                unserved.push(*number);
            }
        }
        unserved
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let deadlines = self.0.values().map(|it| it.heard_at + UNSERVED_AFTER);
        deadlines.min()
    }
}
