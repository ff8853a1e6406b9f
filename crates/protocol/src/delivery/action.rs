//! What the carrier is to do, and what the world says to it.

use bytes::Bytes;

use super::arena::Key;
use super::{Owed, Source, Task};
use crate::cached::Outdated;
use crate::frame::PlacedEcho;
use crate::ledger::{DeadReason, FailureCause, LedgerEntry};
use crate::mailbox::Mail;
use crate::notify::Notification;
use crate::presence::{BoatLife, SessionKey};
use crate::{MessageId, Platform, Refusal, SendId, SessionId, Timestamp, TraceContext, UserId};

/// Names an open [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteToken(pub(super) Key);

/// Names an open [`Push`]; on the wire it is [`PushToken::number`], which is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushToken(pub(super) Key);

impl PushToken {
    pub fn number(self) -> u64 {
        self.0.number()
    }

    /// A number that no push bears is answered by nothing.
    pub fn from_number(number: u64) -> PushToken {
        PushToken(Key::from_number(number))
    }
}

/// Something to be done, handed out by [`Delivery::poll_action`](super::Delivery::poll_action).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the mailbox; answer by `handle_routed`, the routes of one user in the order in which they
    /// were handed out.
    Route(Route),
    /// Write to a session; answer by `handle_outcome`. Pushes to one session keep their order.
    Push(Push),
    /// Compare and delete this registration: its boat does not know it. Takes effect before any
    /// `Route` that is handed out after it.
    Forget(SessionKey),
    /// Tell a session; nothing comes back, and nothing is lost if it fails.
    Notice(Notice),
    /// A record needs no more work, once all that this holds is durable.
    Settled(Box<Settlement>),
}

/// A question to the mailbox: who lives there, and store where nobody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub token: RouteToken,
    pub user: UserId,
    pub platforms: Vec<Platform>,
    /// Store for these even though a session lives.
    pub forced: Vec<Platform>,
    /// What to store; `None`: look only.
    pub mail: Option<Mail>,
    /// What is forgotten before anybody is looked for: see [`crate::cached`].
    pub outdated: Vec<Outdated>,
    /// Of a retry: when the record was first tried.
    pub first_at: Option<Timestamp>,
    /// Of the message.
    pub trace: Option<TraceContext>,
}

/// A frame for one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub token: PushToken,
    pub life: BoatLife,
    pub session: SessionId,
    pub message: MessageId,
    pub frame: Bytes,
    /// False: done when it is written.
    pub needs_ack: bool,
    /// When the machine gives up by itself; the boat answers well before.
    pub deadline: Timestamp,
    /// Of this delivery.
    pub trace: Option<TraceContext>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub life: BoatLife,
    pub session: SessionId,
    pub word: Word,
}

/// What a session is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The place of a message that it sent.
    Placed(PlacedEcho),
    /// What it sent was accepted, and came to nothing.
    Refused { send_id: SendId, refusal: Refusal },
    /// Mail was stored while it lived: drain.
    Hint,
    /// End, with this as the last word.
    Close(Refusal),
}

/// How a push ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Acknowledged, or written where no acknowledgement was asked for.
    Done,
    NoAck,
    NoSession,
    /// The session's bounds are reached.
    Full,
    /// The boat could not be asked, or its answer did not come.
    Unreachable,
}

/// Why a route has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteFailure {
    /// The store did not answer: it will be tried again, and the attempt does not count.
    Unavailable,
    /// The store refused: the attempt counts.
    Refused,
}

/// All that must be durable before a record counts as settled: publish the retries, the letter and the
/// notifications, append the ledger; then settle its offset. To be repeated whole until it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub source: Source,
    pub task: Task,
    /// At most two: what failed, and what could not be tried.
    pub retries: Vec<Retry>,
    pub letter: Option<Letter>,
    pub notifications: Vec<Notification>,
    /// In the order in which it happened; the last is `Settled`.
    pub ledger: Vec<LedgerEntry>,
}

/// The part of a task that is to be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Only what failed (S1-27).
    pub owed: Vec<Owed>,
    pub retry_count: u32,
    /// Counted from 1.
    pub tier: u8,
    pub due_at: Timestamp,
    pub cause: FailureCause,
}

/// The part of a task that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub name: String,
    pub reason: DeadReason,
    /// Only what failed.
    pub owed: Vec<Owed>,
    pub cause: FailureCause,
}

/// What the machine holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub records: usize,
    /// How many may be in flight now; moves between the limits' least and most.
    pub records_max: usize,
    /// Users that these are owed to, and bytes of their frames.
    pub users: usize,
    pub bytes: usize,
    pub pushes: usize,
    pub lanes: usize,
}
