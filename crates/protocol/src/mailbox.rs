//! A user's mailbox: the live sessions and, per platform, the messages that wait.
//!
//! Sessions and waiting messages of a user are decided together, in one step: that is what closes the
//! race between "she is offline, store it" and "she just connected, nothing was there".
//!
//! [`Mailbox`] is the rule itself, one user's sessions and waiting entries as a value; [`Presence`] and
//! [`Waiting`] are its halves, for a store that keeps them in different places. [`Bodies`] counts who
//! still needs a body, [`Dedupe`] remembers sends.

mod acked;
mod bodies;
mod capacity;
mod dedupe;
#[cfg(test)]
mod interleavings;
mod policy;
mod presence;
mod sessions;
mod user;
mod waiting;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use self::acked::{ACKED_KEEP, ACKED_MAX, RecentlyAcked};
pub use self::bodies::Bodies;
pub use self::capacity::{CAPACITY_MAX, Overflow, SessionCapacity};
pub use self::dedupe::Dedupe;
pub use self::policy::{MailboxPolicy, Policies};
pub use self::presence::{Placement, Presence};
pub use self::sessions::{Reasserted, Registered, Sessions, TooManySessions, signed_in_again};
pub use self::user::{Change, Mailbox};
pub use self::waiting::{Appended, Waiting};
use crate::presence::{Denied, SessionEntry, SessionKey};
use crate::{ConversationId, DeviceId, MessageId, Platform, SendId, Timestamp, UserId};

/// How long it is remembered how far a user has received.
pub const RECEIVED_KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// A message on its way to one user, for [`route_or_store`](RouteRequest).
#[derive(Clone, Debug)]
pub struct RouteRequest {
    pub user: UserId,
    /// The platforms that must end up with it; sessions on other platforms are told of, too.
    pub platforms: Vec<Platform>,
    /// Store for these even though a session lives: it did not take the message. Part of `platforms`.
    pub forced: Vec<Platform>,
    /// What to store where a platform has no session; `None`: look only.
    pub mail: Option<Mail>,
    pub denied: Denied,
    pub now: Timestamp,
}

/// A message as it waits.
#[derive(Clone, PartialEq, Eq)]
pub struct Mail {
    pub id: MessageId,
    pub accepted_at: Timestamp,
    /// What will be pushed, as it will be pushed.
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
    /// Its place among what waits.
    pub fn cursor(&self) -> MailCursor {
        MailCursor {
            accepted_at: self.accepted_at,
            id: self.id,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// All live sessions of the user, on whatever platform.
    pub live: Vec<SessionEntry>,
    /// Platforms of the request that are now stored for, or were already.
    pub stored: Vec<Platform>,
    /// Platforms whose device acknowledged this id a short while ago: nothing is owed.
    pub acknowledged: Vec<Platform>,
    /// How many messages the policy dropped to make room.
    pub dropped: u32,
}

/// A session wants to be registered. Repeating it with the same session changes nothing.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    pub user: UserId,
    pub entry: NewSession,
    pub denied: Denied,
    pub now: Timestamp,
}

/// A session before it has its login number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    pub key: SessionKey,
    pub platform: Platform,
    pub device: DeviceId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAnswer {
    pub login: u64,
    /// Other devices' sessions on the same platform that are registered no longer, the oldest first; to be kicked.
    pub displaced: Vec<SessionKey>,
    /// Those of the same device, likewise. The device may hold such a one: its sign-ins reach the store in
    /// any order. So it may come again.
    pub replaced: Vec<SessionKey>,
    /// Marks this store's data: another value than last time means that some may have been lost.
    pub marker: u64,
    /// Something waits.
    pub mail_waits: bool,
}

/// What a boat learns when it says again which sessions it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReassertAnswer {
    /// It was there. `mail_waits` for a session that drained long ago: a hint was lost, or a removal.
    Known { mail_waits: bool },
    /// It was missing, or under an earlier life of its boat, and is registered again: what happened
    /// meanwhile may have been stored, so drain and resync.
    Restored { marker: u64, mail_waits: bool },
    /// Later logins of other devices hold the platform: close this session for good.
    Displaced,
    /// A later login of the same device holds the platform: close this session; it may come again.
    Replaced,
}

/// Where a page goes on: strictly after this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MailCursor {
    pub accepted_at: Timestamp,
    pub id: MessageId,
}

/// Waiting messages, oldest first. Paging removes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailPage {
    pub mails: Vec<Mail>,
    /// Entries whose body is gone: they are read from history, never skipped in silence.
    pub bodiless: Vec<MessageId>,
    /// `None`: nothing waits after this page.
    pub next: Option<MailCursor>,
}

/// What a mailbox knows of one message for one platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// A page shows it.
    Waits,
    /// A device acknowledged it a short while ago.
    Acknowledged,
    /// Neither: never stored, acknowledged [long ago](ACKED_KEEP), no longer kept by the policy, or lost.
    Absent,
}

/// The dedupe key of a send: what the sender calls it. To whom it goes is no part of the name, so that a
/// name that was used for somebody else is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupeKey {
    pub from: UserId,
    pub send_id: SendId,
}

/// The send that a dedupe key stands for: the first under that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstSend {
    pub id: MessageId,
    pub conversation: ConversationId,
}

/// What is known of a send when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeAnswer {
    /// Never seen: it is now pending as it was offered.
    Fresh,
    /// Seen, and whether the log took it is not known: publish again under this id.
    Pending(FirstSend),
    /// The log has it under this id.
    Done(FirstSend),
}
