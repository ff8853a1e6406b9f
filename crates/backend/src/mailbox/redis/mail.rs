//! What waits: read by page, acknowledged, trimmed.

use bytes::Bytes;
use protocol::mailbox::{
    ACKED_KEEP, ACKED_MAX, Mail, MailCursor, MailPage, MailboxPolicy, RECEIVED_KEEP, Whereabouts,
};
use protocol::message::Target;
use protocol::{MessageId, Timestamp, UserId, keys};
use redis::Value;

use super::keys::{Keys, member};
use super::route::{count_max, oldest_kept, score};
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;
use crate::redis::scripts::Name;

/// Entries of one page at most, whatever was asked for.
pub(super) const PAGE_MAX: usize = 500;
/// How many entries one call takes out.
pub(super) const STEP: usize = 256;

pub(super) fn page(
    keys: &Keys,
    target: Target,
    after: Option<MailCursor>,
    limit: usize,
    kept: i64,
    bytes_max: usize,
) -> Call {
    let call = Call::script(keys::bucket_of(target.user), Name::Page)
        .key(keys.waiting(target))
        .arg(limit.clamp(1, PAGE_MAX))
        .arg(kept)
        .arg(bytes_max);
    match after {
        Some(after) => call.arg(score(after.accepted_at)).arg(member(after.id)),
        None => call,
    }
}

pub(super) fn paged(told: Value) -> Result<MailPage, Failure> {
    let mut told = reply::list(told)?.into_iter();
    let more = reply::integer(told.next().unwrap_or(Value::Nil))? == 1;
    let mut page = MailPage::default();
    let mut last = None;
    while let (Some(id), Some(time)) = (told.next(), told.next()) {
        let id = read_id(id)?;
        let accepted_at = Timestamp::from_millis(reply::number(time)?);
        last = Some(MailCursor { accepted_at, id });
        match told.next() {
            None | Some(Value::Nil) => page.bodiless.push(id),
            Some(body) => page.mails.push(Mail {
                id,
                accepted_at,
                body: Bytes::from(reply::bytes(body)?),
            }),
        }
    }
    page.next = last.filter(|_| more);
    Ok(page)
}

pub(super) fn set_received(keys: &Keys, user: UserId, id: MessageId) -> Call {
    Call::script(keys::bucket_of(user), Name::Received)
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

/// One call for each [`STEP`] ids.
pub(super) fn acknowledge(
    keys: &Keys,
    target: Target,
    ids: &[MessageId],
    now: Timestamp,
) -> impl Iterator<Item = Call> {
    ids.chunks(STEP).map(move |ids| {
        let call = Call::script(keys::bucket_of(target.user), Name::Ack)
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
    Call::script(keys::bucket_of(target.user), Name::Trim)
        .key(keys.waiting(target))
        .arg(oldest_kept(policy, now))
        .arg(count_max(policy))
        .arg(STEP)
}

pub(super) fn waiting(keys: &Keys, target: Target) -> Call {
    Call::command(keys::bucket_of(target.user), "ZCARD").key(keys.waiting(target))
}

pub(super) fn find(keys: &Keys, target: Target, id: MessageId, kept: i64, now: Timestamp) -> Call {
    Call::script(keys::bucket_of(target.user), Name::Find)
        .key(keys.waiting(target))
        .key(keys.mark(target))
        .arg(member(id))
        .arg(kept)
        .arg(score(now))
        .arg(ACKED_KEEP.as_millis())
}

pub(super) fn found(told: Value) -> Result<Whereabouts, Failure> {
    match reply::integer(told)? {
        0 => Ok(Whereabouts::Absent),
        1 => Ok(Whereabouts::Waits),
        2 => Ok(Whereabouts::Acknowledged),
        other => Err(Failure::Reply(format!("wanted 0, 1 or 2, got {other}"))),
    }
}

pub(super) fn read_id(told: Value) -> Result<MessageId, Failure> {
    MessageId::new(reply::number(told)?).map_err(|e| Failure::Reply(e.to_string()))
}
