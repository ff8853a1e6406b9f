//! Decisions of the group, queued until the member's next poll.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;

use super::super::config::KafkaConfig;
use super::super::layout::Layout;
use super::super::report::Reporter;
use crate::queue::Partition;

/// A change of the assignment. librdkafka holds back the next one until this one is carried out.
#[derive(Debug)]
pub(super) enum AssignmentChange {
    Assign(Vec<Partition>),
    Revoke(Vec<Partition>),
    Lose(Vec<Partition>),
}

/// Callbacks of librdkafka, made while the consumer is polled.
pub(super) struct Rebalances {
    layout: Arc<Layout>,
    reporter: Reporter,
    changes: Mutex<VecDeque<AssignmentChange>>,
    /// Reports of librdkafka about offsets missing from the log.
    gap_reasons: Mutex<Vec<String>>,
    /// Nobody polls any more: changes are carried out at once.
    is_leaving: AtomicBool,
}

impl Rebalances {
    pub(super) fn new(config: &KafkaConfig, layout: Arc<Layout>) -> Rebalances {
        Rebalances {
            layout,
            reporter: Reporter::new(config),
            changes: Mutex::default(),
            gap_reasons: Mutex::default(),
            is_leaving: AtomicBool::new(false),
        }
    }

    pub(super) fn next(&self) -> Option<AssignmentChange> {
        self.changes.lock().pop_front()
    }

    pub(super) fn any(&self) -> bool {
        !self.changes.lock().is_empty()
    }

    pub(super) fn misplaced(&self) -> Vec<String> {
        std::mem::take(&mut *self.gap_reasons.lock())
    }

    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    fn partitions(&self, list: &TopicPartitionList) -> Vec<Partition> {
        let elements = list.elements();
        let ours = elements
            .iter()
            .filter_map(|element| self.layout.partition(element.topic(), element.partition()));
        ours.collect()
    }
}

/// Whether the offset a partition was to be read from is not in the log.
pub(super) fn is_offset_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::AutoOffsetReset
                | RDKafkaErrorCode::LogTruncation
                | RDKafkaErrorCode::OffsetOutOfRange
        )
    )
}

/// Text of librdkafka's error `_LOG_TRUNCATION`.
const TRUNCATION: &str = "Local: Partition log truncation detected";

/// Parses the position at which librdkafka found the log truncated; `None` for other reasons. The
/// error has no field for it; a test on mock brokers pins the wording.
pub(in super::super) fn truncated_at(reason: &str) -> Option<u64> {
    if !reason.contains(TRUNCATION) {
        return None;
    }
    let (position, _) = reason.split_once(" (leader epoch ")?;
    position.rsplit(' ').next()?.parse().ok()
}

impl ClientContext for Rebalances {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.reporter.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if is_offset_missing(&error) {
            self.gap_reasons.lock().push(reason.to_owned());
        } else {
            self.reporter.error(&error, reason);
        }
    }

    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn StdError>> {
        self.reporter.token()
    }
}

impl ConsumerContext for Rebalances {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        code: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let is_assigned = code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.is_leaving.load(Ordering::Acquire) {
            apply_assignment(consumer, is_assigned, list);
            return;
        }
        let partitions = self.partitions(list);
        let change = if is_assigned {
            AssignmentChange::Assign(partitions)
        } else if consumer.assignment_lost() {
            AssignmentChange::Lose(partitions)
        } else {
            AssignmentChange::Revoke(partitions)
        };
        self.changes.lock().push_back(change);
    }
}

/// Accepts a change of the assignment towards librdkafka.
pub(super) fn apply_assignment<C: ConsumerContext>(
    consumer: &impl Consumer<C>,
    is_assigned: bool,
    list: &TopicPartitionList,
) {
    let outcome = if is_assigned {
        consumer.incremental_assign(list)
    } else {
        consumer.incremental_unassign(list)
    };
    if let Err(error) = outcome {
        tracing::info!(%error, assigned = is_assigned, "assignment cleared");
        // librdkafka must not be left waiting for an answer, whatever the change was.
        if let Err(error) = consumer.unassign() {
            tracing::warn!(%error, "cannot clear the assignment");
        }
    }
}
