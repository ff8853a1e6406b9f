//! Publishes records of the topic `message`: each partition by itself, behind a breaker, so that an
//! unavailable one delays no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::task::Value;
use backend::queue::{NewRecord, Partition, Producer, Queue};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::breaker::{Breakers, Passage, SILENCE};
use protocol::keys::{Topic, partition_of};
use protocol::record::Task;
use tokio::time::{Instant, sleep_until};

/// Makes records, each in the one partition that its key belongs to. Knows how many partitions
/// there are, which never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    partitions: u32,
}

impl Records {
    pub(crate) fn of(queue: &dyn Queue) -> Records {
        Records {
            partitions: queue.partitions(Topic::Message),
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
    zero: Instant,
    away: Counter,
}

/// A call for the records of one partition: their indices in the publish, and their outcomes.
type PublishCall = BoxFuture<'static, (Partition, Vec<usize>, Vec<Option<backend::Result<u64>>>)>;

impl Publisher {
    pub(crate) fn new(producer: Arc<dyn Producer>, deadline: Duration) -> Publisher {
        Publisher {
            producer,
            deadline,
            breakers: Arc::default(),
            zero: Instant::now(),
            away: counter!("station_sends_to_partitions_away_total"),
        }
    }

    fn now(&self) -> Timestamp {
        since(self.zero)
    }

    /// End of a call that comes now.
    pub(crate) fn deadline_of_call(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Publishes records; returns one answer per record, in order, at `until` at the latest, or
    /// after a quarter of the deadline, the time that the log has in any case. A partition that
    /// does not answer while others do is not waited for.
    pub(crate) async fn publish(
        &self,
        records: Vec<NewRecord>,
        until: Instant,
    ) -> Vec<PublishAnswer> {
        let left = until.saturating_duration_since(Instant::now());
        let deadline = left.max(self.deadline / 4);
        let mut answers: Vec<PublishAnswer> =
            records.iter().map(|_| PublishAnswer::Silent).collect();
        let mut calls = FuturesUnordered::new();
        let mut open: BTreeMap<Partition, usize> = BTreeMap::new();
        let began = self.now();
        for (partition, places, records) in by_partition(records) {
            let passage = self.breakers.lock().passage(partition.number, began);
            match passage {
                Passage::Open => {
                    open.insert(partition, places.len());
                    calls.push(self.call(partition, places, records, deadline));
                }
                Passage::Probe | Passage::Closed(_) => {
                    self.away.increment(places.len() as u64);
                    let wait = match passage {
                        Passage::Closed(wait) => wait,
                        Passage::Open | Passage::Probe => SILENCE,
                    };
                    if passage == Passage::Probe {
                        let probe = self.call(partition, Vec::new(), records, self.deadline);
                        self.observe(FuturesUnordered::from_iter([probe]));
                    }
                    for place in places {
                        answers[place] = PublishAnswer::Away(wait);
                    }
                }
            }
        }
        let mut look = Instant::now() + SILENCE;
        while !calls.is_empty() {
            tokio::select! {
                biased;
                Some((partition, places, answered)) = calls.next() => {
                    open.remove(&partition);
                    self.take(partition, &answered);
                    for (place, answer) in places.into_iter().zip(answered) {
                        answers[place] = published(answer);
                    }
                }
                () = sleep_until(look) => {
                    look += SILENCE / 4;
                    let (mut breakers, now) = (self.breakers.lock(), self.now());
                    if open.keys().all(|at| breakers.is_away(at.number, began, now)) {
                        break;
                    }
                }
            }
        }
        if !calls.is_empty() {
            self.away.increment(open.values().sum::<usize>() as u64);
            self.observe(calls);
        }
        answers
    }

    fn call(
        &self,
        partition: Partition,
        places: Vec<usize>,
        records: Vec<NewRecord>,
        deadline: Duration,
    ) -> PublishCall {
        let producer = self.producer.clone();
        Box::pin(async move {
            let answered = producer.publish_within(records, deadline).await;
            (partition, places, answered)
        })
    }

    fn take(&self, partition: Partition, answered: &[Option<backend::Result<u64>>]) {
        take(&self.breakers, self.zero, partition, answered);
    }

    /// Listens to calls that nobody waits for any more, as they may still show that a partition is
    /// back.
    fn observe(&self, mut calls: FuturesUnordered<PublishCall>) {
        let (breakers, zero) = (self.breakers.clone(), self.zero);
        tokio::spawn(async move {
            while let Some((partition, _, answered)) = calls.next().await {
                take(&breakers, zero, partition, &answered);
            }
        });
    }
}

fn take(
    breakers: &Mutex<Breakers>,
    zero: Instant,
    partition: Partition,
    answered: &[Option<backend::Result<u64>>],
) {
    if answered.iter().any(|answer| matches!(answer, Some(Ok(_)))) {
        let mut breakers = breakers.lock();
        breakers.acknowledged(partition.number, since(zero));
    }
}

fn since(zero: Instant) -> Timestamp {
    Timestamp::ZERO + zero.elapsed()
}

fn published(answer: Option<backend::Result<u64>>) -> PublishAnswer {
    match answer {
        Some(Ok(_)) => PublishAnswer::Appended,
        Some(Err(error)) => PublishAnswer::Failed(error),
        None => PublishAnswer::Silent,
    }
}

/// Records by partition with their indices, in order within each partition.
fn by_partition(records: Vec<NewRecord>) -> Vec<(Partition, Vec<usize>, Vec<NewRecord>)> {
    let mut parts: BTreeMap<Partition, (Vec<usize>, Vec<NewRecord>)> = BTreeMap::new();
    for (place, record) in records.into_iter().enumerate() {
        let (places, records) = parts.entry(record.partition).or_default();
        places.push(place);
        records.push(record);
    }
    let parts = parts.into_iter();
    parts
        .map(|(partition, (places, records))| (partition, places, records))
        .collect()
}
