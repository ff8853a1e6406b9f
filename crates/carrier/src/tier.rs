//! Consumes one retry topic: holds its records in memory until they are due, and nobody else's up.
//!
//! Each tier has a consumer of its own (pitfall F of S1), so a record that waits ten minutes blocks
//! neither the tier of one second nor new messages. What waits here is not settled: a crash brings it
//! back from the log.

mod present;

use std::collections::BTreeMap;
use std::time::Duration;

use api::task::Work;
use api::told::task_of;
use backend::clock::{Clock, TimerClock};
use backend::queue::{Partition, Polled, Record};
use protocol::Timestamp;
use protocol::delivery::Source;
use protocol::ledger::DeadReason;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::present::Present;
use self::present::Standing;
use crate::backoff::Backoff;
use crate::batch::Batch;
use crate::consumer::{GLANCE, Line, sleep_until};
use crate::records::Records;
use crate::work::{self, Read, Spoilt};
use crate::writer::give_up;

/// The longest pause between two batches of a tier.
const GATHER_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Tier {
    pub(crate) line: Line,
    pub(crate) tier: u8,
    pub(crate) delay: Duration,
    pub(crate) present: Present,
    pub(crate) records: Records,
    pub(crate) partitions: u32,
    /// Keeps time wherever the time of day goes.
    pub(crate) timer: TimerClock,
    /// By the time at which they are due, as the timer has it.
    pub(crate) held: BTreeMap<(Timestamp, Source), Read>,
    /// How much of each partition is held, by number.
    pub(crate) loads: BTreeMap<u32, Load>,
    /// What is due is not handed over before this time: a store did not answer, the log is polled first, or more is
    /// gathered.
    pub(crate) not_before: Option<Instant>,
    pub(crate) backoff: Backoff,
}

/// What is held of one partition.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    records: usize,
    bytes: usize,
}

impl Tier {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.hush();
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

    /// Pauses what holds its share: each partition has the same, so that records that are due later leave room for
    /// those of other partitions that are due now.
    fn hush(&mut self) {
        let share = |of: usize| (of / self.line.assigned().max(1)).max(1);
        let records = share(self.line.config.retry_held_max);
        let bytes = share(self.line.config.retry_held_bytes_max);
        let loads = &self.loads;
        self.line.hush(|partition| {
            let load = loads.get(&partition.number).copied().unwrap_or_default();
            load.records >= records || load.bytes >= bytes
        });
    }

    fn insert(&mut self, read: Read) {
        let load = self.loads.entry(read.source.partition).or_default();
        load.records += 1;
        load.bytes += read.bytes();
        self.held.insert((self.due(&read), read.source), read);
    }

    fn remove(&mut self, key: &(Timestamp, Source)) -> Option<Read> {
        let read = self.held.remove(key)?;
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
        let mut spoilt = Batch::default();
        for record in records {
            match self.readable(record) {
                Ok(read) => self.insert(read),
                Err(dead) => spoilt.effects.push(give_up(&self.records, &dead, now)),
            }
        }
        self.line.hand_over(spoilt);
    }

    fn readable(&self, record: Record) -> Result<Read, Box<Spoilt>> {
        let read = work::read(record, self.partitions)?;
        match &read.task.work {
            Work::Deliver(_) | Work::Kickout(_) => Ok(read),
            Work::Message(_) => {
                let error = "a message without a place does not belong on a retry topic";
                Err(Spoilt::of(read, DeadReason::Misplaced, error))
            }
        }
    }

    /// By the timer. None waits for longer than its tier says, whatever clock it was written by.
    fn due(&self, read: &Read) -> Timestamp {
        let at = match &read.task.work {
            Work::Deliver(task) => task.due_at,
            Work::Message(_) | Work::Kickout(_) => read.record.appended_at + self.delay,
        };
        let wait = at.since(self.line.clock.now()).min(self.delay);
        self.timer.now() + wait
    }

    /// When the first of what is held is due, by the runtime's timer.
    fn due_at(&self) -> Option<Instant> {
        let ((due, _), _) = self.held.first_key_value()?;
        let at = Instant::now() + due.since(self.timer.now());
        Some(self.not_before.map_or(at, |not_before| at.max(not_before)))
    }

    /// Hands over what is due, at most a batch. What the stores did not tell of within `write_time` stays due, and the
    /// log is polled before it is tried again.
    async fn send_due(&mut self) {
        let (now, timer) = (self.line.clock.now(), self.timer.now());
        let due: Vec<(Timestamp, Source)> = self
            .held
            .keys()
            .take_while(|(at, _)| *at <= timer)
            .take(self.line.config.poll_max)
            .copied()
            .collect();
        let until = Instant::now() + self.line.config.write_time;
        let reads = due.iter().filter_map(|key| self.held.get(key));
        let deliveries: Vec<_> = reads
            .filter_map(|read| match &read.task.work {
                Work::Deliver(deliver) => Some((read.source, deliver)),
                Work::Message(_) | Work::Kickout(_) => None,
            })
            .collect();
        let (standings, failure) = self.present.standings(&deliveries, until).await;
        let batch = self.take(&due, standings, now);
        let is_left = due.iter().any(|key| self.held.contains_key(key));
        let pause = match failure {
            Some(error) => {
                let pause = self.backoff.failed(&*self.line.entropy);
                tracing::warn!(%error, source = %error.source, tier = self.tier, "retries wait for a store");
                pause
            }
            None => {
                self.backoff.succeeded();
                match is_left || due.len() == self.line.config.poll_max {
                    true => GLANCE,
                    false => gather(self.delay),
                }
            }
        };
        self.not_before = Some(Instant::now() + pause);
        // Behind what else is due: a store that does not tell of some keeps nobody else waiting.
        for key in due {
            if let Some(read) = self.held.remove(&key) {
                self.held.insert((timer + pause, key.1), read);
            }
        }
        self.line.hand_over(batch);
    }

    /// Takes from what is due all whose standing is known, and what needs none.
    fn take(
        &mut self,
        due: &[(Timestamp, Source)],
        mut standings: BTreeMap<Source, Result<Standing, String>>,
        now: Timestamp,
    ) -> Batch {
        let mut batch = Batch::default();
        for key in due {
            let Some(read) = self.held.get(key) else {
                continue;
            };
            let Work::Deliver(deliver) = &read.task.work else {
                batch.kickouts.extend(self.remove(key));
                continue;
            };
            let Some(standing) = standings.remove(&key.1) else {
                continue;
            };
            let mut deliver = deliver.clone();
            let Some(read) = self.remove(key) else {
                continue;
            };
            match standing {
                Err(error) => {
                    let dead = Spoilt::of(read, DeadReason::StoreRejected, error);
                    batch.effects.push(give_up(&self.records, &dead, now));
                }
                Ok(standing) => {
                    // As history has it now.
                    deliver.placed = standing.placed.unwrap_or(deliver.placed);
                    let task = task_of(read.task, deliver, &standing.roles);
                    batch.deliver.push((read.source, task));
                }
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
        for partition in partitions {
            self.loads.remove(&partition.number);
        }
        let dropped = before - self.held.len();
        self.line.release(partitions, lost, dropped).await;
    }
}

/// The pause after a batch of a tier that was not full: while a part is away retries are many, and a batch costs little more than
/// one of them. A retry waits for no more than a quarter longer than its tier says.
fn gather(delay: Duration) -> Duration {
    (delay / 4).min(GATHER_MAX)
}
