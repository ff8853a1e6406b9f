//! What one record of the log asks the carrier to deliver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::group::Audience;
use crate::keys::Topic;
use crate::ledger::LedgerEntry;
use crate::message::Target;
use crate::presence::BoatLife;
use crate::{Placed, Platform, SessionId, Timestamp, TraceContext, UserId};

/// Where a record stands in the log: what is settled, and at last committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
}

impl Source {
    /// The name of the dead letter that this record becomes for these targets (none: as a whole): the
    /// same each time it does, so that a repeat after a crash is seen to be one. `message-3-1042`, with a
    /// hash of the targets behind it where there are some.
    pub fn letter(&self, targets: &[Target]) -> String {
        if targets.is_empty() {
            self.to_string()
        } else {
            format!("{self}-{:08x}", hash_of(targets))
        }
    }
}

/// FNV-1a over the sorted targets, folded: their order does not matter.
fn hash_of(targets: &[Target]) -> u32 {
    let mut sorted = targets.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for target in sorted {
        let user = target.user.get().to_be_bytes();
        for byte in user.into_iter().chain([target.platform.number()]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    (hash >> 32) as u32 ^ hash as u32
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

impl Owed {
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.platforms.iter().map(|&platform| Target {
            user: self.user,
            platform,
        })
    }
}

/// The session that sent a message, to be told its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub life: BoatLife,
}

/// A placed message and to whom it is [owed](super::owed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub placed: Placed,
    /// The place of a change among the changes; 0 of a message. A change is at the position of the message that
    /// it changes.
    pub rev: u64,
    /// The message as every session, and the mailbox, gets it: encoded once.
    pub frame: Bytes,
    /// What single users get instead: of a private message, its sender's copy; of a wish about a group, how each
    /// stands.
    pub own_frames: BTreeMap<UserId, Bytes>,
    pub owed: Vec<Owed>,
    /// The members of a large group, beside those: whatever sessions of theirs live are told, a few members at a
    /// time. Its sender is not among them.
    pub audience: Option<Audience>,
    /// How often it was published again.
    pub retry_count: u32,
    /// When it was published first.
    pub first_at: Timestamp,
    /// `None` on a retry: it was told at the first attempt.
    pub origin: Option<Origin>,
    /// The dead letter that was sent on its way again.
    pub letter: Option<Arc<str>>,
    /// The trace that its deliveries follow from.
    pub trace: Option<TraceContext>,
    /// What happened to the message before: stands first in the settlement's ledger.
    pub noted: Vec<LedgerEntry>,
}

impl Task {
    /// Bytes of its frames.
    pub fn frame_bytes(&self) -> usize {
        let own: usize = self.own_frames.values().map(Bytes::len).sum();
        self.frame.len() + own
    }

    pub fn frame_for(&self, user: UserId) -> &Bytes {
        self.own_frames.get(&user).unwrap_or(&self.frame)
    }

    /// It is told to what lives, and never stored: sync finds it. So is a message for its sender's other
    /// sessions, and a change for everybody.
    pub fn is_only_told(&self, user: UserId) -> bool {
        let message = &self.placed.message;
        message.from == user || message.content.change.is_some()
    }
}
