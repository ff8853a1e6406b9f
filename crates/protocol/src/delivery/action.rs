//! Actions of the carrier, and the answers to them.

use super::{DeliveryTask, Obligation, Push, Route, Source};
use crate::frame::PlacedEcho;
use crate::ledger::{DeadReason, FailureCause, LedgerEntry};
use crate::notify::Notification;
use crate::presence::{BoatLife, SessionKey};
use crate::{Refusal, SendId, SessionId, Timestamp};

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub life: BoatLife,
    pub session: SessionId,
    pub event: SessionEvent,
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
    /// It missed a message: have it compare its cursors.
    Resync,
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
    pub obligations: Vec<Obligation>,
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
    pub obligations: Vec<Obligation>,
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
