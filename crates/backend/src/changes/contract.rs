//! Contract of every change store. Each check uses conversations of its own.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::change::{
    ChangeRequest, ChangeRow, ChangeSearch, MessageChange, OrderedChange, Overlay, Reaction,
};
use protocol::history::Version;
use protocol::message::Content;
use protocol::reading::RecallRange;
use protocol::{ConversationId, MessageId, Seq, UserId};

use super::ChangeStore;
use crate::test_ids::{TestIds, at};

const MAX_CHANGES: usize = 1000;

/// A conversation and its changes.
struct Talk<'a> {
    fresh: &'a TestIds,
    conversation: ConversationId,
    users: [UserId; 2],
}

impl<'a> Talk<'a> {
    fn new(fresh: &'a TestIds) -> Talk<'a> {
        let users = [fresh.user(), fresh.user()];
        Talk {
            fresh,
            conversation: ConversationId::private(users[0], users[1]).expect("two users"),
            users,
        }
    }

    /// Returns the change at `rev` of the message at `seq`, made by the record with ten times that
    /// offset.
    fn row(&self, rev: u64, seq: u64, change: MessageChange) -> ChangeRow {
        ChangeRow {
            conversation: self.conversation,
            version: record(rev),
            author: self.users[0],
            changed: OrderedChange {
                rev,
                seq: Seq(seq),
                asked: ChangeRequest {
                    id: self.fresh.message(),
                    send_id: self.fresh.send_id(),
                    subject: MessageId::new(seq as i64).expect("positive"),
                    by: self.users[1],
                    at: at(rev),
                    change,
                },
            },
        }
    }
}

impl Talk<'_> {
    fn range(&self, (after_seq, last): (u64, u64), version: Version) -> RecallRange {
        RecallRange {
            conversation: self.conversation,
            base: Seq(after_seq),
            last: Seq(last),
            last_version: version,
        }
    }

    async fn recalled(
        &self,
        store: &dyn ChangeStore,
        seqs: (u64, u64),
        version: Version,
    ) -> BTreeMap<Seq, UserId> {
        let result = store.recalled(&[self.range(seqs, version)]).await;
        result.expect("reads").pop().expect("an answer")
    }
}

fn record(rev: u64) -> Version {
    Version {
        epoch: 1,
        offset: 10 * rev,
    }
}

fn edit(text: &str) -> MessageChange {
    MessageChange::Edit(Content {
        kind: 3,
        data: Bytes::from(text.to_owned()),
        priority: 2,
        reference: MessageId::new(9).ok(),
        encryption: 1,
        sub_kind: -4,
        key_print: i64::MIN,
        change: None,
    })
}

fn react(text: &str, on: bool) -> MessageChange {
    let reaction: Reaction = text.parse().expect("short");
    MessageChange::React { reaction, on }
}

fn pin(on: bool) -> MessageChange {
    MessageChange::Pin { on }
}

fn ordered_changes(rows: &[ChangeRow]) -> Vec<OrderedChange> {
    rows.iter().map(|row| row.changed.clone()).collect()
}

fn altered(rows: &[ChangeRow]) -> BTreeMap<Seq, Overlay> {
    let mut overlays: BTreeMap<Seq, Overlay> = BTreeMap::new();
    for row in rows {
        let overlay = overlays.entry(row.changed.seq).or_default();
        overlay.apply(row.version, &row.changed);
    }
    overlays
}

/// Rows may be written in any order, and repeatedly.
pub(super) async fn every_kind_comes_back_whole(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let rows = [
        talk.row(1, 4, edit("one")),
        talk.row(2, 4, edit("two")),
        talk.row(3, 5, react("👍", true)),
        talk.row(4, 5, react("👍", false)),
        talk.row(5, 4, react("ok", true)),
        talk.row(6, 4, pin(true)),
        talk.row(7, 5, pin(true)),
        talk.row(8, 5, pin(false)),
        talk.row(9, 4, MessageChange::Recall),
    ];
    let mut backward = rows.to_vec();
    backward.reverse();
    store.save(backward).await.expect("saves");
    for row in &rows {
        store.save(vec![row.clone()]).await.expect("saves again");
    }
    let result = store.since(talk.conversation, 0, MAX_CHANGES).await;
    assert_eq!(result.expect("reads"), ordered_changes(&rows));
    let result = store.altered(talk.conversation, Seq(1), Seq(9)).await;
    assert_eq!(result.expect("reads"), altered(&rows));
    let unrelated = Talk::new(fresh).conversation;
    let result = store.since(unrelated, 0, MAX_CHANGES).await;
    assert_eq!(result.expect("reads"), []);
}

pub(super) async fn pages_go_upward_and_their_bound_is_exclusive(
    store: &dyn ChangeStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let rows: Vec<_> = (1..=7).map(|rev| talk.row(rev, 1, edit("x"))).collect();
    store.save(rows.clone()).await.expect("saves");
    for (after_rev, limit, expected) in [
        (0, MAX_CHANGES, &rows[..]),
        (0, 3, &rows[..3]),
        (3, 2, &rows[3..5]),
        (6, MAX_CHANGES, &rows[6..]),
        (7, MAX_CHANGES, &[]),
        (u64::MAX, MAX_CHANGES, &[]),
        (0, 0, &[]),
    ] {
        let result = store.since(talk.conversation, after_rev, limit).await;
        assert_eq!(
            result.expect("reads"),
            ordered_changes(expected),
            "after {after_rev}"
        );
    }
}

/// A partition holds 1024 changes, and 16384 positions.
pub(super) async fn partitions_meet_without_a_gap(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let rows: Vec<_> = [1022, 1023, 1024, 1025]
        .into_iter()
        .zip([16_382, 16_383, 16_384, 16_385])
        .map(|(rev, seq)| talk.row(rev, seq, MessageChange::Recall))
        .collect();
    store.save(rows.clone()).await.expect("saves");
    let result = store.since(talk.conversation, 1021, 3).await;
    assert_eq!(result.expect("reads"), ordered_changes(&rows[..3]));
    let result = store
        .altered(talk.conversation, Seq(16_383), Seq(16_384))
        .await;
    assert_eq!(result.expect("reads"), altered(&rows[1..3]));
    let result = talk.recalled(store, (16_382, 16_385), record(1025)).await;
    let expected = rows[1..].iter().map(|row| (row.changed.seq, row.author));
    assert_eq!(result, expected.collect());
    let result = store
        .of_record(talk.conversation, record(1022), ChangeSearch::UpTo(1025))
        .await;
    assert_eq!(result.expect("reads"), Some(rows[0].changed.clone()));
}

pub(super) async fn effects_of_later_records_stay(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let (early, late) = (talk.row(1, 4, edit("early")), talk.row(2, 4, edit("late")));
    store.save(vec![late.clone()]).await.expect("saves");
    store.save(vec![early.clone()]).await.expect("saves");
    let result = store.altered(talk.conversation, Seq(4), Seq(4)).await;
    assert_eq!(result.expect("reads"), altered(&[early, late]));
    // A zombie's change loses at the same rev, too.
    let zombie = ChangeRow {
        version: record(0),
        ..talk.row(3, 5, edit("zombie"))
    };
    let right = talk.row(3, 6, edit("right"));
    store.save(vec![right.clone()]).await.expect("saves");
    store.save(vec![zombie]).await.expect("saves");
    let result = store.since(talk.conversation, 2, 1).await;
    assert_eq!(result.expect("reads"), [right.changed]);
}

/// Reactions of two users, and two reactions of one user, do not affect each other.
pub(super) async fn recalls_are_found_among_the_rest(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let mut other = talk.row(4, 6, react("a", true));
    other.changed.asked.by = talk.users[0];
    let rows = vec![
        talk.row(1, 5, MessageChange::Recall),
        talk.row(2, 6, react("a", true)),
        talk.row(3, 6, react("b", true)),
        other,
        talk.row(5, 7, MessageChange::Recall),
        talk.row(6, 8, edit("x")),
    ];
    store.save(rows.clone()).await.expect("saves");
    let result = store.altered(talk.conversation, Seq(6), Seq(8)).await;
    assert_eq!(result.expect("reads"), altered(&rows[1..]));
    let author = talk.users[0];
    for (after_seq, last, expected) in [
        (0, 9, vec![5, 7]),
        (5, 9, vec![7]),
        (4, 6, vec![5]),
        (7, 9, vec![]),
        (9, 3, vec![]),
    ] {
        let result = talk.recalled(store, (after_seq, last), record(6)).await;
        let expected = expected.into_iter().map(|seq| (Seq(seq), author));
        assert_eq!(result, expected.collect());
    }
    // A reader whose row is of an earlier record does not count recalls of later records.
    for (rev, expected) in [(0, vec![]), (1, vec![5]), (4, vec![5]), (5, vec![5, 7])] {
        let result = talk.recalled(store, (0, 9), record(rev)).await;
        let expected = expected.into_iter().map(|seq| (Seq(seq), author));
        assert_eq!(result, expected.collect(), "{rev}");
    }
}

/// Many conversations in one call: each gets its own answer, also one asked twice or without
/// changes.
pub(super) async fn many_conversations_are_one_question(store: &dyn ChangeStore, fresh: &TestIds) {
    let talks = [Talk::new(fresh), Talk::new(fresh), Talk::new(fresh)];
    let [quiet, edited, recalled] = &talks;
    let edits = [edited.row(1, 7, edit("one")), edited.row(2, 8, edit("two"))];
    let recalls = [1, 2].map(|rev| recalled.row(rev, 6 + rev, MessageChange::Recall));
    store
        .save([&edits[..], &recalls[..]].concat())
        .await
        .expect("saves");

    let places = [
        (recalled, 8),
        (quiet, 7),
        (edited, 7),
        (edited, 9),
        (recalled, 7),
        (edited, 7),
        (edited, 8),
        (edited, 0),
    ];
    let keys: Vec<_> = (places.iter())
        .map(|(talk, seq)| (talk.conversation, Seq(*seq)))
        .collect();
    let overlays = store.altered_each(&keys).await.expect("reads");
    let overlay = |row: &ChangeRow| altered(std::slice::from_ref(row)).remove(&row.changed.seq);
    let nothing = Overlay::default();
    let [one, two, first, second] = [&edits[0], &edits[1], &recalls[0], &recalls[1]].map(overlay);
    let [one, two, first, second] = [one, two, first, second].map(|overlay| overlay.expect("left"));
    let expected = [
        second,
        nothing.clone(),
        one.clone(),
        nothing.clone(),
        first,
        one,
        two,
        nothing,
    ];
    assert_eq!(overlays, expected);

    let ranges = [
        recalled.range((0, 9), record(1)),
        edited.range((0, 9), record(9)),
        recalled.range((7, 9), record(9)),
        recalled.range((0, 9), record(9)),
        quiet.range((0, 9), record(9)),
    ];
    let recalled_seqs = store.recalled(&ranges).await.expect("reads");
    let places: Vec<Vec<u64>> = (recalled_seqs.iter())
        .map(|recall_map| recall_map.keys().map(|seq| seq.0).collect())
        .collect();
    assert_eq!(places, [vec![7], vec![], vec![8], vec![7, 8], vec![]]);
    assert_eq!(store.altered_each(&[]).await.expect("reads"), []);
    assert_eq!(store.recalled(&[]).await.expect("reads"), []);
}

/// A redelivered record finds its own change; a record without effect finds none.
pub(super) async fn a_record_finds_its_own_change(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let rows: Vec<_> = (1..=300).map(|rev| talk.row(rev, 1, edit("x"))).collect();
    store.save(rows.clone()).await.expect("saves");
    for rev in [1, 150, 300] {
        for search in [
            ChangeSearch::UpTo(300),
            ChangeSearch::UpTo(rev),
            ChangeSearch::Behind(0),
            ChangeSearch::Behind(rev - 1),
        ] {
            let result = store
                .of_record(talk.conversation, record(rev), search)
                .await;
            let expected = rows[rev as usize - 1].changed.clone();
            assert_eq!(result.expect("reads"), Some(expected), "{search:?}");
        }
    }
    let idle = Version {
        offset: 1505,
        ..record(0)
    };
    for (record, search) in [
        (idle, ChangeSearch::UpTo(300)),
        (idle, ChangeSearch::Behind(140)),
        (record(0), ChangeSearch::UpTo(300)),
        (record(300), ChangeSearch::UpTo(299)),
        (record(301), ChangeSearch::Behind(299)),
        (record(300), ChangeSearch::Behind(300)),
        (record(1), ChangeSearch::Behind(1)),
    ] {
        let result = store.of_record(talk.conversation, record, search).await;
        assert_eq!(result.expect("reads"), None, "{search:?}");
    }
}

/// Changes of a call come before its effects: a writer that meets an effect tells by them what its
/// records came to.
pub(super) async fn no_effect_shows_before_all_changes(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let (last, count) = (Seq(64), 64);
    let rows: Vec<_> = (1..=64).map(|n| talk.row(n, n, edit("x"))).collect();
    let save = async { store.save(rows).await.expect("saves") };
    let watch = async {
        loop {
            let overlays = store.altered(talk.conversation, Seq(1), last).await;
            let effects = overlays.expect("reads").len();
            let changes = store.since(talk.conversation, 0, count).await;
            let changes = changes.expect("reads").len();
            assert!(effects == 0 || changes == count, "{effects} of {changes}");
            if effects == count {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(save, watch);
}

/// Only the sender finds a change, and only in the range of the question.
pub(super) async fn a_change_is_found_by_its_send_id(store: &dyn ChangeStore, fresh: &TestIds) {
    let talk = Talk::new(fresh);
    let rows: Vec<_> = (1..=1030).map(|rev| talk.row(rev, 1, edit("x"))).collect();
    store.save(rows.clone()).await.expect("saves");
    let find = async |nth: usize, by, last| {
        let send_id = rows[nth - 1].changed.asked.send_id;
        let result = store.find_send(talk.conversation, by, send_id, last).await;
        result
            .expect("reads")
            .map(|(version, change)| (version, change.rev))
    };
    let [other, by] = talk.users;
    assert_eq!(find(1030, by, 1030).await, Some((record(1030), 1030)));
    assert_eq!(find(1000, by, 1030).await, Some((record(1000), 1000)));
    assert_eq!(find(3, by, 5).await, Some((record(3), 3)));
    // Only the last thousand are searched.
    assert_eq!(find(31, by, 1030).await, Some((record(31), 31)));
    assert_eq!(find(30, by, 1030).await, None);
    assert_eq!(find(1000, other, 1030).await, None);
    assert_eq!(find(6, by, 5).await, None);
    assert_eq!(find(1, by, 0).await, None);
}

/// Pins are listed from the newest message on, whatever the order of the writes, until they are
/// taken off or the message is recalled.
pub(super) async fn pins_are_listed_by_their_messages(store: &dyn ChangeStore, fresh: &TestIds) {
    let (talk, other) = (Talk::new(fresh), Talk::new(fresh));
    let mut rows: Vec<_> = (1..=9).map(|n| talk.row(n, 3 * n, pin(true))).collect();
    rows.extend([talk.row(10, 6, pin(false)), talk.row(11, 9, pin(false))]);
    rows.extend([
        talk.row(12, 9, pin(true)),
        talk.row(13, 12, react("+1", true)),
    ]);
    rows.extend([
        talk.row(14, 15, MessageChange::Recall),
        other.row(1, 4, pin(true)),
    ]);
    rows.reverse();
    store.save(rows.clone()).await.expect("saves");
    for row in &rows {
        store.save(vec![row.clone()]).await.expect("saves again");
    }
    for (before_seq, limit, expected) in [
        (100, MAX_CHANGES, &[27, 24, 21, 18, 12, 9, 3][..]),
        (u64::MAX, 2, &[27, 24]),
        (24, 3, &[21, 18, 12]),
        (9, MAX_CHANGES, &[3]),
        (3, MAX_CHANGES, &[]),
        (0, MAX_CHANGES, &[]),
    ] {
        let result = store.pins(talk.conversation, Seq(before_seq), limit).await;
        let expected = expected.iter().map(|seq| {
            let id = MessageId::new(*seq as i64).expect("positive");
            (Seq(*seq), id)
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!(result.expect("reads"), expected, "before {before_seq}");
    }
    let unrelated = Talk::new(fresh).conversation;
    assert_eq!(
        store
            .pins(unrelated, Seq(9), MAX_CHANGES)
            .await
            .expect("reads"),
        []
    );

    // One record after the other, as a writer of small batches has them.
    let talk = Talk::new(fresh);
    let seqs = async || {
        let pins = store.pins(talk.conversation, Seq(9), MAX_CHANGES).await;
        let pins = pins.expect("reads").into_iter();
        pins.map(|(seq, _)| seq.0).collect::<Vec<_>>()
    };
    let rows = [
        talk.row(1, 5, pin(true)),
        talk.row(2, 6, pin(true)),
        talk.row(3, 5, MessageChange::Recall),
        talk.row(4, 6, edit("x")),
    ];
    for (row, expected) in rows.iter().zip([&[5_u64][..], &[6, 5], &[6], &[6]]) {
        store.save(vec![row.clone()]).await.expect("saves");
        assert_eq!(seqs().await, expected, "{row:?}");
    }
    // A record that comes back writes its row again.
    store.save(vec![rows[0].clone()]).await.expect("saves");
    assert_eq!(seqs().await, [6_u64]);
}

/// The place of a change that died has no effect, and is found by its record alone. The change of the
/// same record replaces it, as it does where only an earlier record wrote there.
pub(super) async fn a_change_that_died_has_a_place_and_no_effect(
    store: &dyn ChangeStore,
    fresh: &TestIds,
) {
    let talk = Talk::new(fresh);
    let kinds = [edit("x"), react("a", true), pin(true), edit("y")];
    let rows: Vec<_> = (1..)
        .zip(kinds)
        .map(|(rev, kind)| talk.row(rev, 4, kind))
        .collect();
    let died = |row: &ChangeRow| ChangeRow {
        author: row.changed.asked.by,
        changed: OrderedChange::died(row.changed.rev, &row.changed.asked),
        ..row.clone()
    };
    let all = vec![
        rows[0].clone(),
        died(&rows[1]),
        died(&rows[2]),
        rows[3].clone(),
    ];
    // An earlier record's row at the same place.
    let zombie = ChangeRow {
        version: record(0),
        ..talk.row(2, 5, edit("zombie"))
    };
    store.save(vec![zombie]).await.expect("saves");
    store.save(all.clone()).await.expect("saves");
    store.save(all.clone()).await.expect("saves again");
    let result = store.since(talk.conversation, 0, MAX_CHANGES).await;
    assert_eq!(result.expect("reads"), ordered_changes(&all));
    let live_rows = [rows[0].clone(), rows[3].clone()];
    let result = store.altered(talk.conversation, Seq(4), Seq(4)).await;
    assert_eq!(result.expect("reads"), altered(&live_rows));
    let result = store.altered(talk.conversation, Seq(0), Seq(0)).await;
    assert_eq!(result.expect("reads"), BTreeMap::new());
    let pins = store.pins(talk.conversation, Seq(9), MAX_CHANGES).await;
    assert_eq!(pins.expect("reads"), []);
    for search in [ChangeSearch::UpTo(4), ChangeSearch::Behind(1)] {
        let result = store.of_record(talk.conversation, record(2), search).await;
        assert_eq!(result.expect("reads"), Some(all[1].changed.clone()));
    }
    let request = &rows[1].changed.asked;
    let result = store.find_send(talk.conversation, request.by, request.send_id, 4);
    assert_eq!(result.await.expect("reads"), None);

    store.save(vec![rows[2].clone()]).await.expect("saves");
    let current = [&all[..2], &rows[2..]].concat();
    let result = store.since(talk.conversation, 0, MAX_CHANGES).await;
    assert_eq!(result.expect("reads"), ordered_changes(&current));
    let pins = store.pins(talk.conversation, Seq(9), MAX_CHANGES).await;
    assert_eq!(pins.expect("reads").len(), 1);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            every_kind_comes_back_whole,
            pages_go_upward_and_their_bound_is_exclusive,
            partitions_meet_without_a_gap,
            effects_of_later_records_stay,
            recalls_are_found_among_the_rest,
            many_conversations_are_one_question,
            a_record_finds_its_own_change,
            no_effect_shows_before_all_changes,
            a_change_that_died_has_a_place_and_no_effect,
            a_change_is_found_by_its_send_id,
            pins_are_listed_by_their_messages,
        );
    };
}
pub(crate) use checks;
