//! How the log on Kafka is reached, laid out and bounded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Where the brokers are, what the topics look like, and how long anything may take. The default is a
/// laptop with one broker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaConfig {
    /// `host:port` of some brokers; they name the others.
    pub brokers: Vec<String>,
    /// How this process calls itself in the brokers' logs and quotas.
    pub client_id: String,
    /// The rack or zone of this process: consumers read from a replica in it where brokers allow that.
    pub rack: Option<String>,
    /// Stands before the name of every topic and consumer group, so that installations share a cluster.
    pub topic_prefix: String,
    /// Partitions of the topics. Fixed at installation: another number is refused at start, because it
    /// would give a conversation a second writer.
    pub partitions: Partitions,
    /// Brokers that hold each record. 3 in production.
    pub replication_factor: u32,
    /// Brokers that must have a record before it counts as accepted. 2 in production.
    pub min_insync_replicas: u32,
    /// How long records are kept.
    pub retention: Retention,
    /// The lowest epoch that `packetboat topics apply` gives the log. Only to be raised when topic `meta` was
    /// lost while the stores still hold what an older log wrote: above every epoch they have seen.
    pub epoch_min: u32,
    /// Bytes of the largest record, key and headers included; larger ones are refused (`Conflict`).
    pub record_bytes_max: usize,
    /// How long a question to the brokers may take: connecting, commits, reads for operators.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// More properties for librdkafka, as its documentation names them: `security.protocol`,
    /// `sasl.mechanism`, `ssl.ca.location` … Those that the log's promise rests on are refused.
    pub properties: BTreeMap<String, String>,
    /// Properties whose value stands in a file of its own: passwords and keys.
    pub property_files: BTreeMap<String, PathBuf>,
    pub producer: ProducerConfig,
    pub consumer: ConsumerConfig,
}

/// How many partitions a topic has. Dead letters have one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Partitions {
    /// Of topic `message`: as many carriers can share the work.
    pub message: u32,
    /// Of each retry topic.
    pub retry: u32,
    /// Of topic `notification`: as many horns can share the work.
    pub notification: u32,
}

/// How long a record is kept, read or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Of topic `message`: longer than a carrier may ever be behind.
    #[serde(with = "humantime_serde")]
    pub message: Duration,
    /// Of the retry topics.
    #[serde(with = "humantime_serde")]
    pub retry: Duration,
    /// Of topic `notification`.
    #[serde(with = "humantime_serde")]
    pub notification: Duration,
    /// Of dead letters: as long as an operator may take to look at them.
    #[serde(with = "humantime_serde")]
    pub dead: Duration,
}

/// How records are published.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProducerConfig {
    /// How long a record may wait for its acknowledgement; then it fails (`Unavailable`). Longer than the
    /// brokers need to replace a dead leader.
    #[serde(with = "humantime_serde")]
    pub publish_timeout: Duration,
    /// Bytes of records that wait for their acknowledgement; a publisher beyond it waits for room.
    pub buffer_bytes: usize,
    /// How long a record waits for company. Callers come with batches, so it need not.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
}

/// How consumer groups read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerConfig {
    /// Who divides partitions among the members.
    pub protocol: GroupProtocol,
    /// After this silence a member counts as dead and the others get its partitions. Only with protocol
    /// `classic`; brokers bound it (6 s to 30 min unless told otherwise).
    #[serde(with = "humantime_serde")]
    pub session_timeout: Duration,
    /// How often a member shows that it lives, and learns that partitions are to move. Only with
    /// protocol `classic`.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// A member that does not poll for so long loses its partitions, although it lives; also how long the
    /// others wait for one that is asked to give some up.
    #[serde(with = "humantime_serde")]
    pub poll_interval_max: Duration,
    /// How long a broker holds a fetch that finds nothing; a partition that was just assigned waits that
    /// long at most.
    #[serde(with = "humantime_serde")]
    pub fetch_wait: Duration,
    /// Bytes of records fetched ahead by one member.
    pub prefetch_bytes: usize,
    /// Bytes of records in one poll, roughly; at least one record is returned.
    pub poll_bytes: usize,
    /// Bytes of records that a paused partition keeps at hand, so that it goes on at once when it is
    /// resumed; then it is paused at the broker.
    pub pause_bytes: usize,
}

/// How a consumer group agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupProtocol {
    /// The members agree among themselves (cooperative-sticky). The default: a member that was killed is
    /// replaced after `session_timeout`.
    Classic,
    /// The brokers decide (KIP-848, Kafka 4.0). The time after which a killed member is replaced is
    /// theirs too (`group.consumer.session.timeout.ms`), 45 s and not less unless they are told otherwise.
    Consumer,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        KafkaConfig {
            brokers: vec!["127.0.0.1:9092".into()],
            client_id: "packetboat".into(),
            rack: None,
            topic_prefix: "packetboat-".into(),
            partitions: Partitions::default(),
            replication_factor: 1,
            min_insync_replicas: 1,
            retention: Retention::default(),
            epoch_min: 1,
            record_bytes_max: 1 << 20,
            request_timeout: Duration::from_secs(10),
            properties: BTreeMap::new(),
            property_files: BTreeMap::new(),
            producer: ProducerConfig::default(),
            consumer: ConsumerConfig::default(),
        }
    }
}

impl Default for Partitions {
    fn default() -> Self {
        Partitions {
            message: 16,
            retry: 16,
            notification: 16,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            message: 7 * DAY,
            retry: 7 * DAY,
            notification: 3 * DAY,
            dead: 30 * DAY,
        }
    }
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            publish_timeout: Duration::from_secs(30),
            buffer_bytes: 64 << 20,
            linger: Duration::ZERO,
        }
    }
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig {
            protocol: GroupProtocol::Classic,
            session_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_millis(500),
            poll_interval_max: Duration::from_secs(60),
            fetch_wait: Duration::from_millis(100),
            prefetch_bytes: 16 << 20,
            poll_bytes: 4 << 20,
            pause_bytes: 256 << 10,
        }
    }
}
