//! What the topics should be.

use std::time::Duration;

use protocol::keys::Topic;

use super::super::config::KafkaConfig;
use super::super::layout::Layout;
use super::super::settings::batch_bytes_max;

/// Kafka drops whole segments, by their newest record: with longer ones retention would be far longer than it says.
const SEGMENT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A topic as the configuration wants it.
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) partitions: u32,
    pub(super) replicas: u32,
    /// Names and values as Kafka has them.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// All topics of an installation.
pub(super) fn wanted(config: &KafkaConfig, layout: &Layout) -> Vec<Wanted> {
    let topics = layout.topics().map(|(topic, name, partitions)| {
        let mut settings = common(config);
        settings.push(("cleanup.policy", "delete".into()));
        let retention = retention(topic, config);
        settings.push(("retention.ms", millis(retention)));
        settings.push(("segment.ms", millis(retention.min(SEGMENT_MAX))));
        Wanted {
            name: name.to_owned(),
            partitions,
            replicas: config.replication_factor,
            settings,
        }
    });
    let meta = {
        let mut settings = common(config);
        settings.push(("cleanup.policy", "compact".into()));
        Wanted {
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
        // A replica that is behind never becomes leader: that would lose what was accepted.
        ("unclean.leader.election.enable", "false".into()),
        // Time alone decides: a cluster's default in bytes would drop what nobody has read yet.
        ("retention.bytes", "-1".into()),
    ]
}

fn retention(topic: Topic, config: &KafkaConfig) -> Duration {
    let retention = &config.retention;
    match topic {
        Topic::Message => retention.message,
        Topic::Retry(_) => retention.retry,
        Topic::Notification => retention.notification,
        Topic::Dead | Topic::NotificationDead => retention.dead,
        // Kafka drops whole segments, by their newest record: a letter may stay for long after its time, and
        // what was done with it has to be known for as long.
        Topic::Operation => retention.dead.saturating_mul(2),
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    // holes 14: what a cluster's defaults would do to records that nobody has read yet.
    #[test]
    fn nothing_is_dropped_by_size_and_segments_end_within_a_day() {
        let config = KafkaConfig::default();
        for topic in wanted(&config, &Layout::of(&config)) {
            let value = |name| {
                topic
                    .settings
                    .iter()
                    .find(|(of, _)| *of == name)
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
    fn what_was_done_with_letters_is_kept_clearly_longer_than_they_are() {
        let config = KafkaConfig::default();
        let kept = |topic| retention(topic, &config);
        for letters in [Topic::Dead, Topic::NotificationDead] {
            assert_eq!(kept(Topic::Operation), kept(letters) * 2);
        }
    }
}
