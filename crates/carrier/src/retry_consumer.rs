//! Consumes one retry topic: holds its records in memory until they are due, and holds up nobody
//! else.
//!
//! Each tier has a consumer of its own (pitfall F of S1), so a record that waits ten minutes blocks
//! neither the tier of one second nor new messages. A held record is not settled: after a crash it
//! comes back from the log.

mod present;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backend::clock::{Clock, TimerClock};
use backend::queue::{Partition, Polled, Record};
use protocol::Timestamp;
use protocol::delivery::{Source, retry_wait};
use protocol::ledger::DeadReason;
use protocol::record::Work;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::present::Present;
use self::present::{Decisions, Deliveries};
use crate::backoff::Backoff;
use crate::decoded_record::{self, DecodedRecord, PoisonRecord};
use crate::executor_queue::ExecutorBatch;
use crate::partition_consumer::{GLANCE, PartitionConsumer, sleep_until};
use crate::records::Records;
use crate::writer::dead_letter;

/// Longest pause between two batches of a tier.
const GATHER_MAX: Duration = Duration::from_secs(1);

pub(crate) struct RetryConsumer {
    pub(crate) line: PartitionConsumer,
    pub(crate) tier: u8,
    pub(crate) delay: Duration,
    pub(crate) present: Present,
    pub(crate) records: Records,
    pub(crate) partitions: u32,
    /// Keeps time even if the time of day is set.
    pub(crate) timer: TimerClock,
    /// Held records by due time, as `timer` has it.
    pub(crate) held: BTreeMap<(Timestamp, Source), DecodedRecord>,
    /// Load of each partition, by number.
    pub(crate) loads: BTreeMap<u32, PartitionLoad>,
    /// Earliest time of the next batch: a store did not answer, the log is polled first, or more
    /// records gather.
    pub(crate) not_before: Option<Instant>,
    /// Held records that a store did not answer for when they were last due.
    pub(crate) failed: BTreeSet<Source>,
    /// Pause of the failed records alone, unless a batch brings nothing forward.
    pub(crate) backoff: Backoff,
}

/// Held records and bytes of one partition.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartitionLoad {
    records: usize,
    bytes: usize,
}

impl RetryConsumer {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.pause_where();
            let due_at = self.due_at();
            let max = self.line.config.poll_max;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                chore = self.line.chores.next() => self.line.do_chore(chore).await,
                () = sleep_until(due_at), if due_at.is_some() && !self.line.congested() => {
                    self.send_due().await;
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
        let held = self.held.len();
        self.line.finish(held).await;
    }

    /// Pauses partitions that hold their share. All partitions have the same share, so that records
    /// due later leave room for those of other partitions that are due now.
    fn pause_where(&mut self) {
        let share = |of: usize| (of / self.line.assigned().max(1)).max(1);
        let records = share(self.line.config.retry_held_max);
        let bytes = share(self.line.config.retry_held_bytes_max);
        let loads = &self.loads;
        self.line.pause_where(|partition| {
            let load = loads.get(&partition.number).copied().unwrap_or_default();
            load.records >= records || load.bytes >= bytes
        });
    }

    fn insert(&mut self, read: DecodedRecord) {
        let load = self.loads.entry(read.source.partition).or_default();
        load.records += 1;
        load.bytes += read.bytes();
        self.held.insert((self.due(&read), read.source), read);
    }

    fn remove(&mut self, key: &(Timestamp, Source)) -> Option<DecodedRecord> {
        let read = self.held.remove(key)?;
        self.failed.remove(&key.1);
        if let Some(load) = self.loads.get_mut(&read.source.partition) {
            load.records -= 1;
            load.bytes -= read.bytes();
        }
        Some(read)
    }

    async fn handle(&mut self, polled: Polled) {
        match polled {
            Polled::Records(records) => self.hold(records),
            Polled::Assigned(partitions) => self.line.assign(partitions),
            Polled::Revoked(partitions) => self.release(&partitions, false).await,
            Polled::Lost(partitions) => self.release(&partitions, true).await,
        }
    }

    fn hold(&mut self, records: Vec<Record>) {
        metrics::counter!("carrier_records_total", "topic" => "retry")
            .increment(records.len() as u64);
        self.line.progress.begin(&records);
        let now = self.line.clock.now();
        let mut spoilt = ExecutorBatch::default();
        for record in records {
            match self.readable(record) {
                Ok(read) => self.insert(read),
                Err(dead) => spoilt.effects.push(dead_letter(&self.records, &dead, now)),
            }
        }
        self.line.hand_over(spoilt);
    }

    fn readable(&self, record: Record) -> Result<DecodedRecord, Box<PoisonRecord>> {
        let read = decoded_record::read(record, self.partitions)?;
        match &read.task.work {
            Work::Deliver(_) | Work::Kickout(_) => Ok(read),
            Work::Message(_) => {
                let error = "a message without a place does not belong on a retry topic";
                Err(PoisonRecord::of(read, DeadReason::Misplaced, error))
            }
        }
    }

    /// Due time, as `timer` has it. No record waits for longer than the delay of its tier, whatever
    /// clock stamped it.
    fn due(&self, read: &DecodedRecord) -> Timestamp {
        let at = match &read.task.work {
            Work::Deliver(task) => task.due_at,
            Work::Message(_) | Work::Kickout(_) => read.record.appended_at + self.delay,
        };
        self.timer.now() + retry_wait(at, self.line.clock.now(), self.delay)
    }

    /// Time of the next batch: when the first held record is due, by the runtime's timer.
    fn due_at(&self) -> Option<Instant> {
        let ((due, _), _) = self.held.first_key_value()?;
        let at = Instant::now() + due.since(self.timer.now());
        Some(self.not_before.map_or(at, |not_before| at.max(not_before)))
    }

    /// Hands over records that are due, at most a batch. Records that the stores did not answer for
    /// within `write_time` stay due, and the log is polled before the next try. A store that fails
    /// for some pauses those alone.
    async fn send_due(&mut self) {
        let (now, timer) = (self.line.clock.now(), self.timer.now());
        let due: Vec<(Timestamp, Source)> = self
            .held
            .keys()
            .take_while(|(at, _)| *at <= timer)
            .take(self.line.config.poll_max)
            .copied()
            .collect();
        let began = Instant::now();
        let until = began + self.line.config.write_time;
        let reads = due.iter().filter_map(|key| self.held.get(key));
        let retries: Vec<_> = reads
            .filter_map(|read| match &read.task.work {
                Work::Deliver(retry) => Some((read.source, &read.task, retry)),
                Work::Message(_) | Work::Kickout(_) => None,
            })
            .collect();
        let decisions = self.present.decide(&retries, until).await;
        let Decisions {
            deliveries,
            failed,
            failure,
        } = decisions;
        let batch = self.take(&due, deliveries, now);
        let count = due.len();
        let is_held = |key: &(Timestamp, Source)| self.held.contains_key(key);
        let left: Vec<_> = due.into_iter().filter(is_held).collect();
        let is_nothing_decided = left.len() == count;
        // Records that fail once more say nothing of the others.
        let is_news = failed.iter().any(|source| !self.failed.contains(source));
        self.failed.extend(&failed);
        let failed_pause = match failure {
            Some(error) => {
                let pause = self.backoff.failed(&*self.line.entropy);
                tracing::warn!(
                    %error,
                    source = %error.source,
                    tier = self.tier,
                    records = failed.len(),
                    "retries wait for a store"
                );
                match is_nothing_decided && is_news {
                    true => pause,
                    // At least half of the tier's time is for records that do not fail.
                    false => pause.max(began.elapsed()),
                }
            }
            None => {
                if self.failed.is_empty() {
                    self.backoff.succeeded();
                }
                GLANCE
            }
        };
        let pause = if is_nothing_decided && is_news {
            failed_pause
        } else if !left.is_empty() || count == self.line.config.poll_max {
            GLANCE
        } else {
            gather(self.delay)
        };
        self.not_before = Some(Instant::now() + pause);
        // Behind all other due records: a store that does not answer for some holds up no others.
        let timer = self.timer.now();
        for key in left {
            if let Some(read) = self.held.remove(&key) {
                let pause = match failed.contains(&key.1) {
                    true => failed_pause,
                    false => Duration::ZERO,
                };
                self.held.insert((timer + pause, key.1), read);
            }
        }
        self.line.hand_over(batch);
    }

    /// Takes the due retries that are decided, and the records that need no decision.
    fn take(
        &mut self,
        due: &[(Timestamp, Source)],
        mut deliveries: Deliveries,
        now: Timestamp,
    ) -> ExecutorBatch {
        let mut batch = ExecutorBatch::default();
        for key in due {
            let Some(read) = self.held.get(key) else {
                continue;
            };
            if !matches!(read.task.work, Work::Deliver(_)) {
                batch.kickouts.extend(self.remove(key));
                continue;
            }
            let Some(delivery) = deliveries.remove(&key.1) else {
                continue;
            };
            let Some(read) = self.remove(key) else {
                continue;
            };
            match delivery {
                Err((reason, error)) => {
                    let dead = PoisonRecord::of(read, reason, error);
                    batch.effects.push(dead_letter(&self.records, &dead, now));
                }
                Ok(task) => batch.deliver.push((read.source, task)),
            }
        }
        batch
    }

    async fn release(&mut self, partitions: &[Partition], lost: bool) {
        let before = self.held.len();
        self.held.retain(|(_, source), _| {
            let partition = Partition {
                topic: source.topic,
                number: source.partition,
            };
            !partitions.contains(&partition)
        });
        let held: BTreeSet<Source> = self.held.keys().map(|(_, source)| *source).collect();
        self.failed.retain(|source| held.contains(source));
        for partition in partitions {
            self.loads.remove(&partition.number);
        }
        let dropped = before - self.held.len();
        self.line.release(partitions, lost, dropped).await;
    }
}

/// Pause after a batch of a tier that was not full. While a backend is away retries are many, and a
/// batch costs little more than one of them. The pause delays a retry by at most a quarter of the
/// tier's delay.
fn gather(delay: Duration) -> Duration {
    (delay / 4).min(GATHER_MAX)
}
