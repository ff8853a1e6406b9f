//! A message, from the sender's hand to its place in a conversation.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::change::{ChangeOf, ChangeRequest, OrderedChange};
use crate::{
    ConversationId, DeviceId, GroupId, MessageId, Platform, SendId, Seq, Timestamp, UserId,
};

/// Recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Recipient {
    User(UserId),
    Group(GroupId),
}

impl Recipient {
    /// Kind of the recipient's conversation.
    pub const fn kind(self) -> &'static str {
        match self {
            Recipient::User(_) => "private",
            Recipient::Group(_) => "group",
        }
    }
}

/// Options of a message, as bits: 1 acknowledgement by a client, 2 storage while the receiver is
/// offline, 4 notification while the receiver is offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Options(u8);

impl Options {
    pub const NONE: Options = Options(0);
    pub const NEEDS_ACK: Options = Options(1);
    pub const STORE_OFFLINE: Options = Options(2);
    pub const NOTIFY_OFFLINE: Options = Options(4);
    /// Options of a chat message: all three.
    pub const CHAT: Options = Options(7);

    /// `None` if an unknown bit is set.
    pub const fn from_bits(bits: u8) -> Option<Options> {
        if bits <= 7 { Some(Options(bits)) } else { None }
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn has(self, option: Options) -> bool {
        self.0 & option.0 == option.0
    }
}

/// The sender's part of a message, which no server changes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// `ChatMsgType`: 0 text, 1 picture …; opaque to the server.
    pub kind: i32,
    pub data: Bytes,
    pub priority: i32,
    /// The message that this one quotes.
    pub reference: Option<MessageId>,
    /// `EncryptType`: 0 plain; opaque to the server.
    pub encryption: i32,
    /// Handed to plugins.
    pub sub_kind: i32,
    /// Fingerprint of the key that `data` is encrypted with, 0 for none.
    pub key_print: i64,
    /// Change of another message, in place of a message of its own.
    pub change: Option<Box<ChangeOf>>,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("kind", &self.kind)
            .field("data", &crate::Hidden::of(&self.data))
            .field("priority", &self.priority)
            .field("reference", &self.reference)
            .field("encryption", &self.encryption)
            .field("sub_kind", &self.sub_kind)
            .field("change", &self.change)
            .finish_non_exhaustive()
    }
}

impl Content {
    /// Plain text, with everything else at its default.
    pub fn text(text: impl Into<String>) -> Content {
        Content {
            kind: 0,
            data: Bytes::from(text.into()),
            priority: 0,
            reference: None,
            encryption: 0,
            sub_kind: 0,
            key_print: 0,
            change: None,
        }
    }

    /// Content of a message that must not be read any more: only its kind.
    pub fn emptied(&self) -> Content {
        Content {
            kind: self.kind,
            ..Content::text("")
        }
    }

    /// The same change without the text that it may carry.
    pub fn without_text(&self) -> Content {
        Content {
            change: self.change.clone(),
            ..self.emptied()
        }
    }
}

/// An accepted message, with an id and a time: in the log, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub id: MessageId,
    pub from: UserId,
    pub to: Recipient,
    pub accepted_at: Timestamp,
    /// The sender's device.
    pub device: DeviceId,
    pub send_id: SendId,
    pub options: Options,
    pub content: Content,
}

impl Message {
    /// Conversation of the message; `None` only for a message to oneself, which no entry point
    /// admits.
    pub fn conversation(&self) -> Option<ConversationId> {
        match self.to {
            Recipient::User(to) => ConversationId::private(self.from, to),
            Recipient::Group(group) => Some(ConversationId::Group(group)),
        }
    }
}

/// A place in a conversation, given once by the conversation's single writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub seq: Seq,
    /// The message before this one; `None` for the first.
    pub prev: Option<MessageId>,
}

/// A message with its conversation and position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub message: Message,
    pub conversation: ConversationId,
    pub position: Position,
}

impl Placed {
    /// Change in this message, with the rev `rev`, of the message at its position; `None` for a
    /// message in its own right.
    pub fn changed(&self, rev: u64) -> Option<OrderedChange> {
        Some(OrderedChange {
            rev,
            seq: self.position.seq,
            asked: ChangeRequest::of(&self.message)?,
        })
    }
}

/// A user on one kind of client: the unit of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    pub user: UserId,
    pub platform: Platform,
}
