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
pub(crate) const GLANCE: Duration = Duration::from_millis(10);

/// Records of a partition begun and not committed, settled or not. Beyond this number the partition
/// is paused, because a record at its front cannot be settled.
pub(crate) const UNCOMMITTED_MAX: usize = 65_536;

/// A member of the consumer group, and the progress of its records.
pub(crate) struct PartitionConsumer {
    pub(crate) consumer: Box<dyn Consumer>,
    pub(crate) chores: HousekeepingQueue,
    pub(crate) progress: Arc<PartitionOffsets>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) config: Arc<Config>,
    assigned: Vec<Partition>,
    /// Partitions paused now, for whatever reason.
    quiet: Vec<Partition>,
}

/// Housekeeping beside polling.
pub(crate) struct HousekeepingQueue {
    progress: Arc<PartitionOffsets>,
    shard: ExecutorHandle,
    /// Batch that the shard has no room for yet.
    outgoing: Option<ExecutorBatch>,
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
            permit = self.shard.room(), if self.outgoing.is_some() => Housekeeping::HandOver(permit),
            () = sleep_until(self.commit_at), if self.commit_at.is_some() => Housekeeping::Commit,
            () = self.progress.moved(), if self.commit_at.is_none() => Housekeeping::Settled,
        }
    }
}

impl PartitionConsumer {
    pub(crate) fn new(
        consumer: Box<dyn Consumer>,
        progress: Arc<PartitionOffsets>,
        shard: ExecutorHandle,
        backends: &Backends,
        config: Arc<Config>,
    ) -> PartitionConsumer {
        PartitionConsumer {
            consumer,
            chores: HousekeepingQueue {
                progress: progress.clone(),
                shard,
                outgoing: None,
                commit_at: None,
            },
            progress,
            clock: backends.clock.clone(),
            entropy: backends.entropy.clone(),
            config,
            assigned: Vec::new(),
            quiet: Vec::new(),
        }
    }

    pub(crate) fn assign(&mut self, partitions: Vec<Partition>) {
        tracing::debug!(?partitions, "partitions assigned");
        self.assigned.extend(partitions);
    }

    /// Number of partitions assigned to this consumer.
    pub(crate) fn assigned(&self) -> usize {
        self.assigned.len()
    }

    /// Pauses exactly the wanted and the crowded partitions, and those with too many uncommitted
    /// records; all of them while a batch waits for room.
    pub(crate) fn pause_where(&mut self, wanted: impl Fn(&Partition) -> bool) {
        let (congested, progress) = (self.congested(), &self.progress);
        let is_full = |partition: &Partition| {
            progress.is_crowded(*partition) || progress.open(*partition) > UNCOMMITTED_MAX
        };
        let quiet: Vec<Partition> = self
            .assigned
            .iter()
            .filter(|&partition| congested || wanted(partition) || is_full(partition))
            .copied()
            .collect();
        if quiet == self.quiet {
            return;
        }
        let (resumed, paused) = (
            difference(&self.quiet, &quiet),
            difference(&quiet, &self.quiet),
        );
        self.consumer.resume(&resumed);
        self.consumer.pause(&paused);
        self.quiet = quiet;
    }

    pub(crate) fn congested(&self) -> bool {
        self.chores.outgoing.is_some()
    }

    /// Hands a batch to the shard, or keeps it until there is room. Nothing more is polled
    /// meanwhile.
    pub(crate) fn hand_over(&mut self, batch: ExecutorBatch) {
        if batch.is_empty() {
            return;
        }
        if let Some(outgoing) = &mut self.chores.outgoing {
            return outgoing.append(batch);
        }
        if let Err(error) = self.chores.shard.batches.try_send(batch) {
            self.chores.outgoing = Some(error.into_inner());
        }
    }

    pub(crate) async fn do_chore(&mut self, chore: Housekeeping) {
        match chore {
            Housekeeping::HandOver(permit) => {
                if let Some(batch) = self.chores.outgoing.take() {
                    permit.send(batch);
                }
            }
            Housekeeping::Settled => {
                self.chores.commit_at = Some(Instant::now() + self.config.commit_interval);
            }
            Housekeeping::Commit => self.commit().await,
        }
    }

    /// Commits the settled prefix of every partition.
    pub(crate) async fn commit(&mut self) {
        self.chores.commit_at = None;
        let due = self.progress.due();
        if due.is_empty() {
            return;
        }
        match self.consumer.commit(&due).await {
            Ok(()) => self.progress.committed(&due),
            Err(error) => {
                // Uncommitted records are done again; the next poll reports lost partitions.
                tracing::info!(%error, source = %error.source, "offsets are not committed");
                self.chores.commit_at = Some(Instant::now() + self.config.commit_interval * 10);
            }
        }
    }

    /// Gives partitions up: waits for work that may still finish, commits it unless the partitions
    /// are lost, and abandons the rest. `begun` is the number of their records that nobody will
    /// finish.
    pub(crate) async fn release(&mut self, partitions: &[Partition], lost: bool, begun: usize) {
        let waiting = self.chores.outgoing.as_mut();
        let waiting = waiting.map_or(0, |batch| batch.drop_partitions(partitions));
        if !lost {
            let progress = self.progress.clone();
            let finished = || progress.unsettled(partitions) <= begun + waiting;
            self.progress.wait(finished, self.config.finish_wait).await;
        }
        self.chores.shard.abandon(partitions.to_vec()).await;
        if !lost {
            self.commit().await;
        }
        self.progress.revoke(partitions);
        let given = |partition: &Partition| !partitions.contains(partition);
        self.assigned.retain(given);
        self.quiet.retain(given);
        tracing::debug!(?partitions, lost, "partitions given up");
    }

    /// Ends the consumer: waits for work that may still finish, and commits it. Dropping the
    /// consumer leaves the group.
    pub(crate) async fn finish(mut self, begun: usize) {
        let all = self.assigned.clone();
        let waiting = self.chores.outgoing.as_mut();
        let waiting = waiting.map_or(0, |batch| batch.drop_partitions(&all));
        let progress = self.progress.clone();
        let finished = || progress.all_unsettled() <= begun + waiting;
        self.progress.wait(finished, self.config.finish_wait).await;
        self.chores.shard.abandon(all).await;
        self.commit().await;
    }
}

fn difference(of: &[Partition], without: &[Partition]) -> Vec<Partition> {
    let left = of.iter().filter(|partition| !without.contains(partition));
    left.copied().collect()
}

pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
