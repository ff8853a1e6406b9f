//! Consumes one retry topic: holds its records in memory until they are due, and holds up nobody
//! else.
//!
//! Each tier has a consumer of its own (pitfall F of S1), so a record that waits ten minutes blocks
//! neither the tier of one second nor new messages. A held record is not settled: after a crash it
//! comes back from the log.

mod current_state;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backend::Backends;
use backend::clock::{Clock, TimerClock};
use backend::queue::{Partition, Polled, Record};
use protocol::Timestamp;
use protocol::delivery::{Source, retry_wait};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::record::Work;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::current_state::{CurrentState, Decisions, Deliveries};
use crate::backoff::Backoff;
use crate::deadline::StoreDeadline;
use crate::decoded_record::{self, DecodedRecord, PoisonRecord};
use crate::executor_queue::ExecutorBatch;
use crate::partition_consumer::{MIN_POLL_TIME, PartitionConsumer, sleep_until};
use crate::records::Records;
use crate::writer::{WRITE_TIME, dead_letter};

/// Longest pause between two batches of a tier.
const GATHER_MAX: Duration = Duration::from_secs(1);

pub(crate) struct RetryConsumer {
    consumer: PartitionConsumer,
    tier: u8,
    delay: Duration,
    current_state: CurrentState,
    records: Records,
    partitions: u32,
    /// Keeps time even if the time of day is set.
    timer: TimerClock,
    /// Held records by due time, as `timer` has it.
    held_records: BTreeMap<(Timestamp, Source), DecodedRecord>,
    /// Load of each partition, by number.
    loads: BTreeMap<u32, PartitionLoad>,
    /// Earliest time of the next batch: a store did not answer, the log is polled first, or more
    /// records gather.
    not_before: Option<Instant>,
    /// Held records that a store did not answer for when they were last due.
    failed_sources: BTreeSet<Source>,
    /// Pause of the failed records alone, unless a batch brings nothing forward.
    backoff: Backoff,
}

/// Held records and bytes of one partition.
#[derive(Clone, Copy, Debug, Default)]
struct PartitionLoad {
    records: usize,
    bytes: usize,
}

impl RetryConsumer {
    pub(crate) fn new(
        backends: &Backends,
        consumer: PartitionConsumer,
        tier: u8,
        delay: Duration,
        records: Records,
    ) -> RetryConsumer {
        RetryConsumer {
            tier,
            delay,
            current_state: CurrentState {
                backends: backends.clone(),
                store_deadline: StoreDeadline::new(&consumer.config),
            },
            records,
            partitions: backends.queue.partitions(Topic::Retry(tier)),
            timer: TimerClock::starting_at(backends.clock.now()),
            held_records: BTreeMap::new(),
            loads: BTreeMap::new(),
            not_before: None,
            failed_sources: BTreeSet::new(),
            backoff: Backoff::new(&consumer.config),
            consumer,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.pause_partitions();
            let due_at = self.due_at();
            let max = self.consumer.config.poll_max;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                work = self.consumer.housekeeping.next() => self.consumer.do_housekeeping(work).await,
                () = sleep_until(due_at), if due_at.is_some() && !self.consumer.is_congested() => {
                    self.send_due().await;
                }
                event = self.consumer.inner.poll(max) => match event {
                    Ok(event) => self.handle(event).await,
                    Err(error) => {
                        tracing::warn!(%error, source = %error.source, "cannot read from the log");
                        tokio::time::sleep(self.consumer.config.backoff_max / 4).await;
                    }
                },
            }
        }
        let held_count = self.held_records.len();
        self.consumer.finish(held_count).await;
    }

    /// Pauses partitions that hold their share. All partitions have the same share, so that records
    /// due later leave room for those of other partitions that are due now.
    fn pause_partitions(&mut self) {
        let share = |total: usize| (total / self.consumer.assigned_count().max(1)).max(1);
        let records = share(self.consumer.config.retry_held_max);
        let bytes = share(self.consumer.config.retry_held_bytes_max);
        let loads = &self.loads;
        self.consumer.pause_partitions(|partition| {
            let load = loads.get(&partition.number).copied().unwrap_or_default();
            load.records >= records || load.bytes >= bytes
        });
    }

    fn insert(&mut self, record: DecodedRecord) {
        let load = self.loads.entry(record.source.partition).or_default();
        load.records += 1;
        load.bytes += record.bytes();
        self.held_records
            .insert((self.due(&record), record.source), record);
    }

    fn remove(&mut self, key: &(Timestamp, Source)) -> Option<DecodedRecord> {
        let record = self.held_records.remove(key)?;
        self.failed_sources.remove(&key.1);
        if let Some(load) = self.loads.get_mut(&record.source.partition) {
            load.records -= 1;
            load.bytes -= record.bytes();
        }
        Some(record)
    }

    async fn handle(&mut self, event: Polled) {
        match event {
            Polled::Records(records) => self.hold(records),
            Polled::Assigned(partitions) => self.consumer.assign(partitions),
            Polled::Revoked(partitions) => self.release(&partitions, false).await,
            Polled::Lost(partitions) => self.release(&partitions, true).await,
        }
    }

    fn hold(&mut self, records: Vec<Record>) {
        metrics::counter!("carrier_records_total", "topic" => "retry")
            .increment(records.len() as u64);
        self.consumer.offsets.begin(&records);
        let now = self.consumer.clock.now();
        let mut dead_letters = ExecutorBatch::default();
        for record in records {
            match self.readable(record) {
                Ok(read) => self.insert(read),
                Err(poison) => dead_letters
                    .effects
                    .push(dead_letter(&self.records, &poison, now)),
            }
        }
        self.consumer.hand_over(dead_letters);
    }

    fn readable(&self, record: Record) -> Result<DecodedRecord, Box<PoisonRecord>> {
        let read = decoded_record::decode(record, self.partitions)?;
        match &read.task.work {
            Work::Deliver(_) | Work::Kickout(_) => Ok(read),
            Work::Message(_) => {
                let error = "unplaced message on a retry topic";
                Err(PoisonRecord::of(read, DeadReason::Misplaced, error))
            }
        }
    }

    /// Due time, as `timer` has it. No record waits for longer than the delay of its tier, whatever
    /// clock stamped it.
    fn due(&self, record: &DecodedRecord) -> Timestamp {
        let at = match &record.task.work {
            Work::Deliver(task) => task.due_at,
            Work::Message(_) | Work::Kickout(_) => record.raw.appended_at + self.delay,
        };
        self.timer.now() + retry_wait(at, self.consumer.clock.now(), self.delay)
    }

    /// Time of the next batch: when the first held record is due, by the runtime's timer.
    fn due_at(&self) -> Option<Instant> {
        let ((due_time, _), _) = self.held_records.first_key_value()?;
        let at = Instant::now() + due_time.since(self.timer.now());
        Some(self.not_before.map_or(at, |not_before| at.max(not_before)))
    }

    /// Hands over records that are due, at most a batch. Records that the stores did not answer for
    /// within `WRITE_TIME` stay due, and the log is polled before the next try. A store that fails
    /// for some pauses those alone.
    async fn send_due(&mut self) {
        let (now, timer) = (self.consumer.clock.now(), self.timer.now());
        let due_keys: Vec<(Timestamp, Source)> = self
            .held_records
            .keys()
            .take_while(|(at, _)| *at <= timer)
            .take(self.consumer.config.poll_max)
            .copied()
            .collect();
        let started_at = Instant::now();
        let deadline = started_at + WRITE_TIME;
        let records = due_keys.iter().filter_map(|key| self.held_records.get(key));
        let retries: Vec<_> = records
            .filter_map(|record| match &record.task.work {
                Work::Deliver(retry) => Some((record.source, &record.task, retry)),
                Work::Message(_) | Work::Kickout(_) => None,
            })
            .collect();
        let decisions = self.current_state.decide(&retries, deadline).await;
        let Decisions {
            deliveries,
            failed_sources,
            failure,
        } = decisions;
        let batch = self.take(&due_keys, deliveries, now);
        let count = due_keys.len();
        let is_held = |key: &(Timestamp, Source)| self.held_records.contains_key(key);
        let remaining_keys: Vec<_> = due_keys.into_iter().filter(is_held).collect();
        let is_nothing_decided = remaining_keys.len() == count;
        // Records that fail once more say nothing of the others.
        let is_news = failed_sources
            .iter()
            .any(|source| !self.failed_sources.contains(source));
        self.failed_sources.extend(&failed_sources);
        let failed_pause = match failure {
            Some(error) => {
                let pause = self.backoff.failed(&*self.consumer.entropy);
                tracing::warn!(
                    %error,
                    source = %error.source,
                    tier = self.tier,
                    records = failed_sources.len(),
                    "a store failed: retries wait"
                );
                if is_nothing_decided && is_news {
                    pause
                } else {
                    // At least half of the tier's time is for records that do not fail.
                    pause.max(started_at.elapsed())
                }
            }
            None => {
                if self.failed_sources.is_empty() {
                    self.backoff.succeeded();
                }
                MIN_POLL_TIME
            }
        };
        let pause = if is_nothing_decided && is_news {
            failed_pause
        } else if !remaining_keys.is_empty() || count == self.consumer.config.poll_max {
            MIN_POLL_TIME
        } else {
            gather(self.delay)
        };
        self.not_before = Some(Instant::now() + pause);
        // Behind all other due records: a store that does not answer for some holds up no others.
        let timer = self.timer.now();
        for key in remaining_keys {
            if let Some(record) = self.held_records.remove(&key) {
                let pause = if failed_sources.contains(&key.1) {
                    failed_pause
                } else {
                    Duration::ZERO
                };
                self.held_records.insert((timer + pause, key.1), record);
            }
        }
        self.consumer.hand_over(batch);
    }

    /// Takes the due retries that are decided, and the records that need no decision.
    fn take(
        &mut self,
        due_keys: &[(Timestamp, Source)],
        mut deliveries: Deliveries,
        now: Timestamp,
    ) -> ExecutorBatch {
        let mut batch = ExecutorBatch::default();
        for key in due_keys {
            let Some(record) = self.held_records.get(key) else {
                continue;
            };
            if !matches!(record.task.work, Work::Deliver(_)) {
                batch.kickouts.extend(self.remove(key));
                continue;
            }
            let Some(delivery) = deliveries.remove(&key.1) else {
                continue;
            };
            let Some(record) = self.remove(key) else {
                continue;
            };
            match delivery {
                Err((reason, error)) => {
                    let poison = PoisonRecord::of(record, reason, error);
                    batch.effects.push(dead_letter(&self.records, &poison, now));
                }
                Ok(task) => batch.deliver.push((record.source, task)),
            }
        }
        batch
    }

    async fn release(&mut self, partitions: &[Partition], is_lost: bool) {
        let old_count = self.held_records.len();
        self.held_records.retain(|(_, source), _| {
            let partition = Partition {
                topic: source.topic,
                number: source.partition,
            };
            !partitions.contains(&partition)
        });
        let held_sources: BTreeSet<Source> = self
            .held_records
            .keys()
            .map(|(_, source)| *source)
            .collect();
        self.failed_sources
            .retain(|source| held_sources.contains(source));
        for partition in partitions {
            self.loads.remove(&partition.number);
        }
        let dropped_count = old_count - self.held_records.len();
        self.consumer
            .release(partitions, is_lost, dropped_count)
            .await;
    }
}

/// Pause after a batch of a tier that was not full. While a backend is away retries are many, and a
/// batch costs little more than one of them. The pause delays a retry by at most a quarter of the
/// tier's delay.
fn gather(delay: Duration) -> Duration {
    (delay / 4).min(GATHER_MAX)
}
