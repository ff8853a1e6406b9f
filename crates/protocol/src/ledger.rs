//! The ledger: what became of every message, as small events.

pub mod audit;
pub mod chain;
pub mod gather;
pub mod minute;
pub mod trace;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::message::Target;
use crate::presence::BoatLife;
use crate::{ConversationId, MessageId, SendId, Seq, SessionId, Timestamp, UserId};

/// One thing that happened to one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub message: MessageId,
    pub at: Timestamp,
    /// For whom; `None` where it concerns the whole message.
    pub target: Option<Target>,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The writer gave it its place.
    Placed {
        conversation: ConversationId,
        seq: Seq,
        from: UserId,
        send_id: SendId,
        partition: u32,
        offset: u64,
    },
    /// The writer gave a change its place.
    Changed {
        conversation: ConversationId,
        /// The message that it changes.
        subject: MessageId,
        rev: u64,
        from: UserId,
        send_id: SendId,
        partition: u32,
        offset: u64,
    },
    /// Somebody's list was changed.
    Listed { conversation: ConversationId },
    /// What was accepted was refused at its place in the log, in these words.
    Refused {
        conversation: ConversationId,
        why: String,
    },
    /// A change that was asked for was none: it was so already, or its rules say no, in these words.
    Unchanged {
        conversation: ConversationId,
        subject: MessageId,
        refused: Option<String>,
    },
    /// A repeat of `of`: dropped, the first one counts.
    Repeat { of: MessageId },
    /// Written towards a session.
    Pushed {
        session: SessionId,
        life: BoatLife,
        attempt: u32,
    },
    /// A device has it. Ends the target's obligation.
    Acked { session: SessionId },
    /// Written towards a session that was asked for no acknowledgement. Ends the target's obligation.
    Written { session: SessionId },
    /// A push came to nothing.
    Failed { cause: FailureCause, attempt: u32 },
    /// Published to a retry topic: the obligation lives on there.
    Retried { attempt: u32, tier: u8 },
    /// It waits in the mailbox. Ends the carrier's part; `Fetched` follows.
    StoredOffline,
    /// A device acknowledged what waited.
    Fetched { session: SessionId },
    /// Nobody is known there, or the options ask for no storing: history has it, sync finds it.
    ReachableBySync,
    /// The options ask neither for storing nor for an acknowledgement, and nobody was there.
    Dropped,
    /// A notification task was published.
    Notified,
    /// A provider took the notification, or said no.
    NotificationSent { provider: String, ok: bool },
    /// It is a dead letter.
    Dead { reason: DeadReason, letter: String },
    /// A dead letter was sent on its way again.
    Redriven { letter: String },
    /// The record in the log needs no more work: every target has an end above, a retry or a dead letter.
    Settled,
}

/// Whether every platform of `user` that was owed a message has it, or is owed it no more, as far as the ledger knows
/// (S3-17). Once so, it stays so: ends are only added.
pub fn has_ended_for(user: UserId, entries: &[LedgerEntry]) -> bool {
    let ends = |event: &Event| {
        matches!(
            event,
            Event::Acked { .. }
                | Event::Written { .. }
                | Event::Fetched { .. }
                | Event::ReachableBySync
                | Event::Dropped
        )
    };
    let mut ended = BTreeMap::new();
    for entry in entries {
        if let Some(target) = entry.target.filter(|target| target.user == user) {
            *ended.entry(target.platform).or_insert(false) |= ends(&entry.event);
        }
    }
    // Before it is settled there may be others that nothing was said of yet.
    entries.iter().any(|entry| entry.event == Event::Settled) && ended.into_values().all(|is| is)
}

/// Why a push came to nothing.
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
    /// As the end of a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            FailureCause::NoAck => "the session did not acknowledge in time",
            FailureCause::NoSession => "the boat has no such session",
            FailureCause::BoatUnreachable => "the boat did not answer",
            FailureCause::SessionFull => "the session had no room",
            FailureCause::MailboxUnavailable => "the mailbox store did not answer",
            FailureCause::MailboxRefused => "the mailbox store refused",
        }
    }
}

/// Why a record is a dead letter: a message's or a notification's. A closed list: docs/operations tells
/// of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeadReason {
    /// The bytes are no record of ours.
    Undecodable,
    /// Larger than a record may be.
    TooLarge,
    /// In a partition that its key does not belong to.
    Misplaced,
    /// Tried as often as allowed.
    MaxRetries,
    /// The store refuses this row, now and always.
    StoreRejected,
    /// Our own code failed on it.
    HandlerPanic,
    /// Too old to be of use.
    Expired,
    /// The provider will never take it.
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

    // proves S3-17 in part: a platform that waits for it, or may still be owed it, keeps a message unfinished.
    #[test]
    fn a_message_has_ended_when_each_platform_has_it() {
        let user = |number| UserId::new(number).expect("positive");
        let session = SessionId::new(1).expect("positive");
        let entry = |of, platform, event| LedgerEntry {
            message: MessageId::new(9).expect("positive"),
            at: Timestamp::ZERO,
            target: Some(Target {
                user: user(of),
                platform,
            }),
            event,
        };
        let settled = LedgerEntry {
            target: None,
            ..entry(2, Platform::Ios, Event::Settled)
        };
        let steps = [
            (entry(2, Platform::Ios, Event::Acked { session }), false),
            (entry(2, Platform::Web, Event::StoredOffline), false),
            (entry(1, Platform::Web, Event::StoredOffline), false),
            (settled, false),
            (entry(2, Platform::Web, Event::Fetched { session }), true),
            (entry(2, Platform::Pad, Event::ReachableBySync), true),
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
