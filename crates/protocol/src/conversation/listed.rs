//! A private conversation as it stands in the list of one of its users.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ConversationRow, is_listed};
use crate::change::{Arranged, Marks};
use crate::frame::Summary;
use crate::unread::{self, Tally};
use crate::{ConversationId, Placed, Seq, Timestamp, UserId};

/// A row and its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub row: ConversationRow,
    /// How far the owner has read; only grows.
    pub read_seq: Seq,
    /// How far a device of the owner has received; only grows.
    pub received_seq: Seq,
    /// Up to where the owner took it from the list; only grows.
    pub cleared: Tally,
    /// When the owner last read or cleared something here; only grows.
    pub touched: Timestamp,
    pub arranged: Arranged,
    /// As [`Summary::hidden`]; only grows.
    pub hidden: u64,
}

/// What an owner did with a conversation, whether it has a row or not: groups have none. Each is as in [`Listed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registers {
    pub read_seq: Seq,
    pub received_seq: Seq,
    pub cleared: Tally,
    pub touched: Timestamp,
    pub arranged: Arranged,
    pub hidden: u64,
}

/// Where what the owner has read ends, as they count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadUpTo {
    Place(Tally),
    /// The row of this place says.
    Row(Seq),
    /// Nothing is left.
    End,
}

impl Listed {
    /// What the list difference compares.
    pub fn version(&self) -> Timestamp {
        self.row.version.max(self.touched)
    }

    /// Is it told to a device whose list is of `since`, if it changed? A device that has nothing is not told of what
    /// was taken from the list (S4-30).
    pub fn is_told(&self, since: Timestamp) -> bool {
        let is_private = matches!(self.row.conversation, ConversationId::Private { .. });
        is_private && (since > Timestamp::ZERO || is_listed(self.row.end.seq, self.cleared))
    }

    pub fn read_up_to(&self) -> ReadUpTo {
        match self.read_seq {
            seq if seq <= self.cleared.seq => ReadUpTo::Place(self.cleared),
            seq if seq >= self.row.end.seq => ReadUpTo::End,
            seq => ReadUpTo::Row(seq),
        }
    }

    /// What is left behind `base`. `recalled`: what was recalled between there and the end, and who had written it.
    pub fn unread(&self, base: Tally, recalled: BTreeMap<Seq, UserId>) -> u64 {
        let of_others = recalled.into_iter();
        let of_others = of_others.filter(|(_, author)| *author != self.row.owner);
        let recalled: BTreeSet<Seq> = of_others.map(|(seq, _)| seq).collect();
        unread::unread(self.row.end, base, &recalled)
    }

    /// As the owner's devices get it; `newest` as it is now.
    pub fn summary(&self, unread: u64, newest: Option<Placed>, marks: Option<Marks>) -> Summary {
        let row = &self.row;
        Summary {
            conversation: row.conversation,
            seq: row.end.seq,
            incoming: row.end.incoming,
            rev: row.rev,
            read_seq: self.read_seq,
            cleared_seq: self.cleared.seq,
            arranged: self.arranged,
            hidden: self.hidden,
            role: None,
            unread,
            version: self.version(),
            newest,
            marks,
        }
    }
}
