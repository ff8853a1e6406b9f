//! Differences between wanted and actual topics, and the changes made.

use std::fmt;

/// A single deviation from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    Missing {
        topic: String,
    },
    /// Wrong partition count. Never changed: it is fixed at installation.
    Partitions {
        topic: String,
        expected: u32,
        actual: u32,
    },
    /// Fewer replicas than wanted. Never changed here, because brokers would have to copy data.
    Replicas {
        topic: String,
        expected: u32,
        actual: u32,
    },
    /// Different setting of a topic, under Kafka's name.
    Setting {
        topic: String,
        name: String,
        expected: String,
        actual: Option<String>,
    },
    /// Missing epoch of the log.
    Epoch {
        topic: String,
    },
}

/// Change made, or left, by [`apply`](super::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Created {
        topic: String,
        partitions: u32,
        replicas: u32,
    },
    Set(Difference),
    /// First epoch of the log, or a new one because the log was created anew.
    Epoch {
        from: Option<u32>,
        to: u32,
    },
    /// Difference left alone: it is fixed, or removing it would drop records earlier than now.
    Left(Difference),
}

impl Difference {
    /// Whether setting it takes nothing away: bounds on retention, record size and in-sync replicas
    /// may only grow.
    pub(super) fn may_be_set(&self) -> bool {
        let Difference::Setting {
            name,
            expected,
            actual,
            ..
        } = self
        else {
            return false;
        };
        let grows = ["retention.ms", "max.message.bytes", "min.insync.replicas"];
        if !grows.contains(&name.as_str()) {
            return true;
        }
        let number = |text: &str| text.parse::<i128>().ok();
        let no_limit = -1;
        match (actual.as_deref().and_then(number), number(expected)) {
            (Some(actual), Some(expected)) => actual != no_limit && expected > actual,
            (None, _) | (_, None) => true,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing { topic } => write!(f, "topic {topic} is missing"),
            Difference::Partitions {
                topic,
                expected,
                actual,
            } => write!(
                f,
                "topic {topic} has {actual} partitions, not {expected}; their number is fixed"
            ),
            Difference::Replicas {
                topic,
                expected,
                actual,
            } => write!(
                f,
                "topic {topic} is on {actual} brokers, not {expected}; add some with kafka-reassign-partitions"
            ),
            Difference::Setting {
                topic,
                name,
                expected,
                actual,
            } => {
                let actual = actual.as_deref().unwrap_or("not set");
                write!(f, "topic {topic}: {name} is {actual}, not {expected}")
            }
            Difference::Epoch { topic } => {
                write!(f, "topic {topic} lacks the log's epoch")
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Created {
                topic,
                partitions,
                replicas,
            } => write!(
                f,
                "created topic {topic}: {partitions} partitions on {replicas} brokers each"
            ),
            Change::Set(Difference::Setting {
                topic,
                name,
                expected,
                actual,
            }) => {
                let actual = actual.as_deref().unwrap_or("not set");
                write!(f, "topic {topic}: {name} set from {actual} to {expected}")
            }
            Change::Set(difference) => write!(f, "fixed: {difference}"),
            Change::Epoch { from: None, to } => write!(f, "the log's epoch is {to}"),
            Change::Epoch {
                from: Some(from),
                to,
            } => write!(f, "the log's epoch was raised from {from} to {to}"),
            Change::Left(difference) => write!(f, "not changed: {difference}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, actual: Option<&str>, expected: &str) -> Difference {
        Difference::Setting {
            topic: "message".into(),
            name: name.into(),
            expected: expected.into(),
            actual: actual.map(str::to_owned),
        }
    }

    #[test]
    fn limits_are_never_reduced() {
        assert!(setting("retention.ms", Some("10"), "20").may_be_set());
        assert!(!setting("retention.ms", Some("20"), "10").may_be_set());
        assert!(!setting("retention.ms", Some("-1"), "10").may_be_set());
        assert!(!setting("min.insync.replicas", Some("2"), "1").may_be_set());
        assert!(setting("max.message.bytes", None, "1").may_be_set());
        assert!(setting("cleanup.policy", Some("compact"), "delete").may_be_set());
        let topic = "message".to_owned();
        assert!(!Difference::Missing { topic }.may_be_set());
    }
}
