//! Records of a large group, as carriers send them to boats.

use bytes::Bytes;

use super::{GroupSignal, GroupState, SubscriptionState};
use crate::group::Member;
use crate::history::Version;
use crate::{GroupId, Seq, SessionId, Timestamp, UserId};

/// One record of a large group's log, after everything that it writes is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    pub group: GroupId,
    pub partition: u32,
    /// Record that last changed anything of the group, up to and with this one.
    pub version: Version,
    pub at: Timestamp,
    pub kind: RecordKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Message(Broadcast),
    /// Recall, edit, reaction or pin of an earlier message.
    Change {
        rev: u64,
        broadcast: Broadcast,
    },
    /// A command changed the group.
    Command {
        /// The group's version before it.
        before: Version,
        /// Changed members.
        members: Vec<(UserId, Member)>,
        /// Number of present members after it.
        present: u32,
        state: GroupState,
    },
}

/// A message or a change for all subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    pub frame: Bytes,
    /// Position of the message, or of the message that is changed.
    pub seq: Seq,
    pub is_change: bool,
    pub author: UserId,
    /// Session that sent it: it knows the content.
    pub origin: Option<SessionId>,
    /// Whether only the author and those who watch the group get the frame.
    pub is_signal: bool,
    /// What everybody else gets.
    pub signal: GroupSignal,
}

impl Broadcast {
    /// A broadcast that bears no signal yet: each boat makes it from what it knows of the group.
    pub const fn new(group: GroupId, seq: Seq, author: UserId, frame: Bytes) -> Broadcast {
        Broadcast {
            frame,
            seq,
            is_change: false,
            author,
            origin: None,
            is_signal: false,
            signal: GroupSignal::last(group, SubscriptionState::Subscribed),
        }
    }
}
