//! Consumes one retry topic: holds its records in memory until they are due, and nobody else's up.
//!
//! Each tier has a consumer of its own (pitfall F of S1), so a record that waits ten minutes blocks
//! neither the tier of one second nor new messages. What waits here is not settled: a crash brings it
//! back from the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::task::Work;
use api::told::{Roles, task_of};
use backend::changes::ChangeStore;
use backend::clock::{Clock, TimerClock};
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::history::HistoryStore;
use backend::queue::{Partition, Polled, Record};
use backend::{Error, Kind};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::delivery::Source;
use protocol::group::GroupRow;
use protocol::history::PrivateRow;
use protocol::ledger::DeadReason;
use protocol::{GroupId, MessageId, Placed, Recipient, Timestamp, UserId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::batch::Batch;
use crate::consumer::{Line, sleep_until};
use crate::records::Records;
use crate::standings::standings;
use crate::stores::{self, Timed};
use crate::work::{self, Read, Spoilt};
use crate::writer::give_up;

/// The longest pause between two batches of a tier.
const GATHER_MAX: Duration = Duration::from_secs(1);
/// Questions about retries that are asked at once.
const TOGETHER: usize = 64;

type Rows = BTreeMap<MessageId, Result<Placed, String>>;
type Told = BTreeMap<Source, Result<Roles, String>>;

pub(crate) struct Tier {
    pub(crate) line: Line,
    pub(crate) tier: u8,
    pub(crate) delay: Duration,
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) groups: Arc<dyn GroupStore>,
    pub(crate) group_history: Arc<dyn GroupHistoryStore>,
    pub(crate) records: Records,
    pub(crate) stores: Timed,
    pub(crate) partitions: u32,
    /// Keeps time wherever the time of day goes.
    pub(crate) timer: TimerClock,
    /// By the time at which they are due, as the timer has it.
    pub(crate) held: BTreeMap<(Timestamp, Source), Read>,
    /// How much of each partition is held, by number.
    pub(crate) loads: BTreeMap<u32, Load>,
    /// What is due is not handed over before this time: history did not answer, or more is gathered.
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

    /// Hands over what is due, at most a batch.
    async fn send_due(&mut self) {
        let (now, timer) = (self.line.clock.now(), self.timer.now());
        let due: Vec<(Timestamp, Source)> = self
            .held
            .keys()
            .take_while(|(at, _)| *at <= timer)
            .take(self.line.config.poll_max)
            .copied()
            .collect();
        let (rows, mut told) = match self.as_of_now(&due).await {
            Ok(now) => now,
            Err(error) => {
                let pause = self.backoff.failed(&*self.line.entropy);
                tracing::warn!(%error, source = %error.source, tier = self.tier, "retries wait for history");
                self.not_before = Some(Instant::now() + pause);
                return;
            }
        };
        let is_full = due.len() == self.line.config.poll_max;
        self.not_before = (!is_full).then(|| Instant::now() + gather(self.delay));
        self.backoff.succeeded();
        let mut batch = Batch::default();
        for key in due {
            let Some(read) = self.remove(&key) else {
                continue;
            };
            match read.task.work.clone() {
                Work::Deliver(mut deliver) => {
                    let row = rows.get(&deliver.placed.message.id).cloned().transpose();
                    let roles = told.remove(&read.source).transpose();
                    match row.and_then(|row| Ok((row, roles?))) {
                        Err(error) => {
                            let dead = Spoilt::of(read, DeadReason::StoreRejected, error);
                            batch.effects.push(give_up(&self.records, &dead, now));
                        }
                        Ok((row, roles)) => {
                            // As history has it now.
                            deliver.placed = row.unwrap_or(deliver.placed);
                            let task = task_of(read.task, deliver, &roles.unwrap_or_default());
                            batch.deliver.push((read.source, task));
                        }
                    }
                }
                Work::Message(_) | Work::Kickout(_) => batch.kickouts.push(read),
            }
        }
        self.line.hand_over(batch);
    }

    async fn as_of_now(&mut self, due: &[(Timestamp, Source)]) -> stores::Result<(Rows, Told)> {
        let mut rows = self.rows(due).await?;
        rows.extend(self.group_rows(due).await?);
        Ok((self.as_they_are(rows).await?, self.told(due).await?))
    }

    /// How those stand who are to be told of a wish.
    async fn told(&mut self, due: &[(Timestamp, Source)]) -> stores::Result<Told> {
        let reads = due.iter().filter_map(|key| self.held.get(key));
        let deliveries = reads.filter_map(|read| match &read.task.work {
            Work::Deliver(deliver) => Some((read.source, deliver)),
            Work::Message(_) | Work::Kickout(_) => None,
        });
        let (groups, stores) = (&*self.groups, self.stores);
        let asked = deliveries.map(|(source, deliver)| async move {
            let roles = standings(groups, stores, deliver).await;
            Ok((source, unless_corrupt(roles)?))
        });
        let asked: Vec<_> = asked.collect();
        let asked = stream::iter(asked).buffer_unordered(TOGETHER);
        asked.try_collect().await
    }

    /// The messages of groups, in the same way.
    async fn group_rows(&mut self, due: &[(Timestamp, Source)]) -> stores::Result<Rows> {
        let reads = due.iter().filter_map(|key| self.held.get(key));
        let keys: Vec<(GroupId, MessageId)> = reads.filter_map(group_row_of).collect();
        if keys.is_empty() {
            return Ok(Rows::new());
        }
        let found = self.stores.within(self.group_history.rows(&keys)).await;
        if let Ok(found) = unless_corrupt(found)? {
            let found = found.iter().flatten().map(GroupRow::placed);
            return Ok(found
                .map(|placed| (placed.message.id, Ok(placed)))
                .collect());
        }
        let mut rows = Rows::new();
        for key in keys {
            let one = self.group_history.rows(std::slice::from_ref(&key));
            match unless_corrupt(self.stores.within(one).await)? {
                Ok(found) => {
                    let found = found.first().and_then(Option::as_ref);
                    rows.extend(found.map(|row| (key.1, Ok(row.placed()))));
                }
                Err(text) => _ = rows.insert(key.1, Err(text)),
            }
        }
        Ok(rows)
    }

    /// The messages as history has them, or why it cannot read its row.
    async fn rows(&mut self, due: &[(Timestamp, Source)]) -> stores::Result<Rows> {
        let keys: Vec<(UserId, MessageId)> = due
            .iter()
            .filter_map(|key| row_of(self.held.get(key)?))
            .collect();
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let rows = match self.stores.within(self.history.private(&keys)).await {
            Ok(rows) => rows,
            Err(error) if error.kind == Kind::Corrupt => return self.rows_one_by_one(&keys).await,
            Err(error) => return Err(error),
        };
        let placed = rows.iter().flatten().filter_map(|row| row.placed());
        let rows = placed.map(|placed| (placed.message.id, Ok(placed)));
        Ok(rows.collect())
    }

    /// What was edited or recalled meanwhile goes out so.
    async fn as_they_are(&mut self, mut rows: Rows) -> stores::Result<Rows> {
        let (changes, stores) = (&self.changes, self.stores);
        let placed = rows.values_mut().flatten();
        let asked = placed.map(|placed| async move {
            let seq = placed.position.seq;
            let altered = changes.altered(placed.conversation, seq, seq);
            if let Some(altered) = stores.within(altered).await?.get(&seq) {
                placed.message.content = altered.shown(&placed.message.content);
            }
            Ok::<_, Error>(())
        });
        let asked: Vec<_> = asked.collect();
        let asked = stream::iter(asked).buffer_unordered(TOGETHER);
        asked.try_collect::<()>().await?;
        Ok(rows)
    }

    async fn rows_one_by_one(&mut self, keys: &[(UserId, MessageId)]) -> stores::Result<Rows> {
        let mut rows = Rows::new();
        for key in keys {
            let one = self.history.private(std::slice::from_ref(key));
            match self.stores.within(one).await {
                Ok(found) => {
                    let placed = found.first().and_then(Option::as_ref);
                    let placed = placed.and_then(PrivateRow::placed);
                    rows.extend(placed.map(|placed| (key.1, Ok(placed))));
                }
                Err(error) if error.kind == Kind::Corrupt => {
                    rows.insert(key.1, Err(format!("{error}: {}", error.source)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(rows)
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

/// Where the receiver's row of a queued delivery is.
fn row_of(read: &Read) -> Option<(UserId, MessageId)> {
    let Work::Deliver(task) = &read.task.work else {
        return None;
    };
    let message = &task.placed.message;
    match message.to {
        Recipient::User(to) => Some((to, message.id)),
        Recipient::Group(_) => None,
    }
}

/// The same for a message of a group.
fn group_row_of(read: &Read) -> Option<(GroupId, MessageId)> {
    let Work::Deliver(task) = &read.task.work else {
        return None;
    };
    let message = &task.placed.message;
    match message.to {
        Recipient::Group(group) => Some((group, message.id)),
        Recipient::User(_) => None,
    }
}

/// What cannot be read is the fault of a record; the rest is a failure of the store.
fn unless_corrupt<T>(answer: stores::Result<T>) -> stores::Result<Result<T, String>> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.kind == Kind::Corrupt => Ok(Err(format!("{error}: {}", error.source))),
        Err(error) => Err(error),
    }
}
