//! Calls from boats to a station, and its answers, as values of the rules.
//!
//! Batches have no type of their own: their items are converted one by one, so that a refused item
//! does not cost the others their answer.

use std::fmt;
use std::time::Duration;

use protocol::frame::{Accepted, Ack, ServerFrame, SyncRequest};
use protocol::mailbox::{MailCursor, ReassertAnswer};
use protocol::presence::{BoatLife, SessionKey};
use protocol::revocation::UserRevocation;
use protocol::ticket::{ResumeTicket, Ticket};
use protocol::{
    DeviceId, GroupId, MessageId, Platform, Refusal, SendId, SessionId, Timestamp, UserId,
};

/// A session asks to be admitted. Idempotent by session.
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    pub session: SessionId,
    pub life: BoatLife,
    pub token: String,
    /// Given instead of the token.
    pub resume: Option<ResumeTicket>,
    pub device: DeviceId,
    pub platform: Platform,
    /// The client's address, for logs and limits.
    pub peer: String,
    /// Marker that the client brought.
    pub marker: Option<u64>,
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("session", &self.session)
            .field("life", &self.life)
            .field("token", &protocol::Hidden::of(&self.token))
            .field("resume", &self.resume)
            .field("device", &self.device)
            .field("platform", &self.platform)
            .field("peer", &self.peer)
            .field("marker", &self.marker)
            .finish()
    }
}

/// Answer to [`Connect`]: `Result<Admission, Refusal>` on the wire is `ConnectResponse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub user: UserId,
    pub login: u64,
    pub marker: u64,
    pub is_recovered: bool,
    pub mail_waits: bool,
    pub cluster: u64,
    pub server_time: Timestamp,
    /// End of the token, and with it of the session.
    pub expires_at: Timestamp,
    /// The mailbox does not answer: the session is not registered yet, and the boat asserts it
    /// until it is.
    pub is_degraded: bool,
    /// Issue of the token; an older station does not say.
    pub issued_at: Option<Timestamp>,
    /// Ticket for every call for the session, if the station makes them.
    pub ticket: Option<Ticket>,
}

/// A new token for a session.
#[derive(Clone, PartialEq, Eq)]
pub struct RefreshToken {
    pub user: UserId,
    pub session: SessionId,
    pub platform: Platform,
    pub device: DeviceId,
    pub token: String,
    /// Issue of the previous token, if known.
    pub issued_at: Option<Timestamp>,
    pub ticket: Option<Ticket>,
}

impl fmt::Debug for RefreshToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshToken")
            .field("user", &self.user)
            .field("session", &self.session)
            .field("token", &protocol::Hidden::of(&self.token))
            .finish_non_exhaustive()
    }
}

/// Answer to [`RefreshToken`]: `Result<Refreshment, Refusal>` on the wire is `RefreshResponse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refreshment {
    pub expires_at: Timestamp,
    pub issued_at: Timestamp,
    /// Ticket from now on, if the station makes them.
    pub ticket: Option<Ticket>,
}

/// A session whose client is about to sign in elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeSession {
    pub user: UserId,
    pub session: SessionId,
    pub platform: Platform,
    pub device: DeviceId,
    pub ticket: Option<Ticket>,
}

/// End of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    pub key: SessionKey,
    pub ticket: Option<Ticket>,
}

/// Assertion of a boat that it holds this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassert {
    pub key: SessionKey,
    pub platform: Platform,
    pub device: DeviceId,
    /// Number of its login, as in the admission, if known.
    pub login: Option<u64>,
    /// Issue of the token, if known.
    pub issued_at: Option<Timestamp>,
    /// Ticket, which is good for this call for some time after its end.
    pub ticket: Option<Ticket>,
}

/// Answer to [`Reassert`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasserted {
    pub outcome: ReassertOutcome,
    /// Ticket from now on.
    pub ticket: Option<Ticket>,
}

/// State of a session that was asserted again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReassertOutcome {
    Answer(ReassertAnswer),
    /// The token was revoked.
    Revoked,
    /// Nothing proves that the user has signed in.
    Unproved,
    /// The store did not answer for this one: ask again later.
    Unavailable,
}

impl From<ReassertOutcome> for Reasserted {
    /// The boat keeps the ticket that it has.
    fn from(outcome: ReassertOutcome) -> Reasserted {
        Reasserted {
            outcome,
            ticket: None,
        }
    }
}

/// Answer to a [`Submit`](protocol::session::Submit): msg:A, yes or no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendAnswer {
    Accepted(Accepted),
    Refused { send_id: SendId, refusal: Refusal },
}

impl From<SendAnswer> for ServerFrame {
    fn from(answer: SendAnswer) -> Self {
        match answer {
            SendAnswer::Accepted(accepted) => ServerFrame::Accepted(accepted),
            SendAnswer::Refused { send_id, refusal } => ServerFrame::Refused { send_id, refusal },
        }
    }
}

/// Acknowledgements of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptItem {
    pub user: UserId,
    pub session: SessionId,
    pub ack: Ack,
    pub ticket: Option<Ticket>,
}

/// Asks for waiting messages of one platform, oldest first; the answer is a
/// [`Page`](protocol::session::Page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailPageRequest {
    pub user: UserId,
    pub platform: Platform,
    /// Entry to go on after; `None` for the oldest.
    pub cursor: Option<MailCursor>,
    pub limit: u32,
    /// Session of the page; an older boat does not say.
    pub session: Option<SessionId>,
    pub ticket: Option<Ticket>,
}

/// Mail that a device has stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailAck {
    pub user: UserId,
    pub platform: Platform,
    pub session: SessionId,
    pub ids: Vec<MessageId>,
    pub ticket: Option<Ticket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncCall {
    pub user: UserId,
    pub session: SessionId,
    pub request: SyncRequest,
    pub ticket: Option<Ticket>,
}

/// Asks for connected members of a group, among those behind `cursor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlineMembers {
    pub group: GroupId,
    pub cursor: Option<UserId>,
}

/// Sessions of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineUser {
    pub user: UserId,
    /// `None`: unknown, as the server that has them does not answer.
    pub sessions: Option<Vec<OnlineSession>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineSession {
    pub session: SessionId,
    pub platform: Platform,
    pub life: BoatLife,
}

/// Ends all sessions of a user, or those of one platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kickout {
    pub user: UserId,
    pub platform: Option<Platform>,
    pub text: String,
}

/// Revokes tokens of a user that were issued before a time, or before now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoke {
    pub user: UserId,
    pub issued_before: Option<Timestamp>,
    pub reason: String,
    pub by: String,
}

/// Some of the users whose tokens were revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevokedPage {
    pub users: Vec<UserRevocation>,
    pub more: bool,
    /// The station knows all revocations from before this time, by its clock; zero if it does not
    /// say.
    pub complete_until: Timestamp,
    /// Time for which a revocation matters, if the station says.
    pub retention: Option<Duration>,
}
