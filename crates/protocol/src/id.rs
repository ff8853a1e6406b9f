//! Identities as types, so that a user cannot be passed where a session is meant.

pub mod installation;
pub mod lead;
pub mod snowflake;

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
pub use uuid::Uuid;

pub use snowflake::{MessageId, Snowflake};

use crate::Recipient;
use crate::conversation::Side;

/// Reason why a value is not an identity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdError {
    #[error("{what} must be a positive 64-bit integer, got {got}")]
    NotPositive { what: &'static str, got: i64 },
    #[error("{what} must have 1 to {max} bytes, got {got}")]
    Length {
        what: &'static str,
        max: usize,
        got: usize,
    },
    #[error("{what} holds a control character")]
    Control { what: &'static str },
    #[error("send_id must be a UUID (as {example}), got {got:?}")]
    NotAUuid { got: String, example: &'static str },
    #[error("unknown platform {0:?}: use ios, android, web, desktop, pad, mini or bot")]
    UnknownPlatform(String),
}

macro_rules! positive_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(i64);

        impl $name {
            /// Refuses zero and negative numbers.
            pub const fn new(value: i64) -> Result<Self, IdError> {
                if value > 0 {
                    Ok($name(value))
                } else {
                    Err(IdError::NotPositive { what: $what, got: value })
                }
            }

            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let value = text.parse().map_err(|e: ParseIntError| e.to_string())?;
                $name::new(value).map_err(|e| e.to_string())
            }
        }
    };
}

positive_id!(
    /// A person or a program that sends and receives.
    UserId, "user"
);
positive_id!(
    /// A group of users.
    GroupId, "group"
);
positive_id!(
    /// One presence of a user on one platform. The boat with the connection makes the id.
    SessionId, "session"
);

/// Life of one boat process: a new, larger number at each start.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A dense position in a conversation: 1, 2, 3 …; zero means "before the first".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Seq(pub u64);

impl Seq {
    pub const ZERO: Seq = Seq(0);

    pub const fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            pub const MAX_BYTES: usize = $max;

            /// Refuses empty and overlong text, and control characters.
            pub fn new(text: &str) -> Result<Self, IdError> {
                if text.is_empty() || text.len() > $max {
                    return Err(IdError::Length { what: $what, max: $max, got: text.len() });
                }
                if text.chars().any(char::is_control) {
                    return Err(IdError::Control { what: $what });
                }
                Ok($name(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                $name::new(text)
            }
        }
    };
}

text_id!(
    /// One installation of a client, named by the client itself.
    DeviceId, "device", 64
);
text_id!(
    /// The name of a boat, unique in the cluster.
    BoatId, "boat", 128
);

/// The client's own name for one send: a repeat never makes a second message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SendId(Uuid);

impl SendId {
    pub const fn from_uuid(uuid: Uuid) -> Self {
        SendId(uuid)
    }

    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        SendId(Uuid::from_bytes(bytes))
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for SendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendId({})", self.0)
    }
}

impl FromStr for SendId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Uuid::try_parse(text)
            .map(SendId)
            .map_err(|_| IdError::NotAUuid {
                got: text.chars().take(48).collect(),
                example: "67e55044-10b1-426f-9247-bb680e5fe0c8",
            })
    }
}

/// The kind of client a user is present with; a small integer on the wire and in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Platform {
    Ios = 1,
    Android = 2,
    Web = 3,
    Desktop = 4,
    Pad = 5,
    Mini = 6,
    Bot = 7,
}

impl Platform {
    pub const ALL: [Platform; 7] = [
        Platform::Ios,
        Platform::Android,
        Platform::Web,
        Platform::Desktop,
        Platform::Pad,
        Platform::Mini,
        Platform::Bot,
    ];

    pub const fn number(self) -> u8 {
        self as u8
    }

    pub fn from_number(number: u8) -> Option<Platform> {
        Platform::ALL.into_iter().find(|p| p.number() == number)
    }

    /// Whether the mailbox keeps mail for the platform while it is away. A bot fetches what it
    /// wants by sync.
    pub const fn keeps_mail(self) -> bool {
        !matches!(self, Platform::Bot)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Platform::Ios => "ios",
            Platform::Android => "android",
            Platform::Web => "web",
            Platform::Desktop => "desktop",
            Platform::Pad => "pad",
            Platform::Mini => "mini",
            Platform::Bot => "bot",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Platform {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Platform::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| IdError::UnknownPlatform(text.chars().take(32).collect()))
    }
}

/// A conversation: the unordered pair of two users, a group, or the system's messages to one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConversationId {
    /// `low < high`; make it with [`ConversationId::private`].
    Private {
        low: UserId,
        high: UserId,
    },
    Group(GroupId),
    System(UserId),
}

impl ConversationId {
    /// The conversation of two different users; `None` for a user with itself.
    pub fn private(one: UserId, other: UserId) -> Option<ConversationId> {
        match one.cmp(&other) {
            std::cmp::Ordering::Less => Some(ConversationId::Private {
                low: one,
                high: other,
            }),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(ConversationId::Private {
                low: other,
                high: one,
            }),
        }
    }

    /// Kind of the conversation, for metrics and traces, which name no users.
    pub const fn kind(self) -> &'static str {
        match self {
            ConversationId::Private { .. } => "private",
            ConversationId::Group(_) => "group",
            ConversationId::System(_) => "system",
        }
    }

    /// The other user of a private conversation; `None` if `user` is not in it.
    pub fn peer_of(self, user: UserId) -> Option<UserId> {
        match self {
            ConversationId::Private { low, high } if low == user => Some(high),
            ConversationId::Private { low, high } if high == user => Some(low),
            ConversationId::Private { .. }
            | ConversationId::Group(_)
            | ConversationId::System(_) => None,
        }
    }

    /// Recipient of messages from `me` in it; `None` if `me` cannot write there.
    pub fn other_than(self, me: UserId) -> Option<Recipient> {
        match self {
            ConversationId::Group(group) => Some(Recipient::Group(group)),
            ConversationId::Private { .. } => self.peer_of(me).map(Recipient::User),
            ConversationId::System(_) => None,
        }
    }

    /// Side of `user` in a private conversation; `None` if `user` is not in it.
    pub fn side_of(self, user: UserId) -> Option<Side> {
        match self {
            ConversationId::Private { low, .. } if low == user => Some(Side::Low),
            ConversationId::Private { high, .. } if high == user => Some(Side::High),
            ConversationId::Private { .. }
            | ConversationId::Group(_)
            | ConversationId::System(_) => None,
        }
    }

    /// Key for the log and the stores: 17 bytes, injective, a tag followed by two big-endian
    /// numbers.
    pub fn to_key(self) -> [u8; 17] {
        let (tag, a, b) = match self {
            ConversationId::Private { low, high } => (b'p', low.get(), high.get()),
            ConversationId::Group(group) => (b'g', 0, group.get()),
            ConversationId::System(user) => (b's', 0, user.get()),
        };
        let mut key = [0; 17];
        key[0] = tag;
        key[1..9].copy_from_slice(&a.to_be_bytes());
        key[9..].copy_from_slice(&b.to_be_bytes());
        key
    }

    /// The reverse of [`to_key`](Self::to_key); `None` for anything else.
    pub fn from_key(key: &[u8]) -> Option<ConversationId> {
        let (&tag, rest) = key.split_first()?;
        let (a, b) = (rest.get(..8)?, rest.get(8..)?);
        let a = i64::from_be_bytes(a.try_into().ok()?);
        let b = i64::from_be_bytes(b.try_into().ok()?);
        match (tag, a) {
            (b'p', a) if a < b => {
                ConversationId::private(UserId::new(a).ok()?, UserId::new(b).ok()?)
            }
            (b'g', 0) => GroupId::new(b).ok().map(ConversationId::Group),
            (b's', 0) => UserId::new(b).ok().map(ConversationId::System),
            _ => None,
        }
    }
}

/// `p:12:34`, `g:1001`, `s:12`.
impl fmt::Display for ConversationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConversationId::Private { low, high } => write!(f, "p:{low}:{high}"),
            ConversationId::Group(group) => write!(f, "g:{group}"),
            ConversationId::System(user) => write!(f, "s:{user}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_refuse_what_is_not_positive() {
        assert!(UserId::new(0).is_err());
        assert!(UserId::new(-1).is_err());
        assert_eq!(UserId::new(7).map(UserId::get), Ok(7));
    }

    #[test]
    fn a_user_has_no_private_conversation_with_itself() {
        let user = UserId::new(1).expect("positive");
        assert_eq!(ConversationId::private(user, user), None);
    }

    #[test]
    fn platforms_survive_number_and_name() {
        for platform in Platform::ALL {
            assert_eq!(Platform::from_number(platform.number()), Some(platform));
            assert_eq!(platform.name().parse(), Ok(platform));
        }
        assert_eq!(Platform::from_number(0), None);
        assert!("phone".parse::<Platform>().is_err());
    }

    #[test]
    fn text_ids_refuse_empty_long_and_control() {
        assert!(DeviceId::new("").is_err());
        assert!(DeviceId::new(&"x".repeat(65)).is_err());
        assert!(DeviceId::new("a\nb").is_err());
        assert!(DeviceId::new("a-b:ü").is_ok());
    }

    proptest! {
        #[test]
        fn conversation_keys_are_injective_and_symmetric(a in 1..i64::MAX, b in 1..i64::MAX) {
            prop_assume!(a != b);
            let (a, b) = (UserId::new(a).expect("positive"), UserId::new(b).expect("positive"));
            let ab = ConversationId::private(a, b).expect("two users");
            prop_assert_eq!(Some(ab), ConversationId::private(b, a));
            prop_assert_eq!(ConversationId::from_key(&ab.to_key()), Some(ab));
            prop_assert_eq!(ab.peer_of(a), Some(b));
            prop_assert_eq!(ab.peer_of(b), Some(a));
        }
    }
}
