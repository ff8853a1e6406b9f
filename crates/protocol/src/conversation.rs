//! A conversation's head, and how its single writer gives positions.

mod clearing;
mod placement;

use serde::{Deserialize, Serialize};

pub use clearing::{Around, Clearing, Seen, clear, is_listed};
pub use placement::{Placement, Ruling, Standing};

use crate::history::Version;
use crate::{ConversationId, MessageId, Position, Seq, Timestamp, UserId};

/// What the writer of a conversation remembers of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The last position given.
    pub seq: Seq,
    /// The last change (recall, edit, reaction) given; dense, apart from `seq`.
    pub rev: u64,
    /// The message at `seq`.
    pub last_id: Option<MessageId>,
    /// The largest id ever placed; may be larger than `last_id` where clocks differ.
    pub max_id: Option<MessageId>,
    /// The record that moved this head last: a record not after it is a redelivery.
    pub version: Version,
}

/// A conversation as one of its users keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRow {
    pub owner: UserId,
    pub conversation: ConversationId,
    pub position: Position,
    pub last_id: MessageId,
    /// When this row was last written; the list difference compares it.
    pub version: Timestamp,
    /// Which record wrote it: a row of an earlier record never replaces one of a later.
    pub source: Version,
}

#[cfg(test)]
mod cursor_tests;
