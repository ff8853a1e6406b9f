//! The log between services: topics of partitions, consumer groups, offsets.
//!
//! *Acknowledged* means that the record survives a crash of every one of our processes (embedded:
//! fsynced; Kafka: `acks=all`). Within a partition, records of one producer keep the order in which
//! they were published. A consumer group gives each partition to one member at a time; a member
//! that lost a partition gets no more of its records and cannot commit it.

#[cfg(test)]
pub(crate) mod contract;
pub mod embedded;
pub(crate) mod hooked;
#[cfg(feature = "kafka")]
mod kafka;
mod split;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::Timestamp;
use protocol::keys::{Topic, partition_of};
use tokio::time::timeout;

pub use self::embedded::{EmbeddedQueue, QueueConfig};
#[cfg(feature = "kafka")]
pub use self::kafka::{
    ConsumerConfig, GroupProtocol, KafkaConfig, KafkaQueue, NOTIFICATION_RETENTION, Partitions,
    ProducerConfig, Retention, SaslConfig, SaslMechanism, topics,
};
use crate::Result;

/// One partition of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    pub topic: Topic,
    pub number: u32,
}

/// A record to publish, addressed to a partition that the caller has chosen
/// (`protocol::keys::partition_of`).
#[derive(Clone)]
pub struct NewRecord {
    pub partition: Partition,
    pub key: Bytes,
    /// Readable names and values, shown beside the record by ordinary tools.
    pub headers: Vec<(String, Bytes)>,
    pub value: Bytes,
}

impl NewRecord {
    /// Record of these bytes in the partition of its key, without headers.
    pub fn keyed(queue: &dyn Queue, topic: Topic, key: Bytes, value: Bytes) -> NewRecord {
        let number = partition_of(&key, queue.partitions(topic));
        NewRecord {
            partition: Partition { topic, number },
            key,
            headers: Vec::new(),
            value,
        }
    }
}

impl fmt::Debug for NewRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewRecord")
            .field("partition", &self.partition)
            .field("key", &self.key)
            .field("value", &protocol::Hidden::of(&self.value))
            .finish_non_exhaustive()
    }
}

/// A record of the log. Offsets of a partition start at 0 without gaps in the embedded backend;
/// elsewhere they only grow.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    pub partition: Partition,
    pub offset: u64,
    pub appended_at: Timestamp,
    pub key: Bytes,
    pub headers: Vec<(String, Bytes)>,
    pub value: Bytes,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("appended_at", &self.appended_at)
            .field("key", &self.key)
            .field("value", &protocol::Hidden::of(&self.value))
            .finish_non_exhaustive()
    }
}

impl Record {
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }
}

/// Result of a poll: records, or a change of the assignment.
#[derive(Debug)]
pub enum Polled {
    /// Records, in offset order per partition. After an assignment they continue at the committed
    /// offset.
    Records(Vec<Record>),
    Assigned(Vec<Partition>),
    /// Partitions to give up: stop new work, finish or abandon work in flight, commit settled
    /// offsets. The next poll hands them back to the group.
    Revoked(Vec<Partition>),
    /// Partitions that already belong to another member, because this one was away too long:
    /// abandon the work and do not commit.
    Lost(Vec<Partition>),
}

#[async_trait]
pub trait Producer: Send + Sync {
    /// Publishes `records` and waits until each is acknowledged; returns one offset per record, in
    /// order. Records of one partition are appended in order, and none after a failed one. An error
    /// leaves open whether the record was appended.
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>>;

    /// [`publish`](Self::publish) with a deadline that each partition meets or misses on its own:
    /// an acknowledgement that came in time counts, whatever happens to the other partitions.
    /// `None` means no answer in time: the record may have been appended, or may still be.
    async fn publish_within(
        &self,
        records: Vec<NewRecord>,
        time_limit: Duration,
    ) -> Vec<Option<Result<u64>>> {
        let publish_in_time = |records| async move {
            let outcome = timeout(time_limit, self.publish(records)).await;
            outcome.unwrap_or_default()
        };
        split::each_partition(records, publish_in_time).await
    }
}

#[async_trait]
pub trait Consumer: Send {
    /// Waits for at most `max` records or a change of the assignment. Cancel safe: dropping a poll
    /// loses nothing.
    async fn poll(&mut self, max: usize) -> Result<Polled>;

    /// Withholds records of these partitions until [`resume`](Self::resume).
    fn pause(&mut self, partitions: &[Partition]);

    fn resume(&mut self, partitions: &[Partition]);

    /// Records that everything before `next` is settled. The committed offset only moves forward; a
    /// smaller one changes nothing. Refused (`Conflict`) for a partition that this member does not
    /// hold, or that the group has taken from it in the meantime.
    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()>;
}

#[async_trait]
pub trait Queue: Send + Sync {
    fn producer(&self) -> std::sync::Arc<dyn Producer>;

    /// Joins the consumer group of this name and topic; dropping the consumer leaves it. Readers of
    /// another topic under the same name are not disturbed.
    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>>;

    /// Number of partitions, fixed at installation.
    fn partitions(&self, topic: Topic) -> u32;

    /// Epoch of the log, raised when the topics are created anew so that old and new offsets never
    /// mix.
    fn epoch(&self) -> u32;

    /// Reads up to `max` records from `from` on without a group, for operators.
    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>>;

    /// First retained offset, and the offset of the next record.
    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)>;

    /// Offset at which `group` continues; `None` before its first commit.
    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>>;
}
