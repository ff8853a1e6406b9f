//! Contract of every history. Each check uses users of its own, so that all may share one store.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::join_all;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus, Version};
use protocol::message::{Content, Message, Placed, Position, Recipient};
use protocol::receipt::ReceiptKind;
use protocol::{ConversationId, DeviceId, MessageId, Options, SendId, Seq, UserId};

use super::{HistoryStore, StatusWrite};
use crate::Result;
use crate::clock::{Entropy, SeededEntropy};
use crate::test_ids::{TestIds, at, content, seqs};

const ALL: usize = 1000;

fn version(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

/// Two users and their conversation.
struct Talk<'a> {
    fresh: &'a TestIds,
    a: UserId,
    b: UserId,
}

impl<'a> Talk<'a> {
    fn new(fresh: &'a TestIds) -> Talk<'a> {
        Talk {
            fresh,
            a: fresh.user(),
            b: fresh.user(),
        }
    }

    fn with(&self, a: UserId) -> Talk<'a> {
        Talk {
            fresh: self.fresh,
            a,
            b: self.fresh.user(),
        }
    }

    fn conversation(&self) -> ConversationId {
        ConversationId::private(self.a, self.b).expect("two users")
    }

    /// Both rows of a message from a to b, the sender's first.
    fn rows(&self, id: MessageId, seq: u64, offset: u64) -> [PrivateRow; 2] {
        let placed = Placed {
            conversation: self.conversation(),
            position: Position {
                seq: Seq(seq),
                prev: MessageId::new(id.get() - 1).ok().filter(|_| seq > 1),
            },
            message: Message {
                id,
                from: self.a,
                to: Recipient::User(self.b),
                accepted_at: id.timestamp(),
                device: DeviceId::new("pixel-9").expect("a name"),
                send_id: self.fresh.send_id(),
                options: Options::CHAT,
                content: content(),
            },
        };
        PrivateRow::pair_of(&placed, seq, version(offset)).expect("a private message")
    }

    /// Saves `count` messages, seq and offset from 1 on; returns their ids.
    async fn say(&self, store: &dyn HistoryStore, count: usize) -> Vec<MessageId> {
        let ids = self.fresh.messages(count);
        let rows = (1..)
            .zip(&ids)
            .flat_map(|(seq, &id)| self.rows(id, seq, seq))
            .collect();
        store.save_private(rows).await.expect("saves");
        ids
    }
}

async fn find(
    store: &dyn HistoryStore,
    owner: UserId,
    bounds: (Option<MessageId>, Option<MessageId>),
    order: Order,
    limit: usize,
) -> Vec<MessageId> {
    let (after, before) = bounds;
    let range = IdRange { after, before };
    let rows = store.find_private(owner, range, order, limit).await;
    rows.expect("reads").iter().map(|row| row.id).collect()
}

/// Writes any row once and reads it in every way.
// proves S0-01, S0-53: one send is two rows, the sender's out and the receiver's in, under one id; sides
// exchanged, nothing else changed.
pub(super) async fn a_private_message_is_two_rows(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let id = fresh.message();
    let [out, incoming] = talk.rows(id, 1, 1);
    let rows = vec![out.clone(), incoming.clone()];
    store.save_private(rows).await.expect("saves");

    let keys = [(talk.a, id), (talk.b, id), (talk.b, fresh.message())];
    let found = store.private(&keys).await.expect("reads");
    assert_eq!(found, [Some(out.clone()), Some(incoming.clone()), None]);
    for (owner, row) in [(talk.a, out), (talk.b, incoming)] {
        let all = store
            .find_private(owner, IdRange::default(), Order::Forward, ALL)
            .await;
        assert_eq!(all.expect("reads"), [row]);
    }
}

/// Polls a call at most `polls` times, then drops it; returns whether it completed.
async fn ends_within(polls: usize, call: impl Future<Output = Result<()>>) -> bool {
    let mut call = pin!(call);
    let mut left = polls;
    poll_fn(|context| {
        let Some(rest) = left.checked_sub(1) else {
            return Poll::Ready(false);
        };
        left = rest;
        (call.as_mut().poll(context)).map(|ended| ended.map(|()| true).expect("saves"))
    })
    .await
}

// proves S0-53: the sender's row first and then the receiver's. A write that is broken off, at whichever step, leaves no
// message that its receiver has and its sender has not; who writes again has both.
pub(super) async fn a_receiver_has_nothing_that_its_sender_has_not(
    store: &dyn HistoryStore,
    fresh: &TestIds,
) {
    let (up, rest) = (Talk::new(fresh), Talk::new(fresh));
    // The sender may have the smaller number or the larger.
    let down = Talk {
        fresh,
        a: rest.b,
        b: rest.a,
    };
    let mut polls = 1;
    loop {
        let seq = polls as u64;
        let said: Vec<_> = (0..6)
            .map(|n| {
                let talk = if n % 2 == 0 { &up } else { &down };
                talk.rows(fresh.message(), 3 * seq + n / 2, seq)
            })
            .collect();
        // Input order would put a receiver's row first.
        let rows: Vec<_> = said.iter().flatten().rev().cloned().collect();
        let ended = ends_within(polls, store.save_private(rows.clone())).await;
        for [out, incoming] in &said {
            let keys = [(out.owner, out.id), (incoming.owner, incoming.id)];
            let found = store.private(&keys).await.expect("reads");
            assert!(
                found[1].is_none() || found[0].is_some(),
                "{polls}: {found:?}"
            );
            assert!(!ended || found[1].is_some(), "{polls}: {found:?}");
        }
        store.save_private(rows).await.expect("saves");
        if ended {
            return;
        }
        polls += 1;
    }
}

// proves S0-03, S0-05, S3-27: one range read returns a user's messages with all peers, in order of id.
pub(super) async fn one_read_returns_all_peers(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let mut ids = Vec::new();
    for seq in 1..=3 {
        for other in [&talk, &talk.with(talk.a), &talk.with(talk.a)] {
            let id = fresh.message();
            let rows = other.rows(id, seq, seq).to_vec();
            store.save_private(rows).await.expect("saves");
            ids.push(id);
        }
    }
    let missed = find(store, talk.a, (Some(ids[1]), None), Order::Forward, ALL).await;
    assert_eq!(missed, ids[2..]);
}

// proves S0-07: many write at once, to one user and to many, and each finds its own whole and in order.
pub(super) async fn many_write_at_once(store: &dyn HistoryStore, fresh: &TestIds) {
    let first = Talk::new(fresh);
    let talks: Vec<_> = (0..16).map(|_| first.with(first.a)).collect();
    let written = join_all(talks.iter().map(|talk| talk.say(store, 6))).await;
    let mut of_all: Vec<_> = written.iter().flatten().copied().collect();
    of_all.sort_unstable();
    assert_eq!(
        find(store, first.a, (None, None), Order::Forward, ALL).await,
        of_all
    );
    for (talk, ids) in talks.iter().zip(written) {
        assert_eq!(
            find(store, talk.b, (None, None), Order::Forward, ALL).await,
            ids
        );
        let range = HistoryRange::Forward { after: Seq::ZERO };
        assert_eq!(read(store, talk, range, ALL).await, seqs(1..=6));
    }
}

// proves S0-58, S0-59, S0 Pitfall B: upward, oldest first, at most a page, both bounds exclusive.
pub(super) async fn forward_bounds_are_exclusive(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 6).await;
    let forward = async |after, before, limit| {
        find(store, talk.b, (after, before), Order::Forward, limit).await
    };
    assert_eq!(forward(None, None, ALL).await, ids);
    assert_eq!(forward(None, None, 2).await, ids[..2]);
    assert_eq!(forward(Some(ids[1]), None, 3).await, ids[2..5]);
    assert_eq!(forward(Some(ids[1]), Some(ids[4]), ALL).await, ids[2..4]);
    assert_eq!(forward(None, Some(ids[2]), ALL).await, ids[..2]);
}

// proves S0-60a, S0-60b, S0-60c, S0-60d: downward, newest first, bounds exclusive.
pub(super) async fn backward_bounds_are_exclusive(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let mut ids = talk.say(store, 6).await;
    ids.reverse();
    let backward = async |after, before, limit| {
        find(store, talk.b, (after, before), Order::Backward, limit).await
    };
    assert_eq!(backward(None, None, 2).await, ids[..2]);
    assert_eq!(backward(None, Some(ids[2]), ALL).await, ids[3..]);
    assert_eq!(backward(Some(ids[3]), None, ALL).await, ids[..3]);
    assert_eq!(backward(Some(ids[4]), Some(ids[1]), ALL).await, ids[2..4]);
    assert_eq!(backward(Some(ids[4]), Some(ids[1]), 1).await, ids[2..3]);
}

// proves S0-60e: an empty range is an empty list.
pub(super) async fn an_empty_range_is_an_empty_list(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let nobody = fresh.user();
    let ids = talk.say(store, 2).await;
    let (first, last) = (Some(ids[0]), Some(ids[1]));
    for order in [Order::Forward, Order::Backward] {
        for (owner, bounds) in [
            (nobody, (None, None)),
            (talk.a, (last, None)),
            (talk.a, (None, first)),
            (talk.a, (first, last)),
            (talk.a, (first, first)),
            (talk.a, (last, first)),
        ] {
            assert_eq!(find(store, owner, bounds, order, ALL).await, []);
        }
        assert_eq!(find(store, talk.a, (None, None), order, 0).await, []);
    }
}

// proves S0-60e: paging by the last id visits each id once, also while a writer adds.
pub(super) async fn paging_visits_each_id_once(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let before = talk.say(store, 23).await;
    let added = fresh.messages(23);
    let mut adding = (24..).zip(&added);
    for order in [Order::Forward, Order::Backward] {
        let mut seen: Vec<MessageId> = Vec::new();
        loop {
            let last = seen.last().copied();
            let bounds = match order {
                Order::Forward => (last, None),
                Order::Backward => (None, last),
            };
            let page = find(store, talk.a, bounds, order, 5).await;
            if page.is_empty() {
                break;
            }
            seen.extend(page);
            if order == Order::Forward
                && let Some((seq, &id)) = adding.next()
            {
                let rows = talk.rows(id, seq, seq).to_vec();
                store.save_private(rows).await.expect("saves");
            }
        }
        if order == Order::Backward {
            seen.reverse();
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{order:?}: {seen:?}");
        assert!(seen.starts_with(&before), "{order:?}: {seen:?}");
        assert!(seen.len() > before.len(), "{order:?} saw nothing new");
    }
}

/// Any range and any limit match a sorted list.
pub(super) async fn any_range_equals_the_sorted_list(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 20).await;
    let chance = SeededEntropy::new(7);
    let bound = || match chance.next() % 24 {
        n @ 0..20 => Some(ids[n as usize]),
        20 => MessageId::new(1).ok(),
        21 => MessageId::new(i64::MAX).ok(),
        _ => None,
    };
    for _ in 0..200 {
        let (after, before) = (bound(), bound());
        let limit = (chance.next() % 25) as usize;
        let mut wanted: Vec<_> = ids
            .iter()
            .copied()
            .filter(|&id| {
                after.is_none_or(|after| id > after) && before.is_none_or(|before| id < before)
            })
            .collect();
        let order = if chance.next().is_multiple_of(2) {
            Order::Forward
        } else {
            wanted.reverse();
            Order::Backward
        };
        wanted.truncate(limit);
        let found = find(store, talk.a, (after, before), order, limit).await;
        assert_eq!(found, wanted, "{after:?} {before:?} {order:?} {limit}");
    }
}

async fn read(
    store: &dyn HistoryStore,
    talk: &Talk<'_>,
    range: HistoryRange,
    limit: usize,
) -> Vec<Seq> {
    let rows = store
        .conversation(talk.a, talk.conversation(), range, limit)
        .await;
    rows.expect("reads").iter().map(|row| row.seq).collect()
}

/// A conversation comes in order of position, although ids run against it and the owner writes to
/// others.
pub(super) async fn a_conversation_is_read_by_position(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    talk.with(talk.a).say(store, 3).await;
    let mut ids = fresh.messages(5);
    ids.swap(1, 3);
    let rows = (1..)
        .zip(&ids)
        .flat_map(|(seq, &id)| talk.rows(id, seq, seq));
    store.save_private(rows.collect()).await.expect("saves");

    let forward = |after| HistoryRange::Forward { after: Seq(after) };
    let backward = |before| HistoryRange::Backward { before };
    assert_eq!(read(store, &talk, forward(0), ALL).await, seqs(1..=5));
    assert_eq!(read(store, &talk, forward(2), 2).await, seqs(3..=4));
    assert_eq!(read(store, &talk, forward(5), ALL).await, []);
    assert_eq!(read(store, &talk, forward(99), ALL).await, []);
    let mut down = read(store, &talk, backward(None), 3).await;
    down.reverse();
    assert_eq!(down, seqs(3..=5));
    let mut down = read(store, &talk, backward(Some(Seq(3))), ALL).await;
    down.reverse();
    assert_eq!(down, seqs(1..=2));
    let first = backward(Some(Seq(1)));
    assert_eq!(read(store, &talk, first, ALL).await, []);

    let stranger = store
        .conversation(fresh.user(), talk.conversation(), forward(0), ALL)
        .await;
    assert_eq!(stranger.expect("reads"), []);
}

/// A page is dense, or an error explains why not.
pub(super) async fn a_page_ends_before_a_hole(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let rows = [1, 2, 4, 5]
        .into_iter()
        .flat_map(|seq| talk.rows(fresh.message(), seq, seq));
    store.save_private(rows.collect()).await.expect("saves");
    let forward = |after| HistoryRange::Forward { after: Seq(after) };
    assert_eq!(read(store, &talk, forward(0), ALL).await, seqs(1..=2));
    let down = read(store, &talk, HistoryRange::Backward { before: None }, ALL).await;
    assert_eq!(down, [Seq(5), Seq(4)]);
    let at_hole = store
        .conversation(talk.a, talk.conversation(), forward(2), ALL)
        .await;
    assert_eq!(at_hole.expect_err("a hole").kind, crate::Kind::Corrupt);
}

/// A repeated write changes nothing, and an earlier version never replaces a later one.
pub(super) async fn only_a_later_version_replaces(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let id = fresh.message();
    let standing = talk.rows(id, 1, 10);
    for offset in [10, 9, 10] {
        let mut rows = standing.to_vec();
        for row in &mut rows {
            row.version = version(offset);
            if offset < 10 {
                row.content = Content::text("a zombie's");
            }
        }
        store.save_private(rows).await.expect("saves");
    }
    let key = [(talk.b, id)];
    let found = store.private(&key).await.expect("reads");
    assert_eq!(found, [Some(standing[1].clone())]);
    let all = find(store, talk.b, (None, None), Order::Forward, ALL).await;
    assert_eq!(all, [id]);

    // A later epoch wins, whatever its offset, also with both in one call.
    let mut later = standing.to_vec();
    for row in &mut later {
        row.version = Version {
            epoch: 2,
            offset: 0,
        };
        row.content = Content::text("of the new log");
    }
    let both = later.iter().chain(&standing).cloned().collect();
    store.save_private(both).await.expect("saves");
    let found = store.private(&key).await.expect("reads");
    assert_eq!(found, [Some(later[1].clone())]);
}

/// The send_id finds the sender's own row, from the first try on, and nobody else's.
pub(super) async fn a_send_is_found_by_its_send_id(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let elsewhere = talk.with(talk.a);
    let filler = elsewhere.say(store, 300).await;
    let row = talk.rows(fresh.message(), 1, 1);
    store.save_private(row.to_vec()).await.expect("saves");
    let [out, _] = row;
    let here = talk.conversation();
    let find = async |from, conversation, since| {
        let found = store
            .find_send(from, conversation, out.send_id, since)
            .await;
        found.expect("reads")
    };
    let since = filler[0];
    assert_eq!(find(talk.a, here, since).await, Some(out.clone()));
    assert_eq!(find(talk.a, here, out.id).await, Some(out.clone()));
    assert_eq!(find(talk.a, here, fresh.message()).await, None);
    assert_eq!(find(talk.b, here, since).await, None);
    let other = elsewhere.conversation();
    assert_eq!(find(talk.a, other, since).await, None);
}

/// Some kinds of UUID differ in their first bytes only, others in their last.
pub(super) async fn sends_that_differ_in_any_byte_are_told_apart(
    store: &dyn HistoryStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let ids = fresh.messages(17);
    let send_id = |n: usize| {
        let mut bytes = *fresh_like(talk.a).as_bytes();
        if let Some(byte) = bytes.get_mut(n) {
            *byte ^= 0x55;
        }
        SendId::from_bytes(bytes)
    };
    for (n, &id) in ids.iter().enumerate() {
        let rows = talk.rows(id, n as u64 + 1, n as u64 + 1);
        let send_id = send_id(n);
        let rows = rows.map(|row| PrivateRow { send_id, ..row });
        store.save_private(rows.to_vec()).await.expect("saves");
    }
    for (n, &id) in ids.iter().enumerate() {
        let found = store
            .find_send(talk.a, talk.conversation(), send_id(n), ids[0])
            .await
            .expect("reads");
        assert_eq!(found.map(|row| row.id), Some(id), "byte {n}");
    }
}

/// Returns a send_id of this user's own: users of the tests are unique.
fn fresh_like(user: UserId) -> SendId {
    SendId::from_bytes((user.get() as u128).to_be_bytes())
}

/// Two users may choose the same send_id; the query returns both.
pub(super) async fn a_send_id_finds_its_messages(store: &dyn HistoryStore, fresh: &TestIds) {
    let (one, other) = (Talk::new(fresh), Talk::new(fresh));
    let [mine, theirs] = [&one, &other].map(|talk| talk.rows(fresh.message(), 1, 1));
    let send_id = mine[0].send_id;
    let theirs = theirs.map(|row| PrivateRow { send_id, ..row });
    let sent = [&mine, &theirs].map(|rows| (rows[0].owner, rows[0].id));
    store
        .save_private([mine, theirs].concat())
        .await
        .expect("saves");
    let mut found = store.sent_as(send_id).await.expect("reads");
    found.sort_unstable();
    assert_eq!(found, sent);
    let never = store.sent_as(fresh.send_id()).await;
    assert_eq!(never.expect("reads"), []);
}

/// Rows written just now, long ago, and never.
pub(super) async fn places_say_where_rows_stand(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 3).await;
    let keys = [
        (talk.a, ids[1]),
        (talk.b, ids[1]),
        (talk.b, fresh.message()),
    ];
    let rows = store.private(&keys).await.expect("reads");
    let places = store.places(&keys).await.expect("reads");
    let wanted: Vec<_> = rows
        .iter()
        .map(|row| row.as_ref().map(Place::from))
        .collect();
    assert_eq!(places, wanted);
    assert_eq!(places.iter().flatten().count(), 2);
    // A rewritten row moves to its new position.
    let moved = talk.rows(ids[1], 9, 9).to_vec();
    store.save_private(moved).await.expect("saves");
    let places = store.places(&keys[..2]).await.expect("reads");
    let seqs: Vec<_> = places
        .into_iter()
        .flatten()
        .map(|place| place.seq)
        .collect();
    assert_eq!(seqs, [Seq(9), Seq(9)]);
}

/// Places carry each side's own count, wherever the message is.
pub(super) async fn places_are_counted_by_both_sides(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let back = Talk {
        fresh,
        a: talk.b,
        b: talk.a,
    };
    let mut rows = Vec::new();
    for seq in 1..=5 {
        rows.extend(talk.rows(fresh.message(), seq, seq));
    }
    // An answer: b's message is the sixth of the conversation, and b's first.
    let id = fresh.message();
    rows.extend(back.rows(id, 6, 6).map(|row| PrivateRow {
        incoming: if row.owner == talk.a { 1 } else { 5 },
        ..row
    }));
    store.save_private(rows).await.expect("saves");
    let conversation = talk.conversation();
    let asked = [
        (talk.a, conversation, Seq(5)),
        (talk.b, conversation, Seq(5)),
        (talk.b, conversation, Seq(7)),
        (talk.a, conversation, Seq(6)),
        (talk.b, conversation, Seq(6)),
        (talk.a, conversation, Seq::ZERO),
    ];
    let found = store.tallies(&asked).await.expect("reads");
    let found: Vec<_> = found
        .iter()
        .map(|tally| tally.map(|tally| (tally.seq.0, tally.incoming)))
        .collect();
    let expected = [
        Some((5, 0)),
        Some((5, 5)),
        None,
        Some((6, 1)),
        Some((6, 5)),
        None,
    ];
    assert_eq!(found, expected);
}

/// Several records of one batch may ask for the same row.
pub(super) async fn what_is_asked_twice_is_answered_twice(
    store: &dyn HistoryStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 2).await;
    tell(store, talk.a, ids[0], ReceiptKind::Read, 5).await;
    let keys = [ids[0], ids[1], ids[0], ids[0]].map(|id| (talk.a, id));
    let rows = store.private(&keys).await.expect("reads");
    assert!(rows[0].is_some() && rows[1].is_some());
    assert_eq!((&rows[2], &rows[3]), (&rows[0], &rows[0]));
    let places = store.places(&keys).await.expect("reads");
    assert_eq!((places[2], places[3]), (places[0], places[0]));
    let statuses = store.status(&keys).await.expect("reads");
    assert_eq!((statuses[2], statuses[3]), (statuses[0], statuses[0]));
    assert_ne!(statuses[0], statuses[1]);
}

async fn status(store: &dyn HistoryStore, owner: UserId, id: MessageId) -> RowStatus {
    store.status(&[(owner, id)]).await.expect("reads")[0]
}

async fn tell(
    store: &dyn HistoryStore,
    owner: UserId,
    id: MessageId,
    kind: ReceiptKind,
    millis: u64,
) -> bool {
    let write = StatusWrite {
        owner,
        id,
        kind,
        at: at(millis),
    };
    store.set_status(vec![write]).await.expect("writes")[0]
}

// proves S0-54, S0-55, S0-56: each receipt has a register of its own on the sender's row; the receiver's row does not
// change.
// proves S4-13: an update answers what it changed; its other four parts stand in the contract of conversations.
pub(super) async fn receipts_only_move_forward(store: &dyn HistoryStore, fresh: &TestIds) {
    use ReceiptKind::{Read, Received};
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 3).await;
    let (a, id) = (talk.a, ids[0]);
    assert!(tell(store, a, id, Received, 10).await);
    assert!(!tell(store, a, id, Received, 5).await);
    assert_eq!(status(store, a, id).await.delivered_at, Some(at(10)));
    assert_eq!(status(store, a, id).await.read_at, None);
    assert!(tell(store, a, id, Read, 20).await);
    assert!(!tell(store, a, id, Read, 15).await);
    assert!(!tell(store, a, id, Received, 12).await);
    let both = status(store, a, id).await;
    assert_eq!(both.read_at, Some(at(20)));
    assert!(both.delivered_at.is_some());

    // Read first implies received; a later receipt undoes nothing. Both in one call.
    let writes = [Read, Received].map(|kind| StatusWrite {
        owner: a,
        id: ids[1],
        kind,
        at: at(30),
    });
    let advanced = store.set_status(writes.to_vec()).await.expect("writes");
    assert_eq!(advanced, [true, false]);
    let read = status(store, a, ids[1]).await;
    assert_eq!(
        (read.delivered_at, read.read_at),
        (Some(at(30)), Some(at(30)))
    );

    assert_eq!(status(store, talk.b, id).await, RowStatus::default());

    // Each receipt has a time of its own.
    let writes = [(Received, 40), (Read, 50)].map(|(kind, millis)| StatusWrite {
        owner: a,
        id: ids[2],
        kind,
        at: at(millis),
    });
    let advanced = store.set_status(writes.to_vec()).await.expect("writes");
    assert_eq!(advanced, [true, true]);
    let both = status(store, a, ids[2]).await;
    let times = (both.delivered_at, both.read_at);
    assert_eq!(times, (Some(at(40)), Some(at(50))));
}

// proves S0-57 in part: deleted on both sides, and neither a receipt nor a repeat clears it.
pub(super) async fn deleted_is_for_good(store: &dyn HistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let id = fresh.message();
    let rows = talk.rows(id, 1, 1).to_vec();
    store.save_private(rows.clone()).await.expect("saves");
    store.delete(&[(talk.b, id)]).await.expect("deletes");
    tell(store, talk.a, id, ReceiptKind::Read, 10).await;
    store.save_private(rows).await.expect("saves");
    store.delete(&[(talk.b, id)]).await.expect("deletes");
    for owner in [talk.a, talk.b] {
        assert!(status(store, owner, id).await.deleted, "{owner}");
    }
}

/// A rewrite of a row, as by a redelivery, leaves its registers.
pub(super) async fn a_row_written_again_keeps_its_status(
    store: &dyn HistoryStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let id = fresh.message();
    let mut rows = talk.rows(id, 1, 1).to_vec();
    store.save_private(rows.clone()).await.expect("saves");
    tell(store, talk.a, id, ReceiptKind::Received, 10).await;
    for row in &mut rows {
        row.version = version(2);
    }
    store.save_private(rows).await.expect("saves");
    assert_eq!(status(store, talk.a, id).await.delivered_at, Some(at(10)));
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_private_message_is_two_rows,
            a_receiver_has_nothing_that_its_sender_has_not,
            one_read_returns_all_peers,
            many_write_at_once,
            forward_bounds_are_exclusive,
            backward_bounds_are_exclusive,
            an_empty_range_is_an_empty_list,
            paging_visits_each_id_once,
            any_range_equals_the_sorted_list,
            a_conversation_is_read_by_position,
            a_page_ends_before_a_hole,
            only_a_later_version_replaces,
            a_send_is_found_by_its_send_id,
            a_send_id_finds_its_messages,
            sends_that_differ_in_any_byte_are_told_apart,
            places_say_where_rows_stand,
            places_are_counted_by_both_sides,
            what_is_asked_twice_is_answered_twice,
            receipts_only_move_forward,
            deleted_is_for_good,
            a_row_written_again_keeps_its_status,
        );
    };
}
pub(crate) use checks;
