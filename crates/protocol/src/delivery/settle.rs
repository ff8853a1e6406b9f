//! What becomes of a record once nothing of it is open: done, to be tried again, or given up.

use std::collections::BTreeMap;

use super::{Letter, Limits, Owed, Retry, Source, Task};
use crate::ledger::{DeadReason, Event, FailureCause, LedgerEntry};
use crate::message::Target;
use crate::{Options, Platform, Timestamp, UserId};

/// Something that is still owed after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) user: UserId,
    /// `None`: whatever sessions live.
    pub(super) platform: Option<Platform>,
    pub(super) cause: FailureCause,
}

impl Failure {
    /// A store that did not answer says nothing of the receiver: such an attempt does not count.
    fn counts(&self) -> bool {
        self.cause != FailureCause::MailboxUnavailable
    }
}

/// What is left of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remainder {
    pub(super) retries: Vec<Retry>,
    pub(super) letter: Option<Letter>,
    pub(super) ledger: Vec<LedgerEntry>,
}

/// Does somebody insist on this message beyond the first try? The sender who asks for an
/// acknowledgement, or for storing.
pub(super) fn insists(options: Options) -> bool {
    options.has(Options::NEEDS_ACK) || options.has(Options::STORE_OFFLINE)
}

pub(super) fn settle(
    source: Source,
    task: &Task,
    failures: &[Failure],
    now: Timestamp,
    limits: &Limits,
) -> Remainder {
    let mut left = Remainder::default();
    let (counted, untried): (Vec<Failure>, Vec<Failure>) =
        failures.iter().partition(|failure| failure.counts());
    if let Some(first) = counted.first() {
        let retry_count = task.retry_count + 1;
        if retry_count > limits.retry_max {
            left.give_up(source, task, &counted, first.cause, now);
        } else {
            let tier = limits.tiers.of_retry(retry_count);
            left.try_again(
                task,
                &counted,
                first.cause,
                (retry_count, tier),
                now,
                limits,
            );
        }
    }
    if let Some(first) = untried.first() {
        let tier = limits.tiers.of_age(now.since(task.first_at));
        let again = (task.retry_count, tier);
        left.try_again(task, &untried, first.cause, again, now, limits);
    }
    left
}

impl Remainder {
    fn try_again(
        &mut self,
        task: &Task,
        failures: &[Failure],
        cause: FailureCause,
        (retry_count, tier): (u32, u8),
        now: Timestamp,
        limits: &Limits,
    ) {
        let event = Event::Retried {
            attempt: retry_count,
            tier,
        };
        self.note(task, failures, &event, now);
        self.retries.push(Retry {
            owed: owed(failures),
            retry_count,
            tier,
            due_at: now + limits.tiers.delay(tier),
            cause,
        });
    }

    fn give_up(
        &mut self,
        source: Source,
        task: &Task,
        failures: &[Failure],
        cause: FailureCause,
        now: Timestamp,
    ) {
        let owed = owed(failures);
        let targets: Vec<Target> = owed.iter().flat_map(Owed::targets).collect();
        let name = source.letter(&targets);
        let event = Event::Dead {
            reason: DeadReason::MaxRetries,
            letter: name.clone(),
        };
        self.note(task, failures, &event, now);
        self.letter = Some(Letter {
            name,
            reason: DeadReason::MaxRetries,
            owed,
            cause,
        });
    }

    fn note(&mut self, task: &Task, failures: &[Failure], event: &Event, at: Timestamp) {
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

/// The failures of each user as what is still owed to it.
fn owed(failures: &[Failure]) -> Vec<Owed> {
    let mut owed: Vec<Owed> = Vec::new();
    let mut places: BTreeMap<UserId, usize> = BTreeMap::new();
    for failure in failures {
        let place = *places.entry(failure.user).or_insert_with(|| {
            owed.push(Owed {
                user: failure.user,
                platforms: Vec::new(),
                live: false,
            });
            owed.len() - 1
        });
        match failure.platform {
            Some(platform) if !owed[place].platforms.contains(&platform) => {
                owed[place].platforms.push(platform);
            }
            Some(_) => {}
            None => owed[place].live = true,
        }
    }
    owed
}
