//! The log on Kafka.
//!
//! A record is acknowledged once all in-sync replicas have it (`acks=all`; at least
//! `min.insync.replicas` of them), written in order by an idempotent producer. Groups never skip: a
//! group without a commit starts at the beginning, and a group whose next record is gone reports
//! it.

mod config;
mod consumer;
mod epoch;
mod layout;
mod producer;
mod reader;
mod record;
mod renewal;
mod report;
mod sasl;
mod settings;
#[cfg(test)]
mod tests;
pub mod topics;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use protocol::keys::Topic;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::{Instant, sleep};

pub use self::config::{
    ConsumerConfig, GroupProtocol, KafkaConfig, NOTIFICATION_RETENTION, Partitions, ProducerConfig,
    Retention,
};
use self::consumer::KafkaConsumer;
use self::layout::Layout;
use self::producer::KafkaProducer;
use self::reader::Readers;
use self::renewal::CredentialRenewal;
pub use self::sasl::{SaslConfig, SaslMechanism};
use super::{Consumer, Partition, Producer, Queue, Record};
use crate::{Kind, Result};

const SEAM: &str = "kafka queue";

/// Time brokers may take to tell each other about newly created topics.
const PROPAGATION_TIMEOUT: Duration = Duration::from_secs(2);

/// The log, its producer and its consumer groups; clones share them.
#[derive(Clone)]
pub struct KafkaQueue {
    config: Arc<KafkaConfig>,
    layout: Arc<Layout>,
    producer: Arc<KafkaProducer>,
    readers: Arc<Readers>,
    renewal: Arc<CredentialRenewal>,
    epoch: u32,
}

impl KafkaQueue {
    /// Connects to the brokers, checks that the topics are present as installed, and reads the
    /// log's epoch. `Unavailable` if no broker answers within `request_timeout`, `Conflict` for an
    /// installation that does not match or a setting that is refused.
    pub async fn connect(config: KafkaConfig) -> Result<KafkaQueue> {
        let config = Arc::new(config);
        let layout = Arc::new(Layout::from_config(&config));
        let renewal = CredentialRenewal::start(&config, &layout)?;
        let renewals = || renewal.renewals();
        // The producer comes first because it needs a moment before it can write.
        let producer = KafkaProducer::start(config.clone(), layout.clone(), renewals()).await?;
        let readers = Readers::new(config.clone(), layout.clone(), renewals());
        let epoch = wait_for_installation(&readers, &config, &layout).await?;
        producer.warm_up().await?;
        Ok(KafkaQueue {
            config,
            layout,
            producer: Arc::new(producer),
            readers: Arc::new(readers),
            renewal: Arc::new(renewal),
            epoch,
        })
    }
}

async fn wait_for_installation(
    readers: &Readers,
    config: &Arc<KafkaConfig>,
    layout: &Arc<Layout>,
) -> Result<u32> {
    let deadline = Instant::now() + PROPAGATION_TIMEOUT;
    loop {
        let (config, layout) = (config.clone(), layout.clone());
        let check = readers.with_client(None, move |client, timeout| {
            topics::check_installed(client, &layout, &config, timeout)
        });
        match check.await {
            Err(error) if error.kind == Kind::Conflict && Instant::now() < deadline => {
                sleep(PROPAGATION_TIMEOUT / 10).await;
            }
            outcome => return outcome,
        }
    }
}

/// Whether librdkafka recovers from the error by itself.
fn is_transient(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let transient_codes = [
        Code::AllBrokersDown,
        Code::BrokerTransportFailure,
        Code::CoordinatorLoadInProgress,
        Code::CoordinatorNotAvailable,
        Code::LeaderNotAvailable,
        Code::NotCoordinator,
        Code::NotLeaderForPartition,
        Code::OperationTimedOut,
        Code::PollExceeded,
        Code::RebalanceInProgress,
        Code::RequestTimedOut,
        Code::Resolve,
        Code::StaleMemberEpoch,
        Code::UnknownMemberId,
        Code::UnknownTopicOrPartition,
    ];
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| transient_codes.contains(&code))
        && !matches!(error, KafkaError::MessageConsumptionFatal(_))
}

#[async_trait]
impl Queue for KafkaQueue {
    fn producer(&self) -> Arc<dyn Producer> {
        self.producer.clone()
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>> {
        let (config, layout) = (self.config.clone(), self.layout.clone());
        let renewals = self.renewal.renewals();
        let consumer = KafkaConsumer::join(config, layout, group, topic, renewals)?;
        Ok(Box::new(consumer))
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.layout.count(topic)
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>> {
        self.readers.read(partition, from, max).await
    }

    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        self.readers.bounds(partition).await
    }

    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        self.readers.committed(group, partition).await
    }
}
