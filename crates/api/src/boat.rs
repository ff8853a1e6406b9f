//! Calls from carriers and stations to a boat, as values of the rules.

use std::num::NonZeroU32;

use bytes::Bytes;
use protocol::delivery::Push;
use protocol::drain::BoatState;
use protocol::presence::BoatLife;
use protocol::{Refusal, SessionId, session};

/// One batch on the long-lived `Deliver` stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverBatch {
    /// Life that is meant; another life answers [`NoSession`](session::Outcome::NoSession) to all.
    pub life: BoatLife,
    pub pushes: Vec<Push>,
    pub notices: Vec<Notice>,
}

/// Outcome of the push with this token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub token: u64,
    pub kind: session::Outcome,
}

/// Notice to one session, without an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub session: SessionId,
    pub kind: NoticeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Encoded `ServerFrame` to be written.
    Frame(Bytes),
    /// Mail was stored while this session lived: drain.
    Hint,
    /// The session missed a message: have it compare its cursors.
    Resync,
    /// End the session, with this as the last frame.
    Close(Refusal),
}

/// Notices outside the stream; the answer names the sessions that the boat does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeBatch {
    pub life: BoatLife,
    pub notices: Vec<Notice>,
}

/// Command of an operator to one boat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainCommand {
    /// Life that is meant; another one refuses.
    pub life: BoatLife,
    /// Unset: only asks for the progress.
    pub order: Option<DrainOrder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrder {
    /// Sends clients away, at most this many a second, and takes none until it is cancelled.
    Drain {
        pace: Option<NonZeroU32>,
    },
    Cancel,
}

/// Progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainProgress {
    pub state: BoatState,
    /// Clients aboard.
    pub connections: u64,
    /// Other boats have no room, and the rest waits.
    pub waits: bool,
}
