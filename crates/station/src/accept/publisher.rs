//! Publishes records of the topic `message`: each partition by itself, behind a breaker, so that an
//! unavailable one delays no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::task::Value;
use backend::Backends;
use backend::queue::{NewRecord, Partition, Producer};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::circuit::Pass;
use protocol::keys::{Topic, partition_of};
use protocol::record::Task;
use tokio::time::{Instant, sleep_until};

use super::breaker::{ACK_TIMEOUT, Breakers};

/// Makes records, each in the one partition that its key belongs to. Knows how many partitions
/// there are, which never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    partitions: u32,
}

impl Records {
    pub(crate) fn new(backends: &Backends) -> Records {
        Records {
            partitions: backends.queue.partitions(Topic::Message),
        }
    }

    /// Record of a task under the key of its conversation, or of its user.
    pub(crate) fn record(&self, key: [u8; 17], task: &Task) -> NewRecord {
        NewRecord {
            partition: Partition {
                topic: Topic::Message,
                number: partition_of(&key, self.partitions),
            },
            key: Bytes::copy_from_slice(&key),
            headers: task.headers(),
            value: task.encode(),
        }
    }
}

/// Answer of the log for a record.
#[derive(Debug)]
pub(crate) enum PublishAnswer {
    Appended,
    Failed(backend::Error),
    /// No answer in time: the record may have been appended, or may be yet.
    Silent,
    /// The partition is away, and its sender should wait for this long.
    Away(Duration),
}

/// The log, as accepting sees it.
pub(crate) struct Publisher {
    producer: Arc<dyn Producer>,
    deadline: Duration,
    breakers: Arc<Mutex<Breakers>>,
    started_at: Instant,
    away_total: Counter,
}

/// A call for the records of one partition: their indices in the publish, and their outcomes.
type PublishCall = BoxFuture<'static, (Partition, Vec<usize>, Vec<Option<backend::Result<u64>>>)>;

impl Publisher {
    pub(crate) fn new(backends: &Backends, deadline: Duration) -> Publisher {
        Publisher {
            producer: backends.queue.producer(),
            deadline,
            breakers: Arc::default(),
            started_at: Instant::now(),
            away_total: counter!("station_sends_to_partitions_away_total"),
        }
    }

    fn now(&self) -> Timestamp {
        elapsed_since(self.started_at)
    }

    /// End of a call that comes now.
    pub(crate) fn call_deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Publishes records; returns one answer per record, in order, at `deadline` at the latest, or
    /// after a quarter of its own deadline, the time that the log has in any case. A partition that
    /// does not answer while others do is not waited for.
    pub(crate) async fn publish(
        &self,
        records: Vec<NewRecord>,
        deadline: Instant,
    ) -> Vec<PublishAnswer> {
        let budget = deadline.saturating_duration_since(Instant::now());
        let timeout = budget.max(self.deadline / 4);
        let mut answers: Vec<PublishAnswer> =
            records.iter().map(|_| PublishAnswer::Silent).collect();
        let mut calls = FuturesUnordered::new();
        let mut open_calls: BTreeMap<Partition, usize> = BTreeMap::new();
        let call_start = self.now();
        for (partition, indices, records) in by_partition(records) {
            let pass = self.breakers.lock().pass(partition.number, call_start);
            match pass {
                Ok(Pass::Call) => {
                    open_calls.insert(partition, indices.len());
                    calls.push(self.call(partition, indices, records, timeout));
                }
                Ok(Pass::Probe) | Err(_) => {
                    self.away_total.increment(indices.len() as u64);
                    let wait = pass.err().unwrap_or(ACK_TIMEOUT);
                    if pass.is_ok() {
                        let probe = self.call(partition, Vec::new(), records, self.deadline);
                        self.observe(FuturesUnordered::from_iter([probe]));
                    }
                    for index in indices {
                        answers[index] = PublishAnswer::Away(wait);
                    }
                }
            }
        }
        let mut check_at = Instant::now() + ACK_TIMEOUT;
        while !calls.is_empty() {
            tokio::select! {
                biased;
                Some((partition, indices, results)) = calls.next() => {
                    open_calls.remove(&partition);
                    self.record_acks(partition, &results);
                    for (index, answer) in indices.into_iter().zip(results) {
                        answers[index] = to_publish_answer(answer);
                    }
                }
                () = sleep_until(check_at) => {
                    check_at += ACK_TIMEOUT / 4;
                    let (mut breakers, now) = (self.breakers.lock(), self.now());
                    if open_calls.keys().all(|partition| breakers.is_away(partition.number, call_start, now)) {
                        break;
                    }
                }
            }
        }
        if !calls.is_empty() {
            self.away_total
                .increment(open_calls.values().sum::<usize>() as u64);
            self.observe(calls);
        }
        answers
    }

    fn call(
        &self,
        partition: Partition,
        indices: Vec<usize>,
        records: Vec<NewRecord>,
        deadline: Duration,
    ) -> PublishCall {
        let producer = self.producer.clone();
        Box::pin(async move {
            let results = producer.publish_within(records, deadline).await;
            (partition, indices, results)
        })
    }

    fn record_acks(&self, partition: Partition, results: &[Option<backend::Result<u64>>]) {
        record_acks(&self.breakers, self.started_at, partition, results);
    }

    /// Listens to calls that nobody waits for any more, as they may still show that a partition is
    /// back.
    fn observe(&self, mut calls: FuturesUnordered<PublishCall>) {
        let (breakers, zero) = (self.breakers.clone(), self.started_at);
        tokio::spawn(async move {
            while let Some((partition, _, results)) = calls.next().await {
                record_acks(&breakers, zero, partition, &results);
            }
        });
    }
}

fn record_acks(
    breakers: &Mutex<Breakers>,
    zero: Instant,
    partition: Partition,
    results: &[Option<backend::Result<u64>>],
) {
    if results.iter().any(|answer| matches!(answer, Some(Ok(_)))) {
        let mut breakers = breakers.lock();
        breakers.acknowledged(partition.number, elapsed_since(zero));
    }
}

fn elapsed_since(zero: Instant) -> Timestamp {
    Timestamp::ZERO + zero.elapsed()
}

fn to_publish_answer(answer: Option<backend::Result<u64>>) -> PublishAnswer {
    match answer {
        Some(Ok(_)) => PublishAnswer::Appended,
        Some(Err(error)) => PublishAnswer::Failed(error),
        None => PublishAnswer::Silent,
    }
}

/// Records by partition with their indices, in order within each partition.
fn by_partition(records: Vec<NewRecord>) -> Vec<(Partition, Vec<usize>, Vec<NewRecord>)> {
    let mut parts: BTreeMap<Partition, (Vec<usize>, Vec<NewRecord>)> = BTreeMap::new();
    for (index, record) in records.into_iter().enumerate() {
        let (indices, records) = parts.entry(record.partition).or_default();
        indices.push(index);
        records.push(record);
    }
    let parts = parts.into_iter();
    parts
        .map(|(partition, (indices, records))| (partition, indices, records))
        .collect()
}
