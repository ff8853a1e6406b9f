//! A conversation's head, and the rules by which its single writer gives positions.

mod clear;
mod list_entry;
mod placement;

use serde::{Deserialize, Serialize};

pub use clear::{ClearResult, Neighbours, NewestSeen, clear, is_listed};
pub use list_entry::{ListEntry, ListRegisters, ReadBase};
pub use placement::{PlaceRuling, Placement, StoredPosition};

use crate::history::Version;
use crate::unread::Tally;
use crate::{ConversationId, MessageId, Seq, Timestamp, UserId};

/// State of a conversation that its writer keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The last position given.
    pub seq: Seq,
    /// The last change (recall, edit, reaction) given; dense, apart from `seq`.
    pub rev: u64,
    /// The message at `seq`.
    pub last_id: Option<MessageId>,
    /// The largest id ever placed, of messages and of changes; may be larger than `last_id`.
    pub max_id: Option<MessageId>,
    /// Number of messages by [`Side::Low`]; 0 in a conversation without sides.
    pub from_low: u64,
    /// Time of the last write; the list difference of groups compares it.
    pub stamp: Timestamp,
    /// The record that moved this head last: a record not after it is a redelivery.
    pub version: Version,
}

/// One of the two users of a private conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Side {
    Low,
    High,
}

impl Side {
    pub const fn other(self) -> Side {
        match self {
            Side::Low => Side::High,
            Side::High => Side::Low,
        }
    }
}

impl Head {
    /// Number of messages written by `side`.
    pub fn sent_by(&self, side: Side) -> u64 {
        match side {
            Side::Low => self.from_low,
            Side::High => self.seq.0.saturating_sub(self.from_low),
        }
    }

    /// End of the conversation, in the counting of `side`.
    pub fn tally(&self, side: Side) -> Tally {
        Tally {
            seq: self.seq,
            incoming: self.sent_by(side.other()),
        }
    }
}

/// A conversation as stored for one of its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRow {
    pub owner: UserId,
    pub conversation: ConversationId,
    /// End of the conversation, in the owner's counting.
    pub end: Tally,
    /// The last change's rev.
    pub rev: u64,
    /// The last message.
    pub last_id: MessageId,
    /// Time of the last write of this row; the list difference compares it.
    pub version: Timestamp,
    /// Record that wrote this row: an earlier record's row never replaces a later one's.
    pub source: Version,
}

impl ConversationRow {
    /// The owner's row after a move of the head. `None` before the first message, and for a user
    /// who is not in the conversation.
    pub fn of(
        owner: UserId,
        conversation: ConversationId,
        head: &Head,
        version: Timestamp,
    ) -> Option<ConversationRow> {
        let side = conversation.side_of(owner)?;
        Some(ConversationRow {
            owner,
            conversation,
            end: head.tally(side),
            rev: head.rev,
            last_id: head.last_id?,
            version,
            source: head.version,
        })
    }
}

#[cfg(test)]
mod cursor_tests;
