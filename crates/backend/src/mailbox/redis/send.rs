//! Sends seen before. The value under a dedupe key is its state (`p` pending, `d` done), the id in
//! 20 digits, and the conversation's key.

use std::time::Duration;

use protocol::mailbox::{DedupeAnswer, DedupeKey, FirstSend};
use protocol::{ConversationId, MessageId, keys};
use redis::Value;

use super::keys::{Keys, member};
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;
use crate::redis::scripts::ScriptName;

/// Builds a single command that marks a new key pending and returns its previous value.
pub(super) fn begin(keys: &Keys, key: &DedupeKey, first_send: FirstSend, keep: Duration) -> Call {
    let value = [b"p", write(first_send).as_slice()].concat();
    Call::command(keys::bucket_of(key.from), "SET")
        .key(keys.send(key))
        .bytes(value)
        .arg("NX")
        .arg("GET")
        .arg("PX")
        .arg(keep.as_millis().max(1))
}

pub(super) fn parse_begin(reply: Value) -> Result<DedupeAnswer, Failure> {
    if reply == Value::Nil {
        return Ok(DedupeAnswer::Fresh);
    }
    let value = reply::bytes(reply)?;
    match value
        .split_first()
        .and_then(|(state, send)| Some((state, read(send)?)))
    {
        Some((b'p', first)) => Ok(DedupeAnswer::Pending(first)),
        Some((b'd', first)) => Ok(DedupeAnswer::Done(first)),
        _ => Err(Failure::Reply(format!(
            "{} bytes that do not decode as a send",
            value.len()
        ))),
    }
}

pub(super) fn done(keys: &Keys, key: &DedupeKey, first_send: FirstSend, keep: Duration) -> Call {
    Call::script(keys::bucket_of(key.from), ScriptName::DedupeDone)
        .key(keys.send(key))
        .bytes(write(first_send))
        .arg(keep.as_millis().max(1))
}

fn write(send: FirstSend) -> Vec<u8> {
    [member(send.id).as_bytes(), &send.conversation.to_key()].concat()
}

fn read(bytes: &[u8]) -> Option<FirstSend> {
    let (id, conversation) = bytes.split_at_checked(20)?;
    let id = std::str::from_utf8(id).ok()?.parse().ok()?;
    Some(FirstSend {
        id: MessageId::new(id).ok()?,
        conversation: ConversationId::from_key(conversation)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::GroupId;

    #[test]
    fn a_send_is_read_as_it_was_written() {
        let group = GroupId::new(i64::MAX).expect("positive");
        let send = FirstSend {
            id: MessageId::new(i64::MAX - 1).expect("positive"),
            conversation: ConversationId::Group(group),
        };
        let reply = |state: &[u8]| Value::BulkString([state, write(send).as_slice()].concat());
        assert_eq!(
            parse_begin(reply(b"p")).ok(),
            Some(DedupeAnswer::Pending(send))
        );
        assert_eq!(
            parse_begin(reply(b"d")).ok(),
            Some(DedupeAnswer::Done(send))
        );
        assert_eq!(parse_begin(Value::Nil).ok(), Some(DedupeAnswer::Fresh));
        assert!(parse_begin(reply(b"x")).is_err());
        assert!(parse_begin(Value::BulkString(b"p7".to_vec())).is_err());
    }
}
