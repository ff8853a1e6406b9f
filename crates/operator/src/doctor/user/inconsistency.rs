//! Inconsistencies, worded for the person on call.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use protocol::presence::{BoatLife, SessionEntry};
use protocol::receipt::ReceiptKind;
use protocol::{ConversationId, MessageId, Platform, Seq, Timestamp};

use crate::doctor::rules::CheckVerdict;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The session's boat has a later life.
    SessionOfEndedLife {
        session: SessionEntry,
        newer_life: BoatLife,
    },
    /// The session's boat is not in discovery.
    SessionOfAbsentBoat { session: SessionEntry },
    /// Mail missing from history.
    MailUnknown {
        platform: Platform,
        message: MessageId,
        conversation: ConversationId,
        seq: Seq,
    },
    /// Mail without a readable body, missing from history.
    MailLost {
        platform: Platform,
        message: MessageId,
    },
    /// Mail whose position differs from history's.
    MailMisplaced {
        platform: Platform,
        message: MessageId,
        mail_position: (ConversationId, Seq),
        history_position: (ConversationId, Seq),
    },
    /// Mail whose body is no frame; history has the message.
    MailUnreadable {
        platform: Platform,
        message: MessageId,
    },
    /// Mail without a body; history has the message.
    MailBodiless {
        platform: Platform,
        message: MessageId,
    },
    /// Mail undelivered although its device is connected.
    MailStuck {
        platform: Platform,
        since: Timestamp,
    },
    /// Missing rows: the owner's pages end at these positions.
    Hole {
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    },
    /// Head behind history: the writer would assign taken positions again.
    HeadBehind {
        conversation: ConversationId,
        head: Seq,
        last: Seq,
    },
    /// List behind history: the newest message is not listed.
    ListBehind {
        conversation: ConversationId,
        listed: Option<Seq>,
        last: Seq,
    },
    /// Read or received register beyond the end of the conversation.
    RegisterAhead {
        conversation: ConversationId,
        kind: ReceiptKind,
        at: Seq,
        last: Seq,
    },
}

impl Damage {
    /// Kind of inconsistency, for machines.
    pub const fn name(&self) -> &'static str {
        match self {
            Damage::SessionOfEndedLife { .. } => "session_of_ended_life",
            Damage::SessionOfAbsentBoat { .. } => "session_of_absent_boat",
            Damage::MailUnknown { .. } => "mail_unknown",
            Damage::MailLost { .. } => "mail_lost",
            Damage::MailMisplaced { .. } => "mail_misplaced",
            Damage::MailUnreadable { .. } => "mail_unreadable",
            Damage::MailBodiless { .. } => "mail_bodiless",
            Damage::MailStuck { .. } => "mail_stuck",
            Damage::Hole { .. } => "hole",
            Damage::HeadBehind { .. } => "head_behind",
            Damage::ListBehind { .. } => "list_behind",
            Damage::RegisterAhead { .. } => "register_ahead",
        }
    }

    /// All kinds; docs/operations/doctor.md has a line for each.
    pub const NAMES: [&'static str; 12] = [
        "session_of_ended_life",
        "session_of_absent_boat",
        "mail_unknown",
        "mail_lost",
        "mail_misplaced",
        "mail_unreadable",
        "mail_bodiless",
        "mail_stuck",
        "hole",
        "head_behind",
        "list_behind",
        "register_ahead",
    ];

    /// Verdict: a failure if the user misses something, or soon will.
    pub const fn verdict(&self) -> CheckVerdict {
        match self {
            Damage::SessionOfEndedLife { .. }
            | Damage::SessionOfAbsentBoat { .. }
            | Damage::MailBodiless { .. }
            | Damage::MailStuck { .. } => CheckVerdict::Warning,
            Damage::MailUnknown { .. }
            | Damage::MailLost { .. }
            | Damage::MailMisplaced { .. }
            | Damage::MailUnreadable { .. }
            | Damage::Hole { .. }
            | Damage::HeadBehind { .. }
            | Damage::ListBehind { .. }
            | Damage::RegisterAhead { .. } => CheckVerdict::Failure,
        }
    }

    /// Whether an earlier look saw the same inconsistency. The far end does not count: the source
    /// of a lagging value may have grown, and a look that walks holes one by one may have got
    /// further.
    pub fn is_same(&self, previous: &Damage) -> bool {
        match (self, previous) {
            (
                Damage::Hole {
                    conversation,
                    first,
                    ..
                },
                Damage::Hole {
                    conversation: other,
                    first: old_value,
                    ..
                },
            ) => (conversation, first) == (other, old_value),
            (
                Damage::HeadBehind {
                    conversation, head, ..
                },
                Damage::HeadBehind {
                    conversation: other,
                    head: old_value,
                    ..
                },
            ) => (conversation, head) == (other, old_value),
            (
                Damage::ListBehind {
                    conversation,
                    listed,
                    ..
                },
                Damage::ListBehind {
                    conversation: other,
                    listed: old_value,
                    ..
                },
            ) => (conversation, listed) == (other, old_value),
            (
                Damage::RegisterAhead {
                    conversation,
                    kind,
                    at,
                    ..
                },
                Damage::RegisterAhead {
                    conversation: other,
                    kind: other_kind,
                    at: old_value,
                    ..
                },
            ) => (conversation, kind, at) == (other, other_kind, old_value),
            _ => self == previous,
        }
    }

    /// Whether both are holes, and this one ends first.
    pub(super) fn ends_before(&self, other: &Damage) -> bool {
        match (self, other) {
            (Damage::Hole { last, .. }, Damage::Hole { last: end, .. }) => last < end,
            _ => false,
        }
    }

    /// Advice if no repair is possible.
    pub const fn advice(&self) -> &'static str {
        match self {
            Damage::SessionOfAbsentBoat { .. } => {
                "nothing: the boat may be alive without its lease. If it is gone, carriers notice \
                 at the next delivery and store the message, and the next sign-in on the platform \
                 replaces the session"
            }
            Damage::MailBodiless { .. } => "nothing: the body is read from history",
            Damage::MailStuck { .. } => {
                "the device does not acknowledge, or its boat does not serve it: check the boat's \
                 log, or end the session (packetboat kick); the device fetches its mail at the \
                 next sign-in"
            }
            Damage::Hole { .. } | Damage::MailUnknown { .. } => {
                "neither side has the row: packetboat trace ID shows what is known of the message. \
                 Restore the row from a backup, or accept that reading stops at this position"
            }
            Damage::HeadBehind { .. } => {
                "stop the carriers and restore the head from a backup: the next message would get \
                 a position that is taken"
            }
            Damage::RegisterAhead { .. } => {
                "no repair: registers only grow, and new messages up to there count as read or \
                 received. Was the store restored from an older backup?"
            }
            Damage::SessionOfEndedLife { .. }
            | Damage::MailLost { .. }
            | Damage::MailMisplaced { .. }
            | Damage::MailUnreadable { .. }
            | Damage::ListBehind { .. } => "run the command with --repair",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::SessionOfEndedLife {
                session,
                newer_life: later,
            } => write!(
                f,
                "session {} on {} is registered with incarnation {} of {}, which has ended: the \
                 current incarnation is {}",
                session.session,
                session.platform,
                session.life.incarnation,
                session.life.boat,
                later.incarnation
            ),
            Damage::SessionOfAbsentBoat { session } => write!(
                f,
                "session {} on {} is registered with {}, which is not in discovery: it has \
                 stopped, or lost its lease",
                session.session, session.platform, session.life.boat
            ),
            Damage::MailUnknown { .. }
            | Damage::MailLost { .. }
            | Damage::MailMisplaced { .. }
            | Damage::MailUnreadable { .. }
            | Damage::MailBodiless { .. }
            | Damage::MailStuck { .. } => self.fmt_mail(f),
            Damage::Hole {
                conversation,
                first,
                last,
            } if first == last => write!(
                f,
                "position {first} of {conversation} has no message: clients cannot read past it"
            ),
            Damage::Hole {
                conversation,
                first,
                last,
            } => write!(
                f,
                "positions {first} to {last} of {conversation} have no messages: clients cannot read past them"
            ),
            Damage::HeadBehind {
                conversation,
                head,
                last,
            } => write!(
                f,
                "{conversation} ends at position {last}, but its head is {head}: the next message \
                 would get a position that is taken"
            ),
            Damage::ListBehind {
                conversation,
                listed: Some(listed),
                last,
            } => write!(
                f,
                "the conversation list has {conversation} up to position {listed}, history up to \
                 {last}: syncing devices miss the rest"
            ),
            Damage::ListBehind {
                conversation,
                listed: None,
                last,
            } => write!(
                f,
                "the conversation list lacks {conversation}, history has it up to position {last}: \
                 syncing devices miss it"
            ),
            Damage::RegisterAhead {
                conversation,
                kind,
                at,
                last,
            } => {
                let state = match kind {
                    ReceiptKind::Received => "received",
                    ReceiptKind::Read => "read",
                };
                write!(
                    f,
                    "{conversation} is marked {state} up to position {at}, but ends at {last}"
                )
            }
        }
    }
}

impl Damage {
    fn fmt_mail(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::MailUnknown {
                platform,
                message,
                conversation,
                seq,
            } => write!(
                f,
                "message {message} waits for {platform}, but history lacks it at position {seq} of \
                 {conversation}: syncing devices miss it"
            ),
            Damage::MailLost { platform, message } => write!(
                f,
                "message {message} waits for {platform} without a body, and history lacks it: it \
                 cannot be delivered"
            ),
            Damage::MailMisplaced {
                platform,
                message,
                mail_position: (conversation, seq),
                history_position: (truly, at),
            } => write!(
                f,
                "message {message} waits for {platform} as position {seq} of {conversation}; history has it at position \
                 {at} of {truly}"
            ),
            Damage::MailUnreadable { platform, message } => write!(
                f,
                "message {message} waits for {platform} with an unreadable body: the device cannot decode it"
            ),
            Damage::MailBodiless { platform, message } => {
                write!(f, "message {message} waits for {platform} without a body")
            }
            Damage::MailStuck { platform, since } => write!(
                f,
                "mail for {platform} has been waiting since {} although the device is connected",
                date(*since)
            ),
            _ => Ok(()),
        }
    }
}

/// `2026-03-01T09:00:00Z`.
fn date(at: Timestamp) -> impl fmt::Display {
    let since_1970 = Duration::from_millis(at.millis().max(0) as u64);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970)
}
