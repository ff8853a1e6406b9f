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
    after: Option<MailCursor>,
    limit: usize,
    kept: i64,
    bytes_max: usize,
) -> Call {
    let call = Call::script(keys::bucket_of(target.user), ScriptName::Page)
        .key(keys.waiting(target))
        .arg(limit.clamp(1, PAGE_MAX))
        .arg(kept)
        .arg(bytes_max);
    match after {
        Some(after) => call.arg(score(after.accepted_at)).arg(member(after.id)),
        None => call,
    }
}

/// A page as seen by the script. A body may be missing, or be on the other server of a moving slot.
pub(super) struct ScriptPage {
    entries: Vec<(MailCursor, Option<Bytes>)>,
    more: bool,
}

pub(super) fn seen(told: Value) -> Result<ScriptPage, Failure> {
    let mut told = reply::list(told)?.into_iter();
    let more = reply::integer(told.next().unwrap_or(Value::Nil))? == 1;
    let mut entries = Vec::new();
    while let (Some(id), Some(time)) = (told.next(), told.next()) {
        let id = read_id(id)?;
        let accepted_at = Timestamp::from_millis(reply::number(time)?);
        let body = body(told.next().unwrap_or(Value::Nil))?;
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
            .map(|(at, _)| Call::command(bucket, "MGET").key(keys.body(bucket, at.id)))
            .collect()
    }

    /// Completes the page. Fails if a second look has no answer: its body may exist.
    pub(super) fn page(self, looks: Vec<Result<Value, Failure>>) -> Result<MailPage, Failure> {
        let mut looks = looks.into_iter();
        let last = self.entries.last().map(|(at, _)| *at);
        let mut page = MailPage {
            next: last.filter(|_| self.more),
            ..MailPage::default()
        };
        for (MailCursor { accepted_at, id }, mut found) in self.entries {
            if found.is_none() {
                let [told] = reply::items(looks.next().unwrap_or(Err(Failure::GivenUp))?)?;
                found = body(told)?;
            }
            match found {
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

fn body(told: Value) -> Result<Option<Bytes>, Failure> {
    match told {
        Value::Nil => Ok(None),
        told => Ok(Some(Bytes::from(reply::bytes(told)?))),
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

pub(super) fn received_is(told: Value) -> Result<Option<MessageId>, Failure> {
    match told {
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

pub(super) fn acknowledged(told: Value) -> Result<Vec<MessageId>, Failure> {
    reply::list(told)?.into_iter().map(read_id).collect()
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

pub(super) fn find(keys: &Keys, target: Target, id: MessageId, kept: i64, now: Timestamp) -> Call {
    Call::script(keys::bucket_of(target.user), ScriptName::Find)
        .key(keys.waiting(target))
        .key(keys.mark(target))
        .arg(member(id))
        .arg(kept)
        .arg(score(now))
        .arg(ACKED_KEEP.as_millis())
}

pub(super) fn found(told: Value) -> Result<MailLocation, Failure> {
    match reply::integer(told)? {
        0 => Ok(MailLocation::Absent),
        1 => Ok(MailLocation::Waits),
        2 => Ok(MailLocation::Acknowledged),
        other => Err(Failure::Reply(format!("wanted 0, 1 or 2, got {other}"))),
    }
}

pub(super) fn read_id(told: Value) -> Result<MessageId, Failure> {
    MessageId::new(reply::number(told)?).map_err(|e| Failure::Reply(e.to_string()))
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
        seen(Value::Array(
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
        let found = Value::Array(vec![text("first")]);
        let missing = Value::Array(vec![Value::Nil]);
        let page = three().page(vec![Ok(found), Ok(missing)]).expect("a page");
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
    fn a_second_look_without_an_answer_calls_nothing_missing() {
        let missing = || Ok(Value::Array(vec![Value::Nil]));
        for looks in [
            vec![missing(), Err(Failure::GivenUp)],
            vec![Err(Failure::GivenUp), missing()],
            vec![missing()],
        ] {
            assert!(matches!(three().page(looks), Err(Failure::GivenUp)));
        }
    }
}
