//! A user's mailbox: the live sessions and, per platform, the waiting messages.
//!
//! Each step decides a user's sessions and waiting messages together, which closes the race between
//! "she is offline, store it" and "she just connected, nothing was there".
//!
//! [`Mailbox`] is the rule itself, one user's sessions and waiting entries as a value; [`Presence`]
//! and [`MailIndex`] are its halves, for a store that keeps them in different places. [`Bodies`]
//! counts the entries that still need a body, [`Dedupe`] remembers sends.

mod bodies;
mod capacity;
mod dedupe;
#[cfg(test)]
mod interleavings;
mod mail_index;
mod policy;
mod presence;
mod recent_acks;
mod sessions;
mod user;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use self::bodies::Bodies;
pub use self::capacity::{CAPACITY_MAX, Overflow, SessionCapacity};
pub use self::dedupe::Dedupe;
pub use self::mail_index::{AppendResult, MailIndex};
pub use self::policy::{MailboxPolicy, Policies};
pub use self::presence::{Presence, SessionPlacement};
pub use self::recent_acks::{ACKED_KEEP, ACKED_MAX, RecentAcks};
pub use self::sessions::{
    ReassertResult, RegisterResult, Sessions, TooManySessions, replaced_session_refusal,
};
pub use self::user::{Mailbox, MailboxChange};
use crate::presence::{DeniedBoats, SessionEntry, SessionKey};
use crate::{ConversationId, DeviceId, MessageId, Platform, SendId, Timestamp, UserId};

/// Retention of the position up to which a user has received.
pub const RECEIVED_KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// Login numbers are times; a clock that gave one may have been ahead by this much. Where a store
/// lost them, too, of two logins within that time the later one may count as the earlier.
const LOGIN_AHEAD_MAX: Duration = Duration::from_secs(60);

/// A question about one user: which sessions live; with a message, store it on platforms without
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRequest {
    pub user: UserId,
    /// Platforms owed the message. The answer lists sessions on other platforms, too.
    pub platforms: Vec<Platform>,
    /// Platforms to store for although a session lives there: it did not take the message. Subset
    /// of `platforms`.
    pub forced_platforms: Vec<Platform>,
    /// Message to store for platforms without a session; `None`: look only.
    pub mail: Option<Mail>,
    pub denied_boats: DeniedBoats,
    pub now: Timestamp,
}

/// A waiting message.
#[derive(Clone, PartialEq, Eq)]
pub struct Mail {
    pub id: MessageId,
    pub accepted_at: Timestamp,
    /// Bytes to push, as they are.
    pub body: Bytes,
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail")
            .field("id", &self.id)
            .field("accepted_at", &self.accepted_at)
            .field("body", &crate::Hidden::of(&self.body))
            .finish()
    }
}

impl Mail {
    /// Position of the message among the waiting ones.
    pub fn cursor(&self) -> MailCursor {
        MailCursor {
            accepted_at: self.accepted_at,
            id: self.id,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// All live sessions of the user, on any platform.
    pub live: Vec<SessionEntry>,
    /// Platforms of the request for which the message is now stored, or was already.
    pub stored_platforms: Vec<Platform>,
    /// Platforms whose device acknowledged this id lately: nothing is owed.
    pub acknowledged_platforms: Vec<Platform>,
    /// Number of messages that the policy dropped to make room.
    pub dropped_count: u32,
}

/// Request to register a session. A repeat with the same session changes nothing.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    pub user: UserId,
    pub entry: NewSession,
    pub denied_boats: DeniedBoats,
    pub now: Timestamp,
}

/// A session without its login number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    pub key: SessionKey,
    pub platform: Platform,
    pub device: DeviceId,
}

/// A session that a boat holds, with what it was told at the sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSession {
    pub session: NewSession,
    /// Number of its login; `None` if unknown, as after a sign-in without a mailbox.
    pub login: Option<u64>,
}

impl HeldSession {
    /// Number of its login, unless no clock can have given it yet: later logins have larger ones.
    pub fn login(&self, now: Timestamp) -> Option<u64> {
        let latest = u64::try_from((now + LOGIN_AHEAD_MAX).millis()).unwrap_or(0);
        self.login.filter(|login| *login <= latest)
    }
}

impl From<NewSession> for HeldSession {
    fn from(session: NewSession) -> HeldSession {
        let login = None;
        HeldSession { session, login }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAnswer {
    pub login: u64,
    /// Other devices' sessions on the same platform that this login unregistered, oldest first; to
    /// be kicked.
    pub displaced_sessions: Vec<SessionKey>,
    /// Sessions of the same device, likewise. The device may still use one of them, as its sign-ins
    /// reach the store in any order, so it may connect again.
    pub replaced_sessions: Vec<SessionKey>,
    /// Marker of the store's data: a new value means that some data may have been lost.
    pub marker: u64,
    /// Whether mail waits for the platform.
    pub mail_waits: bool,
}

/// Answer to a boat that re-asserts a session it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReassertAnswer {
    /// The session was registered. `mail_waits` on a session that drained long ago means a lost
    /// hint or a lost removal.
    Known { mail_waits: bool },
    /// The session was missing, or registered under an earlier life of its boat, and is registered
    /// again. Messages sent meanwhile may have been stored, so drain and resync.
    Restored { marker: u64, mail_waits: bool },
    /// Later logins of other devices hold the platform: close this session for good.
    Displaced,
    /// A later login of the same device holds the platform: close this session; the device may
    /// connect again.
    Replaced,
}

/// Cursor of a page, which starts strictly after this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MailCursor {
    pub accepted_at: Timestamp,
    pub id: MessageId,
}

impl MailCursor {
    /// Before all mail. As the cursor of the next page: the last page is read, and mail that could
    /// not be read now was left out, so that the oldest is to be read again later.
    pub const START: MailCursor = MailCursor {
        accepted_at: Timestamp::ZERO,
        id: MessageId::MIN,
    };
}

/// A page of waiting messages, oldest first. Paging removes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailPage {
    pub mails: Vec<Mail>,
    /// Entries without a body: read from history, never skipped silently.
    pub bodiless: Vec<MessageId>,
    /// `None`: no mail waits after this page.
    pub next: Option<MailCursor>,
}

/// Location of one message for one platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailLocation {
    /// Waiting: a page shows it.
    Waits,
    /// Acknowledged by a device lately.
    Acknowledged,
    /// Neither: never stored, acknowledged [long ago](ACKED_KEEP), dropped by the policy, or lost.
    Absent,
}

/// Dedupe key of a send: the sender and the sender's own id. The recipient is not part of the key,
/// so reuse of an id for another recipient is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupeKey {
    pub from: UserId,
    pub send_id: SendId,
}

/// The send behind a dedupe key: the first with that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstSend {
    pub id: MessageId,
    pub conversation: ConversationId,
}

/// State of a send on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeAnswer {
    /// Unknown, and now pending as offered.
    Fresh,
    /// Known, but not whether the log accepted it: publish again under this id.
    Pending(FirstSend),
    /// In the log under this id.
    Done(FirstSend),
}
