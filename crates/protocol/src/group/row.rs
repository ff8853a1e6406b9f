//! Stored form of a group's message: one row, whatever the size of the group (S0-02).

use serde::{Deserialize, Serialize};

use crate::history::Version;
use crate::message::Content;
use crate::{
    ConversationId, DeviceId, GroupId, Message, MessageId, Options, Placed, Position, Recipient,
    SendId, Seq, Timestamp, UserId,
};

/// A message of a group. Without receiver and receipt: each member reads for themselves (S0-61b).
///
/// Deletion is not part of the row but a register of its own, so that writing the row again never
/// undoes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    pub group: GroupId,
    pub from: UserId,
    pub id: MessageId,
    pub accepted_at: Timestamp,
    pub seq: Seq,
    pub prev: Option<MessageId>,
    pub send_id: SendId,
    pub device: DeviceId,
    pub options: Options,
    pub content: Content,
    pub version: Version,
}

impl GroupRow {
    /// Row of a message to a group; `None` for any other message.
    pub fn of(placed: &Placed, version: Version) -> Option<GroupRow> {
        let message = &placed.message;
        let Recipient::Group(group) = message.to else {
            return None;
        };
        Some(GroupRow {
            group,
            from: message.from,
            id: message.id,
            accepted_at: message.accepted_at,
            seq: placed.position.seq,
            prev: placed.position.prev,
            send_id: message.send_id,
            device: message.device.clone(),
            options: message.options,
            content: message.content.clone(),
            version,
        })
    }

    /// Message in the row.
    pub fn placed(&self) -> Placed {
        Placed {
            conversation: ConversationId::Group(self.group),
            position: Position {
                seq: self.seq,
                prev: self.prev,
            },
            message: Message {
                id: self.id,
                from: self.from,
                to: Recipient::Group(self.group),
                accepted_at: self.accepted_at,
                device: self.device.clone(),
                send_id: self.send_id,
                options: self.options,
                content: self.content.clone(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A message with all fields different, and none at its default.
    fn placed(to: Recipient) -> Placed {
        let id = |n: i64| MessageId::new(n).expect("positive");
        let from = UserId::new(3).expect("positive");
        let message = Message {
            id: id(1 << 30),
            from,
            to,
            accepted_at: Timestamp::from_millis(77),
            device: DeviceId::new("pixel-9").expect("a name"),
            send_id: SendId::from_bytes([9; 16]),
            options: Options::STORE_OFFLINE,
            content: Content {
                kind: 1,
                data: Bytes::from_static(b"\0 not text \xff"),
                priority: 2,
                reference: Some(id(5)),
                encryption: 3,
                sub_kind: -4,
                key_print: i64::MIN,
                change: None,
            },
        };
        Placed {
            conversation: message.conversation().expect("not to oneself"),
            position: Position {
                seq: Seq(12),
                prev: Some(id(11)),
            },
            message,
        }
    }

    const VERSION: Version = Version {
        epoch: 2,
        offset: 14,
    };

    // proves S0-02: a message to a group is one row, which knows no receiver; nothing of it is lost.
    #[test]
    fn one_row_keeps_the_whole_message() {
        let group = GroupId::new(8).expect("positive");
        let placed = placed(Recipient::Group(group));
        let row = GroupRow::of(&placed, VERSION).expect("to a group");
        assert_eq!(row.placed(), placed);
        assert_eq!((row.group, row.version), (group, VERSION));
    }

    #[test]
    fn what_is_not_to_a_group_has_no_such_row() {
        let user = UserId::new(8).expect("positive");
        assert_eq!(GroupRow::of(&placed(Recipient::User(user)), VERSION), None);
    }
}
