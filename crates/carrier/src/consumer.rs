//! What every consumer of a carrier does alike: commits what is settled, and gives partitions up in
//! order.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::{Clock, Entropy};
use backend::queue::{Consumer, Partition};
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Instant;

use crate::Config;
use crate::batch::{Batch, Shard};
use crate::progress::Progress;

/// How long the log is polled between two turns of work that waits.
pub(crate) const GLANCE: Duration = Duration::from_millis(10);

/// A member of the consumer group, and how far its records are.
pub(crate) struct Line {
    pub(crate) consumer: Box<dyn Consumer>,
    pub(crate) chores: Chores,
    pub(crate) progress: Arc<Progress>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) config: Arc<Config>,
    assigned: Vec<Partition>,
    /// Partitions that hand out nothing now, whatever the reason.
    quiet: Vec<Partition>,
}

/// What is to be done beside polling.
pub(crate) struct Chores {
    progress: Arc<Progress>,
    shard: Shard,
    /// A batch that the shard has no room for yet.
    outgoing: Option<Batch>,
    commit_at: Option<Instant>,
}

pub(crate) enum Chore {
    /// The shard has room for the batch that waits.
    HandOver(OwnedPermit<Batch>),
    /// Something settled since the last commit.
    Settled,
    Commit,
}

impl Chores {
    /// Completes when there is something to be done. Cancel safe.
    pub(crate) async fn next(&self) -> Chore {
        tokio::select! {
            biased;
            permit = self.shard.room(), if self.outgoing.is_some() => Chore::HandOver(permit),
            () = sleep_until(self.commit_at), if self.commit_at.is_some() => Chore::Commit,
            () = self.progress.moved(), if self.commit_at.is_none() => Chore::Settled,
        }
    }
}

impl Line {
    pub(crate) fn new(
        consumer: Box<dyn Consumer>,
        progress: Arc<Progress>,
        shard: Shard,
        backends: &Backends,
        config: Arc<Config>,
    ) -> Line {
        Line {
            consumer,
            chores: Chores {
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

    /// How many partitions are ours.
    pub(crate) fn assigned(&self) -> usize {
        self.assigned.len()
    }

    /// Lets exactly these partitions hand out nothing; all of them while a batch waits for room.
    pub(crate) fn hush(&mut self, wanted: impl Fn(&Partition) -> bool) {
        let (congested, progress) = (self.congested(), &self.progress);
        let quiet: Vec<Partition> = self
            .assigned
            .iter()
            .filter(|&partition| congested || wanted(partition) || progress.is_crowded(*partition))
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

    /// Hands a batch to the shard, or keeps it until there is room; meanwhile nothing more is polled.
    pub(crate) fn hand_over(&mut self, batch: Batch) {
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

    pub(crate) async fn do_chore(&mut self, chore: Chore) {
        match chore {
            Chore::HandOver(permit) => {
                if let Some(batch) = self.chores.outgoing.take() {
                    permit.send(batch);
                }
            }
            Chore::Settled => {
                self.chores.commit_at = Some(Instant::now() + self.config.commit_interval);
            }
            Chore::Commit => self.commit().await,
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
                // What is not committed is done again; the next poll tells what was lost.
                tracing::info!(%error, source = %error.source, "offsets are not committed");
                self.chores.commit_at = Some(Instant::now() + self.config.commit_interval * 10);
            }
        }
    }

    /// Gives partitions up: waits for what may still finish, commits it where that is ours to do, and
    /// abandons the rest. `begun` of their records are with nobody who will finish them.
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

    /// The last thing: waits for what may still finish, and commits it. Dropping the line leaves the
    /// group.
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
