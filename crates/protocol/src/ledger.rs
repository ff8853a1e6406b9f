//! The ledger: the fate of every message, as small events.

pub mod audit;
pub mod chain;
pub mod minute;
pub mod trace;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::delivery::Source;
use crate::message::Target;
use crate::presence::BoatLife;
use crate::{ConversationId, MessageId, SendId, Seq, SessionId, Timestamp, UserId};

/// One event of one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub message: MessageId,
    pub at: Timestamp,
    /// Recipient's platform; `None` for events of the whole message, or of live sessions.
    pub target: Option<Target>,
    pub event: LedgerEvent,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LedgerEvent {
    /// The writer assigned the message a position.
    Placed {
        conversation: ConversationId,
        seq: Seq,
        from: UserId,
        send_id: SendId,
        partition: u32,
        offset: u64,
    },
    /// The writer assigned a change its rev.
    Changed {
        conversation: ConversationId,
        /// The changed message.
        subject: MessageId,
        rev: u64,
        from: UserId,
        send_id: SendId,
        partition: u32,
        offset: u64,
    },
    /// A conversation list was changed.
    Listed { conversation: ConversationId },
    /// An accepted message was refused at its place in the log, for this reason.
    Refused {
        conversation: ConversationId,
        why: String,
    },
    /// A requested change had no effect: the state was that already, or a rule refused it for this
    /// reason.
    Unchanged {
        conversation: ConversationId,
        subject: MessageId,
        refused: Option<String>,
    },
    /// A repeat of `of`, dropped: the first one counts.
    Repeat { of: MessageId },
    /// Pushed to a session.
    Pushed {
        session: SessionId,
        life: BoatLife,
        attempt: u32,
    },
    /// A device acknowledged. Ends the target's obligation.
    Acked { session: SessionId },
    /// Pushed to a session without asking for an acknowledgement. Ends the target's obligation.
    Written { session: SessionId },
    /// A push failed.
    Failed { cause: FailureCause, attempt: u32 },
    /// Published to a retry topic, which carries the obligation on.
    Retried { attempt: u32, tier: u8 },
    /// Stored in the mailbox. Ends the carrier's part; `Fetched` follows.
    StoredOffline,
    /// A device acknowledged mail.
    Fetched { session: SessionId },
    /// Left to sync, which reads the message from history: nobody is connected and nothing is to be
    /// stored, a device acknowledged it lately, or a session of the sender missed it.
    ReachableBySync,
    /// The options ask neither for storing nor for an acknowledgement, and no session was
    /// connected.
    Dropped,
    /// A notification task was published.
    Notified,
    /// A provider accepted or rejected the notification.
    NotificationSent { provider: String, ok: bool },
    /// Written as a dead letter.
    Dead { reason: DeadReason, letter: String },
    /// An operator redrove the dead letter.
    Redriven { letter: String },
    /// The record in the log needs no more work: every target has an end above, a retry or a dead
    /// letter.
    Settled,
}

/// Entries of a message whose record ends as a dead letter: as a whole, or for these targets, and
/// for live sessions if `is_live`. Other targets of the message are left as they are.
pub fn dead_entries(
    message: MessageId,
    source: Source,
    (targets, is_live): (&[Target], bool),
    reason: DeadReason,
    now: Timestamp,
) -> Vec<LedgerEntry> {
    let letter = source.letter(targets);
    let dead = LedgerEvent::Dead { reason, letter };
    let mut ends: Vec<(Option<Target>, LedgerEvent)> = (targets.iter())
        .map(|target| (Some(*target), dead.clone()))
        .collect();
    if ends.is_empty() || is_live {
        ends.push((None, dead));
    }
    ends.push((None, LedgerEvent::Settled));
    let entries = ends.into_iter().map(|(target, event)| LedgerEntry {
        message,
        at: now,
        target,
        event,
    });
    entries.collect()
}

/// True if, as far as the ledger knows, each platform of `user` has the message or is no longer
/// owed it (S3-17). Stays true once reached: ends are only added.
pub fn has_ended_for(user: UserId, entries: &[LedgerEntry]) -> bool {
    let ends = |event: &LedgerEvent| {
        matches!(
            event,
            LedgerEvent::Acked { .. }
                | LedgerEvent::Written { .. }
                | LedgerEvent::Fetched { .. }
                | LedgerEvent::ReachableBySync
                | LedgerEvent::Dropped
        )
    };
    let mut ended_platforms = BTreeMap::new();
    for entry in entries {
        if let Some(target) = entry.target.filter(|target| target.user == user) {
            *ended_platforms.entry(target.platform).or_insert(false) |= ends(&entry.event);
        }
    }
    // Before `Settled`, there may be targets without an entry yet.
    entries
        .iter()
        .any(|entry| entry.event == LedgerEvent::Settled)
        && ended_platforms.into_values().all(|has_ended| has_ended)
}

/// Reason for a failed push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FailureCause {
    /// The session did not acknowledge in time.
    NoAck,
    /// The boat has no such session.
    NoSession,
    /// The boat did not answer, or is gone.
    BoatUnreachable,
    /// The session's bounds are reached.
    SessionFull,
    /// The mailbox store did not answer.
    MailboxUnavailable,
    /// The mailbox store refused.
    MailboxRefused,
}

impl FailureCause {
    /// Predicate of a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            FailureCause::NoAck => "the session did not acknowledge in time",
            FailureCause::NoSession => "the boat has no such session",
            FailureCause::BoatUnreachable => "the boat did not answer",
            FailureCause::SessionFull => "the session had no room",
            FailureCause::MailboxUnavailable => "the mailbox store did not answer",
            FailureCause::MailboxRefused => "the mailbox store refused it",
        }
    }
}

/// Reason for a dead letter, of a message or a notification. A closed list: docs/operations
/// describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeadReason {
    /// The bytes do not decode as a record.
    Undecodable,
    /// Larger than a record may be.
    TooLarge,
    /// In a partition that does not match the record's key.
    Misplaced,
    /// Retries exhausted.
    MaxRetries,
    /// The store rejects this row permanently.
    StoreRejected,
    /// Our own handler panicked.
    HandlerPanic,
    /// Too old to be of use.
    Expired,
    /// The provider rejects it permanently.
    Refused,
}

impl DeadReason {
    pub const ALL: [DeadReason; 8] = [
        DeadReason::Undecodable,
        DeadReason::TooLarge,
        DeadReason::Misplaced,
        DeadReason::MaxRetries,
        DeadReason::StoreRejected,
        DeadReason::HandlerPanic,
        DeadReason::Expired,
        DeadReason::Refused,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            DeadReason::Undecodable => "undecodable",
            DeadReason::TooLarge => "too-large",
            DeadReason::Misplaced => "misplaced",
            DeadReason::MaxRetries => "max-retries",
            DeadReason::StoreRejected => "store-rejected",
            DeadReason::HandlerPanic => "handler-panic",
            DeadReason::Expired => "expired",
            DeadReason::Refused => "refused",
        }
    }

    pub fn from_name(name: &str) -> Option<DeadReason> {
        DeadReason::ALL
            .into_iter()
            .find(|reason| reason.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;

    // The record needs no more work: the letter has all that is left of it.
    #[test]
    fn a_record_dies_for_each_of_its_targets_and_is_settled() {
        let message = MessageId::new(9).expect("positive");
        let source = Source {
            topic: crate::keys::Topic::Message,
            partition: 3,
            offset: 1042,
        };
        let user = UserId::new(2).expect("positive");
        let target = |platform| Target { user, platform };
        let ends = |targets: &[Target], is_live| {
            let (reason, dead_targets) = (DeadReason::TooLarge, (targets, is_live));
            let entries = dead_entries(message, source, dead_targets, reason, Timestamp::ZERO);
            let ends = entries.into_iter().map(|entry| (entry.target, entry.event));
            ends.collect::<Vec<_>>()
        };
        let dead = |letter| LedgerEvent::Dead {
            reason: DeadReason::TooLarge,
            letter,
        };
        let settled_event = (None, LedgerEvent::Settled);
        let whole = (None, dead("message-3-1042".to_owned()));
        assert_eq!(ends(&[], false), [whole.clone(), settled_event.clone()]);
        assert_eq!(ends(&[], true), [whole, settled_event.clone()]);
        let targets = [target(Platform::Ios), target(Platform::Web)];
        let each = targets.map(|target| (Some(target), dead(source.letter(&targets))));
        assert_eq!(ends(&targets, false)[..2], each);
        assert_eq!(
            &ends(&targets, false)[2..],
            std::slice::from_ref(&settled_event)
        );
        let live = (None, dead(source.letter(&targets)));
        assert_eq!(ends(&targets, true)[..2], each);
        assert_eq!(ends(&targets, true)[2..], [live, settled_event]);
    }

    #[test]
    fn the_death_of_a_retry_leaves_other_targets_open() {
        let message = MessageId::new(9).expect("positive");
        let source = Source {
            topic: crate::keys::Topic::Retry(1),
            partition: 0,
            offset: 4,
        };
        let user = UserId::new(2).expect("positive");
        let [ios, web] = [Platform::Ios, Platform::Web].map(|platform| Target { user, platform });
        let retry_entry = |target| LedgerEntry {
            message,
            at: Timestamp::ZERO,
            target: Some(target),
            event: LedgerEvent::Retried {
                attempt: 1,
                tier: 1,
            },
        };
        let mut entries = vec![retry_entry(ios), retry_entry(web)];
        let reason = DeadReason::HandlerPanic;
        let dead = dead_entries(message, source, (&[web], false), reason, Timestamp::ZERO);
        entries.extend(dead);
        let life = trace::MessageLife::of(message, &entries);
        assert_eq!(life.dead, None);
        let open = life.open();
        assert!(open.contains(&trace::OpenObligation::Target(ios)));
        assert!(!open.contains(&trace::OpenObligation::Target(web)));
    }

    // proves S3-17 in part: a platform that waits for it, or may still be owed it, keeps a message unfinished.
    #[test]
    fn a_message_has_ended_when_each_platform_has_it() {
        let user = |number| UserId::new(number).expect("positive");
        let session = SessionId::new(1).expect("positive");
        let entry = |user_number, platform, event| LedgerEntry {
            message: MessageId::new(9).expect("positive"),
            at: Timestamp::ZERO,
            target: Some(Target {
                user: user(user_number),
                platform,
            }),
            event,
        };
        let settled_entry = LedgerEntry {
            target: None,
            ..entry(2, Platform::Ios, LedgerEvent::Settled)
        };
        let steps = [
            (
                entry(2, Platform::Ios, LedgerEvent::Acked { session }),
                false,
            ),
            (entry(2, Platform::Web, LedgerEvent::StoredOffline), false),
            (entry(1, Platform::Web, LedgerEvent::StoredOffline), false),
            (settled_entry, false),
            (
                entry(2, Platform::Web, LedgerEvent::Fetched { session }),
                true,
            ),
            (entry(2, Platform::Pad, LedgerEvent::ReachableBySync), true),
        ];
        let mut entries = Vec::new();
        for (entry, has_ended) in steps {
            entries.push(entry);
            assert_eq!(has_ended_for(user(2), &entries), has_ended, "{entries:?}");
        }
        assert!(!has_ended_for(user(1), &entries));
        assert!(!has_ended_for(user(2), &entries[..2]));
    }
}
