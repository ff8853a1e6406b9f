//! Waiting mail: pages, acknowledgements, trims.

use bytes::Bytes;
use protocol::mailbox::{
    ACKED_KEEP, ACKED_MAX, Mail, MailCursor, MailLocation, MailPage, MailboxPolicy, RECEIVED_KEEP,
};
use protocol::message::Target;
use protocol::{MessageId, Timestamp, UserId, keys};
use redis::Value;

use super::keys::{Keys, member};
use super::route::{count_max, oldest_kept, score};
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;
use crate::redis::scripts::ScriptName;

/// Maximum number of entries in a page, whatever the caller asks for.
pub(super) const PAGE_MAX: usize = 500;
/// Maximum number of entries that one call removes.
pub(super) const STEP: usize = 256;

pub(super) fn page(
    keys: &Keys,
    target: Target,
    cursor: Option<MailCursor>,
    limit: usize,
    oldest_kept: i64,
    bytes_max: usize,
) -> Call {
    let call = Call::script(keys::bucket_of(target.user), ScriptName::Page)
        .key(keys.waiting(target))
        .arg(limit.clamp(1, PAGE_MAX))
        .arg(oldest_kept)
        .arg(bytes_max);
    match cursor {
        Some(cursor) => call.arg(score(cursor.accepted_at)).arg(member(cursor.id)),
        None => call,
    }
}

/// A page as seen by the script. A body may be missing, or be on the other server of a moving slot.
pub(super) struct ScriptPage {
    entries: Vec<(MailCursor, Option<Bytes>)>,
    more: bool,
}

pub(super) fn parse_page(reply: Value) -> Result<ScriptPage, Failure> {
    let mut reply = reply::list(reply)?.into_iter();
    let more = reply::integer(reply.next().unwrap_or(Value::Nil))? == 1;
    let mut entries = Vec::new();
    while let (Some(id), Some(time)) = (reply.next(), reply.next()) {
        let id = read_id(id)?;
        let accepted_at = Timestamp::from_millis(reply::number(time)?);
        let body = body(reply.next().unwrap_or(Value::Nil))?;
        entries.push((MailCursor { accepted_at, id }, body));
    }
    Ok(ScriptPage { entries, more })
}

impl ScriptPage {
    /// Builds a call for each unseen body with the body as declared key, so that the call is
    /// redirected to the key's server.
    pub(super) fn second_look(&self, keys: &Keys, bucket: u16) -> Vec<Call> {
        let unseen = self.entries.iter().filter(|(_, body)| body.is_none());
        // GET fails on a key of another type, and nobody could read past it.
        unseen
            .map(|(cursor, _)| Call::command(bucket, "MGET").key(keys.body(bucket, cursor.id)))
            .collect()
    }

    /// Completes the page. Fails if a second look has no answer: its body may exist.
    pub(super) fn page(
        self,
        second_reads: Vec<Result<Value, Failure>>,
    ) -> Result<MailPage, Failure> {
        let mut second_reads = second_reads.into_iter();
        let last = self.entries.last().map(|(cursor, _)| *cursor);
        let mut page = MailPage {
            next: last.filter(|_| self.more),
            ..MailPage::default()
        };
        for (MailCursor { accepted_at, id }, mut content) in self.entries {
            if content.is_none() {
                let [reply] = reply::items(second_reads.next().unwrap_or(Err(Failure::GivenUp))?)?;
                content = body(reply)?;
            }
            match content {
                Some(body) => page.mails.push(Mail {
                    id,
                    accepted_at,
                    body,
                }),
                None => page.bodiless.push(id),
            }
        }
        Ok(page)
    }
}

fn body(reply: Value) -> Result<Option<Bytes>, Failure> {
    match reply {
        Value::Nil => Ok(None),
        reply => Ok(Some(Bytes::from(reply::bytes(reply)?))),
    }
}

pub(super) fn set_received(keys: &Keys, user: UserId, id: MessageId) -> Call {
    Call::script(keys::bucket_of(user), ScriptName::Received)
        .key(keys.received(user))
        .arg(member(id))
        .arg(RECEIVED_KEEP.as_millis())
}

pub(super) fn received(keys: &Keys, user: UserId) -> Call {
    Call::command(keys::bucket_of(user), "GET").key(keys.received(user))
}

pub(super) fn parse_received(reply: Value) -> Result<Option<MessageId>, Failure> {
    match reply {
        Value::Nil => Ok(None),
        id => read_id(id).map(Some),
    }
}

/// Builds one call per [`STEP`] ids.
pub(super) fn acknowledge(
    keys: &Keys,
    target: Target,
    ids: &[MessageId],
    now: Timestamp,
) -> impl Iterator<Item = Call> {
    ids.chunks(STEP).map(move |ids| {
        let call = Call::script(keys::bucket_of(target.user), ScriptName::Ack)
            .key(keys.waiting(target))
            .key(keys.mark(target))
            .arg(score(now))
            .arg(ACKED_KEEP.as_millis())
            .arg(ACKED_MAX);
        ids.iter().fold(call, |call, id| call.arg(member(*id)))
    })
}

pub(super) fn parse_acknowledged(reply: Value) -> Result<Vec<MessageId>, Failure> {
    reply::list(reply)?.into_iter().map(read_id).collect()
}

pub(super) fn trim(keys: &Keys, target: Target, policy: MailboxPolicy, now: Timestamp) -> Call {
    Call::script(keys::bucket_of(target.user), ScriptName::Trim)
        .key(keys.waiting(target))
        .arg(oldest_kept(policy, now))
        .arg(count_max(policy))
        .arg(STEP)
}

pub(super) fn waiting(keys: &Keys, target: Target) -> Call {
    Call::command(keys::bucket_of(target.user), "ZCARD").key(keys.waiting(target))
}

pub(super) fn find(
    keys: &Keys,
    target: Target,
    id: MessageId,
    oldest_kept: i64,
    now: Timestamp,
) -> Call {
    Call::script(keys::bucket_of(target.user), ScriptName::Find)
        .key(keys.waiting(target))
        .key(keys.mark(target))
        .arg(member(id))
        .arg(oldest_kept)
        .arg(score(now))
        .arg(ACKED_KEEP.as_millis())
}

pub(super) fn parse_location(reply: Value) -> Result<MailLocation, Failure> {
    match reply::integer(reply)? {
        0 => Ok(MailLocation::Absent),
        1 => Ok(MailLocation::Waits),
        2 => Ok(MailLocation::Acknowledged),
        other => Err(Failure::Reply(format!("wanted 0, 1 or 2, got {other}"))),
    }
}

pub(super) fn read_id(reply: Value) -> Result<MessageId, Failure> {
    MessageId::new(reply::number(reply)?).map_err(|e| Failure::Reply(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// Three entries; the script saw only the second one's body.
    fn three() -> ScriptPage {
        let entry = |n: i64, body| {
            [
                text(&format!("{n:020}")),
                text(&format!("{}", 10 * n)),
                body,
            ]
        };
        let bodies = [Value::Nil, text("second"), Value::Nil];
        let entries = (1..).zip(bodies).flat_map(|(n, body)| entry(n, body));
        parse_page(Value::Array(
            [Value::Int(1)].into_iter().chain(entries).collect(),
        ))
        .expect("read")
    }

    fn id(n: i64) -> MessageId {
        MessageId::new(n).expect("positive")
    }

    #[test]
    fn a_body_is_missing_when_the_second_look_misses_it_too() {
        assert_eq!(three().second_look(&Keys::new("msg"), 7).len(), 2);
        let first = Value::Array(vec![text("first")]);
        let absent = Value::Array(vec![Value::Nil]);
        let page = three().page(vec![Ok(first), Ok(absent)]).expect("a page");
        let mails: Vec<_> = page
            .mails
            .iter()
            .map(|mail| (mail.id, &mail.body[..]))
            .collect();
        assert_eq!(mails, [(id(1), &b"first"[..]), (id(2), b"second")]);
        assert_eq!(page.bodiless, [id(3)]);
        let last = MailCursor {
            accepted_at: Timestamp::from_millis(30),
            id: id(3),
        };
        assert_eq!(page.next, Some(last));
    }

    #[test]
    fn an_unanswered_second_look_marks_nothing_missing() {
        let absent = || Ok(Value::Array(vec![Value::Nil]));
        for looks in [
            vec![absent(), Err(Failure::GivenUp)],
            vec![Err(Failure::GivenUp), absent()],
            vec![absent()],
        ] {
            assert!(matches!(three().page(looks), Err(Failure::GivenUp)));
        }
    }
}
