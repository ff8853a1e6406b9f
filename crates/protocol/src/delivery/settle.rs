//! The end of a record without open items: done, retried, or given up.

use std::collections::BTreeMap;

use super::{DeliveryLimits, DeliveryTask, FailedPart, Obligation, Retry, Source};
use crate::ledger::{DeadReason, FailureCause, LedgerEntry, LedgerEvent};
use crate::message::Target;
use crate::{Options, Platform, Timestamp, UserId};

/// An obligation left after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartFailure {
    pub(super) user: UserId,
    /// `None`: any live sessions.
    pub(super) platform: Option<Platform>,
    pub(super) cause: FailureCause,
}

impl PartFailure {
    /// False if the store did not answer: that says nothing about the receiver, and the attempt
    /// does not count.
    fn counts(&self) -> bool {
        self.cause != FailureCause::MailboxUnavailable
    }
}

/// Remainder of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remainder {
    pub(super) retries: Vec<Retry>,
    pub(super) letter: Option<FailedPart>,
    pub(super) ledger: Vec<LedgerEntry>,
}

/// Whether the sender insists on this message beyond the first try, by requesting an
/// acknowledgement or storage.
pub(super) fn insists(options: Options) -> bool {
    options.has(Options::NEEDS_ACK) || options.has(Options::STORE_OFFLINE)
}

pub(super) fn settle(
    source: Source,
    task: &DeliveryTask,
    failures: &[PartFailure],
    now: Timestamp,
    limits: &DeliveryLimits,
) -> Remainder {
    let mut remainder = Remainder::default();
    let (counted_failures, untried_failures): (Vec<PartFailure>, Vec<PartFailure>) =
        failures.iter().partition(|failure| failure.counts());
    if let Some(first) = counted_failures.first() {
        let retry_count = task.retry_count + 1;
        if retry_count > limits.retry_max {
            remainder.give_up(source, task, &counted_failures, first.cause, now);
        } else {
            let tier = limits.tiers.retry_tier(retry_count);
            remainder.try_again(
                task,
                &counted_failures,
                first.cause,
                (retry_count, tier),
                now,
                limits,
            );
        }
    }
    if let Some(first) = untried_failures.first() {
        let tier = limits.tiers.age_tier(now.since(task.first_at));
        let retry = (task.retry_count, tier);
        remainder.try_again(task, &untried_failures, first.cause, retry, now, limits);
    }
    remainder
}

impl Remainder {
    fn try_again(
        &mut self,
        task: &DeliveryTask,
        failures: &[PartFailure],
        cause: FailureCause,
        (retry_count, tier): (u32, u8),
        now: Timestamp,
        limits: &DeliveryLimits,
    ) {
        let event = LedgerEvent::Retried {
            attempt: retry_count,
            tier,
        };
        self.note(task, failures, &event, now);
        self.retries.push(Retry {
            obligations: remaining_obligations(failures),
            retry_count,
            tier,
            due_at: now + limits.tiers.delay(tier),
            cause,
        });
    }

    fn give_up(
        &mut self,
        source: Source,
        task: &DeliveryTask,
        failures: &[PartFailure],
        cause: FailureCause,
        now: Timestamp,
    ) {
        let obligations = remaining_obligations(failures);
        let targets: Vec<Target> = obligations.iter().flat_map(Obligation::targets).collect();
        let name = source.letter(&targets);
        let event = LedgerEvent::Dead {
            reason: DeadReason::MaxRetries,
            letter: name.clone(),
        };
        self.note(task, failures, &event, now);
        self.letter = Some(FailedPart {
            name,
            reason: DeadReason::MaxRetries,
            obligations,
            cause,
        });
    }

    fn note(
        &mut self,
        task: &DeliveryTask,
        failures: &[PartFailure],
        event: &LedgerEvent,
        at: Timestamp,
    ) {
        self.ledger
            .extend(failures.iter().map(|failure| LedgerEntry {
                message: task.placed.message.id,
                at,
                target: failure.platform.map(|platform| Target {
                    user: failure.user,
                    platform,
                }),
                event: event.clone(),
            }));
    }
}

/// Groups failures by user, as remaining obligations.
fn remaining_obligations(failures: &[PartFailure]) -> Vec<Obligation> {
    let mut obligations: Vec<Obligation> = Vec::new();
    let mut indexes: BTreeMap<UserId, usize> = BTreeMap::new();
    for failure in failures {
        let index = *indexes.entry(failure.user).or_insert_with(|| {
            obligations.push(Obligation {
                user: failure.user,
                platforms: Vec::new(),
                live: false,
            });
            obligations.len() - 1
        });
        match failure.platform {
            Some(platform) if !obligations[index].platforms.contains(&platform) => {
                obligations[index].platforms.push(platform);
            }
            Some(_) => {}
            None => obligations[index].live = true,
        }
    }
    obligations
}
