//! Work that every consumer of a carrier shares: committing settled records, and giving partitions
//! up in order.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::{Clock, Entropy};
use backend::queue::{Consumer, Partition};
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Instant;

use crate::Config;
use crate::executor_queue::{ExecutorBatch, ExecutorHandle};
use crate::offsets::PartitionOffsets;

/// Time of polling the log between two turns of waiting work.
pub(crate) const MIN_POLL_TIME: Duration = Duration::from_millis(10);

/// Records of a partition begun and not committed, settled or not. Beyond this number the partition
/// is paused, because a record at its front cannot be settled.
pub(crate) const UNCOMMITTED_MAX: usize = 65_536;

/// A member of the consumer group, and the progress of its records.
pub(crate) struct PartitionConsumer {
    pub(crate) inner: Box<dyn Consumer>,
    pub(crate) housekeeping: HousekeepingQueue,
    pub(crate) offsets: Arc<PartitionOffsets>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) config: Arc<Config>,
    assigned_partitions: Vec<Partition>,
    /// Partitions paused now, for whatever reason.
    paused_partitions: Vec<Partition>,
}

/// Housekeeping beside polling.
pub(crate) struct HousekeepingQueue {
    offsets: Arc<PartitionOffsets>,
    shard: ExecutorHandle,
    /// Batch that the shard has no room for yet.
    pending_batch: Option<ExecutorBatch>,
    commit_at: Option<Instant>,
}

pub(crate) enum Housekeeping {
    /// The shard has room for the waiting batch.
    HandOver(OwnedPermit<ExecutorBatch>),
    /// Something settled since the last commit.
    Settled,
    Commit,
}

impl HousekeepingQueue {
    /// Completes when there is housekeeping to do. Cancel safe.
    pub(crate) async fn next(&self) -> Housekeeping {
        tokio::select! {
            biased;
            permit = self.shard.room(), if self.pending_batch.is_some() => Housekeeping::HandOver(permit),
            () = sleep_until(self.commit_at), if self.commit_at.is_some() => Housekeeping::Commit,
            () = self.offsets.changed(), if self.commit_at.is_none() => Housekeeping::Settled,
        }
    }
}

impl PartitionConsumer {
    pub(crate) fn new(
        consumer: Box<dyn Consumer>,
        offsets: Arc<PartitionOffsets>,
        shard: ExecutorHandle,
        backends: &Backends,
        config: Arc<Config>,
    ) -> PartitionConsumer {
        PartitionConsumer {
            inner: consumer,
            housekeeping: HousekeepingQueue {
                offsets: offsets.clone(),
                shard,
                pending_batch: None,
                commit_at: None,
            },
            offsets,
            clock: backends.clock.clone(),
            entropy: backends.entropy.clone(),
            config,
            assigned_partitions: Vec::new(),
            paused_partitions: Vec::new(),
        }
    }

    pub(crate) fn assign(&mut self, partitions: Vec<Partition>) {
        tracing::debug!(?partitions, "partitions assigned");
        self.assigned_partitions.extend(partitions);
    }

    /// Number of partitions assigned to this consumer.
    pub(crate) fn assigned_count(&self) -> usize {
        self.assigned_partitions.len()
    }

    /// Pauses exactly the wanted and the crowded partitions, and those with too many uncommitted
    /// records; all of them while a batch waits for room.
    pub(crate) fn pause_partitions(&mut self, should_pause: impl Fn(&Partition) -> bool) {
        let (is_congested, offsets) = (self.is_congested(), &self.offsets);
        let is_full = |partition: &Partition| {
            offsets.is_crowded(*partition) || offsets.open(*partition) > UNCOMMITTED_MAX
        };
        let paused_partitions: Vec<Partition> = self
            .assigned_partitions
            .iter()
            .filter(|&partition| is_congested || should_pause(partition) || is_full(partition))
            .copied()
            .collect();
        if paused_partitions == self.paused_partitions {
            return;
        }
        let (to_resume, to_pause) = (
            difference(&self.paused_partitions, &paused_partitions),
            difference(&paused_partitions, &self.paused_partitions),
        );
        self.inner.resume(&to_resume);
        self.inner.pause(&to_pause);
        self.paused_partitions = paused_partitions;
    }

    pub(crate) fn is_congested(&self) -> bool {
        self.housekeeping.pending_batch.is_some()
    }

    /// Hands a batch to the shard, or keeps it until there is room. Nothing more is polled
    /// meanwhile.
    pub(crate) fn hand_over(&mut self, batch: ExecutorBatch) {
        if batch.is_empty() {
            return;
        }
        if let Some(pending_batch) = &mut self.housekeeping.pending_batch {
            return pending_batch.append(batch);
        }
        if let Err(error) = self.housekeeping.shard.batches.try_send(batch) {
            self.housekeeping.pending_batch = Some(error.into_inner());
        }
    }

    pub(crate) async fn do_housekeeping(&mut self, work: Housekeeping) {
        match work {
            Housekeeping::HandOver(permit) => {
                if let Some(batch) = self.housekeeping.pending_batch.take() {
                    permit.send(batch);
                }
            }
            Housekeeping::Settled => {
                self.housekeeping.commit_at = Some(Instant::now() + self.config.commit_interval);
            }
            Housekeeping::Commit => self.commit().await,
        }
    }

    /// Commits the settled prefix of every partition.
    pub(crate) async fn commit(&mut self) {
        self.housekeeping.commit_at = None;
        let commits = self.offsets.due();
        if commits.is_empty() {
            return;
        }
        match self.inner.commit(&commits).await {
            Ok(()) => self.offsets.committed(&commits),
            Err(error) => {
                // Uncommitted records are done again; the next poll reports lost partitions.
                tracing::info!(%error, source = %error.source, "cannot commit offsets");
                self.housekeeping.commit_at =
                    Some(Instant::now() + self.config.commit_interval * 10);
            }
        }
    }

    /// Gives partitions up: waits for work that may still finish, commits it unless the partitions
    /// are lost, and abandons the rest. `abandoned_count` is the number of their records that
    /// nobody will finish.
    pub(crate) async fn release(
        &mut self,
        partitions: &[Partition],
        is_lost: bool,
        abandoned_count: usize,
    ) {
        let pending_count = self.housekeeping.pending_batch.as_mut();
        let pending_count = pending_count.map_or(0, |batch| batch.drop_partitions(partitions));
        if !is_lost {
            let offsets = self.offsets.clone();
            let is_finished = || offsets.unsettled(partitions) <= abandoned_count + pending_count;
            self.offsets
                .wait(is_finished, self.config.finish_wait)
                .await;
        }
        self.housekeeping.shard.abandon(partitions.to_vec()).await;
        if !is_lost {
            self.commit().await;
        }
        self.offsets.revoke(partitions);
        let is_kept = |partition: &Partition| !partitions.contains(partition);
        self.assigned_partitions.retain(is_kept);
        self.paused_partitions.retain(is_kept);
        tracing::debug!(?partitions, lost = is_lost, "partitions revoked");
    }

    /// Ends the consumer: waits for work that may still finish, and commits it. Dropping the
    /// consumer leaves the group.
    pub(crate) async fn finish(mut self, abandoned_count: usize) {
        let partitions = self.assigned_partitions.clone();
        let pending_count = self.housekeeping.pending_batch.as_mut();
        let pending_count = pending_count.map_or(0, |batch| batch.drop_partitions(&partitions));
        let offsets = self.offsets.clone();
        let is_finished = || offsets.all_unsettled() <= abandoned_count + pending_count;
        self.offsets
            .wait(is_finished, self.config.finish_wait)
            .await;
        self.housekeeping.shard.abandon(partitions).await;
        self.commit().await;
    }
}

fn difference(partitions: &[Partition], exclusions: &[Partition]) -> Vec<Partition> {
    let rest = partitions
        .iter()
        .filter(|partition| !exclusions.contains(partition));
    rest.copied().collect()
}

pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
