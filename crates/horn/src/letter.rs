//! A notification that nobody will take: readable headers, and the original bytes as the value.

use api::task::NotificationTask;
use backend::queue::{NewRecord, Partition};
use bytes::Bytes;
use protocol::Timestamp;
use protocol::delivery::Source;
use protocol::keys::{Topic, partition_of};
use protocol::notify::Undeliverable;

/// What is known of it.
pub(crate) struct Letter<'a> {
    pub(crate) source: Source,
    pub(crate) key: &'a Bytes,
    pub(crate) value: &'a Bytes,
    /// `None` where the record could not be read.
    pub(crate) task: Option<&'a NotificationTask>,
    pub(crate) reason: Undeliverable,
    pub(crate) attempts: u32,
    pub(crate) error: &'a str,
    pub(crate) provider: &'static str,
    pub(crate) failed_at: Timestamp,
}

impl Letter<'_> {
    /// The record of the topic `notification-dead`, of which there are so many partitions.
    pub(crate) fn record(&self, partitions: u32) -> NewRecord {
        let header = |name: &str, value: String| (name.to_owned(), Bytes::from(value));
        let mut headers = vec![
            header("dlq-id", self.source.letter(&[])),
            header("reason", self.reason.name().to_owned()),
            header("error-message", self.error.replace(char::is_control, " ")),
            header("attempts", self.attempts.to_string()),
            header("provider", self.provider.to_owned()),
            header("last-failed-at", self.failed_at.to_string()),
            header("origin-topic", self.source.topic.name().to_owned()),
            header("origin-partition", self.source.partition.to_string()),
            header("origin-offset", self.source.offset.to_string()),
            header("schema", "packetboat.v1.NotificationTask".to_owned()),
        ];
        if let Some(task) = self.task {
            let notification = task.notification;
            let target = notification.target;
            headers.push(header("msg-id", notification.message.to_string()));
            headers.push(header("user", target.user.to_string()));
            headers.push(header("platform", target.platform.name().to_owned()));
            headers.extend(
                task.traceparent
                    .clone()
                    .map(|traceparent| header("traceparent", traceparent)),
            );
        }
        NewRecord {
            partition: Partition {
                topic: Topic::NotificationDead,
                number: partition_of(self.key, partitions),
            },
            key: self.key.clone(),
            headers,
            value: self.value.clone(),
        }
    }
}
