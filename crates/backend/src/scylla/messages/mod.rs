//! Tables of messages, common to private conversations and groups.
//!
//! | what | table | partition | row |
//! | --- | --- | --- | --- |
//! | `Rows` | `pchat`, `gchat` | owner, 28-day window of the id | id |
//! | `Windows` | `pchat_bucket`, `gchat_bucket` | owner | window |
//! | `Entries` | `pchat_seq`, `gchat_seq`, `gchat_own` | key, block of positions | seq |
//! | | `pchat_block`, `gchat_block`, `gchat_own_block` | key | block |
//! | `Sends` | `pchat_send`, `gchat_send` | send_id | sender, receiver, id |
//!
//! `Positions` reads entries of `Entries`, in tables where every position of a conversation has
//! one.

pub(crate) mod columns;
mod key;
mod position_entries;
mod positions;
mod rows;
mod sends;
pub(crate) mod windows;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use self::key::{Key, KeyedValues};
pub(crate) use self::position_entries::{Entries, PositionEntries, PositionEntry};
pub(crate) use self::positions::Positions;
pub(crate) use self::rows::{Rows, ScyllaRow, by_ids, select};
pub(crate) use self::sends::{Sends, StoredSend};
pub(crate) use self::windows::Owner;

/// Largest number of keys that a server takes in one query.
const KEYS_MAX: usize = 100;

/// Groups rows by partition, each row once, into queries of at most `KEYS_MAX` keys.
fn by_partition<P: Copy + Ord>(keys: impl Iterator<Item = (P, i64)>) -> Vec<(P, Vec<i64>)> {
    let mut by_partition: BTreeMap<P, BTreeSet<i64>> = BTreeMap::new();
    for (partition, row) in keys {
        by_partition.entry(partition).or_default().insert(row);
    }
    let mut queries = Vec::with_capacity(by_partition.len());
    for (partition, rows) in by_partition {
        let rows: Vec<i64> = rows.into_iter().collect();
        let chunks = rows.chunks(KEYS_MAX);
        queries.extend(chunks.map(|rows| (partition, rows.to_vec())));
    }
    queries
}
