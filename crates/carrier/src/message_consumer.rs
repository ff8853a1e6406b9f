//! Consumes the topic `message`: polls, writes, and hands the written records to the shard's
//! executor.
//!
//! A store that does not answer stalls the partitions of the records that it failed, and only
//! those. The partitions are paused, and the records retried, with ever longer pauses and in ever
//! smaller parts, until they are written. None of them goes through a retry topic, where it would
//! lose its place. A slow store does not cost the carrier its membership: records not written
//! within `WRITE_TIME` wait in the same way, and the log is polled in between. A partition that
//! does not wait has at least half of the time: [`StalledTurns`].

use std::sync::Arc;

use api::trace::Spans;
use backend::Backends;
use backend::queue::{Partition, Polled, Record};
use protocol::event::Encode;
use protocol::keys::Topic;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::decoded_record::{self, DecodedRecord};
use crate::executor_queue::ExecutorBatch;
use crate::partition_consumer::{MIN_POLL_TIME, PartitionConsumer, sleep_until};
use crate::records::Records;
use crate::writer::{Halt, Writer, dead_letter};

pub(crate) struct MessageConsumer {
    consumer: PartitionConsumer,
    writer: Writer,
    records: Records,
    partitions: u32,
    stalled_records: Vec<StalledRecords>,
}

/// Records that could not be written yet; their partitions are paused.
struct StalledRecords {
    records: Vec<Arc<DecodedRecord>>,
    /// Records of a part of them: half as many after each part that did not take effect.
    part_max: usize,
    backoff: Backoff,
    retry_at: Instant,
}

/// Times of the tries of stalled records. No two tries follow each other without a poll; if that
/// brings records of others, the next try waits for as long as the last one took.
struct StalledTurns {
    not_before: Instant,
    /// End of the time that the others have if they have work.
    others_end: Instant,
}

impl StalledTurns {
    fn starting(now: Instant) -> StalledTurns {
        StalledTurns {
            not_before: now,
            others_end: now,
        }
    }

    fn record_try(&mut self, started_at: Instant, now: Instant) {
        self.not_before = now + MIN_POLL_TIME;
        self.others_end = now + now.duration_since(started_at);
    }

    /// Notes work of partitions that are not stalled.
    fn note_other_work(&mut self) {
        self.not_before = self.not_before.max(self.others_end);
    }
}

impl MessageConsumer {
    pub(crate) fn new(
        backends: &Backends,
        consumer: PartitionConsumer,
        records: Records,
        encode: Arc<dyn Encode>,
        spans: Spans,
    ) -> MessageConsumer {
        let writer = Writer::new(backends, &consumer.config, records.clone(), encode, spans);
        MessageConsumer {
            writer,
            consumer,
            records,
            partitions: backends.queue.partitions(Topic::Message),
            stalled_records: Vec::new(),
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut turns = StalledTurns::starting(Instant::now());
        loop {
            self.pause_partitions();
            let retry_at = self.stalled_records.iter().map(|part| part.retry_at).min();
            let retry_at = retry_at.map(|at| at.max(turns.not_before));
            let max = self.consumer.config.poll_max;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                work = self.consumer.housekeeping.next() => self.consumer.do_housekeeping(work).await,
                () = sleep_until(retry_at), if retry_at.is_some() && !self.consumer.is_congested() => {
                    let started_at = Instant::now();
                    self.retry_stalled().await;
                    turns.record_try(started_at, Instant::now());
                }
                event = self.consumer.inner.poll(max) => match event {
                    Ok(event) => {
                        if matches!(event, Polled::Records(_)) {
                            turns.note_other_work();
                        }
                        self.handle(event).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, source = %error.source, "cannot read from the log");
                        tokio::time::sleep(self.consumer.config.backoff_max / 4).await;
                    }
                },
            }
        }
        let stalled_count = self
            .stalled_records
            .iter()
            .map(|part| part.records.len())
            .sum();
        self.consumer.finish(stalled_count).await;
    }

    fn pause_partitions(&mut self) {
        let parts = &self.stalled_records;
        let is_stalled = |partition: &Partition| {
            let mut records = parts.iter().flat_map(|part| &part.records);
            records.any(|record| record.source.partition == partition.number)
        };
        self.consumer.pause_partitions(is_stalled);
    }

    async fn handle(&mut self, event: Polled) {
        match event {
            Polled::Records(records) => self.accept_records(records).await,
            Polled::Assigned(partitions) => self.consumer.assign(partitions),
            Polled::Revoked(partitions) => self.release(partitions, false).await,
            Polled::Lost(partitions) => self.release(partitions, true).await,
        }
    }

    async fn accept_records(&mut self, records: Vec<Record>) {
        metrics::counter!("carrier_records_total", "topic" => "message")
            .increment(records.len() as u64);
        self.consumer.offsets.begin(&records);
        let now = self.consumer.clock.now();
        let mut dead_letters = ExecutorBatch::default();
        let mut decoded_records = Vec::with_capacity(records.len());
        for record in records {
            match decoded_record::decode(record, self.partitions) {
                Ok(read) => decoded_records.push(Arc::new(read)),
                Err(poison) => dead_letters
                    .effects
                    .push(dead_letter(&self.records, &poison, now)),
            }
        }
        let backoff = Backoff::new(&self.consumer.config);
        self.write(decoded_records, dead_letters, usize::MAX, backoff)
            .await;
    }

    /// Writes records, and hands over those that took effect. The rest waits.
    async fn write(
        &mut self,
        records: Vec<Arc<DecodedRecord>>,
        dead_letters: ExecutorBatch,
        part_max: usize,
        mut backoff: Backoff,
    ) {
        let outcome = self.writer.write(&records, part_max).await;
        let part_max = outcome
            .too_many
            .map_or(part_max, |failed_len| (failed_len / 2).max(1));
        match outcome.halt {
            Some(halt) => self.stall(outcome.rest, part_max, &halt, &mut backoff),
            None if outcome.rest.is_empty() => {}
            None => {
                metrics::counter!("carrier_slow_writes_total").increment(1);
                self.stalled_records.push(StalledRecords {
                    records: outcome.rest,
                    part_max,
                    backoff: Backoff::new(&self.consumer.config),
                    retry_at: Instant::now(),
                });
            }
        }
        let mut batch = outcome.batch;
        batch.effects.extend(dead_letters.effects);
        self.consumer.hand_over(batch);
    }

    fn stall(
        &mut self,
        records: Vec<Arc<DecodedRecord>>,
        part_max: usize,
        halt: &Halt,
        backoff: &mut Backoff,
    ) {
        let pause = backoff.failed(&*self.consumer.entropy);
        tracing::warn!(
            error = %halt,
            records = records.len(),
            pause_ms = pause.as_millis() as u64,
            "cannot write messages: their partitions wait"
        );
        metrics::counter!("carrier_stalls_total").increment(1);
        let retry_at = Instant::now() + pause;
        for records in halves(records) {
            self.stalled_records.push(StalledRecords {
                records,
                part_max,
                backoff: *backoff,
                retry_at,
            });
        }
    }

    /// Retries one stalled part whose pause is over.
    async fn retry_stalled(&mut self) {
        let now = Instant::now();
        let index = self
            .stalled_records
            .iter()
            .position(|part| part.retry_at <= now);
        if let Some(index) = index {
            let part = self.stalled_records.remove(index);
            let (none, part_max) = (ExecutorBatch::default(), part.part_max);
            self.write(part.records, none, part_max, part.backoff).await;
        }
    }

    async fn release(&mut self, partitions: Vec<Partition>, is_lost: bool) {
        let mut dropped_count = 0;
        for part in &mut self.stalled_records {
            let old_len = part.records.len();
            let is_kept = |record: &Arc<DecodedRecord>| {
                let number = record.source.partition;
                let partition = Partition {
                    topic: Topic::Message,
                    number,
                };
                !partitions.contains(&partition)
            };
            part.records.retain(is_kept);
            dropped_count += old_len - part.records.len();
        }
        self.stalled_records.retain(|part| !part.records.is_empty());
        self.consumer
            .release(&partitions, is_lost, dropped_count)
            .await;
        self.writer.forget(&partitions);
    }
}

/// Splits records into those of one half of the partitions and those of the other, so that a bad
/// record is isolated after a few tries and no longer holds up the others.
fn halves(mut records: Vec<Arc<DecodedRecord>>) -> Vec<Vec<Arc<DecodedRecord>>> {
    let mut numbers: Vec<u32> = records
        .iter()
        .map(|record| record.source.partition)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() < 2 {
        return vec![records];
    }
    let middle = numbers[numbers.len() / 2];
    let upper = records
        .extract_if(.., |record| record.source.partition >= middle)
        .collect();
    vec![records, upper]
}
