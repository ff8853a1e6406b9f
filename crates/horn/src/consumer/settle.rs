//! Records outcomes, in this order: dead letter (see `burials`), ledger, commit. A crash between
//! any two steps repeats a notification, or writes a letter again under the same name. The loop
//! keeps running meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::dead_letter::{DeadLetter, LetterOrigin};
use api::task::NotificationTask;
use api::trace;
use backend::ledger::LedgerStore;
use backend::queue::{Consumer, NewRecord, Partition};
use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::{Topic, partition_of};
use protocol::ledger::{DeadReason, LedgerEntry, LedgerEvent};
use protocol::{Timestamp, TraceContext};
use tokio::time::Instant;

use super::burials::Burial;
use super::push_queue::PendingPush;
use super::{Horn, STORE_RETRY_PAUSE};

/// Timeout of one call to log or ledger. Far below the poll interval of the log.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of outcomes recorded together.
pub(super) const RECORD_MAX: usize = 256;

/// A record with an outcome.
pub(super) struct AttemptEnd {
    pub(super) source: Source,
    key: Bytes,
    value: Bytes,
    task: Option<NotificationTask>,
    parent: Option<String>,
    attempts: u32,
    first_failed_at: Option<Timestamp>,
    outcome: AttemptOutcome,
    /// True once the log has the dead letter.
    is_buried: bool,
}

pub(super) enum AttemptOutcome {
    Sent,
    /// An earlier record for the same target was sent, or is about to be.
    Collapsed,
    /// No recipient is there to notify.
    Nobody,
    /// The recipient muted the conversation.
    Muted,
    /// Given up: the reason, and the error of the last attempt.
    Dead(DeadReason, String),
}

impl AttemptEnd {
    pub(super) fn new(pending: PendingPush, outcome: AttemptOutcome) -> AttemptEnd {
        AttemptEnd {
            source: pending.source,
            key: pending.key,
            value: pending.value,
            task: Some(pending.task),
            parent: pending.parent,
            attempts: pending.attempts,
            first_failed_at: pending.first_failed_at,
            outcome,
            is_buried: false,
        }
    }

    /// Marks the dead letter as written to the log.
    pub(super) fn buried(self) -> AttemptEnd {
        AttemptEnd {
            is_buried: true,
            ..self
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    pub(super) fn unreadable(
        source: Source,
        key: Bytes,
        value: Bytes,
        parent: Option<String>,
        text: String,
    ) -> AttemptEnd {
        AttemptEnd {
            source,
            key,
            value,
            task: None,
            parent,
            attempts: 0,
            first_failed_at: None,
            outcome: AttemptOutcome::Dead(DeadReason::Undecodable, text),
            is_buried: false,
        }
    }

    /// The dead letter still to be written, if any; `partitions` is the number of partitions.
    fn letter(&self, provider: &str, now: Timestamp, partitions: u32) -> Option<NewRecord> {
        let AttemptOutcome::Dead(reason, error) = &self.outcome else {
            return None;
        };
        if self.is_buried {
            return None;
        }
        let notification = self.task.as_ref().map(|task| task.notification);
        let letter = DeadLetter {
            origin: LetterOrigin {
                topic: self.source.topic,
                partition: self.source.partition,
                offset: self.source.offset,
            },
            message: notification.map(|n| n.message),
            conversation: notification.map(|n| n.conversation),
            targets: notification.map(|n| n.target).into_iter().collect(),
            retry_count: self.attempts.saturating_sub(1),
            first_failed_at: self.first_failed_at.unwrap_or(now),
            last_failed_at: now,
            reason: *reason,
            error_message: error.clone(),
            carrier: format!("horn/{provider}"),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            trace: self.trace(),
            parent: self.parent.clone(),
        };
        Some(NewRecord {
            partition: Partition {
                topic: Topic::NotificationDead,
                number: partition_of(&self.key, partitions),
            },
            key: self.key.clone(),
            headers: letter.to_headers(),
            value: self.value.clone(),
        })
    }

    fn trace(&self) -> Option<TraceContext> {
        self.task.as_ref()?.trace
    }

    fn entry(&self, provider: &str, recorded_at: Timestamp) -> Option<LedgerEntry> {
        let (provider, ok) = match self.outcome {
            AttemptOutcome::Sent => (provider, true),
            AttemptOutcome::Nobody | AttemptOutcome::Dead(..) => (provider, false),
            AttemptOutcome::Muted => ("mute", false),
            AttemptOutcome::Collapsed => return None,
        };
        let notification = self.task.as_ref()?.notification;
        Some(LedgerEntry {
            message: notification.message,
            at: recorded_at,
            target: Some(notification.target),
            event: LedgerEvent::NotificationSent {
                provider: provider.to_owned(),
                ok,
            },
        })
    }
}

/// Result of recording a batch of outcomes.
pub(super) struct OutcomeResult {
    batch: Vec<AttemptEnd>,
    result: backend::Result<()>,
}

/// A batch of outcomes being recorded.
pub(super) struct OutcomeWrite {
    sources: Vec<Source>,
    call: Pin<Box<dyn Future<Output = OutcomeResult> + Send>>,
}

impl OutcomeWrite {
    pub(super) fn sources(&self) -> impl Iterator<Item = Source> {
        self.sources.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    /// Waits for the result. Cancel safe.
    pub(super) async fn wait(&mut self) -> OutcomeResult {
        (&mut self.call).await
    }
}

/// Writer of outcomes; clones share it.
#[derive(Clone)]
pub(super) struct Registry {
    pub(super) ledger: Arc<dyn LedgerStore>,
    pub(super) provider: &'static str,
    pub(super) dead_partitions: u32,
}

impl Registry {
    async fn record(self, batch: Vec<AttemptEnd>, now: Timestamp) -> OutcomeResult {
        let name = self.provider;
        let entries: Vec<_> = batch.iter().filter_map(|e| e.entry(name, now)).collect();
        let result = if entries.is_empty() {
            Ok(())
        } else {
            within("ledger", self.ledger.append(entries)).await
        };
        OutcomeResult { batch, result }
    }
}

/// Bounds a call: a part that takes too long counts as unavailable, and the call may be repeated.
async fn within<T>(
    part: &'static str,
    call: impl Future<Output = backend::Result<T>>,
) -> backend::Result<T> {
    let answer = tokio::time::timeout(STORE_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| {
        let text = format!("no answer within {STORE_TIMEOUT:?}");
        Err(backend::Error::unavailable(part, text))
    })
}

impl Horn {
    /// Starts to record ended notifications unless a batch is in flight, and commits recorded ones.
    /// Outcomes that log or ledger do not take stay, and are retried.
    pub(super) async fn settle(&mut self, consumer: &mut dyn Consumer, now: Instant) {
        self.bury(now);
        if self.settle_at.is_some_and(|at| at > now) {
            return;
        }
        self.settle_at = None;
        if self.outcome_write.is_none() && !self.attempt_ends.is_empty() {
            let count = self.attempt_ends.len().min(RECORD_MAX);
            let batch: Vec<AttemptEnd> = self.attempt_ends.drain(..count).collect();
            let sources = batch.iter().map(|end| end.source).collect();
            let call = self.registry.clone().record(batch, self.clock.now());
            self.outcome_write = Some(OutcomeWrite {
                sources,
                call: Box::pin(call),
            });
        }
        if let Err(error) = self.commit(consumer).await {
            tracing::warn!(%error, "cannot commit the offsets of sent notifications");
            self.settle_at = Some(Instant::now() + STORE_RETRY_PAUSE);
        }
    }

    /// Hands the dead letters among the ended to the log.
    fn bury(&mut self, now: Instant) {
        let (failed_at, registry) = (self.clock.now(), &self.registry);
        let (provider, partitions) = (registry.provider, registry.dead_partitions);
        for end in std::mem::take(&mut self.attempt_ends) {
            match end.letter(provider, failed_at, partitions) {
                Some(letter) => {
                    // A repeat of this record must not be collapsed meanwhile: its end would be
                    // committed before the letter is written.
                    if let Some(task) = &end.task {
                        let notification = task.notification;
                        self.collapse
                            .forget(&(notification.message, notification.target));
                    }
                    self.burials.add(letter, end);
                }
                None => self.attempt_ends.push(end),
            }
        }
        self.burials.begin(now);
    }

    pub(super) fn buried(&mut self, burial: Burial) {
        let ends = self.burials.finish(burial, Instant::now());
        self.attempt_ends.extend(ends);
    }

    pub(super) fn finish_recording(&mut self, outcome: OutcomeResult) {
        self.outcome_write = None;
        if let Err(error) = outcome.result {
            let pending_count = outcome.batch.len() + self.attempt_ends.len();
            tracing::warn!(%error, waiting = pending_count, "cannot record outcomes");
            self.settle_at = Some(Instant::now() + STORE_RETRY_PAUSE);
            self.attempt_ends.splice(..0, outcome.batch);
            return;
        }
        for end in outcome.batch {
            self.count(&end.outcome, end.trace());
            self.bytes -= end.bytes();
            // One that was collapsed may repeat a record that has no outcome yet.
            let letter = end.task.as_ref().and_then(|task| task.letter.clone());
            if let Some(letter) = letter
                && !matches!(end.outcome, AttemptOutcome::Collapsed)
            {
                self.redriven_letters.admit(letter);
            }
            if let (AttemptOutcome::Dead(..), Some(task)) = (&end.outcome, &end.task) {
                // The user was not notified: a redrive is no repeat.
                let notification = task.notification;
                self.collapse
                    .forget(&(notification.message, notification.target));
            }
            self.offsets.settle(end.source);
        }
    }

    /// Settles the last outcomes, unless log or ledger do not take them: then they come again in
    /// the next life. Failed batches are not retried, as their pause ends after `now`.
    pub(super) async fn settle_all(&mut self, consumer: &mut dyn Consumer) {
        let now = Instant::now();
        self.settle_at = None;
        self.settle(consumer, now).await;
        loop {
            if let Some(outcome_write) = &mut self.outcome_write {
                let outcome = outcome_write.wait().await;
                self.finish_recording(outcome);
            } else if self.burials.is_under_way() {
                let burial = self.burials.wait().await;
                self.buried(burial);
            } else {
                return;
            }
            self.settle(consumer, now).await;
        }
    }

    async fn commit(&mut self, consumer: &mut dyn Consumer) -> backend::Result<()> {
        for ((topic, number), next) in self.offsets.due() {
            let partition = Partition { topic, number };
            match within("queue", consumer.commit(&[(partition, next)])).await {
                Ok(()) => self.offsets.committed((topic, number), next),
                // The partition was taken away, and the next poll will say so.
                Err(error) if error.kind == backend::Kind::Conflict => {
                    tracing::debug!(%error, %topic, number, "cannot commit");
                    self.offsets.revoke((topic, number));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn count(&self, outcome: &AttemptOutcome, trace: Option<TraceContext>) {
        match outcome {
            AttemptOutcome::Sent => self.metrics.sent_total.increment(1),
            AttemptOutcome::Collapsed => self.metrics.collapsed_total.increment(1),
            AttemptOutcome::Nobody => self.metrics.nobody_total.increment(1),
            AttemptOutcome::Muted => self.metrics.muted_total.increment(1),
            AttemptOutcome::Dead(reason, error) => {
                self.metrics.dead_total.increment(1);
                let reason = reason.name();
                let trace_id = trace::id(trace);
                tracing::warn!(reason, error, trace_id, "dead letter: notification");
            }
        }
    }
}
