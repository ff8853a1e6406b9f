//! Records outcomes, in this order: dead letter, ledger, commit. A crash between any two of them tells
//! somebody again, or writes a letter again under the same name.

use api::task::NotificationTask;
use backend::queue::{Consumer, Partition};
use bytes::Bytes;
use protocol::Timestamp;
use protocol::delivery::Source;
use protocol::ledger::{Event, LedgerEntry};
use protocol::notify::Undeliverable;
use tokio::time::Instant;

use super::pending::Pending;
use super::{Horn, STORE_RETRY};
use crate::letter::Letter;

/// A record with an outcome.
pub(super) struct Ended {
    pub(super) source: Source,
    key: Bytes,
    value: Bytes,
    task: Option<NotificationTask>,
    attempts: u32,
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
    /// Why, and what the last attempt said.
    Dead(Undeliverable, String),
}

impl Ended {
    pub(super) fn new(pending: Pending, outcome: Outcome) -> Ended {
        Ended {
            source: pending.source,
            key: pending.key,
            value: pending.value,
            task: Some(pending.task),
            attempts: pending.attempts,
            outcome,
            buried: false,
        }
    }

    pub(super) fn unreadable(source: Source, key: Bytes, value: Bytes, text: String) -> Ended {
        Ended {
            source,
            key,
            value,
            task: None,
            attempts: 0,
            outcome: Outcome::Dead(Undeliverable::Undecodable, text),
            buried: false,
        }
    }

    fn letter(&self, provider: &'static str, failed_at: Timestamp) -> Option<Letter<'_>> {
        match &self.outcome {
            Outcome::Dead(reason, error) if !self.buried => Some(Letter {
                source: self.source,
                key: &self.key,
                value: &self.value,
                task: self.task.as_ref(),
                reason: *reason,
                attempts: self.attempts,
                error,
                provider,
                failed_at,
            }),
            _ => None,
        }
    }

    fn entry(&self, provider: &str, at: Timestamp) -> Option<LedgerEntry> {
        let ok = match self.outcome {
            Outcome::Sent => true,
            Outcome::Nobody | Outcome::Dead(..) => false,
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

impl Horn {
    /// Records what has ended and commits what that allows. What the log or the ledger does not take
    /// stays, and is tried again.
    pub(super) async fn settle(&mut self, consumer: &mut dyn Consumer) {
        if self.settle_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.settle_at = None;
        if let Err(error) = self.record(consumer).await {
            tracing::warn!(%error, waiting = self.ended.len(), "outcomes cannot be recorded");
            self.settle_at = Some(Instant::now() + STORE_RETRY);
        }
        self.give_away();
    }

    async fn record(&mut self, consumer: &mut dyn Consumer) -> backend::Result<()> {
        if !self.ended.is_empty() {
            self.bury().await?;
            let (name, now) = (self.provider.name(), self.clock.now());
            let entries: Vec<_> = self
                .ended
                .iter()
                .filter_map(|e| e.entry(name, now))
                .collect();
            if !entries.is_empty() {
                self.ledger.append(entries).await?;
            }
            for ended in std::mem::take(&mut self.ended) {
                self.count(&ended.outcome);
                self.offsets.settle(ended.source);
            }
        }
        self.commit(consumer).await
    }

    async fn bury(&mut self) -> backend::Result<()> {
        let (name, now) = (self.provider.name(), self.clock.now());
        let (places, letters): (Vec<_>, Vec<_>) = self
            .ended
            .iter()
            .enumerate()
            .filter_map(|(place, ended)| {
                Some((place, ended.letter(name, now)?.record(self.dead_partitions)))
            })
            .unzip();
        if letters.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for (place, result) in places.into_iter().zip(self.producer.publish(letters).await) {
            match result {
                Ok(_) => self.ended[place].buried = true,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn commit(&mut self, consumer: &mut dyn Consumer) -> backend::Result<()> {
        for ((topic, number), next) in self.offsets.due() {
            let partition = Partition { topic, number };
            match consumer.commit(&[(partition, next)]).await {
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

    fn count(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Sent => self.metrics.sent.increment(1),
            Outcome::Collapsed => self.metrics.collapsed.increment(1),
            Outcome::Nobody => self.metrics.nobody.increment(1),
            Outcome::Dead(reason, error) => {
                self.metrics.dead.increment(1);
                let reason = reason.name();
                tracing::warn!(reason, error, "a notification is a dead letter");
            }
        }
    }
}
