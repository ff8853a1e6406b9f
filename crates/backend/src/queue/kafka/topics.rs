//! Topics of an installation: their wanted and actual state, and the changes between them.
//!
//! Nothing is ever deleted or shrunk here, and no topic changes its number of partitions, because
//! that would give a conversation a second writer.

mod difference;
mod specs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::consumer::Consumer;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;
use tokio::time::{Instant, sleep};

pub use self::difference::{Change, Difference};
use self::specs::{TopicSpec, topic_specs};
use super::config::KafkaConfig;
use super::layout::Layout;
use super::reader::{self, Client};
use super::report::{Reporter, blocking, failed};
use super::{SEAM, epoch, settings};
use crate::{Error, Result};

/// State of a topic on the brokers.
struct TopicState {
    partitions: u32,
    /// Smallest replica count among the partitions.
    replicas: u32,
    has_leader: bool,
}

/// Value of a topic's setting on the brokers.
struct Setting {
    value: String,
    /// Set on this topic rather than inherited from a default.
    is_own: bool,
}

/// Lists what `packetboat topics apply` would look at: missing topics, and differences in the
/// others.
pub async fn check(config: &KafkaConfig) -> Result<Vec<Difference>> {
    Admin::connect(config).await?.check().await
}

/// Creates missing topics and applies the settings that may be set; returns the changes made and
/// the differences left alone. May be repeated at any time, even after it failed halfway.
pub async fn apply(config: &KafkaConfig) -> Result<Vec<Change>> {
    Admin::connect(config).await?.apply().await
}

struct Admin {
    config: Arc<KafkaConfig>,
    layout: Layout,
    client: Arc<Client>,
    admin: Option<AdminClient<Reporter>>,
    options: AdminOptions,
}

impl Admin {
    async fn connect(config: &KafkaConfig) -> Result<Admin> {
        let config = Arc::new(config.clone());
        let layout = Layout::from_config(&config);
        let group = layout.reader();
        let (settings, admin_config) = (settings::client(&config)?, config.clone());
        let (client, admin) = blocking(move || {
            // An administrator's client is never polled for a token.
            let admin = if admin_config.sasl.by_token() {
                None
            } else {
                let admin = settings.create_with_context(Reporter::default());
                Some(admin.map_err(|error| failed("starting an administrator", error))?)
            };
            Ok((reader::connect(&admin_config, &group)?, admin))
        })
        .await?;
        let request_timeout = config.request_timeout;
        Ok(Admin {
            config,
            layout,
            client: Arc::new(client),
            admin,
            options: AdminOptions::new()
                .request_timeout(Some(request_timeout))
                .operation_timeout(Some(request_timeout)),
        })
    }

    fn admin(&self) -> Result<&AdminClient<Reporter>> {
        let admin = self.admin.as_ref();
        admin.ok_or_else(|| {
            let why = "topics are managed by an administrator with a password or a certificate, \
                       not with OAUTHBEARER: set kafka.sasl accordingly for this command only";
            Error::conflict(SEAM, why)
        })
    }

    async fn check(&self) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        for spec in topic_specs(&self.config, &self.layout) {
            match self.find(&spec.name).await? {
                None => differences.push(Difference::Missing { topic: spec.name }),
                Some(state) => {
                    differences.extend(shape_differences(&spec, &state));
                    if self.admin.is_none() {
                        continue;
                    }
                    let settings = self.settings(&spec.name).await?;
                    differences.extend(setting_differences(&spec, &settings));
                }
            }
        }
        let meta = self.layout.meta();
        let missing_meta = Difference::Missing {
            topic: meta.clone(),
        };
        if !differences.contains(&missing_meta) && self.epoch().await?.is_none() {
            differences.push(Difference::Epoch { topic: meta });
        }
        Ok(differences)
    }

    async fn apply(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        let specs = topic_specs(&self.config, &self.layout);
        let (meta, topics): (Vec<TopicSpec>, Vec<TopicSpec>) = specs
            .into_iter()
            .partition(|spec| spec.name == self.layout.meta());
        for spec in &meta {
            changes.extend(self.create_or_update(spec).await?);
        }
        // Raise the epoch before topic `message` is created: a crash in between skips an epoch but
        // never reuses one.
        changes.extend(self.raise_epoch().await?);
        for spec in &topics {
            changes.extend(self.create_or_update(spec).await?);
        }
        for spec in meta.iter().chain(&topics) {
            self.wait_for(&spec.name).await?;
        }
        Ok(changes)
    }

    /// Raises the epoch if the log is about to be created anew, or is below the configured minimum.
    async fn raise_epoch(&self) -> Result<Option<Change>> {
        let message = self.layout.name(protocol::keys::Topic::Message);
        let exists = self.find(message).await?.is_some();
        let lowest = self.config.epoch_min.max(1);
        let current = self.epoch().await?;
        let to = match (current, exists) {
            (Some(current), true) if current >= lowest => return Ok(None),
            (Some(current), true) => lowest.max(current),
            (Some(current), false) => lowest.max(current + 1),
            (None, false) => lowest,
            (None, true) if lowest > 1 => lowest,
            (None, true) => {
                return Err(Error::conflict(
                    SEAM,
                    format!(
                        "topic {message} exists, but its epoch is missing from topic {}: set \
                         epoch_min above every epoch that the stores have seen, and apply again",
                        self.layout.meta()
                    ),
                ));
            }
        };
        epoch::write(&self.config, &self.layout.meta(), to).await?;
        Ok(Some(Change::Epoch { from: current, to }))
    }

    async fn epoch(&self) -> Result<Option<u32>> {
        let (client, meta) = (self.client.clone(), self.layout.meta());
        let request_timeout = self.config.request_timeout;
        blocking(move || epoch::read(&client, &meta, request_timeout)).await
    }

    async fn find(&self, topic: &str) -> Result<Option<TopicState>> {
        let (client, topic) = (self.client.clone(), topic.to_owned());
        let request_timeout = self.config.request_timeout;
        blocking(move || {
            let state = find(&client, &topic, request_timeout);
            state.map_err(|error| reader::add_reason(&client, error))
        })
        .await
    }

    async fn create_or_update(&self, spec: &TopicSpec) -> Result<Vec<Change>> {
        match self.find(&spec.name).await? {
            None => {
                let change = self.create(spec).await?;
                self.wait_for(&spec.name).await?;
                Ok(change.into_iter().collect())
            }
            Some(state) => {
                let shape = shape_differences(spec, &state);
                let mut changes: Vec<Change> = shape.into_iter().map(Change::Left).collect();
                changes.extend(self.set(spec).await?);
                Ok(changes)
            }
        }
    }

    async fn create(&self, spec: &TopicSpec) -> Result<Option<Change>> {
        let create_failed = |error| failed(format!("creating topic {}", spec.name), error);
        let replicas = i32::try_from(spec.replicas).unwrap_or(i32::MAX);
        let partitions = i32::try_from(spec.partitions).unwrap_or(i32::MAX);
        let mut topic = NewTopic::new(&spec.name, partitions, TopicReplication::Fixed(replicas));
        for (name, value) in &spec.settings {
            topic = topic.set(name, value);
        }
        let request = self.admin()?.create_topics([&topic], &self.options);
        for answer in request.await.map_err(create_failed)? {
            match answer {
                // Somebody else applies at the same time.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => return Ok(None),
                Err((name, code)) => {
                    return Err(Error::unavailable(
                        SEAM,
                        format!(
                            "topic {name} was not created ({} partitions on {} brokers each): {code}",
                            spec.partitions, spec.replicas
                        ),
                    ));
                }
                Ok(_) => {}
            }
        }
        Ok(Some(Change::Created {
            topic: spec.name.clone(),
            partitions: spec.partitions,
            replicas: spec.replicas,
        }))
    }

    /// Waits until the brokers have agreed on a new topic.
    async fn wait_for(&self, topic: &str) -> Result<()> {
        let deadline = Instant::now() + self.config.request_timeout;
        while !self
            .find(topic)
            .await?
            .is_some_and(|state| state.has_leader)
        {
            if Instant::now() >= deadline {
                let why = format!("topic {topic} has no leader yet: try again");
                return Err(Error::unavailable(SEAM, why));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn settings(&self, topic: &str) -> Result<BTreeMap<String, Setting>> {
        let query_failed = |error| failed(format!("asking for the settings of {topic}"), error);
        let resource = ResourceSpecifier::Topic(topic);
        let request = self.admin()?.describe_configs([&resource], &self.options);
        let mut settings = BTreeMap::new();
        for answer in request.await.map_err(query_failed)? {
            let resource =
                answer.map_err(|code| query_failed(rdkafka::error::KafkaError::AdminOp(code)))?;
            settings.extend(resource.entries.into_iter().filter_map(|entry| {
                let is_own = entry.source == ConfigSource::DynamicTopic;
                Some((
                    entry.name,
                    Setting {
                        value: entry.value?,
                        is_own,
                    },
                ))
            }));
        }
        Ok(settings)
    }

    /// Applies the differing settings, except those that would remove records earlier than now.
    async fn set(&self, spec: &TopicSpec) -> Result<Vec<Change>> {
        let current = self.settings(&spec.name).await?;
        let differences = setting_differences(spec, &current);
        let (set, unsettable): (Vec<_>, Vec<_>) =
            differences.into_iter().partition(Difference::may_be_set);
        let mut changes: Vec<Change> = unsettable.into_iter().map(Change::Left).collect();
        if set.is_empty() {
            return Ok(changes);
        }
        let resource = ResourceSpecifier::Topic(&spec.name);
        let mut alteration = AlterConfig::new(resource);
        // The request replaces all settings of the topic, so settings made by others are sent
        // along.
        for (name, setting) in current.iter().filter(|(_, setting)| setting.is_own) {
            alteration = alteration.set(name, &setting.value);
        }
        for difference in &set {
            if let Difference::Setting {
                name,
                expected: value,
                ..
            } = difference
            {
                alteration = alteration.set(name, value);
            }
        }
        let alter_failed = |error| failed(format!("setting up topic {}", spec.name), error);
        let request = self.admin()?.alter_configs([&alteration], &self.options);
        for answer in request.await.map_err(alter_failed)? {
            answer.map_err(|(_, code)| alter_failed(rdkafka::error::KafkaError::AdminOp(code)))?;
        }
        changes.extend(set.into_iter().map(Change::Set));
        Ok(changes)
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let (client, admin) = (self.client.clone(), self.admin.take());
        // Dropped on this thread if none can be spawned.
        let _ = std::thread::Builder::new()
            .name("kafka-topics-end".into())
            .spawn(move || drop((client, admin)));
    }
}

/// State of the topic on the brokers; `None` if it does not exist. Blocks.
fn find(client: &Client, topic: &str, timeout: Duration) -> Result<Option<TopicState>> {
    let query_failed = |error| failed(format!("asking for topic {topic}"), error);
    let answer = client
        .fetch_metadata(Some(topic), timeout)
        .map_err(query_failed)?;
    let Some(metadata) = answer
        .topics()
        .iter()
        .find(|metadata| metadata.name() == topic)
    else {
        return Ok(None);
    };
    match metadata.error() {
        None => {}
        Some(
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION,
        ) => return Ok(None),
        // The topic exists, and is still being created.
        Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {}
        Some(code) => {
            return Err(query_failed(rdkafka::error::KafkaError::MetadataFetch(
                code.into(),
            )));
        }
    }
    let partitions = metadata.partitions();
    let replicas = partitions
        .iter()
        .map(|partition| partition.replicas().len());
    Ok(Some(TopicState {
        partitions: u32::try_from(partitions.len()).unwrap_or(u32::MAX),
        replicas: u32::try_from(replicas.min().unwrap_or_default()).unwrap_or(u32::MAX),
        has_leader: !partitions.is_empty()
            && partitions.iter().all(|partition| partition.leader() >= 0),
    }))
}

fn shape_differences(spec: &TopicSpec, state: &TopicState) -> Vec<Difference> {
    let mut differences = Vec::new();
    if state.partitions != spec.partitions {
        differences.push(Difference::Partitions {
            topic: spec.name.clone(),
            expected: spec.partitions,
            actual: state.partitions,
        });
    }
    if state.replicas < spec.replicas {
        differences.push(Difference::Replicas {
            topic: spec.name.clone(),
            expected: spec.replicas,
            actual: state.replicas,
        });
    }
    differences
}

fn setting_differences(spec: &TopicSpec, current: &BTreeMap<String, Setting>) -> Vec<Difference> {
    let settings = spec.settings.iter().filter_map(|(name, value)| {
        let current = current.get(*name).map(|setting| setting.value.clone());
        (current.as_ref() != Some(value)).then(|| Difference::Setting {
            topic: spec.name.clone(),
            name: (*name).to_owned(),
            expected: value.clone(),
            actual: current,
        })
    });
    settings.collect()
}

/// Checks at start that the topics have the partition counts by which conversations were placed;
/// returns the log's epoch. Blocks.
pub(super) fn check_installed(
    client: &Client,
    layout: &Layout,
    config: &KafkaConfig,
    timeout: Duration,
) -> Result<u32> {
    let advice =
        "see `packetboat topics check`, and create what is missing with `packetboat topics apply`";
    for (_, name, count) in layout.topics() {
        let Some(state) = find(client, name, timeout)? else {
            let brokers = config.brokers.join(",");
            return Err(Error::conflict(
                SEAM,
                format!("topic {name} does not exist on the brokers at {brokers}: {advice}"),
            ));
        };
        if state.partitions != count {
            return Err(Error::conflict(
                SEAM,
                format!(
                    "topic {name} has {} partitions and cannot be used with {count}, as \
                     conversations would get a second writer: set partitions to {}",
                    state.partitions, state.partitions
                ),
            ));
        }
    }
    let meta = layout.meta();
    let epoch = match find(client, &meta, timeout)? {
        Some(_) => epoch::read(client, &meta, timeout)?,
        None => None,
    };
    epoch.ok_or_else(|| {
        let why = format!("the log's epoch is missing from topic {meta}: {advice}");
        Error::conflict(SEAM, why)
    })
}
