//! The two users of a private conversation.

use std::fmt;

use protocol::ConversationId;
use protocol::history::PrivateRow;
use scylla::SerializeRow;

use super::SEAM;
use crate::scylla::messages::Key;
use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeRow)]
pub(super) struct UserPair {
    low: i64,
    high: i64,
}

impl Key for UserPair {
    const COLUMNS: &'static [&'static str] = &["low", "high"];
    const ENTRIES: &'static str = "pchat_seq";
    const BLOCKS: &'static str = "pchat_block";
    /// A partition stays below a megabyte.
    const BLOCK_BITS: u32 = 14;
}

impl UserPair {
    pub(super) fn of_conversation(conversation: ConversationId) -> Option<UserPair> {
        match conversation {
            ConversationId::Private { low, high } => Some(UserPair {
                low: low.get(),
                high: high.get(),
            }),
            ConversationId::Group(_) | ConversationId::System(_) => None,
        }
    }

    pub(super) fn of(row: &PrivateRow) -> Result<UserPair> {
        let pair = row.conversation().and_then(UserPair::of_conversation);
        pair.ok_or_else(|| Error::conflict(SEAM, "a row of a user with itself"))
    }
}

impl fmt::Display for UserPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p:{}:{}", self.low, self.high)
    }
}
