//! Positions, as the single writer of a conversation gives them: a function of the log and the
//! rows.
//!
//! ```text
//! match head.place(record, id) {
//!     New(position)            => write it there
//!     Redelivery | CheckRow    => head.compare(record, id's row) says
//! }
//! ```
//!
//! The order of effects is rows → head → … → commit. A crash between any two of them brings the
//! record back, and the rules here give it the position that it had. For that, the decision to
//! place a record at all must depend on the log and the rows only, never on time or chance.
//!
//! A death is chance: a store refuses a row for a while, a bug panics once. So the death of a message
//! moves the head's version before anything behind it is written ([`Head::passed_by`]). Read again,
//! the message has been handled, has no row, and stays dead.

use serde::{Deserialize, Serialize};

use super::{Head, Side};
use crate::history::Version;
use crate::{MessageId, Position, Seq};

/// Placement of a record, as far as the head alone tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Never seen before: the record's position. Write the rows, then the head that
    /// [`Head::moved_by`] makes.
    New(Position),
    /// Not after the record that moved the head last: handled before, and keeps the position of its
    /// row. Read the row and ask [`Head::compare`].
    Redelivery,
    /// Not the largest id: a clock was behind, the record is a repeat, or a half-done write of our
    /// own is there. Read the row and ask [`Head::compare`].
    CheckRow,
}

/// Row of an id: the record that wrote it, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPosition {
    pub version: Version,
    pub position: Position,
    /// Ordinal among its sender's messages, in a private conversation.
    pub sent: u64,
}

/// Ruling on a record, given its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceRuling {
    /// Write rows here, then the head that [`Head::moved_by`] makes.
    Place(Position),
    /// Placed here before: the head stays, and every later effect is repeated.
    Keep(Position),
    /// Placed here by an earlier record: drop this one.
    Repeat(Position),
    /// Handled before without a row: an unsure copy that was dropped (its send_id finds the first
    /// one), or a record that went to the dead letters without a position. It gets none now.
    Unplaced,
    /// The row is from a later record that the head does not know. This record was refused a place
    /// in its turn, and is refused again: by a rule that reads the log, or as
    /// [`PlaceRuling::Unplaced`]. The head may be stale: load it and ask once more before.
    PlacedLater,
    /// The row is where the head cannot have put it: another writer is ahead. Load the head again;
    /// if this repeats, stop the partition.
    Overtaken,
}

impl Head {
    /// True for a record that is not after the one that moved this head last. Epochs begin at 1: a
    /// head that nothing moved has handled nothing.
    pub(crate) fn has_handled(&self, record: Version) -> bool {
        let is_moved = self.seq != Seq::ZERO || self.version != Version::default();
        is_moved && record <= self.version
    }

    /// The head after `record` died without a position; `None` if the record was handled before.
    /// Write it before the rows of any later record.
    pub fn passed_by(&self, record: Version) -> Option<Head> {
        (!self.has_handled(record)).then_some(Head {
            version: record,
            ..*self
        })
    }

    /// Position of the next new message.
    pub fn next_position(&self) -> Position {
        Position {
            seq: self.seq.next(),
            prev: self.last_id,
        }
    }

    /// Placement of this record's message `id`, as far as the head tells.
    pub fn place(&self, record: Version, id: MessageId) -> Placement {
        if self.has_handled(record) {
            Placement::Redelivery
        } else if self.max_id.is_some_and(|max| id <= max) {
            Placement::CheckRow
        } else {
            Placement::New(self.next_position())
        }
    }

    /// As [`place`](Head::place). `is_behind`: a later record has changed the group, so this one
    /// was handled.
    pub fn place_in_group(&self, record: Version, id: MessageId, is_behind: bool) -> Placement {
        match self.place(record, id) {
            Placement::New(_) if is_behind => Placement::Redelivery,
            placement => placement,
        }
    }

    /// As [`compare`](Head::compare), with `is_behind` as above.
    pub fn compare_in_group(
        &self,
        record: Version,
        row: Option<StoredPosition>,
        is_behind: bool,
    ) -> PlaceRuling {
        match row {
            None if is_behind => PlaceRuling::Unplaced,
            row => self.compare(record, row),
        }
    }

    /// The rest of the rule, for [`Placement::Redelivery`], [`Placement::CheckRow`] and search
    /// results by send_id. `row` is the row under the id, **written by any record before this one,
    /// also of the same batch**: write pending rows before reading it.
    pub fn compare(&self, record: Version, row: Option<StoredPosition>) -> PlaceRuling {
        let was_handled = self.has_handled(record);
        let Some(row) = row else {
            return if was_handled {
                PlaceRuling::Unplaced
            } else {
                PlaceRuling::Place(self.next_position())
            };
        };
        match row.version.cmp(&record) {
            std::cmp::Ordering::Less => PlaceRuling::Repeat(row.position),
            // Refused here, and the same id placed later: the message has its place.
            std::cmp::Ordering::Greater if self.covers(&row) => PlaceRuling::Repeat(row.position),
            std::cmp::Ordering::Greater => PlaceRuling::PlacedLater,
            std::cmp::Ordering::Equal if was_handled => PlaceRuling::Keep(row.position),
            std::cmp::Ordering::Equal if row.position == self.next_position() => {
                PlaceRuling::Place(row.position)
            }
            std::cmp::Ordering::Equal => PlaceRuling::Overtaken,
        }
    }

    /// Whether the row was written before this head was.
    fn covers(&self, row: &StoredPosition) -> bool {
        row.version <= self.version && row.position.seq <= self.seq
    }

    /// The head after `record` placed `id` at [`Head::next_position`]; `side` is its author's, in a
    /// conversation with two sides.
    #[must_use]
    pub fn moved_by(&self, record: Version, id: MessageId, side: Option<Side>) -> Head {
        debug_assert!(
            !self.has_handled(record),
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
