//! Conversations by position, and what stands at one.

use protocol::message_row::StoredPlace;
use protocol::reading::OwnRange;
use protocol::unread::Tally;

use super::*;
use crate::Kind;
use crate::test_ids::seqs;

/// A conversation comes in order of position, although ids run against it and the owner writes to
/// others.
pub(crate) async fn a_conversation_is_read_by_position(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        talk.elsewhere().say(store, 1..=3).await;
        let mut ids = fresh.messages(5);
        ids.swap(1, 3);
        let rows = (1..)
            .zip(&ids)
            .flat_map(|(seq, &id)| talk.rows(id, seq, seq));
        store.save(rows.collect()).await.expect("saves");

        assert_eq!(read(store, &talk, forward(0), MAX_ROWS).await, seqs(1..=5));
        assert_eq!(read(store, &talk, forward(2), 2).await, seqs(3..=4));
        assert_eq!(read(store, &talk, forward(5), MAX_ROWS).await, []);
        assert_eq!(read(store, &talk, forward(99), MAX_ROWS).await, []);
        assert_eq!(read(store, &talk, forward(u64::MAX), MAX_ROWS).await, []);
        assert_eq!(read(store, &talk, forward(0), 0).await, []);
        let mut down = read(store, &talk, backward(None), 3).await;
        down.reverse();
        assert_eq!(down, seqs(3..=5));
        let mut down = read(store, &talk, backward(Some(3)), MAX_ROWS).await;
        down.reverse();
        assert_eq!(down, seqs(1..=2));
        assert_eq!(read(store, &talk, backward(Some(1)), MAX_ROWS).await, []);
        assert_eq!(
            read(store, &talk.elsewhere(), forward(0), MAX_ROWS).await,
            []
        );

        for stranger in Talk::each(fresh) {
            let page = store.page(
                stranger.writers(),
                talk.conversation(),
                forward(0),
                MAX_ROWS,
            );
            assert_eq!(page.await.expect("reads"), []);
        }
    }
}

/// A page is dense, or an error explains why not.
pub(crate) async fn a_page_ends_before_a_hole(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        talk.say(store, [1, 2, 4, 5]).await;
        assert_eq!(read(store, &talk, forward(0), MAX_ROWS).await, seqs(1..=2));
        let down = read(store, &talk, backward(None), MAX_ROWS).await;
        assert_eq!(down, [Seq(5), Seq(4)]);
        let at_hole = store.page(talk.writers(), talk.conversation(), forward(2), MAX_ROWS);
        let at_hole = at_hole.await.expect_err("a hole");
        assert_eq!(at_hole.kind, Kind::Corrupt);
    }
}

/// Ids at positions of one conversation.
async fn ids(store: &dyn MessageStore, talk: &Talk<'_>, queries: &[Seq]) -> Vec<Option<MessageId>> {
    let place = |seq: &Seq| (talk.writers(), talk.conversation(), *seq);
    let places: Vec<_> = queries.iter().map(place).collect();
    let answers = store.at(&places).await.expect("reads");
    answers.into_iter().map(|at| Some(at?.0)).collect()
}

/// Number of the writer's own messages in their group.
async fn own(store: &dyn MessageStore, talk: &Talk<'_>, after_seq: u64, last: u64) -> u64 {
    let range = OwnRange {
        group: talk.group_id(),
        base: Seq(after_seq),
        last: Seq(last),
    };
    let own = store.own_between(talk.from, &[range]).await;
    own.expect("reads")[0]
}

/// The writer of a later record takes a position from the first, and never the reverse; the
/// position counts only for its owner.
pub(crate) async fn a_zombie_takes_no_position(store: &dyn MessageStore, fresh: &TestIds) {
    let good = Talk::group(fresh);
    let zombie = good.another();
    let (first, second, third) = (fresh.message(), fresh.message(), fresh.message());
    let check = async |id, expected_counts: [u64; 2]| {
        assert_eq!(ids(store, &good, &[Seq(9)]).await, [Some(id)]);
        let counts = [
            own(store, &good, 0, 9).await,
            own(store, &zombie, 0, 9).await,
        ];
        assert_eq!(counts, expected_counts);
    };
    let save = async |rows| store.save(rows).await.expect("saves");
    save(zombie.rows(first, 9, 5)).await;
    check(first, [0, 1]).await;
    save(good.rows(second, 9, 9)).await;
    check(second, [1, 0]).await;
    // Late writes of both: one of the message once at the position, one of another message.
    for late in [zombie.rows(first, 9, 5), good.rows(third, 9, 6)] {
        save(late).await;
        check(second, [1, 0]).await;
    }
    let rows = store.page(good.writers(), good.conversation(), forward(8), MAX_ROWS);
    let rows = rows.await.expect("reads");
    let found_ids: Vec<_> = rows.iter().map(MessageRow::id).collect();
    assert_eq!(found_ids, [second]);
}

pub(crate) async fn positions_name_messages(store: &dyn MessageStore, fresh: &TestIds) {
    for talk in Talk::each(fresh) {
        let sent_ids = talk.say(store, 1..=150).await;
        let queries = [Seq(3), Seq(151), Seq(1), Seq(0), Seq(3), Seq(u64::MAX)];
        let result = ids(store, &talk, &queries).await;
        let (first, third) = (Some(sent_ids[0]), Some(sent_ids[2]));
        assert_eq!(result, [third, None, first, None, third, None]);
        let all = ids(store, &talk, &seqs(1..=150)).await;
        assert_eq!(all, sent_ids.into_iter().map(Some).collect::<Vec<_>>());
        assert_eq!(ids(store, &talk.elsewhere(), &[Seq(1)]).await, [None]);
    }
}

/// Rows written just now, long ago, and never.
pub(crate) async fn places_say_where_rows_stand(store: &dyn MessageStore, fresh: &TestIds) {
    let talk = Talk::private(fresh);
    let ids = talk.say(store, 1..=3).await;
    let (sender, receiver) = (talk.from, talk.receiver());
    let keys = [
        (sender, ids[1]),
        (receiver, ids[1]),
        (receiver, fresh.message()),
    ];
    let owners = keys.map(|(user, id)| (Owner::User(user), id));
    let rows = store.rows(&owners).await.expect("reads");
    let places = store.places(&keys).await.expect("reads");
    let place = |row: &Option<MessageRow>| row.as_ref().and_then(MessageRow::place);
    let expected: Vec<Option<StoredPlace>> = rows.iter().map(place).collect();
    assert_eq!(places, expected);
    assert_eq!(places.iter().flatten().count(), 2);
    // A rewritten row moves to its new position.
    let rewrite = talk.rows(ids[1], 9, 9);
    store.save(rewrite).await.expect("saves");
    let places = store.places(&keys[..2]).await.expect("reads");
    let seqs: Vec<_> = places
        .into_iter()
        .flatten()
        .map(|place| place.seq)
        .collect();
    assert_eq!(seqs, [Seq(9), Seq(9)]);
}

/// Places carry each side's own count, wherever the message is.
pub(crate) async fn places_are_counted_by_both_sides(store: &dyn MessageStore, fresh: &TestIds) {
    let talk = Talk::private(fresh);
    talk.say(store, 1..=5).await;
    // An answer: b's message is the sixth of the conversation, and b's first.
    let answer = talk.back().message(fresh.message(), 6);
    let rows = MessageRow::from_placed(&answer, 1, version(6));
    store.save(rows).await.expect("saves");
    let (a, b) = (talk.writers(), talk.receivers());
    let conversation = talk.conversation();
    let queries = [
        (a, conversation, Seq(5)),
        (b, conversation, Seq(5)),
        (b, conversation, Seq(7)),
        (a, conversation, Seq(6)),
        (b, conversation, Seq(6)),
        (a, conversation, Seq::ZERO),
    ];
    let tallies = store.at(&queries).await.expect("reads");
    let tallies: Vec<Option<Tally>> = tallies.into_iter().map(|at| Some(at?.1)).collect();
    let tally = |seq, incoming| {
        Some(Tally {
            seq: Seq(seq),
            incoming,
        })
    };
    let expected = [
        tally(5, 0),
        tally(5, 5),
        None,
        tally(6, 1),
        tally(6, 5),
        None,
    ];
    assert_eq!(tallies, expected);
}

/// Own messages are counted after one position and up to another, despite redeliveries.
pub(crate) async fn own_messages_are_counted_between_places(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let one = Talk::group(fresh);
    let other = one.another();
    let (odd, even) = ((1..=9).step_by(2), (2..=9).step_by(2));
    one.say(store, odd).await;
    other.say(store, even).await;
    let cases = [
        (0, 9, 5, 4),
        (0, 1, 1, 0),
        (1, 9, 4, 4),
        (1, 2, 0, 1),
        (3, 5, 1, 1),
        (8, u64::MAX, 1, 0),
        (9, 99, 0, 0),
        (5, 5, 0, 0),
        (7, 3, 0, 0),
    ];
    for (after_seq, last, odd, even) in cases {
        let counts = [
            own(store, &one, after_seq, last).await,
            own(store, &other, after_seq, last).await,
        ];
        assert_eq!(counts, [odd, even], "{after_seq} to {last}");
    }
    // All ranges at once, of this group and of another.
    let ranges = cases.map(|(after_seq, last, ..)| OwnRange {
        group: one.group_id(),
        base: Seq(after_seq),
        last: Seq(last),
    });
    let other_group = OwnRange {
        group: fresh.group(),
        ..ranges[0]
    };
    let ranges: Vec<_> = ranges.into_iter().chain([other_group]).collect();
    let result = store.own_between(one.from, &ranges).await.expect("reads");
    let expected: Vec<u64> = cases.iter().map(|(_, _, odd, _)| *odd).chain([0]).collect();
    assert_eq!(result, expected);
    assert_eq!(own(store, &one.another(), 0, 9).await, 0);

    // A redelivery rewrites the row, unchanged or by a later record.
    let rewrite = one.row(fresh.message(), 10, 10);
    for offset in [10, 10, 11] {
        let row = MessageRow {
            version: version(offset),
            ..rewrite.clone()
        };
        store.save(vec![row]).await.expect("saves");
    }
    assert_eq!(own(store, &one, 0, 99).await, 6);
}

/// More own messages than any store reads at once.
pub(crate) async fn many_own_messages_are_counted(store: &dyn MessageStore, fresh: &TestIds) {
    let talk = Talk::group(fresh);
    talk.say(store, 1..=2_500).await;
    assert_eq!(own(store, &talk, 100, 2_499).await, 2_399);
}
