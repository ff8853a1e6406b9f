//! What is wrong, in the words of whoever is called about it.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use super::super::Verdict;
use crate::presence::{BoatLife, SessionEntry};
use crate::receipt::ReceiptKind;
use crate::{ConversationId, MessageId, Platform, Seq, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A later life of its boat is there.
    SessionOfEndedLife {
        session: SessionEntry,
        later: BoatLife,
    },
    /// Its boat is not in discovery.
    SessionOfAbsentBoat { session: SessionEntry },
    /// It waits, and history does not have it.
    MailUnknown {
        platform: Platform,
        message: MessageId,
        conversation: ConversationId,
        seq: Seq,
    },
    /// It waits without a body that could be read, and history does not have it.
    MailLost {
        platform: Platform,
        message: MessageId,
    },
    /// It waits under another place than history has it at.
    MailMisplaced {
        platform: Platform,
        message: MessageId,
        says: (ConversationId, Seq),
        stands: (ConversationId, Seq),
    },
    /// It waits with a body that is no frame; history has it.
    MailUnreadable {
        platform: Platform,
        message: MessageId,
    },
    /// It waits without a body; history has it.
    MailBodiless {
        platform: Platform,
        message: MessageId,
    },
    /// It waits for a device that is connected.
    MailStuck {
        platform: Platform,
        since: Timestamp,
    },
    /// No page of the owner goes over these positions.
    Hole {
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    },
    /// The writer would give positions again that are taken.
    HeadBehind {
        conversation: ConversationId,
        head: Seq,
        last: Seq,
    },
    /// The list does not tell of the newest.
    ListBehind {
        conversation: ConversationId,
        listed: Option<Seq>,
        last: Seq,
    },
    /// More was read or received than there is.
    RegisterAhead {
        conversation: ConversationId,
        kind: ReceiptKind,
        at: Seq,
        last: Seq,
    },
}

impl Damage {
    /// What kind it is, for machines.
    pub const fn name(&self) -> &'static str {
        match self {
            Damage::SessionOfEndedLife { .. } => "session-of-ended-life",
            Damage::SessionOfAbsentBoat { .. } => "session-of-absent-boat",
            Damage::MailUnknown { .. } => "mail-unknown",
            Damage::MailLost { .. } => "mail-lost",
            Damage::MailMisplaced { .. } => "mail-misplaced",
            Damage::MailUnreadable { .. } => "mail-unreadable",
            Damage::MailBodiless { .. } => "mail-bodiless",
            Damage::MailStuck { .. } => "mail-stuck",
            Damage::Hole { .. } => "hole",
            Damage::HeadBehind { .. } => "head-behind",
            Damage::ListBehind { .. } => "list-behind",
            Damage::RegisterAhead { .. } => "register-ahead",
        }
    }

    /// All kinds; docs/operations/doctor.md has a line for each.
    pub const NAMES: [&'static str; 12] = [
        "session-of-ended-life",
        "session-of-absent-boat",
        "mail-unknown",
        "mail-lost",
        "mail-misplaced",
        "mail-unreadable",
        "mail-bodiless",
        "mail-stuck",
        "hole",
        "head-behind",
        "list-behind",
        "register-ahead",
    ];

    /// A failure where the user misses something, or soon will.
    pub const fn verdict(&self) -> Verdict {
        match self {
            Damage::SessionOfEndedLife { .. }
            | Damage::SessionOfAbsentBoat { .. }
            | Damage::MailBodiless { .. }
            | Damage::MailStuck { .. } => Verdict::Warning,
            Damage::MailUnknown { .. }
            | Damage::MailLost { .. }
            | Damage::MailMisplaced { .. }
            | Damage::MailUnreadable { .. }
            | Damage::Hole { .. }
            | Damage::HeadBehind { .. }
            | Damage::ListBehind { .. }
            | Damage::RegisterAhead { .. } => Verdict::Failure,
        }
    }

    /// Whether this is what an earlier look saw. Where something lags behind what goes on growing, how far that
    /// has come does not matter; nor how far a look got that goes over holes one by one.
    pub fn is_same(&self, earlier: &Damage) -> bool {
        match (self, earlier) {
            (
                Damage::Hole {
                    conversation,
                    first,
                    ..
                },
                Damage::Hole {
                    conversation: other,
                    first: before,
                    ..
                },
            ) => (conversation, first) == (other, before),
            (
                Damage::HeadBehind {
                    conversation, head, ..
                },
                Damage::HeadBehind {
                    conversation: other,
                    head: before,
                    ..
                },
            ) => (conversation, head) == (other, before),
            (
                Damage::ListBehind {
                    conversation,
                    listed,
                    ..
                },
                Damage::ListBehind {
                    conversation: other,
                    listed: before,
                    ..
                },
            ) => (conversation, listed) == (other, before),
            (
                Damage::RegisterAhead {
                    conversation,
                    kind,
                    at,
                    ..
                },
                Damage::RegisterAhead {
                    conversation: other,
                    kind: of,
                    at: before,
                    ..
                },
            ) => (conversation, kind, at) == (other, of, before),
            _ => self == earlier,
        }
    }

    /// Of two holes that begin alike, whether this is the shorter.
    pub(super) fn ends_before(&self, other: &Damage) -> bool {
        match (self, other) {
            (Damage::Hole { last, .. }, Damage::Hole { last: end, .. }) => last < end,
            _ => false,
        }
    }

    /// What a person does where nothing can be mended.
    pub const fn advice(&self) -> &'static str {
        match self {
            Damage::SessionOfAbsentBoat { .. } => {
                "unknown means alive: nobody removes it on that ground. If the boat has ended, carriers find out at the next \
                 delivery and store the message; the next sign-in on the platform replaces the session"
            }
            Damage::MailBodiless { .. } => "nothing: the page reads it from history",
            Damage::MailStuck { .. } => {
                "the device does not acknowledge, or its boat does not serve it: look at the boat's log, or end the session \
                 (a kickout); the device fetches all at its next sign-in"
            }
            Damage::Hole { .. } | Damage::MailUnknown { .. } => {
                "neither side has the row: packetboat trace ID says what was known of the message; restore the store's \
                 copy, or accept that the conversation cannot be read over this position"
            }
            Damage::HeadBehind { .. } => {
                "stop the carriers, restore the head from a backup of the store: the next message would get a position that \
                 is taken"
            }
            Damage::RegisterAhead { .. } => {
                "registers only grow: what comes up to there counts as read or received. Was the store restored from an \
                 older copy?"
            }
            Damage::SessionOfEndedLife { .. }
            | Damage::MailLost { .. }
            | Damage::MailMisplaced { .. }
            | Damage::MailUnreadable { .. }
            | Damage::ListBehind { .. } => "run it with --repair",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::SessionOfEndedLife { session, later } => write!(
                f,
                "session {} on {} is registered with life {} of {}, which has ended: life {} is there",
                session.session,
                session.platform,
                session.life.incarnation,
                session.life.boat,
                later.incarnation
            ),
            Damage::SessionOfAbsentBoat { session } => write!(
                f,
                "session {} on {} is registered with {}, which is not in discovery: it has ended, or lives without its lease",
                session.session, session.platform, session.life.boat
            ),
            Damage::MailUnknown {
                platform,
                message,
                conversation,
                seq,
            } => write!(
                f,
                "message {message} waits for {platform}, and history does not have it at position {seq} of \
                 {conversation}: whoever syncs does not get it"
            ),
            Damage::MailLost { platform, message } => write!(
                f,
                "message {message} waits for {platform} without a body, and history does not have it: nobody can get it"
            ),
            Damage::MailMisplaced {
                platform,
                message,
                says: (conversation, seq),
                stands: (truly, at),
            } => write!(
                f,
                "message {message} waits for {platform} as position {seq} of {conversation}; history has it at position \
                 {at} of {truly}"
            ),
            Damage::MailUnreadable { platform, message } => write!(
                f,
                "message {message} waits for {platform} with a body that is no frame: the device cannot read it"
            ),
            Damage::MailBodiless { platform, message } => {
                write!(f, "message {message} waits for {platform} without a body")
            }
            Damage::MailStuck { platform, since } => write!(
                f,
                "mail waits for {platform} since {}, though a session is there all the time",
                date(*since)
            ),
            Damage::Hole {
                conversation,
                first,
                last,
            } if first == last => write!(
                f,
                "position {first} of {conversation} has no message: no page goes over it, for ever"
            ),
            Damage::Hole {
                conversation,
                first,
                last,
            } => write!(
                f,
                "positions {first} to {last} of {conversation} have no messages: no page goes over them, for ever"
            ),
            Damage::HeadBehind {
                conversation,
                head,
                last,
            } => write!(
                f,
                "{conversation} goes to position {last}, but its head says {head}: the next message would get a position \
                 that is taken"
            ),
            Damage::ListBehind {
                conversation,
                listed: Some(listed),
                last,
            } => write!(
                f,
                "the conversation list shows {conversation} up to position {listed}, history goes to {last}: devices that \
                 sync do not see the rest"
            ),
            Damage::ListBehind {
                conversation,
                listed: None,
                last,
            } => write!(
                f,
                "the conversation list does not have {conversation}, history has it up to position {last}: devices that \
                 sync do not see it"
            ),
            Damage::RegisterAhead {
                conversation,
                kind,
                at,
                last,
            } => {
                let done = match kind {
                    ReceiptKind::Received => "received",
                    ReceiptKind::Read => "read",
                };
                write!(
                    f,
                    "{conversation} counts as {done} up to position {at}, and ends at {last}"
                )
            }
        }
    }
}

/// `2026-03-01T09:00:00Z`.
fn date(at: Timestamp) -> impl fmt::Display {
    let since_1970 = Duration::from_millis(at.millis().max(0) as u64);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970)
}
