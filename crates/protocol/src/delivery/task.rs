//! What one record of the log asks the carrier to deliver.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::keys::Topic;
use crate::presence::BoatLife;
use crate::{Placed, Platform, SessionId, Timestamp, UserId};

/// Where a record stands in the log: what is settled, and at last committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
}

impl Source {
    /// The name of the dead letter that this record becomes: the same each time it does, so that a
    /// repeat after a crash is seen to be one.
    pub fn letter(&self) -> String {
        self.to_string()
    }
}

/// `message-3-1042`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.topic, self.partition, self.offset)
    }
}

/// What is owed to one user. The sender is owed nothing that is stored: what is told to its other
/// sessions is told live, or those sessions start anew and sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    pub user: UserId,
    /// Each of these must end up with it, sessions or none.
    pub platforms: Vec<Platform>,
    /// Sessions of other platforms, where they live, get it too.
    pub live: bool,
}

/// The session that sent a message, to be told its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub life: BoatLife,
}

/// A placed message and to whom it is owed; made by [`plan`](super::plan).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub placed: Placed,
    /// The message as every session, and the mailbox, gets it: encoded once.
    pub frame: Bytes,
    pub owed: Vec<Owed>,
    /// How often it was published again.
    pub retry_count: u32,
    /// When it was published first.
    pub first_at: Timestamp,
    /// `None` on a retry: it was told at the first attempt.
    pub origin: Option<Origin>,
    /// The dead letter that was sent on its way again.
    pub letter: Option<Arc<str>>,
    /// W3C trace context.
    pub traceparent: Option<Arc<str>>,
}
