//! Rows of messages: a placed message as its owner has it. A private message is two rows, one on
//! each side (S0-01); a message of a group is one, whatever the size of the group (S0-02).

use crate::conversation::StoredPosition;
use crate::history::{Direction, Version};
use crate::unread::Tally;
use crate::{ConversationId, GroupId, MessageId, Placed, Seq, UserId};

/// Owner of a row: a user has a copy of their own, a group one for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    User(UserId),
    Group(GroupId),
}

impl Owner {
    /// Owner of the rows of this conversation as `user` reads them.
    pub const fn of(conversation: ConversationId, user: UserId) -> Owner {
        match conversation {
            ConversationId::Group(group) => Owner::Group(group),
            ConversationId::Private { .. } | ConversationId::System(_) => Owner::User(user),
        }
    }

    /// Number of the user or the group.
    pub const fn number(self) -> i64 {
        match self {
            Owner::User(user) => user.get(),
            Owner::Group(group) => group.get(),
        }
    }

    pub const fn user(self) -> Option<UserId> {
        match self {
            Owner::User(user) => Some(user),
            Owner::Group(_) => None,
        }
    }
}

/// Facts of a user's copy that the message does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySide {
    pub direction: Direction,
    /// Number of messages by the peer up to this one, itself included.
    pub incoming_count: u64,
}

/// A message as stored for its owner. Rows of a group have neither a receiver nor receipts: its
/// members have read markers of their own (S0-61b).
///
/// Statuses (delivered, read, deleted) are not part of the row: each is a register of its own, so
/// that writing the row again never undoes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    pub owner: Owner,
    pub placed: Placed,
    pub version: Version,
    /// `None` in a group's row.
    pub side: Option<CopySide>,
}

impl MessageRow {
    /// All rows of a message. `sent_count` is its ordinal among the sender's messages of a private
    /// conversation. Empty if messages of its kind of conversation have none.
    pub fn from_placed(placed: &Placed, sent_count: u64, version: Version) -> Vec<MessageRow> {
        if let ConversationId::Group(group) = placed.conversation {
            return vec![MessageRow {
                owner: Owner::Group(group),
                placed: placed.clone(),
                version,
                side: None,
            }];
        }
        let pair = MessageRow::private_pair(placed, sent_count, version);
        pair.map_or_else(Vec::new, Vec::from)
    }

    /// Rows of both sides of a private message, the sender's first (proved in the tests: S0-01,
    /// S0-53). `sent_count` is its ordinal among the sender's messages there. `None` for a message
    /// that is not private.
    pub fn private_pair(
        placed: &Placed,
        sent_count: u64,
        version: Version,
    ) -> Option<[MessageRow; 2]> {
        let from = placed.message.from;
        let to = placed.conversation.peer_of(from)?;
        let row = |owner, direction, incoming_count| MessageRow {
            owner: Owner::User(owner),
            placed: placed.clone(),
            version,
            side: Some(CopySide {
                direction,
                incoming_count,
            }),
        };
        let peer_count = placed.position.seq.0.saturating_sub(sent_count);
        Some([
            row(from, Direction::Out, peer_count),
            row(to, Direction::In, sent_count),
        ])
    }

    pub fn id(&self) -> MessageId {
        self.placed.message.id
    }

    pub fn seq(&self) -> Seq {
        self.placed.position.seq
    }

    /// Author of the message.
    pub fn author(&self) -> UserId {
        self.placed.message.from
    }

    /// The other user of a private conversation.
    pub fn peer(&self) -> Option<UserId> {
        self.placed.conversation.peer_of(self.owner.user()?)
    }

    pub fn direction(&self) -> Option<Direction> {
        self.side.map(|side| side.direction)
    }

    /// Ordinal among its sender's messages in a private conversation; 0 in a group.
    pub fn sent(&self) -> u64 {
        match self.side {
            Some(CopySide {
                direction: Direction::Out,
                incoming_count,
            }) => self.seq().0.saturating_sub(incoming_count),
            Some(CopySide {
                direction: Direction::In,
                incoming_count,
            }) => incoming_count,
            None => 0,
        }
    }

    /// Position as the owner counts unread messages. A group counts by sequence numbers alone.
    pub fn tally(&self) -> Tally {
        Tally {
            seq: self.seq(),
            incoming: self.side.map_or(0, |side| side.incoming_count),
        }
    }

    pub fn position(&self) -> StoredPosition {
        StoredPosition {
            version: self.version,
            position: self.placed.position,
            sent: self.sent(),
        }
    }

    /// Place of a user's copy; `None` in a group.
    pub fn place(&self) -> Option<StoredPlace> {
        let CopySide {
            direction,
            incoming_count,
        } = self.side?;
        Some(StoredPlace {
            peer: self.peer()?,
            direction,
            seq: self.seq(),
            incoming_count,
        })
    }
}

/// Position of a user's copy, with the other facts that a receipt is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPlace {
    pub peer: UserId,
    pub direction: Direction,
    pub seq: Seq,
    pub incoming_count: u64,
}

impl From<StoredPlace> for Tally {
    fn from(place: StoredPlace) -> Tally {
        Tally {
            seq: place.seq,
            incoming: place.incoming_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::message::Content;
    use crate::{DeviceId, Message, Options, Position, Recipient, SendId, Timestamp};

    const VERSION: Version = Version {
        epoch: 2,
        offset: 14,
    };

    /// A message with all fields different, and none at its default.
    fn placed(to: Recipient) -> Placed {
        let id = |n: i64| MessageId::new(n).expect("positive");
        let message = Message {
            id: id(1 << 30),
            from: user(3),
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

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    // proves S0-02: a message to a group is one row, which knows no receiver; nothing of it is lost.
    #[test]
    fn one_row_keeps_the_whole_message_of_a_group() {
        let group = GroupId::new(8).expect("positive");
        let placed = placed(Recipient::Group(group));
        let rows = MessageRow::from_placed(&placed, 7, VERSION);
        let row = MessageRow {
            owner: Owner::Group(group),
            placed: placed.clone(),
            version: VERSION,
            side: None,
        };
        assert_eq!(rows, [row]);
        assert_eq!((rows[0].sent(), rows[0].tally().incoming), (0, 0));
        assert_eq!((rows[0].peer(), rows[0].place()), (None, None));
        assert_eq!(MessageRow::private_pair(&placed, 7, VERSION), None);
    }

    #[test]
    fn both_sides_count_the_messages_of_the_other() {
        let placed = placed(Recipient::User(user(8)));
        let pair = MessageRow::private_pair(&placed, 7, VERSION).expect("private");
        assert_eq!(MessageRow::from_placed(&placed, 7, VERSION), pair);
        let [out_row, in_row] = &pair;
        assert_eq!(out_row.owner, Owner::User(user(3)));
        assert_eq!(in_row.owner, Owner::User(user(8)));
        for (row, peer, direction, from_peer) in [
            (out_row, user(8), Direction::Out, 5),
            (in_row, user(3), Direction::In, 7),
        ] {
            assert_eq!((&row.placed, row.version), (&placed, VERSION));
            assert_eq!((row.author(), row.sent()), (user(3), 7));
            let place = StoredPlace {
                peer,
                direction,
                seq: Seq(12),
                incoming_count: from_peer,
            };
            assert_eq!(row.place(), Some(place));
            assert_eq!(row.tally(), Tally::from(place));
        }
    }

    #[test]
    fn messages_of_the_system_have_no_rows() {
        let placed = Placed {
            conversation: ConversationId::System(user(3)),
            ..placed(Recipient::User(user(8)))
        };
        assert_eq!(MessageRow::from_placed(&placed, 7, VERSION), []);
    }
}
