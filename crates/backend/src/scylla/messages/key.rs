//! Keys of tables of positions.

use std::hash::Hash;

use scylla::serialize::SerializationError;
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;

/// Leading columns of tables of positions: a conversation, or another owner of positions.
pub(crate) trait Key: SerializeRow + Copy + Ord + Hash + Send + Sync {
    const COLUMNS: &'static [&'static str];
    /// Table of the messages at positions.
    const ENTRIES: &'static str;
    /// Table of the blocks in use.
    const BLOCKS: &'static str;
    /// Size of a partition: two to the power of this, in positions.
    const BLOCK_BITS: u32;

    fn to_block(seq: i64) -> i64 {
        seq >> Self::BLOCK_BITS
    }

    fn first_position(block: i64) -> i64 {
        block << Self::BLOCK_BITS
    }

    fn last_position(block: i64) -> i64 {
        Self::first_position(block) + ((1 << Self::BLOCK_BITS) - 1)
    }

    /// Condition that selects one key.
    fn is() -> String {
        format!("{} = ?", Self::COLUMNS.join(" = ? AND "))
    }
}

/// A key and the values after it, as the values of a statement.
pub(crate) struct KeyedValues<K, V>(pub(crate) K, pub(crate) V);

impl<K: Key, V: SerializeRow> SerializeRow for KeyedValues<K, V> {
    fn serialize(
        &self,
        ctx: &RowSerializationContext<'_>,
        writer: &mut RowWriter<'_>,
    ) -> Result<(), SerializationError> {
        let columns = ctx.columns();
        let (key, rest) = columns.split_at(K::COLUMNS.len().min(columns.len()));
        self.0
            .serialize(&RowSerializationContext::from_specs(key), writer)?;
        self.1
            .serialize(&RowSerializationContext::from_specs(rest), writer)
    }

    fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use scylla::SerializeRow;

    use super::*;

    #[derive(SerializeRow, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    struct Place {
        x: i64,
        y: i64,
    }

    impl Key for Place {
        const COLUMNS: &'static [&'static str] = &["x", "y"];
        const ENTRIES: &'static str = "entries";
        const BLOCKS: &'static str = "blocks";
        const BLOCK_BITS: u32 = 14;
    }

    #[test]
    fn blocks_meet_without_a_gap() {
        assert_eq!(Place::to_block(1), 0);
        assert_eq!(Place::to_block(Place::last_position(0)), 0);
        assert_eq!(Place::first_position(1), Place::last_position(0) + 1);
        assert_eq!(Place::to_block(Place::first_position(7)), 7);
    }

    #[test]
    fn a_condition_names_every_column() {
        assert_eq!(Place::is(), "x = ? AND y = ?");
    }
}
