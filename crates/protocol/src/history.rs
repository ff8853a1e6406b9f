//! Rows of history: the stored form of placed messages, and the way back.

use serde::{Deserialize, Serialize};

use crate::message::Content;
use crate::receipt::ReceiptKind;
use crate::unread::Tally;
use crate::{
    ConversationId, DeviceId, Message, MessageId, Options, Placed, Position, Recipient, SendId,
    Seq, Timestamp, UserId,
};

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
    /// [`of_mark`](Version::of_mark).
    pub const fn mark(self) -> u64 {
        let epoch = (self.epoch as u64).saturating_mul(1 << MARK_OFFSET_BITS);
        epoch.saturating_add(self.offset).saturating_add(1)
    }

    /// `None` for zero, which is the mark of no version.
    pub const fn of_mark(mark: u64) -> Option<Version> {
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

/// One side of a private message: the row of `owner`, whose `peer` is the other user.
///
/// Statuses (delivered, read, deleted) are not part of the row: each is a register of its own, so
/// that writing the row again never undoes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateRow {
    pub owner: UserId,
    pub peer: UserId,
    pub direction: Direction,
    pub id: MessageId,
    pub accepted_at: Timestamp,
    pub seq: Seq,
    pub prev: Option<MessageId>,
    /// Number of messages by the peer up to this one, itself included.
    pub incoming: u64,
    pub send_id: SendId,
    pub device: DeviceId,
    pub options: Options,
    pub content: Content,
    pub version: Version,
}

/// Position of a row, with the other facts that a receipt is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub peer: UserId,
    pub direction: Direction,
    pub seq: Seq,
    pub incoming: u64,
}

impl From<&PrivateRow> for Place {
    fn from(row: &PrivateRow) -> Place {
        Place {
            peer: row.peer,
            direction: row.direction,
            seq: row.seq,
            incoming: row.incoming,
        }
    }
}

impl From<Place> for Tally {
    fn from(place: Place) -> Tally {
        Tally {
            seq: place.seq,
            incoming: place.incoming,
        }
    }
}

impl PrivateRow {
    /// Rows of both sides of a private message, the sender's first (proved in the tests: S0-01,
    /// S0-53). `sent` is its ordinal among the sender's messages there. `None` for a message that
    /// is not private.
    pub fn pair_of(placed: &Placed, sent: u64, version: Version) -> Option<[PrivateRow; 2]> {
        let message = &placed.message;
        let Recipient::User(to) = message.to else {
            return None;
        };
        let side = |owner, peer, direction, incoming| PrivateRow {
            owner,
            peer,
            direction,
            id: message.id,
            accepted_at: message.accepted_at,
            seq: placed.position.seq,
            prev: placed.position.prev,
            incoming,
            send_id: message.send_id,
            device: message.device.clone(),
            options: message.options,
            content: message.content.clone(),
            version,
        };
        Some([
            side(
                message.from,
                to,
                Direction::Out,
                placed.position.seq.0.saturating_sub(sent),
            ),
            side(to, message.from, Direction::In, sent),
        ])
    }

    /// Ordinal among its sender's messages.
    pub fn sent(&self) -> u64 {
        match self.direction {
            Direction::Out => self.seq.0.saturating_sub(self.incoming),
            Direction::In => self.incoming,
        }
    }

    pub fn conversation(&self) -> Option<ConversationId> {
        ConversationId::private(self.owner, self.peer)
    }

    /// Message that the row keeps one side of; `None` if owner and peer are the same user.
    pub fn placed(&self) -> Option<Placed> {
        let (from, to) = match self.direction {
            Direction::Out => (self.owner, self.peer),
            Direction::In => (self.peer, self.owner),
        };
        Some(Placed {
            conversation: self.conversation()?,
            position: Position {
                seq: self.seq,
                prev: self.prev,
            },
            message: Message {
                id: self.id,
                from,
                to: Recipient::User(to),
                accepted_at: self.accepted_at,
                device: self.device.clone(),
                send_id: self.send_id,
                options: self.options,
                content: self.content.clone(),
            },
        })
    }
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
    pub after: Option<MessageId>,
    pub before: Option<MessageId>,
}

/// Order of a page, and with it its end of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    Forward,
    /// Newest first.
    Backward,
}
