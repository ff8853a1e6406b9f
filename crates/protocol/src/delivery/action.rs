//! Actions of the carrier, and the answers to them.

use bytes::Bytes;

use super::arena::Key;
use super::{DeliveryTask, Obligation, Source};
use crate::cache::Invalidation;
use crate::frame::PlacedEcho;
use crate::ledger::{DeadReason, FailureCause, LedgerEntry};
use crate::mailbox::RouteRequest;
use crate::notify::Notification;
use crate::presence::{BoatLife, DeniedBoats, SessionKey};
use crate::{MessageId, Refusal, SendId, SessionId, Timestamp, TraceContext};

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

    /// Any number is accepted: 0 asks for no outcome, and an answer to a push that does not exist is
    /// ignored.
    pub fn from_number(number: u64) -> PushToken {
        PushToken(Key::from_number(number))
    }
}

/// An action for the caller, from [`Delivery::poll_action`](super::Delivery::poll_action).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the mailbox, and answer by `handle_routed`; routes of one user keep the order in which
    /// they were handed out.
    Route(Route),
    /// Write to a session of this life, and answer by `handle_outcome`. Pushes to one session keep
    /// their order.
    Push {
        push: Push,
        life: BoatLife,
        /// Time at which the machine gives up by itself; the boat answers well before.
        deadline: Timestamp,
    },
    /// Compare and delete this registration: its boat does not know the session. Takes effect
    /// before any `Route` that is handed out after it.
    Forget(SessionKey),
    /// Send an event to a session. No answer; nothing is lost if it fails.
    Notice(Notice),
    /// A record is finished, once everything in this settlement is durable.
    Settled(Box<Settlement>),
}

/// A question to the mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub token: RouteToken,
    /// The question itself, still to be [stamped](Route::stamp).
    pub request: RouteRequest,
    /// Cache entries to invalidate before the look for sessions: see [`crate::cache`].
    pub outdated: Vec<Invalidation>,
    /// On a retry, the time of the record's first attempt.
    pub first_at: Option<Timestamp>,
    /// Trace of the message.
    pub trace: Option<TraceContext>,
}

impl Route {
    /// Dates the question as it is asked: now, while these boats are known to have ended.
    pub fn stamp(&mut self, now: Timestamp, denied: &DeniedBoats) {
        self.request.now = now;
        self.request.denied = denied.clone();
    }
}

/// A message for one session: from this machine to the [`Session`](crate::session::Session).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub token: PushToken,
    pub session: SessionId,
    pub message: MessageId,
    /// The complete frame, shared by all its recipients.
    pub frame: Bytes,
    /// False: the push is done once written.
    pub needs_ack: bool,
    /// Trace context of this delivery.
    pub trace: Option<TraceContext>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub life: BoatLife,
    pub session: SessionId,
    pub word: SessionEvent,
}

/// Event for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Position of a message that the session sent.
    Placed(PlacedEcho),
    /// Refusal of a send that was accepted, and then had no effect.
    Refused { send_id: SendId, refusal: Refusal },
    /// Mail was stored while the session lived: drain the mailbox.
    Hint,
    /// Close the session, with this as its last frame.
    Close(Refusal),
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PushOutcome {
    /// Acknowledged, or written if no acknowledgement was requested.
    Done,
    NoAck,
    NoSession,
    /// The session's windows are full.
    Full,
    /// The boat was unreachable, or its answer did not come.
    Unreachable,
}

/// Failure of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteFailure {
    /// The store did not answer: retried, and the attempt does not count.
    Unavailable,
    /// The store refused: the attempt counts.
    Refused,
}

/// Everything that must be durable before a record counts as settled: publish the retries, the
/// letter and the notifications, append the ledger; then settle the offset. Repeat the whole until
/// it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub source: Source,
    pub task: DeliveryTask,
    /// At most two: one for failed parts, one for parts that could not be tried.
    pub retries: Vec<Retry>,
    pub letter: Option<FailedPart>,
    pub notifications: Vec<Notification>,
    /// Events in order; the last is `Settled`.
    pub ledger: Vec<LedgerEntry>,
}

/// Part of a task to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Obligations that failed, and no others (S1-27).
    pub owed: Vec<Obligation>,
    pub retry_count: u32,
    /// Counted from 1.
    pub tier: u8,
    pub due_at: Timestamp,
    pub cause: FailureCause,
}

/// Part of a task that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPart {
    pub name: String,
    pub reason: DeadReason,
    /// Obligations that failed, and no others.
    pub owed: Vec<Obligation>,
    pub cause: FailureCause,
}

/// Load of the machine, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryLoad {
    pub records: usize,
    /// Present budget of records in flight, between the limits' least and most.
    pub records_max: usize,
    /// Users that these records are owed to, and bytes of their frames.
    pub users: usize,
    pub bytes: usize,
    pub pushes: usize,
    pub lanes: usize,
}
