//! The log in the embedded store: the guarantees of Kafka inside one process.
//!
//! A record is acknowledged, and becomes visible to consumers, once an fsync covers it; publishes
//! that arrive during an fsync share the next one. Committed offsets are written without waiting
//! for an fsync: the store has one journal, so an offset that survives a crash implies every effect
//! written before it, and a lost offset only means redelivery.

mod consumer;
mod group;
mod log;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use protocol::Timestamp;
use protocol::keys::Topic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use self::consumer::EmbeddedConsumer;
use self::group::{Group, MemberId};
use self::log::PartitionLog;
use super::{Consumer, NewRecord, Partition, Producer, Queue, Record};
use crate::clock::Clock;
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};
use crate::{Error, Result};

const SEAM: &str = "embedded queue";

const PARTITIONS_KEY: &[u8] = b"log-partitions";
const EPOCH_KEY: &[u8] = b"log-epoch";

/// Maximum number of records that one step of [`EmbeddedQueue::trim`] removes.
const TRIM_STEP: usize = 1000;

/// Bytes of its newest records that each partition keeps in memory, for consumers that keep up.
const TAIL_BYTES: usize = 256 << 10;

/// Time without a poll after which a consumer loses a partition that is to move.
const REVOKE_WAIT: Duration = Duration::from_secs(30);

/// The embedded log.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Number of partitions of each topic (dead letters have one). Fixed when the directory is
    /// created: another number would give a conversation a second writer, and is refused at start.
    #[schemars(range(max = 4096))]
    pub partitions: u32,
    /// Approximate size of the records in one poll, in bytes. A poll returns at least one record.
    #[serde(skip)]
    pub poll_bytes: usize,
    /// Maximum size of a record in bytes; larger ones are refused.
    #[schemars(range(max = 104_857_600))]
    pub record_bytes_max: usize,
    /// Maximum time between two polls of a consumer. A slower one leaves its group and loses all
    /// its partitions.
    #[serde(skip)]
    pub poll_interval_max: Duration,
    /// Age at which records that every consumer group has passed are removed.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub retention: Duration,
    /// Age at which records that no group reads (dead letters) are removed; operations at twice
    /// that age.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub retention_unread: Duration,
}

impl Default for QueueConfig {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        QueueConfig {
            partitions: 16,
            poll_bytes: 4 << 20,
            record_bytes_max: 1 << 20,
            poll_interval_max: Duration::from_secs(60),
            retention: 7 * DAY,
            retention_unread: 30 * DAY,
        }
    }
}

/// The log with its producers and consumer groups; clones share it.
#[derive(Clone)]
pub struct EmbeddedQueue {
    state: Arc<EmbeddedState>,
}

struct EmbeddedState {
    engine: Engine,
    clock: Arc<dyn Clock>,
    /// Newest append time so far, in milliseconds.
    newest: AtomicI64,
    config: QueueConfig,
    epoch: u32,
    logs: Arc<Logs>,
    /// Held while offsets are assigned and the records join the store's next commit, so that both
    /// have the same order.
    append_lock: Mutex<()>,
    groups: Mutex<BTreeMap<String, Arc<Mutex<GroupState>>>>,
    next_member: AtomicU64,
}

/// The partitions and the readers to wake. Holds no engine, because the engine's own thread keeps a
/// clone and must not be the one to close it.
struct Logs {
    /// Indexed by the topic's position in [`Topic::ALL`], then by partition number.
    topics: Vec<Vec<PartitionLog>>,
    readers: RwLock<Vec<Reader>>,
}

struct Reader {
    member: MemberId,
    topic: Topic,
    wake: Arc<Notify>,
}

struct GroupState {
    name: String,
    group: Group,
    committed_offsets: BTreeMap<Partition, u64>,
}

/// Number of partitions of a topic in an installation with `count`.
fn partition_count(topic: Topic, count: u32) -> u32 {
    match topic {
        Topic::Dead | Topic::NotificationDead | Topic::Operation => 1,
        Topic::Message | Topic::Retry(_) | Topic::Notification => count,
    }
}

impl EmbeddedQueue {
    /// Opens the log of this store, creating it if missing. `Conflict` if it was created with
    /// another number of partitions.
    pub fn open(
        engine: Engine,
        config: QueueConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<EmbeddedQueue> {
        let epoch = install(&engine, config.partitions)?;
        let topics = Topic::ALL
            .into_iter()
            .map(|topic| {
                (0..partition_count(topic, config.partitions))
                    .map(|number| {
                        let partition = Partition { topic, number };
                        PartitionLog::open(&engine, partition, TAIL_BYTES)
                    })
                    .collect()
            })
            .collect::<Result<Vec<Vec<PartitionLog>>>>()?;
        let state = EmbeddedState {
            logs: Arc::new(Logs {
                topics,
                readers: RwLock::default(),
            }),
            engine,
            clock,
            newest: AtomicI64::new(i64::MIN),
            config,
            epoch,
            append_lock: Mutex::new(()),
            groups: Mutex::default(),
            next_member: AtomicU64::new(1),
        };
        state.load_groups()?;
        Ok(EmbeddedQueue {
            state: Arc::new(state),
        })
    }

    /// Removes records that are older than the retention and that every group has passed; returns
    /// their number. Cheap when nothing is due: call it every few minutes.
    pub async fn trim(&self, now: Timestamp) -> Result<u64> {
        let mut removed_count = 0;
        for log in self.state.logs.topics.iter().flatten() {
            loop {
                let step = self.state.trim_step(log, now)?;
                removed_count += step as u64;
                if step < TRIM_STEP {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(removed_count)
    }
}

/// Checks the layout of the log, or records it in a new store; returns the epoch.
fn install(engine: &Engine, partitions: u32) -> Result<u32> {
    if partitions == 0 {
        return Err(Error::conflict(SEAM, "a log needs at least one partition"));
    }
    let Some(bytes) = engine.get(Table::Meta, PARTITIONS_KEY)? else {
        let mut batch = WriteBatch::new();
        let epoch = 1u32;
        batch.put(
            Table::Meta,
            PARTITIONS_KEY,
            partitions.to_be_bytes().to_vec(),
        );
        batch.put(Table::Meta, EPOCH_KEY, epoch.to_be_bytes().to_vec());
        engine.write(batch)?;
        return Ok(epoch);
    };
    let installed_count = read_u32(&bytes)?;
    if installed_count != partitions {
        return Err(Error::conflict(
            SEAM,
            format!(
                "the log was created with {installed_count} partitions, not {partitions}: set partitions \
                 to {installed_count}"
            ),
        ));
    }
    let epoch = engine
        .get(Table::Meta, EPOCH_KEY)?
        .ok_or_else(|| Error::corrupt(SEAM, "the log has no epoch"))?;
    read_u32(&epoch)
}

fn read_u32(bytes: &[u8]) -> Result<u32> {
    bytes
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| Error::corrupt(SEAM, "a setting that is not four bytes"))
}

impl Logs {
    fn log(&self, partition: Partition) -> Result<&PartitionLog> {
        Topic::ALL
            .iter()
            .position(|&topic| topic == partition.topic)
            .and_then(|place| self.topics[place].get(partition.number as usize))
            .ok_or_else(|| {
                Error::conflict(
                    SEAM,
                    format!("no partition {}/{}", partition.topic, partition.number),
                )
            })
    }

    /// Makes durable records visible and wakes the readers of their topics.
    fn make_visible(&self, ends: &[(Partition, u64)]) {
        for &(partition, next) in ends {
            if let Ok(log) = self.log(partition) {
                log.make_visible(next);
            }
        }
        for reader in self.readers.read().iter() {
            if ends.iter().any(|(p, _)| p.topic == reader.topic) {
                reader.wake.notify_one();
            }
        }
    }
}

impl EmbeddedState {
    fn load_groups(&self) -> Result<()> {
        let mut cursor: Vec<u8> = log::COMMITTED_PREFIX.to_vec();
        loop {
            let page = self.engine.range(
                Table::Offsets,
                cursor.as_slice()..,
                ScanOrder::Forward,
                1000,
            )?;
            for (key, value) in &page {
                if let Some((name, partition)) = log::parse_committed_key(key) {
                    let next = log::read_u64(value)?;
                    self.group(&name)
                        .lock()
                        .committed_offsets
                        .insert(partition, next);
                }
            }
            match page.last() {
                Some((last, _)) if last.starts_with(log::COMMITTED_PREFIX) => {
                    cursor = [last.as_ref(), &[0]].concat();
                }
                _ => return Ok(()),
            }
        }
    }

    fn group(&self, name: &str) -> Arc<Mutex<GroupState>> {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(name) {
            return group.clone();
        }
        let group = Arc::new(Mutex::new(GroupState {
            name: name.to_owned(),
            group: Group::new(
                partition_count,
                self.config.partitions,
                REVOKE_WAIT,
                self.config.poll_interval_max,
            ),
            committed_offsets: BTreeMap::new(),
        }));
        groups.insert(name.to_owned(), group.clone());
        group
    }

    /// Assigns each record its offset and hands all of them to the store's next commit.
    fn append(&self, records: Vec<NewRecord>) -> (Vec<Result<u64>>, Option<AppendFuture>) {
        let now = self.append_time();
        let rows: Vec<Result<(Partition, Bytes)>> = records
            .iter()
            .map(|record| self.encode(record, now))
            .collect();
        let mut batch = WriteBatch::new();
        let mut starts = BTreeMap::new();
        let mut ends = BTreeMap::new();

        let _one_order = self.append_lock.lock();
        let offsets = rows
            .into_iter()
            .map(|row| {
                let (partition, bytes) = row?;
                let offset = self.logs.log(partition)?.append(bytes.clone());
                batch.put(Table::Log, log::log_key(partition, offset), bytes);
                starts.entry(partition).or_insert(offset);
                ends.insert(partition, offset + 1);
                Ok(offset)
            })
            .collect();
        if batch.is_empty() {
            return (offsets, None);
        }
        let logs = self.logs.clone();
        let ends: Vec<_> = ends.into_iter().collect();
        let on_durable = Box::new(move || logs.make_visible(&ends));
        match self.engine.commit(batch, Some(on_durable)) {
            Ok(commit) => (offsets, Some(Box::pin(commit))),
            Err(error) => {
                for (partition, start) in starts {
                    if let Ok(log) = self.logs.log(partition) {
                        log.truncate_from(start);
                    }
                }
                (all_failed(offsets, &error), None)
            }
        }
    }

    /// Now, and never before an earlier append of this process: readers look for a time by halving,
    /// and ids do not go back with the clock, either.
    fn append_time(&self) -> Timestamp {
        let now = self.clock.now().millis();
        let newest = self.newest.fetch_max(now, Ordering::Relaxed);
        Timestamp::from_millis(now.max(newest))
    }

    fn encode(&self, record: &NewRecord, now: Timestamp) -> Result<(Partition, Bytes)> {
        self.logs.log(record.partition)?;
        let row = log::encode(record, now);
        let max_bytes = self.config.record_bytes_max;
        if row.len() > max_bytes {
            return Err(Error::conflict(
                SEAM,
                format!("a record of {} bytes; at most {max_bytes} fit", row.len()),
            ));
        }
        Ok((record.partition, row))
    }

    /// Removes up to [`TRIM_STEP`] records from the front of a partition.
    fn trim_step(&self, log: &PartitionLog, now: Timestamp) -> Result<usize> {
        let (first, end) = log.bounds();
        let passed_offset = self.slowest_group_offset(log.partition);
        let (floor, age) = match passed_offset {
            Some(passed_offset) => (passed_offset.min(end), self.config.retention),
            None => (end, self.unread_retention(log.partition.topic)),
        };
        let keys = (
            log::log_key(log.partition, first),
            log::log_key(log.partition, floor),
        );
        let range = keys.0.as_ref()..keys.1.as_ref();
        let oldest = self
            .engine
            .range(Table::Log, range.clone(), ScanOrder::Forward, 1)?;
        let is_old = |row: &[u8]| log::appended_at(row).is_none_or(|at| at + age <= now);
        if !oldest.first().is_some_and(|(_, row)| is_old(row)) {
            return Ok(0);
        }
        let mut batch = WriteBatch::new();
        let rows = self
            .engine
            .range(Table::Log, range, ScanOrder::Forward, TRIM_STEP)?;
        for (key, _) in rows.into_iter().take_while(|(_, row)| is_old(row)) {
            batch.remove(Table::Log, key);
        }
        let removed_count = batch.len();
        let new_first = first + removed_count as u64;
        batch.put(
            Table::Offsets,
            log::first_key(log.partition),
            new_first.to_be_bytes().to_vec(),
        );
        self.engine.write(batch)?;
        log.forget_before(new_first);
        Ok(removed_count)
    }

    /// Retention of an unread topic. Operations outlive the dead letters they refer to.
    fn unread_retention(&self, topic: Topic) -> Duration {
        let unread = self.config.retention_unread;
        match topic {
            Topic::Operation => unread.saturating_mul(2),
            _ => unread,
        }
    }

    /// Offset of the slowest group; `None` if no group reads the topic.
    fn slowest_group_offset(&self, partition: Partition) -> Option<u64> {
        if partition.topic == Topic::Operation {
            // The reader of operations never commits: it starts from the beginning each time.
            return None;
        }
        let groups: Vec<_> = self.groups.lock().values().cloned().collect();
        groups
            .iter()
            .filter_map(|group| {
                let group = group.lock();
                let offset = group.committed_offsets.get(&partition).copied();
                offset.or_else(|| group.group.reads(partition.topic).then_some(0))
            })
            .min()
    }
}

type AppendFuture = std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>;

fn all_failed(offsets: Vec<Result<u64>>, error: &Error) -> Vec<Result<u64>> {
    offsets
        .into_iter()
        .map(|offset| {
            offset.and_then(|_| Err(Error::new(SEAM, error.kind, error.source.to_string())))
        })
        .collect()
}

struct EmbeddedProducer(Arc<EmbeddedState>);

#[async_trait]
impl Producer for EmbeddedProducer {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        let (offsets, append) = self.0.append(records);
        match append {
            None => offsets,
            Some(append) => match append.await {
                Ok(()) => offsets,
                Err(error) => all_failed(offsets, &error),
            },
        }
    }
}

#[async_trait]
impl Queue for EmbeddedQueue {
    fn producer(&self) -> Arc<dyn Producer> {
        Arc::new(EmbeddedProducer(self.state.clone()))
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>> {
        let member = MemberId(self.state.next_member.fetch_add(1, Ordering::Relaxed));
        let consumer = EmbeddedConsumer::join(self.state.clone(), group, topic, member);
        Ok(Box::new(consumer))
    }

    fn partitions(&self, topic: Topic) -> u32 {
        partition_count(topic, self.state.config.partitions)
    }

    fn epoch(&self) -> u32 {
        self.state.epoch
    }

    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>> {
        let log = self.state.logs.log(partition)?;
        log.read(&self.state.engine, from, max, usize::MAX)
    }

    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        Ok(self.state.logs.log(partition)?.bounds())
    }

    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        self.state.logs.log(partition)?;
        let state = self.state.groups.lock().get(group).cloned();
        Ok(state.and_then(|group| group.lock().committed_offsets.get(&partition).copied()))
    }
}
