//! Configuration of the log on Kafka: connection, layout and bounds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::settings::{Problems, names_secret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SEAM;
use super::sasl::SaslConfig;
use super::settings::{FIXED_PROPERTIES, PASSWORD, dedicated_setting};
use crate::credentials::Credentials;
use crate::tls::ClientTlsConfig;
use crate::{Error, Result};

/// Replication factor from which on losing one broker must not lose an accepted record.
const SAFE_REPLICATION_FACTOR: u32 = 3;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Retention of topic `notification`: horn gives up on a notification before.
pub const NOTIFICATION_RETENTION: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// Section `kafka`: the log. The defaults suit a laptop with one broker.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaConfig {
    /// `host:port` of some brokers, through which the others are found.
    pub brokers: Vec<String>,
    /// Name of this process in the logs and quotas of the brokers.
    pub client_id: String,
    /// Rack or zone of this process. Consumers read from a replica in it, if brokers allow that.
    #[schemars(extend("examples" = ["zone-a"]))]
    pub rack: Option<String>,
    /// Prefix of every topic and consumer group, so that installations can share a cluster.
    pub topic_prefix: String,
    /// Section `kafka.partitions`: partitions of the topics (dead letters have one). Fixed at
    /// installation: another number would give a conversation a second writer, and is refused at
    /// start.
    pub partitions: Partitions,
    /// Number of brokers that hold each record. 3 in production.
    #[schemars(range(max = 32_767))]
    pub replication_factor: u32,
    /// Number of brokers that must have a record before it counts as accepted. 2 in production.
    #[schemars(range(max = 32_767))]
    pub min_insync_replicas: u32,
    /// Allows `min_insync_replicas` 1 with three copies or more, which is otherwise refused: the
    /// loss of one broker may then lose accepted messages.
    pub unsafe_single_copy: bool,
    /// Section `kafka.retention`: ages at which records are removed, read or not.
    pub retention: Retention,
    /// Lowest epoch that `packetboat topics apply` gives the log. Raise it above every epoch in the
    /// stores if topic `meta` was lost while they still hold data of an older log, and above the
    /// log's epoch if the log lost its tail; never otherwise.
    pub epoch_min: u32,
    /// Maximum size of a record in bytes, key and headers included; larger ones are refused.
    #[schemars(range(max = 104_857_600))]
    pub record_bytes_max: usize,
    /// Timeout of a request to the brokers: connecting, commits, reads for operators.
    #[serde(skip)]
    pub request_timeout: Duration,
    /// Section `kafka.tls`: TLS. Changed files are read again, and clients replaced; files that are
    /// unusable, or that brokers refuse, change nothing.
    pub tls: ClientTlsConfig,
    /// Section `kafka.sasl`: authentication.
    pub sasl: SaslConfig,
    /// Additional properties for librdkafka, by the names in its documentation:
    /// `ssl.endpoint.identification.algorithm`, `socket.nagle.disable` … Secrets are refused, and
    /// so are properties that the log's guarantees rest on or that have a setting of their own.
    pub properties: BTreeMap<String, String>,
    /// Files that each hold the value of one further property, for secret values.
    pub property_files: BTreeMap<String, PathBuf>,
    /// Publishing.
    #[serde(skip)]
    pub producer: ProducerConfig,
    /// Section `kafka.consumer`: reading, in consumer groups.
    pub consumer: ConsumerConfig,
}

/// Partitions of a topic.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Partitions {
    /// Number of partitions of topic `message`. Bounds how many carriers can share the work.
    #[schemars(range(max = 200_000))]
    pub message: u32,
    /// Number of partitions of each retry topic.
    #[schemars(range(max = 200_000))]
    pub retry: u32,
    /// Number of partitions of topic `notification`. Bounds how many horns can share the work.
    #[schemars(range(max = 200_000))]
    pub notification: u32,
}

/// Ages at which records are removed, read or not.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Retention of topic `message` and of the retry topics. Must exceed the largest lag of a
    /// carrier.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub message: Duration,
    /// Retention of dead letters: the time that operators have to look at them.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub dead: Duration,
}

/// Publishing.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Time for a record to be acknowledged; then it fails as `unavailable`. Must exceed the time
    /// that brokers need to replace a dead leader.
    pub publish_timeout: Duration,
    /// Maximum size of the records that wait for their acknowledgement, in bytes. Further
    /// publishers wait for room.
    pub buffer_bytes: usize,
    /// Time that a record waits for others, so that they share a request.
    pub linger: Duration,
}

/// Reading, in consumer groups.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerConfig {
    /// Protocol that divides the partitions among the members.
    pub protocol: GroupProtocol,
    /// Silence after which a member counts as dead and the others get its partitions. Only with
    /// `classic`; brokers bound it, too (6 s by default).
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMaximum" = "1m"))]
    pub session_timeout: Duration,
    /// Maximum time between two polls of a member. A slower one loses its partitions, although it
    /// lives. Also the time that the others wait for a member to give up a partition.
    #[serde(skip)]
    pub poll_interval_max: Duration,
}

/// Protocol by which a consumer group divides its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupProtocol {
    /// Agreement among the members (cooperative-sticky). A killed member is replaced after
    /// `session_timeout`.
    Classic,
    /// Assignment by the brokers (KIP-848, Kafka 4.0), which also decide when a killed member is
    /// replaced (`group.consumer.session.timeout.ms`): after 45 s by default, and by default no
    /// sooner.
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
            unsafe_single_copy: false,
            retention: Retention::default(),
            epoch_min: 1,
            record_bytes_max: 1 << 20,
            request_timeout: Duration::from_secs(10),
            tls: ClientTlsConfig::default(),
            sasl: SaslConfig::default(),
            properties: BTreeMap::new(),
            property_files: BTreeMap::new(),
            producer: ProducerConfig::default(),
            consumer: ConsumerConfig::default(),
        }
    }
}

impl KafkaConfig {
    /// Lists the settings that cannot work or would break the log's guarantees. Asks no broker and
    /// reads no file.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.addresses("brokers", &self.brokers);
        self.check_replication(&mut problems);
        for (key, count) in [
            ("partitions.message", self.partitions.message),
            ("partitions.retry", self.partitions.retry),
            ("partitions.notification", self.partitions.notification),
        ] {
            if count == 0 {
                problems.refuse(key, count, "a topic needs partitions", "At least 1");
            }
        }
        if self.record_bytes_max == 0 {
            problems.refuse("record_bytes_max", 0, "no record would fit", "At least 1");
        }
        problems.section("tls", self.tls.problems());
        problems.section("sasl", self.sasl.problems(self.tls.is_on()));
        self.check_properties(&mut problems);
        problems
    }

    fn check_properties(&self, problems: &mut Problems) {
        let names = self.properties.keys().map(|name| ("properties", name));
        let files = self.property_files.keys();
        let names = names.chain(files.map(|name| ("property_files", name)));
        for (table, name) in names {
            let key = format!("{table}.{name:?}");
            if let Some(setting) = dedicated_setting(name) {
                let reason = "this property has a setting of its own";
                problems.refuse(&key, "", reason, &format!("Use {setting}"));
            } else if FIXED_PROPERTIES.contains(&name.as_str()) {
                let reason = "this property is managed by Packetboat";
                problems.refuse(&key, "", reason, "Remove it");
            } else if table == "properties" && names_secret(name) {
                let remedy = "Write it to a file, and list the file in kafka.property_files";
                problems.refuse(&key, "", "secrets do not belong in settings", remedy);
            }
        }
    }

    /// Loads the files as they are now, except the token, which each client reads when it needs
    /// one. Blocks while it reads a few small files.
    pub(super) fn credentials(&self) -> Result<Arc<Credentials>> {
        let password = (self.sasl.password_file.as_deref()).map(|file| (PASSWORD, file));
        let files = self.property_files.iter();
        let files = files.map(|(name, file)| (name.as_str(), file.as_path()));
        Credentials::load(SEAM, "kafka", &self.tls, password.into_iter().chain(files))
    }

    fn check_replication(&self, problems: &mut Problems) {
        let (copies, in_sync) = (self.replication_factor, self.min_insync_replicas);
        if copies == 0 {
            problems.refuse("replication_factor", 0, "nothing would be stored", "Use 3");
        }
        let key = "min_insync_replicas";
        if in_sync == 0 {
            let reason = "accepted records would not be stored anywhere";
            problems.refuse(key, in_sync, reason, "Use 2");
        } else if in_sync > copies {
            let reason =
                format!("kafka.replication_factor is {copies}: no record could be accepted");
            problems.refuse(
                key,
                in_sync,
                &reason,
                "Use one less than kafka.replication_factor",
            );
        } else if copies >= SAFE_REPLICATION_FACTOR && in_sync == 1 && !self.unsafe_single_copy {
            let reason = format!(
                "with {copies} copies, a message would count as accepted on one broker, and be lost with it"
            );
            let remedy = "Use 2, or override with kafka.unsafe_single_copy = true";
            problems.refuse(key, in_sync, &reason, remedy);
        }
    }

    /// Fails with `Conflict` and the list of all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
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
            dead: 30 * DAY,
        }
    }
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            publish_timeout: Duration::from_secs(30),
            buffer_bytes: 64 << 20,
            linger: Duration::from_micros(500),
        }
    }
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig {
            protocol: GroupProtocol::Classic,
            session_timeout: Duration::from_secs(10),
            poll_interval_max: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: fn(&mut KafkaConfig)) -> String {
        let mut config = KafkaConfig::default();
        change(&mut config);
        let outcome = config.check();
        outcome.map_or_else(|error| error.source.to_string(), |()| String::new())
    }

    #[test]
    fn three_copies_are_acknowledged_by_two_unless_insisted_on() {
        assert_eq!(refusal(|_| ()), "");
        assert_eq!(refusal(|c| c.replication_factor = 2), "");
        let single = refusal(|c| c.replication_factor = 3);
        assert!(single.contains("unsafe_single_copy"), "{single}");
        let overridden_single =
            refusal(|c| (c.replication_factor, c.unsafe_single_copy) = (3, true));
        assert_eq!(overridden_single, "");
        let safe = refusal(|c| (c.replication_factor, c.min_insync_replicas) = (3, 2));
        assert_eq!(safe, "");
        assert!(refusal(|c| c.min_insync_replicas = 2).contains("no record could be accepted"));
    }

    #[test]
    fn unworkable_settings_are_refused_by_name() {
        assert!(refusal(|c| c.brokers.clear()).contains("brokers"));
        assert!(refusal(|c| c.min_insync_replicas = 0).contains("min_insync_replicas"));
        assert!(refusal(|c| c.partitions.retry = 0).contains("partitions.retry"));
    }

    #[test]
    fn a_secret_among_the_properties_is_refused_without_its_value() {
        for (name, remedy) in [
            ("sasl.password", "kafka.sasl.password_file"),
            ("SSL.Key.Pem", "kafka.tls.key_file"),
            ("sasl.jaas.config", "property_files"),
            ("sasl.oauthbearer.client.secret", "property_files"),
            (
                "sasl.oauthbearer.assertion.private.key.passphrase",
                "property_files",
            ),
        ] {
            let mut config = KafkaConfig::default();
            config.properties.insert(name.into(), "hunter2".into());
            let text = config.check().expect_err("a secret").source.to_string();
            assert!(text.contains(name) && text.contains(remedy), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert!(
            !names_secret("sasl.oauthbearer.token.endpoint.url"),
            "an address"
        );
    }
}
