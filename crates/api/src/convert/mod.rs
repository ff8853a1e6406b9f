//! Conversion between the wire and the rules.
//!
//! Wire to inside is `TryFrom`, and the one door where malformed input is refused, with a
//! [`Refusal`] that names the field and says what would have been right. Inside to wire is `From`
//! and cannot fail. Zero on the wire stands for "none" wherever the inside has an `Option`.

mod boat;
mod change;
mod client;
mod group;
mod message;
mod server;
mod station;
mod sync;

#[cfg(test)]
pub(crate) mod arbitrary;

use std::time::Duration;

use bytes::Bytes;
use protocol::id::IdError;
use protocol::presence::{BoatLife, SessionKey};
use protocol::receipt::ReceiptKind;
use protocol::ticket::{ResumeTicket, TicketError};
use protocol::{
    BoatId, Code, ConversationId, GroupId, Incarnation, MessageId, Platform, Refusal, SessionId,
    Timestamp, UserId,
};

use crate::v1;

/// Longest token of a client, in bytes; a longer one is refused as too large.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Limit of messages in one ack:R; more are refused as too large, and may be sent in parts.
pub const ACK_ITEMS_MAX: usize = 1000;
/// Limit of messages in one status question; more are refused as too large.
pub const STATUS_IDS_MAX: usize = 1000;

/// Derives conversions of owned values from those of references.
macro_rules! by_value {
    ($($inside:ty => $wire:ty),+ $(,)?) => {
        $(impl From<$inside> for $wire {
            fn from(value: $inside) -> Self {
                (&value).into()
            }
        })+
    };
}
pub(crate) use by_value;

/// Refusal of an invalid value.
pub(crate) fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(Code::InvalidArgument, text)
}

/// Adds the field's name to an id's own error.
pub(crate) fn field<T>(name: &str, result: Result<T, IdError>) -> Result<T, Refusal> {
    result.map_err(|error| invalid(format!("{name}: {error}")))
}

/// Token of a client, within its limit.
pub(crate) fn token(token: String) -> Result<String, Refusal> {
    if token.len() > TOKEN_BYTES_MAX {
        let bytes = token.len();
        let text = format!("the token has {bytes} bytes; at most {TOKEN_BYTES_MAX} are accepted");
        return Err(Refusal::new(Code::TooLarge, text));
    }
    Ok(token)
}

/// Resume ticket, unless its form is unknown to this release.
pub(crate) fn resume_ticket(bytes: &[u8]) -> Option<ResumeTicket> {
    bytes.try_into().ok().map(ResumeTicket::from_bytes)
}

/// Resume ticket of a client that signs in. No bytes mean none; those of another release count as
/// none any more.
pub(crate) fn shown_resume_ticket(bytes: &[u8]) -> Result<Option<ResumeTicket>, Refusal> {
    match (bytes, resume_ticket(bytes)) {
        ([], _) => Ok(None),
        (_, Some(ticket)) => Ok(Some(ticket)),
        (_, None) => Err(TicketError::Expired.resume_refusal()),
    }
}

pub(crate) fn resume_bytes(ticket: Option<&ResumeTicket>) -> Bytes {
    ticket.map_or_else(Bytes::new, |ticket| {
        Bytes::copy_from_slice(ticket.as_bytes())
    })
}

/// Unwraps a part without which the rest means nothing.
pub(crate) fn present<T>(name: &str, value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::new(Code::Malformed, format!("{name} is missing")))
}

/// Converts each item, once their number is found to be within the limit.
pub(crate) fn list<T, U>(name: &str, items: Vec<T>, max: usize) -> Result<Vec<U>, Refusal>
where
    U: TryFrom<T, Error = Refusal>,
{
    within(name, items.len(), max)?;
    items.into_iter().map(U::try_from).collect()
}

pub(crate) fn within(name: &str, len: usize, max: usize) -> Result<(), Refusal> {
    if len > max {
        let text = format!("{name} has {len} items; at most {max} are accepted at once: split it");
        return Err(Refusal::new(Code::TooLarge, text));
    }
    Ok(())
}

pub(crate) fn message_ids(name: &str, ids: Vec<i64>) -> Result<Vec<MessageId>, Refusal> {
    ids.into_iter()
        .map(|id| field(name, MessageId::new(id)))
        .collect()
}

/// 0 is none; a negative id is refused.
pub(crate) fn optional_message(name: &str, id: i64) -> Result<Option<MessageId>, Refusal> {
    match id {
        0 => Ok(None),
        id => field(name, MessageId::new(id)).map(Some),
    }
}

pub(crate) fn optional_user(name: &str, user: i64) -> Result<Option<UserId>, Refusal> {
    match user {
        0 => Ok(None),
        user => field(name, UserId::new(user)).map(Some),
    }
}

pub(crate) fn id_or_zero(id: Option<MessageId>) -> i64 {
    id.map_or(0, MessageId::get)
}

pub(crate) fn optional_time(millis: i64) -> Option<Timestamp> {
    (millis != 0).then(|| Timestamp::from_millis(millis))
}

pub(crate) fn time_or_zero(time: Option<Timestamp>) -> i64 {
    time.map_or(0, Timestamp::millis)
}

/// Whole milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn platform(name: &str, number: i32) -> Result<Platform, Refusal> {
    optional_platform(name, number)?
        .ok_or_else(|| invalid(format!("{name} is not set: use 1 (ios) to 7 (bot)")))
}

/// Platform; `None` if it is unspecified.
pub(crate) fn optional_platform(name: &str, number: i32) -> Result<Option<Platform>, Refusal> {
    if number == 0 {
        return Ok(None);
    }
    let platform = u8::try_from(number).ok().and_then(Platform::from_number);
    platform.map(Some).ok_or_else(|| {
        let names = Platform::ALL.map(Platform::name).join(", ");
        invalid(format!(
            "{name} {number} is unknown: 1 to 7 are {names}, in this order"
        ))
    })
}

pub(crate) fn platform_number(platform: Platform) -> i32 {
    i32::from(platform.number())
}

pub(crate) fn receipt_kind(number: i32) -> Result<ReceiptKind, Refusal> {
    match v1::ReceiptKind::try_from(number) {
        Ok(v1::ReceiptKind::Received) => Ok(ReceiptKind::Received),
        Ok(v1::ReceiptKind::Read) => Ok(ReceiptKind::Read),
        Ok(v1::ReceiptKind::Unspecified) | Err(_) => Err(invalid(format!(
            "a receipt's kind is 1 (received) or 2 (read), got {number}"
        ))),
    }
}

pub(crate) fn receipt_number(kind: ReceiptKind) -> i32 {
    match kind {
        ReceiptKind::Received => v1::ReceiptKind::Received.into(),
        ReceiptKind::Read => v1::ReceiptKind::Read.into(),
    }
}

impl TryFrom<v1::Conversation> for ConversationId {
    type Error = Refusal;

    fn try_from(wire: v1::Conversation) -> Result<Self, Refusal> {
        match v1::ChatType::try_from(wire.r#type) {
            Ok(v1::ChatType::P2p) => {
                let one = field("conversation.user_a", UserId::new(wire.user_a))?;
                let other = field("conversation.user_b", UserId::new(wire.user_b))?;
                ConversationId::private(one, other)
                    .ok_or_else(|| invalid("a private conversation has two different users"))
            }
            Ok(v1::ChatType::Group) => {
                let group = field("conversation.group", GroupId::new(wire.group))?;
                Ok(ConversationId::Group(group))
            }
            Ok(v1::ChatType::System) => {
                let user = field("conversation.user_a", UserId::new(wire.user_a))?;
                Ok(ConversationId::System(user))
            }
            Ok(v1::ChatType::Unspecified) | Err(_) => Err(invalid(format!(
                "a conversation's type is 1 (p2p), 2 (group) or 3 (system), got {}",
                wire.r#type
            ))),
        }
    }
}

impl From<ConversationId> for v1::Conversation {
    fn from(conversation: ConversationId) -> Self {
        match conversation {
            ConversationId::Private { low, high } => v1::Conversation {
                r#type: v1::ChatType::P2p.into(),
                user_a: low.get(),
                user_b: high.get(),
                group: 0,
            },
            ConversationId::Group(group) => v1::Conversation {
                r#type: v1::ChatType::Group.into(),
                group: group.get(),
                ..v1::Conversation::default()
            },
            ConversationId::System(user) => v1::Conversation {
                r#type: v1::ChatType::System.into(),
                user_a: user.get(),
                ..v1::Conversation::default()
            },
        }
    }
}

/// Reads a conversation, which must be present.
pub(crate) fn conversation(wire: Option<v1::Conversation>) -> Result<ConversationId, Refusal> {
    present("conversation", wire)?.try_into()
}

impl TryFrom<v1::Refusal> for Refusal {
    type Error = Refusal;

    /// An unknown code of a newer server keeps its important part: whether to try again.
    fn try_from(wire: v1::Refusal) -> Result<Self, Refusal> {
        let known_code = u16::try_from(wire.code).ok().and_then(Code::from_number);
        let (code, text) = match (known_code, wire.code) {
            (Some(code), _) => (code, wire.text),
            (None, 4000..4500) => (Code::Unavailable, format!("{}: {}", wire.code, wire.text)),
            (None, 4500..5000) => (Code::Unsupported, format!("{}: {}", wire.code, wire.text)),
            (None, code) => {
                let text = format!("{code} is not a refusal code: use 4000 to 4999");
                return Err(Refusal::new(Code::Malformed, text));
            }
        };
        let delay = (wire.retry_after_ms != 0).then(|| Duration::from_millis(wire.retry_after_ms));
        Ok(Refusal {
            code,
            text,
            retry_after: delay,
        })
    }
}

impl From<&Refusal> for v1::Refusal {
    fn from(refusal: &Refusal) -> Self {
        v1::Refusal {
            code: u32::from(refusal.code.number()),
            text: refusal.text.clone(),
            // A delay below a millisecond still counts as one.
            retry_after_ms: refusal.retry_after.map_or(0, |delay| millis(delay).max(1)),
        }
    }
}

impl TryFrom<v1::BoatLife> for BoatLife {
    type Error = Refusal;

    fn try_from(wire: v1::BoatLife) -> Result<Self, Refusal> {
        Ok(BoatLife {
            boat: field("life.boat", BoatId::new(&wire.boat))?,
            incarnation: Incarnation(wire.incarnation),
        })
    }
}

impl From<&BoatLife> for v1::BoatLife {
    fn from(life: &BoatLife) -> Self {
        v1::BoatLife {
            boat: life.boat.as_str().to_owned(),
            incarnation: life.incarnation.0,
        }
    }
}

/// Reads a boat's life, which must be present.
pub(crate) fn life(wire: Option<v1::BoatLife>) -> Result<BoatLife, Refusal> {
    present("life", wire)?.try_into()
}

impl TryFrom<v1::SessionKey> for SessionKey {
    type Error = Refusal;

    fn try_from(wire: v1::SessionKey) -> Result<Self, Refusal> {
        Ok(SessionKey {
            user: field("session key", UserId::new(wire.user))?,
            session: field("session key", SessionId::new(wire.session))?,
            life: life(wire.life)?,
        })
    }
}

impl From<&SessionKey> for v1::SessionKey {
    fn from(key: &SessionKey) -> Self {
        v1::SessionKey {
            user: key.user.get(),
            session: key.session.get(),
            life: Some((&key.life).into()),
        }
    }
}

by_value! {
    Refusal => v1::Refusal,
    BoatLife => v1::BoatLife,
    SessionKey => v1::SessionKey,
}

#[cfg(test)]
mod tests;
