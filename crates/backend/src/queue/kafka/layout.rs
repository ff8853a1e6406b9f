//! Names of an installation's topics and groups, and the topics' partition counts.

use protocol::keys::Topic;

use super::SEAM;
use super::config::KafkaConfig;
use crate::queue::Partition;
use crate::{Error, Result};

/// Names and partition counts on the brokers.
#[derive(Debug)]
pub(super) struct Layout {
    prefix: String,
    /// In order of [`Topic::ALL`].
    topics: Vec<(Topic, String, u32)>,
}

impl Layout {
    pub(super) fn from_config(config: &KafkaConfig) -> Layout {
        let topics = Topic::ALL.into_iter().map(|topic| {
            let name = format!("{}{}", config.topic_prefix, topic.name());
            (topic, name, partition_count(topic, config))
        });
        Layout {
            prefix: config.topic_prefix.clone(),
            topics: topics.collect(),
        }
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = (Topic, &str, u32)> {
        self.topics
            .iter()
            .map(|(topic, name, count)| (*topic, name.as_str(), *count))
    }

    pub(super) fn name(&self, topic: Topic) -> &str {
        let mut topics = self.topics.iter();
        topics
            .find(|(candidate, ..)| *candidate == topic)
            .map_or_else(|| topic.name(), |(_, name, _)| name.as_str())
    }

    pub(super) fn count(&self, topic: Topic) -> u32 {
        let mut topics = self.topics.iter();
        topics
            .find(|(candidate, ..)| *candidate == topic)
            .map_or(0, |(.., count)| *count)
    }

    /// Name of the topic that stores the log's epoch.
    pub(super) fn meta(&self) -> String {
        format!("{}meta", self.prefix)
    }

    /// Group name per topic, so that members that join or leave disturb only readers of that topic.
    pub(super) fn group(&self, group: &str, topic: Topic) -> String {
        format!("{}{group}-{}", self.prefix, topic.name())
    }

    /// Group name of clients that read without a group.
    pub(super) fn reader(&self) -> String {
        format!("{}reader", self.prefix)
    }

    /// Topic name and partition number on the brokers; `Conflict` for a partition that does not
    /// exist.
    pub(super) fn place(&self, partition: Partition) -> Result<(&str, i32)> {
        if partition.number < self.count(partition.topic)
            && let Ok(number) = i32::try_from(partition.number)
        {
            return Ok((self.name(partition.topic), number));
        }
        Err(Error::conflict(
            SEAM,
            format!("no partition {}/{}", partition.topic, partition.number),
        ))
    }

    /// Resolves a name and number on the brokers; `None` for a topic that is not ours.
    pub(super) fn partition(&self, name: &str, number: i32) -> Option<Partition> {
        let topic = Topic::from_name(name.strip_prefix(&self.prefix)?)?;
        Some(Partition {
            topic,
            number: u32::try_from(number).ok()?,
        })
    }
}

fn partition_count(topic: Topic, config: &KafkaConfig) -> u32 {
    match topic {
        Topic::Message => config.partitions.message,
        Topic::Retry(_) => config.partitions.retry,
        Topic::Notification => config.partitions.notification,
        Topic::Dead | Topic::NotificationDead | Topic::Operation => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_partitions() {
        let layout = Layout::from_config(&KafkaConfig::default());
        for (topic, name, count) in layout.topics() {
            let partition = Partition { topic, number: 0 };
            assert_eq!(layout.place(partition).unwrap(), (name, 0));
            assert_eq!(layout.partition(name, 0), Some(partition));
            let number = count;
            assert!(layout.place(Partition { topic, number }).is_err());
        }
        assert_eq!(layout.partition("packetboat-meta", 0), None);
        assert_eq!(layout.partition("other-message", 0), None);
        assert_eq!(layout.partition("packetboat-message", -1), None);
    }
}
