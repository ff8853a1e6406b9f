//! Consumes the topic `message`: polls, writes, and hands what was written to the shard's executor.
//!
//! A store that does not answer stalls the partitions of the records that it failed, and only those: they
//! hand out nothing, and the records are repeated, in ever longer pauses and ever smaller parts, until they are
//! written. Nothing of them goes through a retry topic, where it would lose its place. A store that is slow costs
//! no membership: what is not written within `write_time` waits in the same way, and the log is polled in between.

use std::sync::Arc;

use backend::queue::{Partition, Polled, Record};
use protocol::keys::Topic;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::batch::Batch;
use crate::consumer::{GLANCE, Line, sleep_until};
use crate::records::Records;
use crate::work::{self, Read};
use crate::writer::{Halt, Writer, give_up};

pub(crate) struct Intake {
    pub(crate) line: Line,
    pub(crate) writer: Writer,
    pub(crate) records: Records,
    pub(crate) partitions: u32,
    pub(crate) stalled: Vec<Stalled>,
}

/// Records that could not be written yet; their partitions are quiet.
pub(crate) struct Stalled {
    reads: Vec<Arc<Read>>,
    backoff: Backoff,
    again_at: Instant,
}

/// Records of a partition that are begun and not committed, settled or not; beyond it the partition is
/// quiet, because a record at its front cannot be settled.
const UNCOMMITTED_MAX: usize = 65_536;

impl Intake {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // Whatever waits, no two writes follow each other without a poll.
        let mut not_before = Instant::now();
        loop {
            self.hush();
            let again_at = self.stalled.iter().map(|stalled| stalled.again_at).min();
            let again_at = again_at.map(|at| at.max(not_before));
            let max = self.line.config.poll_max;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                chore = self.line.chores.next() => self.line.do_chore(chore).await,
                () = sleep_until(again_at), if again_at.is_some() && !self.line.congested() => {
                    self.try_again().await;
                    not_before = Instant::now() + GLANCE;
                }
                polled = self.line.consumer.poll(max) => match polled {
                    Ok(polled) => self.handle(polled).await,
                    Err(error) => {
                        tracing::warn!(%error, source = %error.source, "the log does not answer");
                        tokio::time::sleep(self.line.config.backoff_max / 4).await;
                    }
                },
            }
        }
        let begun = self.stalled.iter().map(|stalled| stalled.reads.len()).sum();
        self.line.finish(begun).await;
    }

    fn hush(&mut self) {
        let (stalled, progress) = (&self.stalled, self.line.progress.clone());
        let stalls = |partition: &Partition| {
            let mut reads = stalled.iter().flat_map(|stalled| &stalled.reads);
            reads.any(|read| read.source.partition == partition.number)
        };
        self.line
            .hush(|partition| stalls(partition) || progress.open(*partition) > UNCOMMITTED_MAX);
    }

    async fn handle(&mut self, polled: Polled) {
        match polled {
            Polled::Records(records) => self.take(records).await,
            Polled::Assigned(partitions) => self.line.assign(partitions),
            Polled::Revoked(partitions) => self.release(partitions, false).await,
            Polled::Lost(partitions) => self.release(partitions, true).await,
        }
    }

    async fn take(&mut self, records: Vec<Record>) {
        metrics::counter!("carrier_records_total", "topic" => "message")
            .increment(records.len() as u64);
        self.line.progress.begin(&records);
        let now = self.line.clock.now();
        let mut spoilt = Batch::default();
        let mut reads = Vec::with_capacity(records.len());
        for record in records {
            match work::read(record, self.partitions) {
                Ok(read) => reads.push(Arc::new(read)),
                Err(dead) => spoilt.effects.push(give_up(&self.records, &dead, now)),
            }
        }
        let backoff = Backoff::new(&self.line.config);
        self.write(reads, spoilt, backoff).await;
    }

    /// Writes and hands over what took effect; the rest waits.
    async fn write(&mut self, reads: Vec<Arc<Read>>, with: Batch, mut backoff: Backoff) {
        let written = self.writer.write(&reads).await;
        match written.halt {
            Some(halt) => self.stall(written.rest, &halt, &mut backoff),
            None if written.rest.is_empty() => {}
            None => {
                metrics::counter!("carrier_slow_writes_total").increment(1);
                self.stalled.push(Stalled {
                    reads: written.rest,
                    backoff: Backoff::new(&self.line.config),
                    again_at: Instant::now(),
                });
            }
        }
        let mut batch = written.batch;
        batch.effects.extend(with.effects);
        self.line.hand_over(batch);
    }

    fn stall(&mut self, reads: Vec<Arc<Read>>, halt: &Halt, backoff: &mut Backoff) {
        let pause = backoff.failed(&*self.line.entropy);
        tracing::warn!(
            error = %halt,
            records = reads.len(),
            pause_ms = pause.as_millis() as u64,
            "messages cannot be written: their partitions wait"
        );
        metrics::counter!("carrier_stalls_total").increment(1);
        let again_at = Instant::now() + pause;
        for reads in halves(reads) {
            self.stalled.push(Stalled {
                reads,
                backoff: *backoff,
                again_at,
            });
        }
    }

    /// One stalled part whose pause is over.
    async fn try_again(&mut self) {
        let now = Instant::now();
        let due = self
            .stalled
            .iter()
            .position(|stalled| stalled.again_at <= now);
        if let Some(due) = due {
            let stalled = self.stalled.remove(due);
            self.write(stalled.reads, Batch::default(), stalled.backoff)
                .await;
        }
    }

    async fn release(&mut self, partitions: Vec<Partition>, lost: bool) {
        let mut dropped = 0;
        for stalled in &mut self.stalled {
            let before = stalled.reads.len();
            let kept = |read: &Arc<Read>| {
                let number = read.source.partition;
                let gone = Partition {
                    topic: Topic::Message,
                    number,
                };
                !partitions.contains(&gone)
            };
            stalled.reads.retain(kept);
            dropped += before - stalled.reads.len();
        }
        self.stalled.retain(|stalled| !stalled.reads.is_empty());
        self.line.release(&partitions, lost, dropped).await;
        self.writer.forget(&partitions);
    }
}

/// The records of half of the partitions, and of the other half: what is wrong with one of them is found
/// after a few tries, and no longer holds the others.
fn halves(mut reads: Vec<Arc<Read>>) -> Vec<Vec<Arc<Read>>> {
    let mut numbers: Vec<u32> = reads.iter().map(|read| read.source.partition).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() < 2 {
        return vec![reads];
    }
    let middle = numbers[numbers.len() / 2];
    let upper = reads
        .extract_if(.., |read| read.source.partition >= middle)
        .collect();
    vec![reads, upper]
}
