//! Receipts: what a receiver says of a message. Received and read are different, and both only move
//! forward.

mod received;

use serde::{Deserialize, Serialize};

pub use self::received::LastReceived;
use crate::{ConversationId, MessageId, Seq, Timestamp, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReceiptKind {
    /// A device has stored it.
    Received,
    /// A person has seen it; implies received.
    Read,
}

/// ack:N: tells a sender that `by` has received or read a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub kind: ReceiptKind,
    pub conversation: ConversationId,
    pub id: MessageId,
    pub seq: Seq,
    pub by: UserId,
    pub at: Timestamp,
}

/// What a sender may know of a message it sent, in the only order it moves.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Status {
    #[default]
    Sent,
    Delivered,
    Read,
}

impl Status {
    /// Joins what is known with what is heard: never backwards, whatever the order of arrival.
    pub fn advanced_by(self, kind: ReceiptKind) -> Status {
        self.max(match kind {
            ReceiptKind::Received => Status::Delivered,
            ReceiptKind::Read => Status::Read,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves S3-17 in part: the status only moves forward, in whatever order receipts come.
    #[test]
    fn a_late_received_does_not_undo_a_read() {
        let read_first = Status::Sent.advanced_by(ReceiptKind::Read);
        assert_eq!(read_first.advanced_by(ReceiptKind::Received), Status::Read);
        let received_first = Status::Sent.advanced_by(ReceiptKind::Received);
        assert_eq!(received_first, Status::Delivered);
        assert_eq!(received_first.advanced_by(ReceiptKind::Read), Status::Read);
    }
}
