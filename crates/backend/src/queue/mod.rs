//! The log between services: topics of partitions, consumer groups, offsets.
//!
//! *Acknowledged* means that the record survives a crash of every process of ours (embedded: fsynced;
//! Kafka: `acks=all`). Records of one partition keep the order in which they were published by one
//! producer. A consumer group gives each partition to one member at a time; a member from which a
//! partition was taken gets nothing more of it and cannot commit it.

#[cfg(test)]
pub(crate) mod contract;
pub mod embedded;
mod hooked;
#[cfg(feature = "kafka")]
mod kafka;
mod split;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::Timestamp;
use protocol::keys::Topic;
use tokio::time::timeout;

pub use self::embedded::{EmbeddedQueue, QueueConfig};
#[cfg(feature = "kafka")]
pub use self::kafka::{
    ConsumerConfig, GroupProtocol, KafkaConfig, KafkaQueue, Partitions, ProducerConfig, Retention,
    SaslConfig, SaslMechanism, topics,
};
use crate::Result;

/// One partition of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    pub topic: Topic,
    pub number: u32,
}

/// A record to be published, to a partition that the caller has chosen
/// (`protocol::keys::partition_of`).
#[derive(Clone)]
pub struct NewRecord {
    pub partition: Partition,
    pub key: Bytes,
    /// Readable names and values: what ordinary tools show beside a record.
    pub headers: Vec<(String, Bytes)>,
    pub value: Bytes,
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

/// A record of the log. Offsets of a partition begin at 0 and have no holes in the embedded backend;
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

/// What a consumer is told next.
#[derive(Debug)]
pub enum Polled {
    /// In offset order per partition; continues at the committed offset after an assignment.
    Records(Vec<Record>),
    Assigned(Vec<Partition>),
    /// Stop new work, finish or abandon what is in flight, commit what is settled; the partitions are
    /// given away at the next poll.
    Revoked(Vec<Partition>),
    /// Already somebody else's (this member was away too long): abandon, do not commit.
    Lost(Vec<Partition>),
}

#[async_trait]
pub trait Producer: Send + Sync {
    /// Publishes and waits until each record is acknowledged; the answer has one offset a record, in
    /// order. Records for one partition are appended in order, and after a failed one none of the same
    /// partition. A failure leaves open whether the record was appended.
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>>;

    /// The same under a deadline, which each partition meets or misses by itself: what was
    /// acknowledged in time stands, whatever becomes of the other partitions. `None` where no answer
    /// came in time: the record may have been appended, or may be yet.
    async fn publish_within(
        &self,
        records: Vec<NewRecord>,
        deadline: Duration,
    ) -> Vec<Option<Result<u64>>> {
        let within = |records| async move {
            let published = timeout(deadline, self.publish(records)).await;
            published.unwrap_or_default()
        };
        split::each_partition(records, within).await
    }
}

#[async_trait]
pub trait Consumer: Send {
    /// Waits for news: at most `max` records, or a change of the assignment. Cancel safe: a poll that is
    /// dropped loses nothing.
    async fn poll(&mut self, max: usize) -> Result<Polled>;

    /// Hands out nothing more of these partitions until they are resumed.
    fn pause(&mut self, partitions: &[Partition]);

    fn resume(&mut self, partitions: &[Partition]);

    /// Records that everything before `next` is settled. Only moves forward: a smaller offset than the
    /// committed one changes nothing. Refused (`Conflict`) for a partition this member does not hold, or which its
    /// group has taken from it meanwhile.
    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()>;
}

#[async_trait]
pub trait Queue: Send + Sync {
    fn producer(&self) -> std::sync::Arc<dyn Producer>;

    /// Joins the consumer group of this name and topic; dropping the consumer leaves it. Who reads another
    /// topic under the same name is not disturbed.
    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>>;

    /// Fixed at installation.
    fn partitions(&self, topic: Topic) -> u32;

    /// The log's epoch: raised when topics are made anew, so that offsets of old and new never mix.
    fn epoch(&self) -> u32;

    /// Reads without a group, for operators: up to `max` records from `from` on.
    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>>;

    /// The first offset that is kept, and the one the next record will have.
    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)>;

    /// Where `group` will go on; `None` before its first commit.
    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>>;
}
