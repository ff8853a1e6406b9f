//! Records that a carrier publishes: retries, dead letters, notifications.

use std::sync::Arc;

use api::dead_letter::{DeadLetter, LetterOrigin};
use api::task::{NotificationTask, Value, split};
use backend::Backends;
use backend::queue::{NewRecord, Queue};
use bytes::Bytes;
use protocol::delivery::{self, FailedPart, Obligation, Retry, Settlement};
use protocol::keys::{self, Topic};
use protocol::notify::Notification;
use protocol::record::{Task, publish_key, retry_task};
use protocol::{Timestamp, TraceContext};

use crate::Config;
use crate::decoded_record::PoisonRecord;
use crate::executor_queue::SettleWork;

/// Makes records for the topics of one queue.
#[derive(Clone)]
pub(crate) struct Records {
    queue: Arc<dyn Queue>,
    carrier: Arc<str>,
    /// Size limit of a retry.
    bytes_max: usize,
}

impl Records {
    pub(crate) fn new(backends: &Backends, config: &Config) -> Records {
        Records {
            queue: backends.queue.clone(),
            carrier: config.name.as_str().into(),
            bytes_max: config.retry_bytes_max,
        }
    }

    fn record(&self, topic: Topic, key: Bytes, value: Bytes) -> NewRecord {
        NewRecord::keyed(&*self.queue, topic, key, value)
    }

    /// Record of any task for this topic; `None` if the task concerns nobody.
    pub(crate) fn task(&self, topic: Topic, task: &Task) -> Option<NewRecord> {
        let key = Bytes::copy_from_slice(&publish_key(&task.work)?);
        Some(NewRecord {
            headers: task.headers(),
            ..self.record(topic, key, task.encode())
        })
    }

    pub(crate) fn letter(&self, letter: &DeadLetter, key: Bytes, value: Bytes) -> NewRecord {
        let mut record = self.record(Topic::Dead, key, value);
        record.headers = letter.to_headers();
        record
    }

    pub(crate) fn poison_letter(&self, poison: &PoisonRecord, now: Timestamp) -> NewRecord {
        let letter = poison.letter(now, &self.carrier);
        let raw = &poison.raw;
        self.letter(&letter, raw.key.clone(), raw.value.clone())
    }

    fn notification(&self, notification: Notification, trace: Option<TraceContext>) -> NewRecord {
        let key = keys::control_key(notification.target.user);
        let task = NotificationTask {
            notification,
            retry_count: 0,
            trace,
            letter: None,
        };
        let key = Bytes::copy_from_slice(&key);
        NewRecord {
            headers: task.headers(),
            ..self.record(Topic::Notification, key, task.encode())
        }
    }

    /// Effects of a settlement, to be made durable.
    pub(crate) fn settlement(&self, settlement: Settlement, now: Timestamp) -> SettleWork {
        let mut records = Vec::new();
        let task = &settlement.task;
        for retry in &settlement.retries {
            records.extend(self.retry(task, retry));
        }
        if let Some(letter) = &settlement.letter {
            records.push(self.max_retries(&settlement, letter, now));
        }
        for notification in &settlement.notifications {
            let target = Some(notification.target);
            let trace = task.trace;
            let trace = trace.map(|trace| trace.delivery(settlement.source, target));
            records.push(self.notification(*notification, trace));
        }
        SettleWork {
            source: settlement.source,
            records,
            ledger: settlement.ledger,
        }
    }

    /// A retry, in as many records as it takes for none to be too large.
    fn retry(
        &self,
        task: &delivery::DeliveryTask,
        retry: &Retry,
    ) -> impl Iterator<Item = NewRecord> {
        let (count, due_at, cause) = (retry.retry_count, retry.due_at, retry.cause.text());
        let build_task = |owed: &[Obligation]| retry_task(task, owed, count, due_at, cause);
        let topic = Topic::Retry(retry.tier);
        let parts = split(&retry.obligations, self.bytes_max, build_task).into_iter();
        parts.filter_map(move |part| self.task(topic, &part))
    }

    /// Letter of a delivery that failed its last retry. It is never larger than a record may be:
    /// the task was a retry before, which left room for that.
    fn max_retries(
        &self,
        settlement: &Settlement,
        letter: &FailedPart,
        now: Timestamp,
    ) -> NewRecord {
        let (task, source) = (&settlement.task, settlement.source);
        let dead = DeadLetter {
            origin: LetterOrigin {
                topic: source.topic,
                partition: source.partition,
                offset: source.offset,
            },
            message: Some(task.placed.message.id),
            conversation: Some(task.placed.conversation),
            targets: letter
                .obligations
                .iter()
                .flat_map(Obligation::targets)
                .collect(),
            retry_count: task.retry_count,
            first_failed_at: task.first_at,
            last_failed_at: now,
            reason: letter.reason,
            error_message: letter.cause.text().to_owned(),
            carrier: self.carrier.to_string(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            trace: task.trace,
            parent: task.letter.as_deref().map(str::to_owned),
        };
        let cause = letter.cause.text();
        let value = retry_task(task, &letter.obligations, task.retry_count, now, cause).encode();
        let key = keys::record_key(task.placed.conversation);
        self.letter(&dead, Bytes::copy_from_slice(&key), value)
    }
}
