//! Records outcomes, in this order: dead letter, ledger, commit. A crash between any two of them tells
//! somebody again, or writes a letter again under the same name.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use api::dead_letter::{DeadLetter, Origin};
use api::task::NotificationTask;
use api::trace;
use backend::clock::Clock;
use backend::ledger::LedgerStore;
use backend::queue::{Consumer, NewRecord, Partition, Producer};
use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::{Topic, partition_of};
use protocol::ledger::{DeadReason, Event, LedgerEntry};
use protocol::{Timestamp, TraceContext};
use tokio::time::{Instant, timeout};

use super::pending::Pending;
use super::{Horn, STORE_RETRY, STORE_TIMEOUT};

/// A record with an outcome.
pub(super) struct Ended {
    pub(super) source: Source,
    key: Bytes,
    value: Bytes,
    task: Option<NotificationTask>,
    parent: Option<String>,
    attempts: u32,
    failed_first: Option<Timestamp>,
    outcome: Outcome,
    /// The log has the dead letter.
    buried: bool,
}

pub(super) enum Outcome {
    Sent,
    /// Told already, or about to be, by an earlier record.
    Collapsed,
    /// Nobody is there to be told.
    Nobody,
    /// They do not want to be told.
    Muted,
    /// Why, and what the last attempt said.
    Dead(DeadReason, String),
}

impl Ended {
    pub(super) fn new(pending: Pending, outcome: Outcome) -> Ended {
        Ended {
            source: pending.source,
            key: pending.key,
            value: pending.value,
            task: Some(pending.task),
            parent: pending.parent,
            attempts: pending.attempts,
            failed_first: pending.failed_first,
            outcome,
            buried: false,
        }
    }

    pub(super) fn unreadable(
        source: Source,
        key: Bytes,
        value: Bytes,
        parent: Option<String>,
        text: String,
    ) -> Ended {
        Ended {
            source,
            key,
            value,
            task: None,
            parent,
            attempts: 0,
            failed_first: None,
            outcome: Outcome::Dead(DeadReason::Undecodable, text),
            buried: false,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    /// The dead letter that is still to be written, of so many partitions.
    fn letter(&self, provider: &str, now: Timestamp, partitions: u32) -> Option<NewRecord> {
        let Outcome::Dead(reason, error) = &self.outcome else {
            return None;
        };
        if self.buried {
            return None;
        }
        let notification = self.task.as_ref().map(|task| task.notification);
        let letter = DeadLetter {
            origin: Origin {
                topic: self.source.topic,
                partition: self.source.partition,
                offset: self.source.offset,
            },
            message: notification.map(|n| n.message),
            conversation: notification.map(|n| n.conversation),
            targets: notification.map(|n| n.target).into_iter().collect(),
            retry_count: self.attempts.saturating_sub(1),
            first_failed_at: self.failed_first.unwrap_or(now),
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

    fn entry(&self, provider: &str, at: Timestamp) -> Option<LedgerEntry> {
        let (provider, ok) = match self.outcome {
            Outcome::Sent => (provider, true),
            Outcome::Nobody | Outcome::Dead(..) => (provider, false),
            Outcome::Muted => ("mute", false),
            Outcome::Collapsed => return None,
        };
        let notification = self.task.as_ref()?.notification;
        Some(LedgerEntry {
            message: notification.message,
            at,
            target: Some(notification.target),
            event: Event::NotificationSent {
                provider: provider.to_owned(),
                ok,
            },
        })
    }
}

/// Writes outcomes down beside the loop.
pub(super) struct Recorder {
    pub(super) provider: &'static str,
    pub(super) producer: Arc<dyn Producer>,
    pub(super) ledger: Arc<dyn LedgerStore>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) dead_partitions: u32,
}

/// What became of outcomes that were to be written down.
pub(super) struct Recorded {
    ended: Vec<Ended>,
    answer: backend::Result<()>,
}

/// Outcomes on their way to the log and the ledger.
pub(super) struct Recording {
    sources: Vec<Source>,
    call: Pin<Box<dyn Future<Output = Recorded> + Send>>,
}

impl Recorder {
    fn begin(self, mut ended: Vec<Ended>) -> Recording {
        let sources = ended.iter().map(|ended| ended.source).collect();
        let call = Box::pin(async move {
            let answer = self.record(&mut ended).await;
            Recorded { ended, answer }
        });
        Recording { sources, call }
    }

    async fn record(&self, ended: &mut [Ended]) -> backend::Result<()> {
        self.bury(ended).await?;
        let now = self.clock.now();
        let entries = ended.iter().filter_map(|e| e.entry(self.provider, now));
        let entries: Vec<_> = entries.collect();
        match entries.is_empty() {
            true => Ok(()),
            false => in_time("the ledger", self.ledger.append(entries)).await,
        }
    }

    async fn bury(&self, ended: &mut [Ended]) -> backend::Result<()> {
        let now = self.clock.now();
        let (places, letters): (Vec<_>, Vec<_>) = ended
            .iter()
            .enumerate()
            .filter_map(|(place, ended)| {
                let letter = ended.letter(self.provider, now, self.dead_partitions)?;
                Some((place, letter))
            })
            .unzip();
        if letters.is_empty() {
            return Ok(());
        }
        let published = async { Ok(self.producer.publish(letters).await) };
        let mut failed = None;
        for (place, result) in places.into_iter().zip(in_time("the log", published).await?) {
            match result {
                Ok(_) => ended[place].buried = true,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Recording {
    pub(super) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Completes with what became of it. Cancel safe.
    pub(super) async fn done(&mut self) -> Recorded {
        (&mut self.call).await
    }
}

async fn in_time<T>(
    what: &str,
    call: impl Future<Output = backend::Result<T>>,
) -> backend::Result<T> {
    match timeout(STORE_TIMEOUT, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("{what} did not answer within {STORE_TIMEOUT:?}");
            Err(backend::Error::unavailable("horn", why))
        }
    }
}

impl Horn {
    /// Begins to write down what has ended, and commits what that allows. What the log or the ledger does not
    /// take stays, and is tried again; meanwhile the loop goes on.
    pub(super) async fn settle(&mut self, consumer: &mut dyn Consumer) {
        if self.settle_at.is_none_or(|at| at <= Instant::now()) {
            self.settle_at = None;
            self.record_and_commit(consumer).await;
        }
        self.give_away();
    }

    async fn record_and_commit(&mut self, consumer: &mut dyn Consumer) {
        if self.recording.is_none() && !self.ended.is_empty() {
            let ended = std::mem::take(&mut self.ended);
            self.recording = Some(self.recorder().begin(ended));
        }
        if let Err(error) = self.commit(consumer).await {
            tracing::warn!(%error, "offsets are not committed");
            self.settle_at = Some(Instant::now() + STORE_RETRY);
        }
    }

    /// Outcomes that are written down settle their records; the others wait for the next try.
    pub(super) fn recorded(&mut self, recorded: Recorded) {
        self.recording = None;
        if let Err(error) = recorded.answer {
            let waiting = recorded.ended.len() + self.ended.len();
            tracing::warn!(%error, waiting, "outcomes cannot be recorded");
            self.ended.splice(0..0, recorded.ended);
            self.settle_at = Some(Instant::now() + STORE_RETRY);
            return;
        }
        for ended in recorded.ended {
            self.count(&ended.outcome, ended.trace());
            if let (Outcome::Dead(..), Some(task)) = (&ended.outcome, &ended.task) {
                // It was not told: a redrive is no repeat.
                let notification = task.notification;
                self.collapse
                    .forget(notification.message, notification.target);
            }
            self.offsets.settle(ended.source);
        }
    }

    async fn commit(&mut self, consumer: &mut dyn Consumer) -> backend::Result<()> {
        for ((topic, number), next) in self.offsets.due() {
            let partition = Partition { topic, number };
            let place = [(partition, next)];
            match in_time("the log", consumer.commit(&place)).await {
                Ok(()) => self.offsets.committed((topic, number), next),
                // Taken from us, and we are about to hear of it.
                Err(error) if error.kind == backend::Kind::Conflict => {
                    tracing::debug!(%error, %topic, number, "not committed");
                    self.offsets.revoke((topic, number));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn count(&self, outcome: &Outcome, trace: Option<TraceContext>) {
        match outcome {
            Outcome::Sent => self.metrics.sent.increment(1),
            Outcome::Collapsed => self.metrics.collapsed.increment(1),
            Outcome::Nobody => self.metrics.nobody.increment(1),
            Outcome::Muted => self.metrics.muted.increment(1),
            Outcome::Dead(reason, error) => {
                self.metrics.dead.increment(1);
                let reason = reason.name();
                let trace_id = trace::id(trace);
                tracing::warn!(reason, error, trace_id, "a notification is a dead letter");
            }
        }
    }
}
