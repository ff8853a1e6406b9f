//! Owners of positions: a group, and a member for the own positions there.

use std::fmt;

use scylla::SerializeRow;

use crate::scylla::messages::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeRow)]
pub(super) struct Group {
    pub(super) gid: i64,
}

impl Key for Group {
    const COLUMNS: &'static [&'static str] = &["gid"];
    const ENTRIES: &'static str = "gchat_seq";
    const BLOCKS: &'static str = "gchat_block";
    /// A partition stays below a megabyte.
    const BLOCK_BITS: u32 = 14;
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.gid)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeRow)]
pub(super) struct Member {
    pub(super) gid: i64,
    pub(super) uid: i64,
}

impl Key for Member {
    const COLUMNS: &'static [&'static str] = &["gid", "uid"];
    const ENTRIES: &'static str = "gchat_own";
    const BLOCKS: &'static str = "gchat_own_block";
    /// A member who wrote all of a block alone has some ten megabytes; most have a few rows, and
    /// the blocks of an old member of a busy group are still a small list.
    const BLOCK_BITS: u32 = 18;
}
