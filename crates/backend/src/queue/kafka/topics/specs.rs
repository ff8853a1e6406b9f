//! Wanted state of the topics.

use std::time::Duration;

use protocol::keys::Topic;

use super::super::config::{KafkaConfig, NOTIFICATION_RETENTION};
use super::super::layout::Layout;
use super::super::settings::batch_bytes_max;

/// Upper bound on segments. Kafka drops whole segments, by their newest record, so longer ones
/// would stretch the configured retention far.
const SEGMENT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Topic as configured.
pub(super) struct TopicSpec {
    pub(super) name: String,
    pub(super) partitions: u32,
    pub(super) replicas: u32,
    /// Kafka's setting names, with the wanted values.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// All topics of an installation.
pub(super) fn topic_specs(config: &KafkaConfig, layout: &Layout) -> Vec<TopicSpec> {
    let topics = layout.topics().map(|(topic, name, partitions)| {
        let mut settings = common(config);
        settings.push(("cleanup.policy", "delete".into()));
        let retention = retention(topic, config);
        settings.push(("retention.ms", millis(retention)));
        settings.push(("segment.ms", millis(retention.min(SEGMENT_MAX))));
        TopicSpec {
            name: name.to_owned(),
            partitions,
            replicas: config.replication_factor,
            settings,
        }
    });
    let meta = {
        let mut settings = common(config);
        settings.push(("cleanup.policy", "compact".into()));
        TopicSpec {
            name: layout.meta(),
            partitions: 1,
            replicas: config.replication_factor,
            settings,
        }
    };
    topics.chain([meta]).collect()
}

fn common(config: &KafkaConfig) -> Vec<(&'static str, String)> {
    vec![
        (
            "min.insync.replicas",
            config.min_insync_replicas.to_string(),
        ),
        ("message.timestamp.type", "LogAppendTime".into()),
        ("max.message.bytes", batch_bytes_max(config).to_string()),
        // A lagging replica never becomes leader: that would lose accepted records.
        ("unclean.leader.election.enable", "false".into()),
        // Only time removes records: a cluster-wide default in bytes would drop unread ones.
        ("retention.bytes", "-1".into()),
    ]
}

fn retention(topic: Topic, config: &KafkaConfig) -> Duration {
    let retention = &config.retention;
    match topic {
        Topic::Message | Topic::Retry(_) => retention.message,
        Topic::Notification => NOTIFICATION_RETENTION,
        Topic::Dead | Topic::NotificationDead => retention.dead,
        // Kafka drops whole segments, by their newest record: a dead letter may stay long after its
        // retention, and the operations on it must stay known for as long.
        Topic::Operation => retention.dead.saturating_mul(2),
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    // holes 14: a cluster's defaults could drop records that nobody has read yet.
    #[test]
    fn only_age_removes_records_and_segments_end_within_a_day() {
        let config = KafkaConfig::default();
        for topic in topic_specs(&config, &Layout::from_config(&config)) {
            let value = |name| {
                topic
                    .settings
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| value)
            };
            assert_eq!(value("retention.bytes").unwrap(), "-1", "{}", topic.name);
            if value("cleanup.policy").unwrap() == "delete" {
                let segment: u64 = value("segment.ms").unwrap().parse().unwrap();
                let retention: u64 = value("retention.ms").unwrap().parse().unwrap();
                assert!(segment <= retention.min(86_400_000), "{}", topic.name);
            }
        }
    }

    #[test]
    fn operations_are_retained_longer_than_dead_letters() {
        let config = KafkaConfig::default();
        let duration = |topic| retention(topic, &config);
        for letters in [Topic::Dead, Topic::NotificationDead] {
            assert_eq!(duration(Topic::Operation), duration(letters) * 2);
        }
    }
}
