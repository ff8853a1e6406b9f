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
use self::specs::{TopicSpec, wanted};
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
    led: bool,
}

/// Value of a topic's setting on the brokers.
struct Setting {
    value: String,
    /// Set on this topic rather than inherited from a default.
    own: bool,
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
        let layout = Layout::of(&config);
        let group = layout.reader();
        let (settings, shared) = (settings::client(&config)?, config.clone());
        let (client, admin) = blocking(move || {
            let admin = match shared.sasl.by_token() {
                // An administrator's client is never polled for a token.
                true => None,
                false => Some(
                    settings
                        .create_with_context(Reporter::default())
                        .map_err(|error| failed("starting an administrator", error))?,
                ),
            };
            Ok((reader::connect(&shared, &group)?, admin))
        })
        .await?;
        let patience = config.request_timeout;
        Ok(Admin {
            config,
            layout,
            client: Arc::new(client),
            admin,
            options: AdminOptions::new()
                .request_timeout(Some(patience))
                .operation_timeout(Some(patience)),
        })
    }

    fn admin(&self) -> Result<&AdminClient<Reporter>> {
        let admin = self.admin.as_ref();
        admin.ok_or_else(|| {
            let why = "topics are made and set by an administrator who signs in with a password or a certificate, not \
                       with OAUTHBEARER: let kafka.sasl say so for this command alone";
            Error::conflict(SEAM, why)
        })
    }

    async fn check(&self) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        for wanted in wanted(&self.config, &self.layout) {
            match self.find(&wanted.name).await? {
                None => differences.push(Difference::Missing { topic: wanted.name }),
                Some(found) => {
                    differences.extend(in_shape(&wanted, &found));
                    if self.admin.is_none() {
                        continue;
                    }
                    let settings = self.settings(&wanted.name).await?;
                    differences.extend(in_settings(&wanted, &settings));
                }
            }
        }
        let meta = self.layout.meta();
        let missing = Difference::Missing {
            topic: meta.clone(),
        };
        if !differences.contains(&missing) && self.epoch().await?.is_none() {
            differences.push(Difference::Epoch { topic: meta });
        }
        Ok(differences)
    }

    async fn apply(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        let wanted = wanted(&self.config, &self.layout);
        let (meta, topics): (Vec<TopicSpec>, Vec<TopicSpec>) = wanted
            .into_iter()
            .partition(|wanted| wanted.name == self.layout.meta());
        for wanted in &meta {
            changes.extend(self.make(wanted).await?);
        }
        // Raise the epoch before topic `message` is created: a crash in between skips an epoch but
        // never reuses one.
        changes.extend(self.raise_epoch().await?);
        for wanted in &topics {
            changes.extend(self.make(wanted).await?);
        }
        for wanted in meta.iter().chain(&topics) {
            self.wait_for(&wanted.name).await?;
        }
        Ok(changes)
    }

    /// Raises the epoch if the log is about to be created anew, or is below the configured minimum.
    async fn raise_epoch(&self) -> Result<Option<Change>> {
        let message = self.layout.name(protocol::keys::Topic::Message);
        let exists = self.find(message).await?.is_some();
        let lowest = self.config.epoch_min.max(1);
        let known = self.epoch().await?;
        let to = match (known, exists) {
            (Some(known), true) if known >= lowest => return Ok(None),
            (Some(known), true) => lowest.max(known),
            (Some(known), false) => lowest.max(known + 1),
            (None, false) => lowest,
            (None, true) if lowest > 1 => lowest,
            (None, true) => {
                return Err(Error::conflict(
                    SEAM,
                    format!(
                        "topic {message} is there, but topic {} does not know its epoch any more: set \
                         epoch_min to a number above every epoch that the stores have seen, and apply \
                         again",
                        self.layout.meta()
                    ),
                ));
            }
        };
        epoch::write(&self.config, &self.layout.meta(), to).await?;
        Ok(Some(Change::Epoch { from: known, to }))
    }

    async fn epoch(&self) -> Result<Option<u32>> {
        let (client, meta) = (self.client.clone(), self.layout.meta());
        let patience = self.config.request_timeout;
        blocking(move || epoch::read(&client, &meta, patience)).await
    }

    async fn find(&self, topic: &str) -> Result<Option<TopicState>> {
        let (client, topic) = (self.client.clone(), topic.to_owned());
        let patience = self.config.request_timeout;
        blocking(move || {
            let found = find(&client, &topic, patience);
            found.map_err(|error| reader::explained(&client, error))
        })
        .await
    }

    async fn make(&self, wanted: &TopicSpec) -> Result<Vec<Change>> {
        match self.find(&wanted.name).await? {
            None => {
                let created = self.create(wanted).await?;
                self.wait_for(&wanted.name).await?;
                Ok(created.into_iter().collect())
            }
            Some(found) => {
                let shape = in_shape(wanted, &found);
                let mut changes: Vec<Change> = shape.into_iter().map(Change::Left).collect();
                changes.extend(self.set(wanted).await?);
                Ok(changes)
            }
        }
    }

    async fn create(&self, wanted: &TopicSpec) -> Result<Option<Change>> {
        let creating = |error| failed(format!("creating topic {}", wanted.name), error);
        let replicas = i32::try_from(wanted.replicas).unwrap_or(i32::MAX);
        let partitions = i32::try_from(wanted.partitions).unwrap_or(i32::MAX);
        let mut topic = NewTopic::new(&wanted.name, partitions, TopicReplication::Fixed(replicas));
        for (name, value) in &wanted.settings {
            topic = topic.set(name, value);
        }
        let created = self.admin()?.create_topics([&topic], &self.options);
        for answer in created.await.map_err(creating)? {
            match answer {
                // Somebody else applies at the same time.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => return Ok(None),
                Err((name, code)) => {
                    return Err(Error::unavailable(
                        SEAM,
                        format!(
                            "topic {name} was not created ({} partitions on {} brokers each): {code}",
                            wanted.partitions, wanted.replicas
                        ),
                    ));
                }
                Ok(_) => {}
            }
        }
        Ok(Some(Change::Created {
            topic: wanted.name.clone(),
            partitions: wanted.partitions,
            replicas: wanted.replicas,
        }))
    }

    /// Waits until the brokers have agreed on a new topic.
    async fn wait_for(&self, topic: &str) -> Result<()> {
        let deadline = Instant::now() + self.config.request_timeout;
        while !self.find(topic).await?.is_some_and(|found| found.led) {
            if Instant::now() >= deadline {
                let why = format!("topic {topic} has no leader yet: try again");
                return Err(Error::unavailable(SEAM, why));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn settings(&self, topic: &str) -> Result<BTreeMap<String, Setting>> {
        let asking = |error| failed(format!("asking for the settings of {topic}"), error);
        let resource = ResourceSpecifier::Topic(topic);
        let described = self.admin()?.describe_configs([&resource], &self.options);
        let mut settings = BTreeMap::new();
        for answer in described.await.map_err(asking)? {
            let resource =
                answer.map_err(|code| asking(rdkafka::error::KafkaError::AdminOp(code)))?;
            settings.extend(resource.entries.into_iter().filter_map(|entry| {
                let own = entry.source == ConfigSource::DynamicTopic;
                Some((
                    entry.name,
                    Setting {
                        value: entry.value?,
                        own,
                    },
                ))
            }));
        }
        Ok(settings)
    }

    /// Applies the differing settings, except those that would remove records earlier than now.
    async fn set(&self, wanted: &TopicSpec) -> Result<Vec<Change>> {
        let found = self.settings(&wanted.name).await?;
        let differences = in_settings(wanted, &found);
        let (set, left): (Vec<_>, Vec<_>) =
            differences.into_iter().partition(Difference::may_be_set);
        let mut changes: Vec<Change> = left.into_iter().map(Change::Left).collect();
        if set.is_empty() {
            return Ok(changes);
        }
        let resource = ResourceSpecifier::Topic(&wanted.name);
        let mut altered = AlterConfig::new(resource);
        // The request replaces all settings of the topic, so settings made by others are sent
        // along.
        for (name, setting) in found.iter().filter(|(_, setting)| setting.own) {
            altered = altered.set(name, &setting.value);
        }
        for difference in &set {
            if let Difference::Setting { name, wanted, .. } = difference {
                altered = altered.set(name, wanted);
            }
        }
        let setting = |error| failed(format!("setting up topic {}", wanted.name), error);
        let done = self.admin()?.alter_configs([&altered], &self.options);
        for answer in done.await.map_err(setting)? {
            answer.map_err(|(_, code)| setting(rdkafka::error::KafkaError::AdminOp(code)))?;
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
fn find(client: &Client, topic: &str, patience: Duration) -> Result<Option<TopicState>> {
    let asking = |error| failed(format!("asking for topic {topic}"), error);
    let answer = client
        .fetch_metadata(Some(topic), patience)
        .map_err(asking)?;
    let Some(found) = answer.topics().iter().find(|found| found.name() == topic) else {
        return Ok(None);
    };
    match found.error() {
        None => {}
        Some(
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION,
        ) => return Ok(None),
        // The topic exists, and is still being created.
        Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {}
        Some(code) => {
            return Err(asking(rdkafka::error::KafkaError::MetadataFetch(
                code.into(),
            )));
        }
    }
    let partitions = found.partitions();
    let replicas = partitions
        .iter()
        .map(|partition| partition.replicas().len());
    Ok(Some(TopicState {
        partitions: u32::try_from(partitions.len()).unwrap_or(u32::MAX),
        replicas: u32::try_from(replicas.min().unwrap_or_default()).unwrap_or(u32::MAX),
        led: !partitions.is_empty() && partitions.iter().all(|partition| partition.leader() >= 0),
    }))
}

fn in_shape(wanted: &TopicSpec, found: &TopicState) -> Vec<Difference> {
    let mut differences = Vec::new();
    if found.partitions != wanted.partitions {
        differences.push(Difference::Partitions {
            topic: wanted.name.clone(),
            wanted: wanted.partitions,
            found: found.partitions,
        });
    }
    if found.replicas < wanted.replicas {
        differences.push(Difference::Replicas {
            topic: wanted.name.clone(),
            wanted: wanted.replicas,
            found: found.replicas,
        });
    }
    differences
}

fn in_settings(wanted: &TopicSpec, found: &BTreeMap<String, Setting>) -> Vec<Difference> {
    let settings = wanted.settings.iter().filter_map(|(name, value)| {
        let found = found.get(*name).map(|setting| setting.value.clone());
        (found.as_ref() != Some(value)).then(|| Difference::Setting {
            topic: wanted.name.clone(),
            name: (*name).to_owned(),
            wanted: value.clone(),
            found,
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
    patience: Duration,
) -> Result<u32> {
    let advice =
        "see `packetboat topics check`, and let `packetboat topics apply` make what is missing";
    for (_, name, count) in layout.topics() {
        let Some(found) = find(client, name, patience)? else {
            let brokers = config.brokers.join(",");
            return Err(Error::conflict(
                SEAM,
                format!("topic {name} is not on the brokers at {brokers}: {advice}"),
            ));
        };
        if found.partitions != count {
            return Err(Error::conflict(
                SEAM,
                format!(
                    "topic {name} was made with {} partitions and cannot be used with {count}, because \
                     conversations would get a second writer: set partitions to {}",
                    found.partitions, found.partitions
                ),
            ));
        }
    }
    let meta = layout.meta();
    let known = match find(client, &meta, patience)? {
        Some(_) => epoch::read(client, &meta, patience)?,
        None => None,
    };
    known.ok_or_else(|| {
        let why = format!("topic {meta} does not know the log's epoch: {advice}");
        Error::conflict(SEAM, why)
    })
}
