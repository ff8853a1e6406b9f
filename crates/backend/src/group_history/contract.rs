//! Contract of every group history. Each check uses groups and users of its own, so that all may
//! share one store.

use protocol::frame::HistoryRange;
use protocol::group::GroupRow;
use protocol::history::{IdRange, Order, Version};
use protocol::message::Content;
use protocol::{DeviceId, GroupId, MessageId, Options, SendId, Seq, UserId};

use super::GroupHistoryStore;
use crate::Kind;
use crate::clock::{Entropy, SeededEntropy};
use crate::test_ids::{TestIds, content, seqs};

const ALL: usize = 1000;

fn version(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

/// A group and one writing member.
pub(super) struct Talk<'a> {
    fresh: &'a TestIds,
    pub(super) group: GroupId,
    pub(super) user: UserId,
}

impl<'a> Talk<'a> {
    pub(super) fn new(fresh: &'a TestIds) -> Talk<'a> {
        Talk {
            fresh,
            group: fresh.group(),
            user: fresh.user(),
        }
    }

    /// Returns another writing member of the group.
    pub(super) fn another(&self) -> Talk<'a> {
        Talk {
            user: self.fresh.user(),
            ..*self
        }
    }

    /// Row of a message placed by the record at `offset`.
    pub(super) fn row(&self, id: MessageId, seq: u64, offset: u64) -> GroupRow {
        GroupRow {
            group: self.group,
            from: self.user,
            id,
            accepted_at: id.timestamp(),
            seq: Seq(seq),
            prev: MessageId::new(id.get() - 1).ok().filter(|_| seq > 1),
            send_id: self.fresh.send_id(),
            device: DeviceId::new("pixel-9").expect("a name"),
            options: Options::CHAT,
            content: Content {
                kind: 1000,
                ..content()
            },
            version: version(offset),
        }
    }

    /// Saves messages at these positions, by the records of the same number; returns their ids.
    pub(super) async fn say(
        &self,
        store: &dyn GroupHistoryStore,
        seqs: impl IntoIterator<Item = u64>,
    ) -> Vec<MessageId> {
        let seqs = seqs.into_iter();
        let rows: Vec<_> = seqs
            .map(|seq| self.row(self.fresh.message(), seq, seq))
            .collect();
        let ids = rows.iter().map(|row| row.id).collect();
        store.save(rows).await.expect("saves");
        ids
    }
}

async fn find(
    store: &dyn GroupHistoryStore,
    group: GroupId,
    bounds: (Option<MessageId>, Option<MessageId>),
    order: Order,
    limit: usize,
) -> Vec<MessageId> {
    let (after, before) = bounds;
    let range = IdRange { after, before };
    let rows = store.find(group, range, order, limit).await;
    rows.expect("reads").iter().map(|row| row.id).collect()
}

// proves S0-02, S0-61d: one send is one row, and every way to it finds the same.
pub(super) async fn a_message_is_one_row(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let row = talk.row(fresh.message(), 1, 1);
    store.save(vec![row.clone()]).await.expect("saves");
    let elsewhere = fresh.group();
    let keys = [
        (talk.group, row.id),
        (elsewhere, row.id),
        (talk.group, fresh.message()),
        (talk.group, row.id),
    ];
    let found = store.rows(&keys).await.expect("reads");
    let some = Some(row.clone());
    assert_eq!(found, [some.clone(), None, None, some]);
    for order in [Order::Forward, Order::Backward] {
        let all = store.find(talk.group, IdRange::default(), order, ALL).await;
        assert_eq!(all.expect("reads"), std::slice::from_ref(&row));
    }
    let range = HistoryRange::Forward { after: Seq::ZERO };
    let all = store.conversation(talk.group, range, ALL).await;
    assert_eq!(all.expect("reads"), [row]);
}

// proves S0-04: one range read returns what all said in the group, in order of id, and nothing of another group.
pub(super) async fn one_read_returns_all_who_spoke(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let one = Talk::new(fresh);
    let (other, elsewhere) = (one.another(), Talk::new(fresh));
    let mut ids = Vec::new();
    for seq in [1, 3, 5] {
        ids.extend(one.say(store, [seq]).await);
        elsewhere.say(store, [seq]).await;
        ids.extend(other.say(store, [seq + 1]).await);
    }
    let missed = find(store, one.group, (Some(ids[1]), None), Order::Forward, ALL).await;
    assert_eq!(missed, ids[2..]);
}

// proves S0-61f, S0-61g: from the newest, or from the upper bound, down to the lower one; both exclusive; the
// next call goes on from the last id.
pub(super) async fn backward_bounds_are_exclusive(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let mut ids = talk.say(store, 1..=6).await;
    ids.reverse();
    let backward = async |after, before, limit| {
        find(store, talk.group, (after, before), Order::Backward, limit).await
    };
    assert_eq!(backward(None, None, 2).await, ids[..2]);
    assert_eq!(backward(Some(ids[3]), None, ALL).await, ids[..3]);
    assert_eq!(backward(Some(ids[4]), Some(ids[0]), 2).await, ids[1..3]);
    assert_eq!(backward(Some(ids[4]), Some(ids[2]), 2).await, ids[3..4]);
    assert_eq!(backward(Some(ids[4]), Some(ids[3]), 2).await, []);
}

pub(super) async fn any_range_equals_the_sorted_list(
    store: &dyn GroupHistoryStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 1..=20).await;
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
        let within = |id: &MessageId| {
            after.is_none_or(|after| *id > after) && before.is_none_or(|before| *id < before)
        };
        let mut wanted: Vec<_> = ids.iter().copied().filter(within).collect();
        let order = if chance.next().is_multiple_of(2) {
            Order::Forward
        } else {
            wanted.reverse();
            Order::Backward
        };
        wanted.truncate(limit);
        let found = find(store, talk.group, (after, before), order, limit).await;
        assert_eq!(found, wanted, "{after:?} {before:?} {order:?} {limit}");
    }
    assert_eq!(
        find(store, fresh.group(), (None, None), Order::Forward, ALL).await,
        []
    );
}

/// Pages visit each id once, even while a writer adds.
pub(super) async fn paging_visits_each_id_once(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let before = talk.say(store, 1..=23).await;
    let mut adding = 24..47;
    for order in [Order::Forward, Order::Backward] {
        let mut seen: Vec<MessageId> = Vec::new();
        loop {
            let last = seen.last().copied();
            let bounds = match order {
                Order::Forward => (last, None),
                Order::Backward => (None, last),
            };
            let page = find(store, talk.group, bounds, order, 5).await;
            if page.is_empty() {
                break;
            }
            seen.extend(page);
            if let Some(seq) = adding.next() {
                talk.say(store, [seq]).await;
            }
        }
        if order == Order::Backward {
            seen.reverse();
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{order:?}: {seen:?}");
        assert!(seen.starts_with(&before), "{order:?}: {seen:?}");
    }
}

async fn read(
    store: &dyn GroupHistoryStore,
    group: GroupId,
    range: HistoryRange,
    limit: usize,
) -> Vec<Seq> {
    let rows = store.conversation(group, range, limit).await;
    rows.expect("reads").iter().map(|row| row.seq).collect()
}

fn forward(after: u64) -> HistoryRange {
    HistoryRange::Forward { after: Seq(after) }
}

fn backward(before: Option<u64>) -> HistoryRange {
    HistoryRange::Backward {
        before: before.map(Seq),
    }
}

/// A conversation comes in order of position, although ids run against it.
pub(super) async fn a_conversation_is_read_by_position(
    store: &dyn GroupHistoryStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let mut ids = fresh.messages(5);
    ids.swap(1, 3);
    let rows = (1..).zip(&ids).map(|(seq, &id)| talk.row(id, seq, seq));
    store.save(rows.collect()).await.expect("saves");
    let group = talk.group;
    assert_eq!(read(store, group, forward(0), ALL).await, seqs(1..=5));
    assert_eq!(read(store, group, forward(2), 2).await, seqs(3..=4));
    assert_eq!(read(store, group, forward(5), ALL).await, []);
    assert_eq!(read(store, group, forward(u64::MAX), ALL).await, []);
    assert_eq!(read(store, group, forward(0), 0).await, []);
    let mut down = read(store, group, backward(None), 3).await;
    down.reverse();
    assert_eq!(down, seqs(3..=5));
    let mut down = read(store, group, backward(Some(3)), ALL).await;
    down.reverse();
    assert_eq!(down, seqs(1..=2));
    assert_eq!(read(store, group, backward(Some(1)), ALL).await, []);
    assert_eq!(read(store, fresh.group(), forward(0), ALL).await, []);
}

/// A page is dense, or an error explains why not.
pub(super) async fn a_page_ends_before_a_hole(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    talk.say(store, [1, 2, 4, 5]).await;
    assert_eq!(read(store, talk.group, forward(0), ALL).await, seqs(1..=2));
    let down = read(store, talk.group, backward(None), ALL).await;
    assert_eq!(down, [Seq(5), Seq(4)]);
    let at_hole = store.conversation(talk.group, forward(2), ALL).await;
    assert_eq!(at_hole.expect_err("a hole").kind, Kind::Corrupt);
}

/// A repeated write changes nothing, and an earlier version never replaces a later one.
pub(super) async fn only_a_later_version_replaces(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let id = fresh.message();
    let standing = talk.row(id, 1, 10);
    let key = [(talk.group, id)];
    for offset in [10, 9, 10] {
        let mut row = standing.clone();
        row.version = version(offset);
        if offset < 10 {
            row.content = Content::text("a zombie's, and larger in every byte: \u{fff}");
        }
        store.save(vec![row]).await.expect("saves");
        let found = store.rows(&key).await.expect("reads");
        assert_eq!(found, [Some(standing.clone())]);
    }
    assert_eq!(
        find(store, talk.group, (None, None), Order::Forward, ALL).await,
        [id]
    );

    // A later epoch wins, whatever its offset, also with both in one call, the later first.
    let mut later = standing.clone();
    later.version = Version {
        epoch: 2,
        offset: 0,
    };
    later.content = Content::text("of the new log");
    let both = vec![later.clone(), standing];
    store.save(both).await.expect("saves");
    let found = store.rows(&key).await.expect("reads");
    assert_eq!(found, [Some(later)]);
}

/// The writer of a later record takes a position from the first, and never the reverse; the
/// position counts only for its owner.
pub(super) async fn a_zombie_takes_no_position(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let good = Talk::new(fresh);
    let zombie = good.another();
    let (first, second, third) = (fresh.message(), fresh.message(), fresh.message());
    let own = async |user| {
        let own = store.own_between(good.group, user, Seq(0), Seq(9)).await;
        own.expect("reads")
    };
    let here = async |id, whose: [u64; 2]| {
        let ids = store.ids(good.group, &[Seq(9)]).await;
        assert_eq!(ids.expect("reads"), [Some(id)]);
        assert_eq!([own(good.user).await, own(zombie.user).await], whose);
    };
    store
        .save(vec![zombie.row(first, 9, 5)])
        .await
        .expect("saves");
    here(first, [0, 1]).await;
    store
        .save(vec![good.row(second, 9, 9)])
        .await
        .expect("saves");
    here(second, [1, 0]).await;
    // Late writes of both: one of the message once at the position, one of another message.
    for late in [zombie.row(first, 9, 5), good.row(third, 9, 6)] {
        store.save(vec![late]).await.expect("saves");
        here(second, [1, 0]).await;
    }
    let rows = store.conversation(good.group, forward(8), ALL).await;
    let found: Vec<_> = rows.expect("reads").iter().map(|row| row.id).collect();
    assert_eq!(found, [second]);
}

pub(super) async fn positions_name_messages(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 1..=150).await;
    let asked = [Seq(3), Seq(151), Seq(1), Seq(0), Seq(3), Seq(u64::MAX)];
    let found = store.ids(talk.group, &asked).await.expect("reads");
    let (first, third) = (Some(ids[0]), Some(ids[2]));
    assert_eq!(found, [third, None, first, None, third, None]);
    let all = store.ids(talk.group, &seqs(1..=150)).await.expect("reads");
    assert_eq!(all, ids.into_iter().map(Some).collect::<Vec<_>>());
    let elsewhere = store.ids(fresh.group(), &[Seq(1)]).await;
    assert_eq!(elsewhere.expect("reads"), [None]);
}

/// A send_id finds the sender's own row, from the first try on, in this group, and no other
/// sender's.
pub(super) async fn a_send_is_found_by_its_send_id(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let filler = talk.say(store, 1..=30).await;
    let row = talk.row(fresh.message(), 31, 31);
    let repeat = GroupRow {
        send_id: row.send_id,
        ..talk.row(fresh.message(), 32, 32)
    };
    let elsewhere = GroupRow {
        group: fresh.group(),
        ..repeat.clone()
    };
    let all = vec![repeat.clone(), elsewhere.clone(), row.clone()];
    store.save(all).await.expect("saves");
    let find = async |from, group, since| {
        let found = store.find_send(from, group, row.send_id, since).await;
        found.expect("reads")
    };
    // A repeat that became a message of its own lies beside the first, and the first wins.
    let (user, group) = (talk.user, talk.group);
    assert_eq!(find(user, group, filler[0]).await, Some(row.clone()));
    assert_eq!(find(user, group, row.id).await, Some(row.clone()));
    assert_eq!(find(user, group, repeat.id).await, Some(repeat));
    assert_eq!(find(user, group, fresh.message()).await, None);
    let there = find(user, elsewhere.group, filler[0]).await;
    assert_eq!(there, Some(elsewhere));
    assert_eq!(find(fresh.user(), group, filler[0]).await, None);
    assert_eq!(find(user, fresh.group(), filler[0]).await, None);
}

/// Some kinds of UUID differ in their first bytes only, others in their last.
pub(super) async fn sends_that_differ_in_any_byte_are_told_apart(
    store: &dyn GroupHistoryStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let like = (talk.user.get() as u128).to_be_bytes();
    let send_id = |n: usize| {
        let mut bytes = like;
        if let Some(byte) = bytes.get_mut(n) {
            *byte ^= 0x55;
        }
        SendId::from_bytes(bytes)
    };
    let rows: Vec<_> = (0..17)
        .map(|n| GroupRow {
            send_id: send_id(n),
            ..talk.row(fresh.message(), n as u64 + 1, n as u64 + 1)
        })
        .collect();
    store.save(rows.clone()).await.expect("saves");
    for (n, row) in rows.iter().enumerate() {
        let found = store
            .find_send(talk.user, talk.group, send_id(n), rows[0].id)
            .await;
        assert_eq!(found.expect("reads").as_ref(), Some(row), "byte {n}");
    }
}

/// Two users may choose the same send_id; the query returns both.
pub(super) async fn a_send_id_finds_its_messages(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let (one, other) = (Talk::new(fresh), Talk::new(fresh));
    let mine = one.row(fresh.message(), 1, 1);
    let theirs = GroupRow {
        send_id: mine.send_id,
        ..other.row(fresh.message(), 1, 1)
    };
    let sent = [&mine, &theirs].map(|row| (row.from, row.id));
    let send_id = mine.send_id;
    store.save(vec![mine, theirs]).await.expect("saves");
    let mut found = store.sent_as(send_id).await.expect("reads");
    found.sort_unstable();
    assert_eq!(found, sent);
    let never = store.sent_as(fresh.send_id()).await;
    assert_eq!(never.expect("reads"), []);
}

/// Own messages are counted after one position and up to another, despite redeliveries.
pub(super) async fn own_messages_are_counted_between_places(
    store: &dyn GroupHistoryStore,
    fresh: &TestIds,
) {
    let one = Talk::new(fresh);
    let other = one.another();
    let (odd, even) = ((1..=9).step_by(2), (2..=9).step_by(2));
    one.say(store, odd).await;
    other.say(store, even).await;
    let own = async |talk: &Talk<'_>, after, last| {
        let own = store.own_between(talk.group, talk.user, Seq(after), Seq(last));
        own.await.expect("reads")
    };
    for (after, last, odd, even) in [
        (0, 9, 5, 4),
        (0, 1, 1, 0),
        (1, 9, 4, 4),
        (1, 2, 0, 1),
        (3, 5, 1, 1),
        (8, u64::MAX, 1, 0),
        (9, 99, 0, 0),
        (5, 5, 0, 0),
        (7, 3, 0, 0),
    ] {
        let both = [own(&one, after, last).await, own(&other, after, last).await];
        assert_eq!(both, [odd, even], "{after} to {last}");
    }
    assert_eq!(own(&one.another(), 0, 9).await, 0);
    let elsewhere = store.own_between(fresh.group(), one.user, Seq(0), Seq(9));
    assert_eq!(elsewhere.await.expect("reads"), 0);

    // A redelivery rewrites the row, unchanged or by a later record.
    let again = one.row(fresh.message(), 10, 10);
    for offset in [10, 10, 11] {
        let row = GroupRow {
            version: version(offset),
            ..again.clone()
        };
        store.save(vec![row]).await.expect("saves");
    }
    assert_eq!(own(&one, 0, 99).await, 6);
}

/// More own messages than any store reads at once.
pub(super) async fn many_own_messages_are_counted(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    talk.say(store, 1..=2_500).await;
    let own = store.own_between(talk.group, talk.user, Seq(100), Seq(2_499));
    assert_eq!(own.await.expect("reads"), 2_399);
}

// proves S0-61e in part: deleted is for good, whatever is written again, before or after.
pub(super) async fn deleted_is_for_good(store: &dyn GroupHistoryStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let ids = talk.say(store, 1..=3).await;
    store.delete(talk.group, &ids[..1]).await.expect("deletes");
    let unwritten = talk.row(fresh.message(), 4, 4);
    let early = [unwritten.id, ids[0]];
    store.delete(talk.group, &early).await.expect("deletes");
    assert_eq!(
        store.rows(&[(talk.group, early[0])]).await.expect("reads"),
        [None]
    );
    let again = talk.row(ids[0], 1, 9);
    let late = vec![again.clone(), unwritten];
    store.save(late).await.expect("saves");

    let asked = [ids[0], ids[1], early[0], ids[0]];
    let deleted = store.deleted(talk.group, &asked).await.expect("reads");
    assert_eq!(deleted, [true, false, true, true]);
    let elsewhere = store.deleted(fresh.group(), &ids).await.expect("reads");
    assert_eq!(elsewhere, [false; 3]);
    // The row stays: readers decide what to show.
    let rows = store.rows(&[(talk.group, ids[0])]).await.expect("reads");
    assert_eq!(rows, [Some(again)]);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_message_is_one_row,
            one_read_returns_all_who_spoke,
            backward_bounds_are_exclusive,
            any_range_equals_the_sorted_list,
            paging_visits_each_id_once,
            a_conversation_is_read_by_position,
            a_page_ends_before_a_hole,
            only_a_later_version_replaces,
            a_zombie_takes_no_position,
            positions_name_messages,
            a_send_is_found_by_its_send_id,
            sends_that_differ_in_any_byte_are_told_apart,
            a_send_id_finds_its_messages,
            own_messages_are_counted_between_places,
            many_own_messages_are_counted,
            deleted_is_for_good,
        );
    };
}
pub(crate) use checks;
