//! Consumes the topic `message`: polls, writes, and hands the written records to the shard's
//! executor.
//!
//! A store that does not answer stalls the partitions of the records that it failed, and only
//! those. The partitions are paused, and the records retried, with ever longer pauses and in ever
//! smaller parts, until they are written. None of them goes through a retry topic, where it would
//! lose its place. A slow store does not cost the carrier its membership: records not written
//! within `write_time` wait in the same way, and the log is polled in between. A partition that
//! does not wait has at least half of the time: [`StalledTurns`].

use std::sync::Arc;

use backend::queue::{Partition, Polled, Record};
use protocol::keys::Topic;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::decoded_record::{self, DecodedRecord};
use crate::executor_queue::ExecutorBatch;
use crate::partition_consumer::{GLANCE, PartitionConsumer, sleep_until};
use crate::records::Records;
use crate::writer::{Halt, Writer, dead_letter};

pub(crate) struct MessageConsumer {
    pub(crate) line: PartitionConsumer,
    pub(crate) writer: Writer,
    pub(crate) records: Records,
    pub(crate) partitions: u32,
    pub(crate) stalled: Vec<StalledRecords>,
}

/// Records that could not be written yet; their partitions are paused.
pub(crate) struct StalledRecords {
    reads: Vec<Arc<DecodedRecord>>,
    /// Records of a part of them: half as many after each part that did not take effect.
    most: usize,
    backoff: Backoff,
    again_at: Instant,
}

/// Times of the tries of stalled records. No two tries follow each other without a poll; if that
/// brings records of others, the next try waits for as long as the last one took.
struct StalledTurns {
    not_before: Instant,
    /// End of the time that the others have if they have work.
    others_until: Instant,
}

impl StalledTurns {
    fn starting(now: Instant) -> StalledTurns {
        StalledTurns {
            not_before: now,
            others_until: now,
        }
    }

    fn tried(&mut self, began: Instant, now: Instant) {
        self.not_before = now + GLANCE;
        self.others_until = now + now.duration_since(began);
    }

    /// Notes work of partitions that are not stalled.
    fn others_work(&mut self) {
        self.not_before = self.not_before.max(self.others_until);
    }
}

impl MessageConsumer {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut turns = StalledTurns::starting(Instant::now());
        loop {
            self.pause_where();
            let again_at = self.stalled.iter().map(|stalled| stalled.again_at).min();
            let again_at = again_at.map(|at| at.max(turns.not_before));
            let max = self.line.config.poll_max;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                chore = self.line.chores.next() => self.line.do_chore(chore).await,
                () = sleep_until(again_at), if again_at.is_some() && !self.line.congested() => {
                    let began = Instant::now();
                    self.try_again().await;
                    turns.tried(began, Instant::now());
                }
                polled = self.line.consumer.poll(max) => match polled {
                    Ok(polled) => {
                        if matches!(polled, Polled::Records(_)) {
                            turns.others_work();
                        }
                        self.handle(polled).await;
                    }
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

    fn pause_where(&mut self) {
        let stalled = &self.stalled;
        let stalls = |partition: &Partition| {
            let mut reads = stalled.iter().flat_map(|stalled| &stalled.reads);
            reads.any(|read| read.source.partition == partition.number)
        };
        self.line.pause_where(stalls);
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
        let mut spoilt = ExecutorBatch::default();
        let mut reads = Vec::with_capacity(records.len());
        for record in records {
            match decoded_record::read(record, self.partitions) {
                Ok(read) => reads.push(Arc::new(read)),
                Err(dead) => spoilt.effects.push(dead_letter(&self.records, &dead, now)),
            }
        }
        let backoff = Backoff::new(&self.line.config);
        self.write(reads, spoilt, usize::MAX, backoff).await;
    }

    /// Writes records, and hands over those that took effect. The rest waits.
    async fn write(
        &mut self,
        reads: Vec<Arc<DecodedRecord>>,
        with: ExecutorBatch,
        most: usize,
        mut backoff: Backoff,
    ) {
        let written = self.writer.write(&reads, most).await;
        let most = written.too_many.map_or(most, |many| (many / 2).max(1));
        match written.halt {
            Some(halt) => self.stall(written.rest, most, &halt, &mut backoff),
            None if written.rest.is_empty() => {}
            None => {
                metrics::counter!("carrier_slow_writes_total").increment(1);
                self.stalled.push(StalledRecords {
                    reads: written.rest,
                    most,
                    backoff: Backoff::new(&self.line.config),
                    again_at: Instant::now(),
                });
            }
        }
        let mut batch = written.batch;
        batch.effects.extend(with.effects);
        self.line.hand_over(batch);
    }

    fn stall(
        &mut self,
        reads: Vec<Arc<DecodedRecord>>,
        most: usize,
        halt: &Halt,
        backoff: &mut Backoff,
    ) {
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
            self.stalled.push(StalledRecords {
                reads,
                most,
                backoff: *backoff,
                again_at,
            });
        }
    }

    /// Retries one stalled part whose pause is over.
    async fn try_again(&mut self) {
        let now = Instant::now();
        let due = self
            .stalled
            .iter()
            .position(|stalled| stalled.again_at <= now);
        if let Some(due) = due {
            let stalled = self.stalled.remove(due);
            let (none, most) = (ExecutorBatch::default(), stalled.most);
            self.write(stalled.reads, none, most, stalled.backoff).await;
        }
    }

    async fn release(&mut self, partitions: Vec<Partition>, lost: bool) {
        let mut dropped = 0;
        for stalled in &mut self.stalled {
            let before = stalled.reads.len();
            let kept = |read: &Arc<DecodedRecord>| {
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

/// Splits records into those of one half of the partitions and those of the other, so that a bad
/// record is isolated after a few tries and no longer holds up the others.
fn halves(mut reads: Vec<Arc<DecodedRecord>>) -> Vec<Vec<Arc<DecodedRecord>>> {
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
