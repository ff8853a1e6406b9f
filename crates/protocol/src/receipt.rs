//! Receipts: a receiver's confirmation of a message. Received and read are different, and both only
//! move forward.

mod last_received;
mod moves;

use serde::{Deserialize, Serialize};

pub use self::last_received::LastReceived;
pub use self::moves::{
    ReceiptFacts, ReceiptMoves, ReceiptNeeds, ReceiptNotice, ReceiptNotices, StatusWrite,
};
use crate::{ConversationId, MessageId, Seq, Timestamp, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReceiptKind {
    /// A device has stored the message.
    Received,
    /// A person has seen the message; implies received.
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

/// A sender's view of a sent message, in the only order in which it moves.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ReceiptStatus {
    #[default]
    Sent,
    Delivered,
    Read,
}

impl ReceiptStatus {
    /// Merges a receipt into the known status: never backwards, in any order of arrival.
    pub fn advanced_by(self, kind: ReceiptKind) -> ReceiptStatus {
        self.max(match kind {
            ReceiptKind::Received => ReceiptStatus::Delivered,
            ReceiptKind::Read => ReceiptStatus::Read,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves S3-17 in part: the status only moves forward, in whatever order receipts come.
    #[test]
    fn a_late_received_does_not_undo_a_read() {
        let read_first = ReceiptStatus::Sent.advanced_by(ReceiptKind::Read);
        assert_eq!(
            read_first.advanced_by(ReceiptKind::Received),
            ReceiptStatus::Read
        );
        let received_first = ReceiptStatus::Sent.advanced_by(ReceiptKind::Received);
        assert_eq!(received_first, ReceiptStatus::Delivered);
        assert_eq!(
            received_first.advanced_by(ReceiptKind::Read),
            ReceiptStatus::Read
        );
    }
}
