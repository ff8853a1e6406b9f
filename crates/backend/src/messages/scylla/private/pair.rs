//! The two users of a private conversation.

use std::fmt;

use protocol::UserId;
use scylla::SerializeRow;

use crate::scylla::messages::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeRow)]
pub(in crate::messages::scylla) struct UserPair {
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
    pub(in crate::messages::scylla) fn new(one: UserId, other: UserId) -> UserPair {
        UserPair {
            low: one.min(other).get(),
            high: one.max(other).get(),
        }
    }
}

impl fmt::Display for UserPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p:{}:{}", self.low, self.high)
    }
}
