//! A conversation's head, and how its single writer gives positions.

mod clearing;
mod listed;
mod placement;

use serde::{Deserialize, Serialize};

pub use clearing::{Around, Clearing, Seen, clear, is_listed};
pub use listed::{Listed, ReadUpTo, Registers};
pub use placement::{Placement, Ruling, Standing};

use crate::history::Version;
use crate::unread::Tally;
use crate::{ConversationId, MessageId, Seq, Timestamp, UserId};

/// What the writer of a conversation remembers of it.
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
    /// How many of the messages [`Side::Low`] wrote; 0 where the conversation has no sides.
    pub from_low: u64,
    /// When its writer wrote it: what the list difference of groups compares.
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
    /// How many of the messages one of the two wrote.
    pub fn sent_by(&self, side: Side) -> u64 {
        match side {
            Side::Low => self.from_low,
            Side::High => self.seq.0.saturating_sub(self.from_low),
        }
    }

    /// Where the conversation ends, as one of the two counts.
    pub fn tally(&self, side: Side) -> Tally {
        Tally {
            seq: self.seq,
            incoming: self.sent_by(side.other()),
        }
    }
}

/// A conversation as one of its users keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRow {
    pub owner: UserId,
    pub conversation: ConversationId,
    /// Where it ends, as the owner counts.
    pub end: Tally,
    /// The last change of it.
    pub rev: u64,
    /// The message at its end.
    pub last_id: MessageId,
    /// When this row was last written; the list difference compares it.
    pub version: Timestamp,
    /// Which record wrote it: a row of an earlier record never replaces one of a later.
    pub source: Version,
}

impl ConversationRow {
    /// What the owner's row says once the head has moved. `None` before the first message, and for who has no
    /// part in it.
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
