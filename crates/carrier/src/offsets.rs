//! Settled offsets of a consumer, shared by the workers on its records and the committer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backend::queue::{Partition, Record};
use parking_lot::Mutex;
use protocol::delivery::{OffsetTracker, Source};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::decoded_record::{partition_key, record_source};

#[derive(Debug, Default)]
pub(crate) struct PartitionOffsets {
    offsets: Mutex<OffsetTracker>,
    /// Something settled, or may be read again.
    change_notify: Notify,
    /// Partitions to pause, as the effects of their records have no room.
    crowded_partitions: Mutex<BTreeSet<Partition>>,
}

impl PartitionOffsets {
    pub(crate) fn begin(&self, records: &[Record]) {
        let mut offsets = self.offsets.lock();
        for record in records {
            offsets.begin(record_source(record));
        }
    }

    /// Settles records whose effects are all durable.
    pub(crate) fn settle(&self, sources: impl IntoIterator<Item = Source>) {
        let mut offsets = self.offsets.lock();
        for source in sources {
            offsets.settle(source);
        }
        drop(offsets);
        self.change_notify.notify_one();
    }

    /// Completes after a settlement, or a change of the paused partitions, since the last call.
    /// Cancel safe.
    pub(crate) async fn changed(&self) {
        self.change_notify.notified().await;
    }

    /// Pauses exactly these partitions from now on.
    fn set_crowded(&self, partitions: BTreeSet<Partition>) {
        *self.crowded_partitions.lock() = partitions;
        self.change_notify.notify_one();
    }

    pub(crate) fn is_crowded(&self, partition: Partition) -> bool {
        self.crowded_partitions.lock().contains(&partition)
    }

    /// Waits until `is_finished`, or until `timeout` is over.
    pub(crate) async fn wait(&self, is_finished: impl Fn() -> bool, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while !is_finished() {
            tokio::select! {
                biased;
                // Ahead of `changed`, as others may settle without a pause.
                () = tokio::time::sleep_until(deadline) => return,
                () = self.changed() => {}
            }
        }
    }

    /// Offsets to commit now.
    pub(crate) fn due(&self) -> Vec<(Partition, u64)> {
        let next_offsets = self.offsets.lock().due();
        next_offsets
            .into_iter()
            .map(|((topic, number), next)| (Partition { topic, number }, next))
            .collect()
    }

    pub(crate) fn committed(&self, commits: &[(Partition, u64)]) {
        let mut offsets = self.offsets.lock();
        for (partition, next) in commits {
            offsets.committed(partition_key(*partition), *next);
        }
    }

    pub(crate) fn revoke(&self, partitions: &[Partition]) {
        let mut offsets = self.offsets.lock();
        for partition in partitions {
            offsets.revoke(partition_key(*partition));
        }
    }

    /// Records of a partition that are begun and not part of the settled prefix.
    pub(crate) fn open(&self, partition: Partition) -> usize {
        self.offsets.lock().open(partition_key(partition))
    }

    pub(crate) fn unsettled(&self, partitions: &[Partition]) -> usize {
        let offsets = self.offsets.lock();
        let keys = partitions.iter().copied().map(partition_key);
        keys.map(|key| offsets.unsettled(key)).sum()
    }

    pub(crate) fn all_unsettled(&self) -> usize {
        let offsets = self.offsets.lock();
        offsets.partitions().map(|key| offsets.unsettled(key)).sum()
    }
}

/// Offsets of all topics. A settled record goes to those of its topic's consumer.
#[derive(Clone, Debug)]
pub(crate) struct AllOffsets(Arc<BTreeMap<protocol::keys::Topic, Arc<PartitionOffsets>>>);

impl AllOffsets {
    pub(crate) fn new(
        offsets: BTreeMap<protocol::keys::Topic, Arc<PartitionOffsets>>,
    ) -> AllOffsets {
        AllOffsets(Arc::new(offsets))
    }

    pub(crate) fn settle(&self, sources: &[Source]) {
        for (topic, offsets) in self.0.iter() {
            let mut topic_sources = sources.iter().filter(|s| s.topic == *topic).peekable();
            if topic_sources.peek().is_some() {
                offsets.settle(topic_sources.copied());
            }
        }
    }

    /// Pauses exactly these partitions, as the effects of their records have no room.
    pub(crate) fn set_crowded(&self, partitions: &BTreeSet<Partition>) {
        for (topic, offsets) in self.0.iter() {
            let topic_partitions = partitions.iter().filter(|p| p.topic == *topic);
            offsets.set_crowded(topic_partitions.copied().collect());
        }
    }
}
