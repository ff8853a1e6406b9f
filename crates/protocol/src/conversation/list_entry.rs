//! A private conversation in the list of one of its users.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ConversationRow, is_listed};
use crate::change::{ListArrangement, MessageMarks};
use crate::frame::Summary;
use crate::unread::{self, Tally};
use crate::{ConversationId, Placed, Seq, Timestamp, UserId};

/// A row and its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry {
    pub row: ConversationRow,
    /// The owner's read marker; only grows.
    pub read_seq: Seq,
    /// The owner's last received position, on any device; only grows.
    pub received_seq: Seq,
    /// Position up to which the owner cleared the conversation; only grows.
    pub cleared: Tally,
    /// Time of the owner's last read or clear here; only grows.
    pub touched: Timestamp,
    pub arranged: ListArrangement,
    /// As [`Summary::hidden`]; only grows.
    pub hidden: u64,
}

/// An owner's registers of a conversation, with or without a row: groups have none. Each field is
/// as in [`ListEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRegisters {
    pub read_seq: Seq,
    pub received_seq: Seq,
    pub cleared: Tally,
    pub touched: Timestamp,
    pub arranged: ListArrangement,
    pub hidden: u64,
}

/// End of the part that the owner has read, in the owner's counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBase {
    Place(Tally),
    /// Count in the row at this position.
    Row(Seq),
    /// The end of the conversation: nothing is unread.
    End,
}

impl ListEntry {
    /// Version that the list difference compares.
    pub fn version(&self) -> Timestamp {
        self.row.version.max(self.touched)
    }

    /// Whether a change of this entry goes to a device whose list is of `list_version`. A device
    /// without a list hears nothing of cleared conversations (S4-30).
    pub fn is_told(&self, list_version: Timestamp) -> bool {
        let is_private = matches!(self.row.conversation, ConversationId::Private { .. });
        is_private && (list_version > Timestamp::ZERO || is_listed(self.row.end.seq, self.cleared))
    }

    pub fn read_up_to(&self) -> ReadBase {
        match self.read_seq {
            seq if seq <= self.cleared.seq => ReadBase::Place(self.cleared),
            seq if seq >= self.row.end.seq => ReadBase::End,
            seq => ReadBase::Row(seq),
        }
    }

    /// Number of unread messages behind `base`. `recalled` are the recalled ones between there and
    /// the end, with their authors.
    pub fn unread(&self, base: Tally, recalled: BTreeMap<Seq, UserId>) -> u64 {
        let others_recalled = recalled.into_iter();
        let others_recalled = others_recalled.filter(|(_, author)| *author != self.row.owner);
        let recalled: BTreeSet<Seq> = others_recalled.map(|(seq, _)| seq).collect();
        unread::unread(self.row.end, base, &recalled)
    }

    /// Summary for the owner's devices; `newest` with its current content.
    pub fn summary(
        &self,
        unread: u64,
        newest: Option<Placed>,
        marks: Option<MessageMarks>,
    ) -> Summary {
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
            is_large: false,
            unread,
            version: self.version(),
            newest,
            marks,
        }
    }
}
