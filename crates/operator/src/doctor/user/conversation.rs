//! One conversation of a user: history, head and list must agree.

use protocol::conversation::{ConversationRow, Head, Side};
use protocol::history::Version;
use protocol::message_row::MessageRow;
use protocol::receipt::ReceiptKind;
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, Position, Seq, Timestamp, UserId};

use super::{Damage, Difference, Mend};

/// Data read of a conversation: the list, then the head, then history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    pub id: ConversationId,
    pub listing: Option<ListedConversation>,
    pub head: Option<Head>,
    /// Whether the head could not be read, so there may be one.
    pub head_unread: bool,
    /// Newest row read of the owner.
    pub newest: Option<Newest>,
    /// Largest id among the rows read.
    pub max_id: Option<MessageId>,
    /// Positions without a row of the owner, in order, up to the furthest of list, head and newest.
    pub holes: Vec<Gap>,
    /// Positions up to here were skipped.
    pub skipped_until: Seq,
    /// Whether rows behind `newest` may exist: the look ended there.
    pub cut_off: bool,
}

/// The owner's row in the list, with its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedConversation {
    pub row: ConversationRow,
    pub read_seq: Seq,
    pub received_seq: Seq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    pub position: Position,
    /// Number of messages by others than the owner, up to this position.
    pub incoming_count: u64,
    pub id: MessageId,
    pub version: Version,
}

/// Range of positions without a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub first: Seq,
    pub last: Seq,
    /// Rows to fill the gap, if they can be rebuilt from other data: all of them, or none.
    pub rows: Vec<MessageRow>,
}

impl Gap {
    pub(super) fn covers(&self, seq: Seq) -> bool {
        (self.first..=self.last).contains(&seq)
    }

    /// Whether `next` follows directly and is likewise repairable or not.
    fn joins(&self, next: &Gap) -> bool {
        self.last.next() == next.first && self.rows.is_empty() == next.rows.is_empty()
    }
}

impl From<&MessageRow> for Newest {
    fn from(row: &MessageRow) -> Newest {
        Newest {
            position: row.placed.position,
            incoming_count: row.tally().incoming,
            id: row.id(),
            version: row.version,
        }
    }
}

pub(super) fn differences(owner: UserId, one: &Conversation, now: Timestamp) -> Vec<Difference> {
    let mut differences = holes(one);
    differences.extend(head(owner, one, now));
    differences.extend(list(owner, one, now));
    differences.extend(registers(one));
    differences
}

impl Conversation {
    fn last(&self) -> Seq {
        self.newest.map_or(Seq::ZERO, |newest| newest.position.seq)
    }

    fn listed_seq(&self) -> Option<Seq> {
        self.listing.map(|listing| listing.row.end.seq)
    }

    fn head_seq(&self) -> Seq {
        self.head.map_or(Seq::ZERO, |head| head.seq)
    }
}

fn holes(one: &Conversation) -> Vec<Difference> {
    let mut gaps: Vec<Gap> = Vec::new();
    for hole in &one.holes {
        match gaps.last_mut() {
            Some(last) if last.joins(hole) => {
                last.last = hole.last;
                last.rows.extend_from_slice(&hole.rows);
            }
            _ => gaps.push(hole.clone()),
        }
    }
    let gaps = gaps.into_iter();
    gaps.map(|hole| Difference {
        damage: Damage::Hole {
            conversation: one.id,
            first: hole.first,
            last: hole.last,
        },
        mend: (!hole.rows.is_empty()).then_some(Mend::WriteRows(hole.rows)),
    })
    .collect()
}

fn head(owner: UserId, one: &Conversation, now: Timestamp) -> Option<Difference> {
    if one.head_unread {
        return None;
    }
    let (newest, head_seq) = (one.newest?, one.head_seq());
    if head_seq >= newest.position.seq {
        return None;
    }
    let head = one.head.unwrap_or_default();
    // Without a head, the largest id is known only if all rows were read.
    let is_known = !one.cut_off && (one.head.is_some() || one.skipped_until == Seq::ZERO);
    let new_head = Head {
        seq: newest.position.seq,
        rev: head.rev,
        last_id: Some(newest.id),
        max_id: head.max_id.max(one.max_id).max(Some(newest.id)),
        from_low: match one.id.side_of(owner)? {
            Side::Low => newest.position.seq.0.saturating_sub(newest.incoming_count),
            Side::High => newest.incoming_count,
        },
        stamp: now,
        version: newest.version,
    };
    let may = is_known && newest.version >= head.version;
    Some(Difference {
        damage: Damage::HeadBehind {
            conversation: one.id,
            head: head_seq,
            last: newest.position.seq,
        },
        mend: may.then_some(Mend::WriteHead(one.id, new_head)),
    })
}

fn list(owner: UserId, one: &Conversation, now: Timestamp) -> Option<Difference> {
    let newest = one.newest?;
    if one.listed_seq() >= Some(newest.position.seq) {
        return None;
    }
    let row = ConversationRow {
        owner,
        conversation: one.id,
        end: Tally {
            seq: newest.position.seq,
            incoming: newest.incoming_count,
        },
        rev: one.head.map_or(0, |head| head.rev),
        last_id: newest.id,
        version: now,
        source: newest.version,
    };
    Some(Difference {
        damage: Damage::ListBehind {
            conversation: one.id,
            listed: one.listed_seq(),
            last: newest.position.seq,
        },
        mend: (!one.cut_off).then_some(Mend::WriteListed(row)),
    })
}

/// Registers are read before head and rows, so messages that arrive meanwhile only move the end up.
fn registers(one: &Conversation) -> Vec<Difference> {
    let Some(listing) = one.listing.filter(|_| !one.head_unread) else {
        return Vec::new();
    };
    let last = one.last().max(one.head_seq()).max(listing.row.end.seq);
    let registers = [
        (ReceiptKind::Received, listing.received_seq),
        (ReceiptKind::Read, listing.read_seq),
    ];
    let registers_ahead = registers.into_iter().filter(|(_, at)| *at > last);
    registers_ahead
        .map(|(kind, at)| Difference {
            damage: Damage::RegisterAhead {
                conversation: one.id,
                kind,
                at,
                last,
            },
            mend: None,
        })
        .collect()
}
