//! A message, from the sender's hand to its place in a conversation.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::change::{Asked, ChangeOf, Changed};
use crate::{
    ConversationId, DeviceId, GroupId, MessageId, Platform, SendId, Seq, Timestamp, UserId,
};

/// To whom a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Recipient {
    User(UserId),
    Group(GroupId),
}

impl Recipient {
    /// The kind of conversation that this makes.
    pub const fn kind(self) -> &'static str {
        match self {
            Recipient::User(_) => "private",
            Recipient::Group(_) => "group",
        }
    }
}

/// What a message asks for, as bits: 1 a client's acknowledgement, 2 storing where the receiver is
/// offline, 4 a notification where the receiver is offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Options(u8);

impl Options {
    pub const NONE: Options = Options(0);
    pub const NEEDS_ACK: Options = Options(1);
    pub const STORE_OFFLINE: Options = Options(2);
    pub const NOTIFY_OFFLINE: Options = Options(4);
    /// What a chat message asks for: all three.
    pub const CHAT: Options = Options(7);

    /// `None` where a bit is set that means nothing.
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

/// What the sender's client says: the part of a message that no server changes.
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
    /// It changes another message, and stands for nothing itself.
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
    /// Plain text with everything else at rest.
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

    /// What is left of one that is not to be read any more: its kind.
    pub fn emptied(&self) -> Content {
        Content {
            kind: self.kind,
            ..Content::text("")
        }
    }
}

/// An accepted message: it has an id and a time, and the log has it or is about to.
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
    /// Where it belongs; `None` only for a message to oneself, which no door lets in.
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

/// A message and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub message: Message,
    pub conversation: ConversationId,
    pub position: Position,
}

impl Placed {
    /// The change that this is, at the place `rev`, of the message at its position; `None` where it stands for
    /// itself.
    pub fn changed(&self, rev: u64) -> Option<Changed> {
        Some(Changed {
            rev,
            seq: self.position.seq,
            asked: Asked::of(&self.message)?,
        })
    }
}

/// A user on one kind of client: the unit of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    pub user: UserId,
    pub platform: Platform,
}
