//! Versions, registers and ranges of the rows in history.

use serde::{Deserialize, Serialize};

use crate::receipt::ReceiptKind;
use crate::{MessageId, Timestamp};

/// Write of a conversation's single writer that made a row: later ones win, a zombie's lose.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// The log's epoch.
    pub epoch: u32,
    pub offset: u64,
}

impl Version {
    /// After every record: everything is visible.
    pub const LATEST: Version = Version {
        epoch: u32::MAX,
        offset: u64::MAX,
    };

    /// A number above zero that orders as versions do, for offsets below 2^42; the reverse is
    /// [`from_mark`](Version::from_mark).
    pub const fn mark(self) -> u64 {
        let epoch = (self.epoch as u64).saturating_mul(1 << MARK_OFFSET_BITS);
        epoch.saturating_add(self.offset).saturating_add(1)
    }

    /// `None` for zero, which is the mark of no version.
    pub const fn from_mark(mark: u64) -> Option<Version> {
        let Some(number) = mark.checked_sub(1) else {
            return None;
        };
        Some(Version {
            epoch: (number >> MARK_OFFSET_BITS) as u32,
            offset: number & ((1 << MARK_OFFSET_BITS) - 1),
        })
    }
}

/// Bits of a mark that are the offset.
pub const MARK_OFFSET_BITS: u32 = 42;

/// Outgoing in the sender's row, incoming in the receiver's (`io` 0 and 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    Out,
    In,
}

/// Registers of a sender's row; each only moves forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowStatus {
    pub delivered_at: Option<Timestamp>,
    pub read_at: Option<Timestamp>,
    pub deleted: bool,
}

impl RowStatus {
    /// Moves the sender's view forward: the first time stays, and read implies delivered. Returns
    /// true if it moved.
    pub fn tell(&mut self, kind: ReceiptKind, at: Timestamp) -> bool {
        let register = match kind {
            ReceiptKind::Received => &mut self.delivered_at,
            ReceiptKind::Read => &mut self.read_at,
        };
        if register.is_some() {
            return false;
        }
        *register = Some(at);
        self.delivered_at.get_or_insert(at);
        true
    }
}

/// Exclusive bounds on ids: `after < id < before`; `None` is an open end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdRange {
    pub after_id: Option<MessageId>,
    pub before_id: Option<MessageId>,
}

/// Order of a page, and with it its end of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    Forward,
    /// Newest first.
    Backward,
}
