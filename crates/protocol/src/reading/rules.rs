//! Rules that make an answer complete.

use std::time::Duration;

use crate::change::OrderedChange;
use crate::frame::HistoryRange;
use crate::{Code, ConversationId, Placed, Refusal, Seq, Timestamp, UserId};

/// Start of the list difference: `margin` before the client's version, since a row may land a
/// little after its stamp. The client recognises duplicates by their seq.
///
/// # Errors
/// A version that is ahead of this server's clock by more than half of the margin: a clock was set
/// back, or two servers' clocks differ. Rows stamped since then may be before any such difference.
/// The other half of the margin is for rows that land late ([`stamp_holds`](crate::writer::stamp_holds)).
pub fn list_from(
    list_version: Timestamp,
    margin: Duration,
    now: Timestamp,
) -> Result<Timestamp, Refusal> {
    if list_version > now + margin / 2 {
        return Err(Refusal::new(
            Code::Reset,
            "the version of your list is ahead of this server's clock: ask for the list from 0",
        ));
    }
    Ok((list_version - margin).max(Timestamp::ZERO))
}

/// Checks that `user` may read this private conversation. For a group, its members decide:
/// [`readable_after`](super::readable_after).
pub fn may_read(user: UserId, conversation: ConversationId) -> Result<(), Refusal> {
    match conversation {
        ConversationId::Private { .. } if conversation.peer_of(user).is_some() => Ok(()),
        ConversationId::Private { .. } | ConversationId::Group(_) | ConversationId::System(_) => {
            Err(Refusal::new(
                Code::Forbidden,
                "you have no part in this conversation",
            ))
        }
    }
}

/// Refuses to continue a list after a conversation that cannot be on it.
pub fn may_go_on(user: UserId, cursor: Option<ConversationId>) -> Result<(), Refusal> {
    match cursor {
        Some(ConversationId::Group(_)) | None => Ok(()),
        Some(cursor) => may_read(user, cursor),
    }
}

/// Rows of a page: the requested number within `max`; 0 requests as many as allowed.
pub fn page_limit(limit: u32, max: usize) -> usize {
    match usize::try_from(limit) {
        Ok(0) | Err(_) => max,
        Ok(limit) => limit.min(max),
    }
}

/// Number of these, from the first on, that fit into `bytes_max` together; at least one, if there
/// is one.
pub fn fitting(sizes: impl Iterator<Item = usize>, bytes_max: usize) -> usize {
    let mut total = 0usize;
    sizes
        .enumerate()
        .take_while(|(index, size)| {
            total = total.saturating_add(*size);
            *index == 0 || total <= bytes_max
        })
        .count()
}

/// Refuses a client that has read beyond the newest position: it belongs to another history.
pub fn check_cursor(range: HistoryRange, last: Seq) -> Result<(), Refusal> {
    match range {
        HistoryRange::Forward { after } if after > last => Err(Refusal::new(
            Code::Reset,
            format!("you have position {after}, the conversation ends at {last}"),
        )),
        HistoryRange::Forward { .. } | HistoryRange::Backward { .. } => Ok(()),
    }
}

/// Refuses a client that knows more changes than exist: it belongs to another history.
pub fn check_rev(cursor: u64, last: u64) -> Result<(), Refusal> {
    if cursor > last {
        let text = format!("you have change {cursor}, the last is {last}");
        return Err(Refusal::new(Code::Reset, text));
    }
    Ok(())
}

/// Checks that these changes follow `cursor` one by one; those without an effect, dead or of an
/// unknown kind, use their places as others do. Returns true if more follow; `last` is the
/// last rev from before the read.
pub fn dense_changes(
    conversation: ConversationId,
    changes: &[OrderedChange],
    cursor: u64,
    last: u64,
) -> Result<bool, Refusal> {
    let expected = (cursor.saturating_add(1)..).zip(changes);
    if expected.into_iter().any(|(rev, change)| change.rev != rev) {
        return Err(hole_refusal(conversation));
    }
    let end = changes.last().map_or(cursor, |change| change.rev);
    if changes.is_empty() && end < last {
        return Err(hole_refusal(conversation));
    }
    Ok(end < last)
}

/// A page without holes; `more` if the conversation goes on after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DensePage<'a> {
    pub messages: &'a [Placed],
    pub last_seq: Seq,
    pub more: bool,
}

/// Checks that a page is dense: each position follows the one before, and the first joins the
/// cursor. `last` is the newest position from before the read.
pub fn dense_page(
    messages: &[Placed],
    range: HistoryRange,
    last: Seq,
) -> Result<DensePage<'_>, Refusal> {
    let newest = messages.iter().map(|message| message.position.seq).max();
    let last_seq = newest.map_or(last, |newest| newest.max(last));
    let (first, step) = match range {
        HistoryRange::Forward { after } => (after.0.checked_add(1), 1),
        HistoryRange::Backward { before: None } => (Some(last_seq.0), -1),
        HistoryRange::Backward {
            before: Some(before),
        } => (
            before.0.min(last_seq.0.saturating_add(1)).checked_sub(1),
            -1,
        ),
    };
    let mut expected = first;
    for message in messages {
        if expected != Some(message.position.seq.0) {
            return Err(hole_refusal(message.conversation));
        }
        expected = expected.and_then(|seq| seq.checked_add_signed(step));
    }
    let more = expected.is_some_and(|next| (1..=last_seq.0).contains(&next));
    if more && messages.is_empty() {
        return Err(Refusal::new(
            Code::Unavailable,
            "history is behind the conversation; try again",
        ));
    }
    Ok(DensePage {
        messages,
        last_seq,
        more,
    })
}

pub(super) fn hole_refusal(conversation: ConversationId) -> Refusal {
    Refusal::new(
        Code::Unavailable,
        format!("a part of {conversation} is unavailable now; try again"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Content;
    use crate::{DeviceId, Message, MessageId, Options, Position, Recipient, SendId};

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn placed(seq: u64) -> Placed {
        let id = |n: u64| MessageId::new(n as i64).ok();
        let message = Message {
            id: id(seq).expect("positive"),
            from: user(1),
            to: Recipient::User(user(2)),
            accepted_at: Timestamp::ZERO,
            device: DeviceId::new("d").expect("short"),
            send_id: SendId::from_bytes([1; 16]),
            options: Options::CHAT,
            content: Content::text("x"),
        };
        Placed {
            conversation: message.conversation().expect("two users"),
            position: Position {
                seq: Seq(seq),
                prev: id(seq - 1),
            },
            message,
        }
    }

    fn page(seqs: &[u64], range: HistoryRange, last: u64) -> Result<bool, Code> {
        let messages: Vec<Placed> = seqs.iter().copied().map(placed).collect();
        dense_page(&messages, range, Seq(last))
            .map(|page| page.more)
            .map_err(|refusal| refusal.code)
    }

    // proves S0-20 in part, S0-22 in part: pages in both directions join their cursor and say whether more follows.
    #[test]
    fn pages_say_whether_more_follows() {
        let forward = |cursor| HistoryRange::Forward { after: Seq(cursor) };
        let backward = |before: u64| HistoryRange::Backward {
            before: Some(Seq(before)),
        };
        let newest = HistoryRange::Backward { before: None };
        assert_eq!(page(&[1, 2], forward(0), 5), Ok(true));
        assert_eq!(page(&[4, 5], forward(3), 5), Ok(false));
        assert_eq!(page(&[], forward(5), 5), Ok(false));
        assert_eq!(page(&[5, 4], newest, 5), Ok(true));
        assert_eq!(
            page(&[6, 5], newest, 5),
            Ok(true),
            "one more came meanwhile"
        );
        assert_eq!(page(&[2, 1], backward(3), 5), Ok(false));
        assert_eq!(page(&[], backward(1), 5), Ok(false));
        assert_eq!(page(&[5, 4], backward(99), 5), Ok(true));
        assert_eq!(page(&[], newest, 0), Ok(false));
    }

    #[test]
    fn a_page_with_a_hole_is_no_answer() {
        let forward = HistoryRange::Forward { after: Seq(0) };
        let newest = HistoryRange::Backward { before: None };
        let refusal = Err(Code::Unavailable);
        assert_eq!(page(&[1, 3], forward, 3), refusal);
        assert_eq!(page(&[2, 3], forward, 3), refusal, "does not join");
        assert_eq!(
            page(&[], forward, 3),
            refusal,
            "nothing where there is something"
        );
        assert_eq!(page(&[4, 3], newest, 5), refusal, "the newest is missing");
        assert_eq!(page(&[5, 3], newest, 5), refusal);
        assert_eq!(page(&[], newest, 5), refusal);
    }

    #[test]
    fn a_client_ahead_of_the_server_is_told_so() {
        let cursor = HistoryRange::Forward { after: Seq(6) };
        assert_eq!(
            check_cursor(cursor, Seq(5)).map_err(|r| r.code),
            Err(Code::Reset)
        );
        assert_eq!(check_cursor(cursor, Seq(6)), Ok(()));
        let now = Timestamp::from_millis(1_000_000);
        let margin = Duration::from_secs(10);
        let half = now + margin / 2;
        assert_eq!(
            list_from(half + Duration::from_millis(1), margin, now).map_err(|r| r.code),
            Err(Code::Reset)
        );
        assert_eq!(list_from(half, margin, now), Ok(half - margin));
        assert_eq!(list_from(now, margin, now), Ok(now - margin));
        assert_eq!(list_from(Timestamp::ZERO, margin, now), Ok(Timestamp::ZERO));
    }

    #[test]
    fn only_the_two_sides_may_read() {
        let ours = ConversationId::private(user(1), user(2)).expect("two users");
        assert_eq!(may_read(user(1), ours), Ok(()));
        assert_eq!(
            may_read(user(3), ours).map_err(|r| r.code),
            Err(Code::Forbidden)
        );
        assert_eq!(
            may_read(user(1), ConversationId::System(user(1))).map_err(|r| r.code),
            Err(Code::Forbidden)
        );
    }

    #[test]
    fn a_page_ends_before_what_does_not_fit() {
        let fits = |sizes: &[usize]| fitting(sizes.iter().copied(), 10);
        assert_eq!(fits(&[]), 0);
        assert_eq!(fits(&[11]), 1, "one goes in any case");
        assert_eq!(fits(&[4, 6, 1]), 2);
        assert_eq!(fits(&[11, 1]), 1);
    }

    #[test]
    fn a_page_has_at_most_what_is_allowed() {
        assert_eq!(page_limit(0, 100), 100);
        assert_eq!(page_limit(7, 100), 7);
        assert_eq!(page_limit(u32::MAX, 100), 100);
    }
}

#[cfg(test)]
mod list_tests;
