//! How the single writer of a conversation gives positions: a function of the log and of what stands.
//!
//! ```text
//! match head.place(record, id) {
//!     New(position)            => write it there
//!     Redelivery | CheckRow    => head.compare(record, id's row) says
//! }
//! ```
//!
//! The order of effects is rows → head → … → commit. A crash between any two of them brings the record
//! back, and the rules here give it the position that it had. What they need for that: whether a record
//! is placed at all must not depend on the time or on chance, only on the log and the rows.

use serde::{Deserialize, Serialize};

use super::{Head, Side};
use crate::group::GroupRow;
use crate::history::{PrivateRow, Version};
use crate::{MessageId, Position, Seq};

/// What the head alone can say of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Never seen: this is its position. Write the rows, then the head that [`Head::moved_by`] makes.
    New(Position),
    /// Not after the record that moved the head last: it was handled before and keeps the position of
    /// its row. Read the row and ask [`Head::compare`].
    Redelivery,
    /// Its id is not the largest: a clock was behind, the record is a repeat, or a half-done write of
    /// our own stands. Read the row and ask [`Head::compare`].
    CheckRow,
}

/// What the row of an id says: which record made it, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub version: Version,
    pub position: Position,
    /// The how manieth of its sender it is, in a private conversation.
    pub sent: u64,
}

impl From<&PrivateRow> for Standing {
    fn from(row: &PrivateRow) -> Standing {
        Standing {
            version: row.version,
            position: Position {
                seq: row.seq,
                prev: row.prev,
            },
            sent: row.sent(),
        }
    }
}

impl From<&GroupRow> for Standing {
    fn from(row: &GroupRow) -> Standing {
        Standing {
            version: row.version,
            position: Position {
                seq: row.seq,
                prev: row.prev,
            },
            sent: 0,
        }
    }
}

/// What becomes of a record, once its row was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Write rows here, then the head that [`Head::moved_by`] makes.
    Place(Position),
    /// Placed here before: the head stays, every effect after it is repeated.
    Keep(Position),
    /// The message stands here already, from an earlier record: drop this one.
    Repeat(Position),
    /// Handled before, and no row was made: an unsure copy that was dropped (its send_id finds the
    /// first one), or a record that went to the dead letters without a position. It gets none now.
    Unplaced,
    /// The row is of a later record that the head does not know. This one was refused a place in its turn,
    /// and is again: a rule that reads the log says so, or it is [`Ruling::Unplaced`]. The head may be
    /// behind: load it and ask once more before.
    PlacedLater,
    /// The row stands where the head cannot have put it: another writer is ahead. Load the head again; if
    /// it happens again, stop the partition.
    Overtaken,
}

impl Head {
    /// Where the next new message stands.
    pub fn next_position(&self) -> Position {
        Position {
            seq: self.seq.next(),
            prev: self.last_id,
        }
    }

    /// Where the message `id` of this record belongs, as far as the head knows.
    pub fn place(&self, record: Version, id: MessageId) -> Placement {
        if self.seq != Seq::ZERO && record <= self.version {
            Placement::Redelivery
        } else if self.max_id.is_some_and(|max| id <= max) {
            Placement::CheckRow
        } else {
            Placement::New(self.next_position())
        }
    }

    /// As [`place`](Head::place); `is_behind`: a later record has made something of its group, so this one was handled.
    pub fn place_in_group(&self, record: Version, id: MessageId, is_behind: bool) -> Placement {
        match self.place(record, id) {
            Placement::New(_) if is_behind => Placement::Redelivery,
            placement => placement,
        }
    }

    /// As [`compare`](Head::compare), and `is_behind` as above.
    pub fn compare_in_group(
        &self,
        record: Version,
        row: Option<Standing>,
        is_behind: bool,
    ) -> Ruling {
        match row {
            None if is_behind => Ruling::Unplaced,
            row => self.compare(record, row),
        }
    }

    /// The rest of the rule, for [`Placement::Redelivery`], [`Placement::CheckRow`] and for what a
    /// search by send_id found: `row` is what stands under the id, **written by whichever record before
    /// this one, also of the same batch**: write what is pending before reading it.
    pub fn compare(&self, record: Version, row: Option<Standing>) -> Ruling {
        let handled_before = self.seq != Seq::ZERO && record <= self.version;
        let Some(row) = row else {
            return if handled_before {
                Ruling::Unplaced
            } else {
                Ruling::Place(self.next_position())
            };
        };
        match row.version.cmp(&record) {
            std::cmp::Ordering::Less => Ruling::Repeat(row.position),
            // This record was refused, and the same id placed later: the message stands.
            std::cmp::Ordering::Greater if self.covers(&row) => Ruling::Repeat(row.position),
            std::cmp::Ordering::Greater => Ruling::PlacedLater,
            std::cmp::Ordering::Equal if handled_before => Ruling::Keep(row.position),
            std::cmp::Ordering::Equal if row.position == self.next_position() => {
                Ruling::Place(row.position)
            }
            std::cmp::Ordering::Equal => Ruling::Overtaken,
        }
    }

    /// The row was written before this head was.
    fn covers(&self, row: &Standing) -> bool {
        row.version <= self.version && row.position.seq <= self.seq
    }

    /// The head after `record` placed `id` at [`Head::next_position`]; `side`: who wrote it, where the
    /// conversation has two.
    #[must_use]
    pub fn moved_by(&self, record: Version, id: MessageId, side: Option<Side>) -> Head {
        debug_assert!(
            self.seq == Seq::ZERO || record > self.version,
            "a head only moves forward in the log"
        );
        Head {
            seq: self.seq.next(),
            rev: self.rev,
            last_id: Some(id),
            max_id: self.max_id.max(Some(id)),
            from_low: self.from_low + u64::from(side == Some(Side::Low)),
            stamp: self.stamp,
            version: record,
        }
    }
}

#[cfg(test)]
mod tests;
