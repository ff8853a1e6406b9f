use std::sync::Arc;

use protocol::message::Content;
use scylla::DeserializeRow;
use scylla::value::CqlVarint;

use crate::group_history::contract::{self, Talk};
use crate::scylla::fixture::{config, cql, foreign_session, fresh, on_cql};
use crate::scylla::messages::{columns, windows};
use crate::test_ids::{TestIds, at};
use crate::{Error, Kind};

use super::*;

contract::checks!(on_cql!("group_history", ScyllaGroupHistory::new));

const WINDOW: u64 = 28 * 86_400 * 1_000;
const BLOCK: u64 = 1 << 14;
const OWN_BLOCK: u64 = 1 << 18;

/// Saves a message sent in this millisecond, at the position and offset of the same number.
async fn say_at(store: &ScyllaGroupHistory, talk: &Talk<'_>, millis: u64, seq: u64) -> MessageId {
    let id = MessageId::floor_of(at(millis));
    store
        .save(vec![talk.row(id, seq, seq)])
        .await
        .expect("saves");
    id
}

/// Collects the ids of pages of seven, in the order of the pages.
async fn page_through(
    store: &ScyllaGroupHistory,
    group: GroupId,
    order: Order,
    is_over: impl Fn() -> bool,
) -> Vec<MessageId> {
    let mut seen: Vec<MessageId> = Vec::new();
    loop {
        let last = seen.last().copied();
        let (after, before) = match order {
            Order::Forward => (last, None),
            Order::Backward => (None, last),
        };
        let over = is_over();
        let page = store.find(group, IdRange { after, before }, order, 7).await;
        let page = page.expect("reads");
        if page.is_empty() && over {
            return seen;
        }
        seen.extend(page.iter().map(|row| row.id));
    }
}

/// Pages show each id once, in order, across windows with empty ones between, while a writer adds
/// to the last window and opens another.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn pages_cross_windows_while_a_writer_adds() {
    let fresh = fresh();
    let store = Arc::new(ScyllaGroupHistory::new(cql().await));
    let talk = Talk::new(&fresh);
    let mut ids = Vec::new();
    for start in [0, 1, 4, 5].map(|window| window * WINDOW + 1) {
        // Ids up to the border and beyond it.
        for millis in (start..start + 10).chain(start + WINDOW - 12..start + WINDOW - 2) {
            ids.push(say_at(&store, &talk, millis, ids.len() as u64 + 1).await);
        }
    }
    let before = ids.len();
    let added: Vec<_> = (0..60)
        .map(|n| {
            let seq = (before + n + 1) as u64;
            talk.row(
                MessageId::floor_of(at(7 * WINDOW - 30 + n as u64)),
                seq,
                seq,
            )
        })
        .collect();
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for row in added {
                store.save(vec![row]).await.expect("saves");
            }
        }
    });
    let done = || writer.is_finished();
    let seen = page_through(&store, talk.group, Order::Forward, done).await;
    writer.await.expect("writes");
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert_eq!(seen.len(), before + 60);
    assert_eq!(seen[..before], ids);
    let mut down = page_through(&store, talk.group, Order::Backward, || true).await;
    down.reverse();
    assert_eq!(down, seen);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_conversation_is_dense_across_blocks() {
    let fresh = fresh();
    let store = ScyllaGroupHistory::new(cql().await);
    let talk = Talk::new(&fresh);
    let first = BLOCK - 4;
    talk.say(&store, first..first + 8).await;
    let read = async |range, limit| {
        let rows = store.conversation(talk.group, range, limit).await?;
        Ok::<_, Error>(rows.iter().map(|row| row.seq.0).collect::<Vec<_>>())
    };
    let forward = |after| HistoryRange::Forward { after: Seq(after) };
    let backward = |before: Option<u64>| HistoryRange::Backward {
        before: before.map(Seq),
    };
    let all: Vec<u64> = (first..first + 8).collect();
    let down: Vec<u64> = all.iter().rev().copied().collect();
    assert_eq!(read(forward(first - 1), 100).await.expect("reads"), all);
    assert_eq!(read(forward(first + 1), 3).await.expect("reads"), all[2..5]);
    assert_eq!(read(backward(None), 100).await.expect("reads"), down);
    let lower = read(backward(Some(BLOCK)), 100).await.expect("reads");
    assert_eq!(lower, down[4..]);
    assert!(read(forward(first + 7), 9).await.expect("reads").is_empty());
    for after in [0, first - 2] {
        let error = read(forward(after), 100).await.expect_err("a hole");
        assert_eq!(error.kind, Kind::Corrupt, "{after}");
    }
    talk.say(&store, [3 * BLOCK]).await;
    let error = read(forward(first + 7), 100).await.expect_err("a hole");
    assert_eq!(error.kind, Kind::Corrupt);
    assert_eq!(read(backward(None), 100).await.expect("reads"), [3 * BLOCK]);
    let rest = read(backward(Some(3 * BLOCK)), 100).await.expect("reads");
    assert_eq!(rest, down);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn own_messages_are_counted_across_blocks() {
    let fresh = fresh();
    let store = ScyllaGroupHistory::new(cql().await);
    let talk = Talk::new(&fresh);
    let all = [1, 2, OWN_BLOCK - 1, OWN_BLOCK, 7 * OWN_BLOCK + 3];
    talk.say(&store, all).await;
    talk.another().say(&store, [3, OWN_BLOCK + 1]).await;
    for (after, last) in [
        (0, 8 * OWN_BLOCK),
        (1, OWN_BLOCK - 1),
        (OWN_BLOCK - 1, OWN_BLOCK),
        (OWN_BLOCK, 7 * OWN_BLOCK + 2),
        (OWN_BLOCK, 7 * OWN_BLOCK + 3),
    ] {
        let own = store.own_between(talk.group, talk.user, Seq(after), Seq(last));
        let wanted = all.iter().filter(|seq| (after + 1..=last).contains(seq));
        assert_eq!(
            own.await.expect("reads"),
            wanted.count() as u64,
            "{after} to {last}"
        );
    }
}

/// Another process without memory writes an earlier record, and undoes no register.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_zombie_replaces_nothing_that_is_later() {
    let fresh: TestIds = fresh();
    let good = ScyllaGroupHistory::new(cql().await);
    let talk = Talk::new(&fresh);
    let standing = talk.row(fresh.message(), 9, 9);
    good.save(vec![standing.clone()]).await.expect("saves");
    good.delete(talk.group, &[standing.id])
        .await
        .expect("deletes");
    let zombie = ScyllaGroupHistory::new(cql().await);
    let mut late = talk.row(standing.id, 9, 5);
    late.content = protocol::message::Content::text("\u{fff} larger in every byte");
    zombie.save(vec![late]).await.expect("saves");
    let found = good.rows(&[(talk.group, standing.id)]).await;
    assert_eq!(found.expect("reads"), [Some(standing.clone())]);
    let deleted = good.deleted(talk.group, &[standing.id]).await;
    assert_eq!(deleted.expect("reads"), [true]);
}

/// A reader at the end of a group's conversation never mistakes an unfinished write for a hole, and
/// never counts more of a member's own messages than there are positions.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn a_reader_sees_no_hole_while_a_writer_adds() {
    let fresh = fresh();
    let store = Arc::new(ScyllaGroupHistory::new(cql().await));
    let talk = Talk::new(&fresh);
    let (begin, count, batch) = (BLOCK - 700, 1400, 140);
    talk.say(&*store, [begin]).await;
    let batches: Vec<Vec<GroupRow>> = (begin + 1..=begin + count)
        .step_by(batch as usize)
        .map(|start| {
            let seqs = start..start + batch;
            let row = |seq| talk.row(fresh.message(), seq, seq);
            seqs.map(row).collect()
        })
        .collect();
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for rows in batches {
                store.save(rows).await.expect("saves");
            }
        }
    });
    let mut last = begin;
    while last < begin + count {
        let own = store.own_between(talk.group, talk.user, Seq(last), Seq(u64::MAX));
        let own = own.await.expect("reads");
        let range = HistoryRange::Forward { after: Seq(last) };
        let page = store.conversation(talk.group, range, 2_000).await;
        let page = page.expect("no hole");
        assert!(own <= page.len() as u64, "{own} of {}", page.len());
        for row in page {
            last += 1;
            assert_eq!(row.seq.0, last);
        }
    }
    writer.await.expect("writes");
}

/// Row as another program would read it.
#[derive(Debug, DeserializeRow)]
struct Columns {
    pk: i16,
    gid: i64,
    uid: i64,
    id: i64,
    usid: i64,
    tm: i64,
    res: i8,
    st: i8,
    ct: i8,
    mt: i8,
    pr: CqlVarint,
    #[scylla(rename = "ref")]
    reference: CqlVarint,
    draf: Vec<u8>,
}

// proves S0-61a, S0-07 in part: each column as it was written. (Groups keep no receipts, and what members say is no
// broadcast: res, st and ct are 0.)
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn every_column_holds_its_part_of_the_message() {
    let fresh = fresh();
    let store = ScyllaGroupHistory::new(cql().await);
    let talk = Talk::new(&fresh);
    let session = foreign_session().await;
    let keyspace = config().keyspace;
    let text = format!(
        "SELECT pk, gid, uid, id, usid, tm, res, st, ct, mt, pr, ref, draf FROM {keyspace}.gchat \
         WHERE gid = ? AND pk = ? AND id = ?"
    );
    for (seq, (kind, mt)) in (1..).zip([(0, 0), (1, 1), (1000, -1)]) {
        let row = talk.row(fresh.message(), seq, seq);
        let content = Content {
            kind,
            ..row.content.clone()
        };
        let row = GroupRow { content, ..row };
        store.save(vec![row.clone()]).await.expect("saves");
        let key = (row.group.get(), windows::of(row.id), row.id.get());
        let answer = session.query_unpaged(text.as_str(), key).await;
        let rows = answer.expect("reads").into_rows_result().expect("rows");
        let found: Columns = rows.single_row().expect("a row");
        assert_eq!((found.gid, found.pk, found.id), key);
        let usid = &row.send_id.as_bytes()[8..];
        let usid = i64::from_be_bytes(usid.try_into().expect("eight"));
        let tm = row.accepted_at.millis();
        assert_eq!(
            (found.uid, found.usid, found.tm),
            (row.from.get(), usid, tm)
        );
        let small = (found.res, found.st, found.ct, found.mt);
        assert_eq!(small, (0, 0, 0, mt));
        let key_print = columns::number(&found.pr);
        assert_eq!(key_print, Some(row.content.key_print));
        let reference = row.content.reference.map_or(0, MessageId::get);
        assert_eq!(columns::number(&found.reference), Some(reference));
        assert_eq!(found.draf, row.content.data);
    }
}
