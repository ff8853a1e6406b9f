//! Pages across partitions: windows of 28 days, blocks of positions.

use super::*;
use crate::Kind;
use crate::messages::scylla::private::UserPair;
use crate::scylla::fixture::{cql, fresh};

const WINDOW: u64 = 28 * 86_400 * 1_000;
const BLOCK: u64 = 1 << 14;
const OWN_BLOCK: u64 = 1 << 18;

/// Collects the ids of pages of seven, in the order of the pages.
async fn page_through(
    store: &ScyllaMessages,
    owner: Owner,
    order: Order,
    is_over: impl Fn() -> bool,
) -> Vec<MessageId> {
    let mut ids: Vec<MessageId> = Vec::new();
    loop {
        let last = ids.last().copied();
        let (after_id, before_id) = match order {
            Order::Forward => (last, None),
            Order::Backward => (None, last),
        };
        let is_last = is_over();
        let page = store
            .find(
                owner,
                IdRange {
                    after_id,
                    before_id,
                },
                order,
                7,
            )
            .await;
        let page = page.expect("reads");
        if page.is_empty() && is_last {
            return ids;
        }
        ids.extend(page.iter().map(MessageRow::id));
    }
}

/// Pages show each id once, in order, across windows with empty ones between, while a writer adds
/// to the last window and opens another.
// proves S0-60e, S0 Pitfall A
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn pages_cross_windows_while_a_writer_adds() {
    let fresh = fresh();
    let store = Arc::new(ScyllaMessages::new(cql().await));
    for talk in Talk::each(&fresh) {
        let mut ids = Vec::new();
        for start in [0, 1, 4, 5].map(|window| window * WINDOW + 1) {
            // Ids up to the border and beyond it.
            for millis in (start..start + 10).chain(start + WINDOW - 12..start + WINDOW - 2) {
                ids.push(say_at(&store, &talk, millis, ids.len() as u64 + 1).await);
            }
        }
        let old_count = ids.len();
        let batches: Vec<_> = (0..60)
            .map(|n| {
                let seq = old_count as u64 + n + 1;
                let id = MessageId::floor_of(at(7 * WINDOW - 30 + n));
                talk.rows(id, seq, seq)
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
        let is_done = || writer.is_finished();
        let found_ids = page_through(&store, talk.writers(), Order::Forward, is_done).await;
        writer.await.expect("writes");
        assert!(found_ids.is_sorted_by(|a, b| a < b), "{found_ids:?}");
        assert_eq!(found_ids.len(), old_count + 60);
        assert_eq!(found_ids[..old_count], ids);
        let mut down = page_through(&store, talk.receivers(), Order::Backward, || true).await;
        down.reverse();
        assert_eq!(down, found_ids);
    }
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_conversation_is_dense_across_blocks() {
    let fresh = fresh();
    let store = ScyllaMessages::new(cql().await);
    for talk in Talk::each(&fresh) {
        let first = BLOCK - 4;
        talk.say(&store, first..first + 8).await;
        let read = async |range, limit| {
            let rows = page(&store, &talk, range, limit).await?;
            Ok::<_, crate::Error>(rows.iter().map(|row| row.seq().0).collect::<Vec<_>>())
        };
        let backward = |before_seq: Option<u64>| HistoryRange::Backward {
            before: before_seq.map(Seq),
        };
        let all: Vec<u64> = (first..first + 8).collect();
        let down: Vec<u64> = all.iter().rev().copied().collect();
        for (range, limit, expected) in [
            (forward(first - 1), 100, &all[..]),
            (forward(first + 1), 3, &all[2..5]),
            (forward(BLOCK - 1), 100, &all[4..]),
            (forward(first + 7), 100, &all[..0]),
            (backward(None), 100, &down[..]),
            (backward(Some(u64::MAX)), 100, &down[..]),
            (backward(Some(BLOCK)), 100, &down[4..]),
            (backward(None), 2, &down[..2]),
            (backward(Some(first)), 100, &all[..0]),
        ] {
            let result = read(range, limit).await.expect("reads");
            assert_eq!(result, expected, "{range:?} {limit}");
        }
        // A hole: the page begins in an empty block, or before the first position of its block.
        for after_seq in [0, first - 2] {
            let error = read(forward(after_seq), 100).await.expect_err("a hole");
            assert_eq!(error.kind, Kind::Corrupt, "{after_seq}");
        }
        talk.say(&store, [3 * BLOCK]).await;
        let error = read(forward(first + 7), 100).await.expect_err("a hole");
        assert_eq!(error.kind, Kind::Corrupt);
        assert_eq!(read(backward(None), 100).await.expect("reads"), [3 * BLOCK]);
        let rest = read(backward(Some(3 * BLOCK)), 100).await;
        assert_eq!(rest.expect("reads"), down);
    }
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn own_messages_are_counted_across_blocks() {
    let fresh = fresh();
    let store = ScyllaMessages::new(cql().await);
    let talk = Talk::group(&fresh);
    let all = [1, 2, OWN_BLOCK - 1, OWN_BLOCK, 7 * OWN_BLOCK + 3];
    talk.say(&store, all).await;
    talk.another().say(&store, [3, OWN_BLOCK + 1]).await;
    for (after_seq, last) in [
        (0, 8 * OWN_BLOCK),
        (1, OWN_BLOCK - 1),
        (OWN_BLOCK - 1, OWN_BLOCK),
        (OWN_BLOCK, 7 * OWN_BLOCK + 2),
        (OWN_BLOCK, 7 * OWN_BLOCK + 3),
    ] {
        let expected = all
            .iter()
            .filter(|seq| (after_seq + 1..=last).contains(*seq));
        let own = own(&store, &talk, after_seq, last).await;
        assert_eq!(own, expected.count() as u64, "{after_seq} to {last}");
    }
}

async fn own(store: &ScyllaMessages, talk: &Talk<'_>, after_seq: u64, last: u64) -> u64 {
    let range = OwnRange {
        group: talk.group_id(),
        base: Seq(after_seq),
        last: Seq(last),
    };
    let own = store.own_between(talk.from, &[range]).await;
    own.expect("reads")[0]
}

/// Rows of `count` messages behind `begin`, in batches.
fn batches(fresh: &TestIds, talk: &Talk<'_>, begin: u64, count: u64) -> Vec<Vec<MessageRow>> {
    const BATCH: u64 = 140;
    (begin + 1..=begin + count)
        .step_by(BATCH as usize)
        .map(|start| {
            let seqs = start..start + BATCH;
            let rows = |seq| talk.rows(fresh.message(), seq, seq);
            seqs.flat_map(rows).collect()
        })
        .collect()
}

/// A reader at the end of a conversation never mistakes an unfinished write for a hole.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn a_reader_sees_no_hole_while_a_writer_adds() {
    let fresh = fresh();
    let store = Arc::new(ScyllaMessages::new(cql().await));
    let talk = Talk::private(&fresh);
    let (begin, count) = (BLOCK - 700, 1400);
    talk.say(&*store, [begin]).await;
    let batches = batches(&fresh, &talk, begin, count);
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for rows in batches {
                store.save(rows).await.expect("saves");
            }
        }
    });
    // Every single read is dense, too.
    let watcher = tokio::spawn({
        let store = store.clone();
        let pair = UserPair::new(talk.from, talk.receiver());
        let mut next = begin as i64;
        async move {
            while next < BLOCK as i64 - 1 {
                let positions = &store.private.positions;
                let slice = positions.slice(&store.cql, Order::Forward, pair, next, 5_000);
                let slice = slice.await.expect("reads");
                assert!(
                    slice
                        .iter()
                        .zip(next..)
                        .all(|(&(seq, _), expected)| seq == expected),
                    "{slice:?}"
                );
                next += slice.len() as i64 - 1;
            }
        }
    });
    let reader = async {
        let mut last = begin;
        while last < begin + count {
            let rows = page(&store, &talk, forward(last), 40).await;
            for row in rows.expect("no hole") {
                last += 1;
                assert_eq!(row.seq().0, last);
            }
            let down = HistoryRange::Backward { before: None };
            let newest = store.page(talk.writers(), talk.conversation(), down, 3);
            let newest = newest.await.expect("no hole");
            assert!(newest.first().is_some_and(|row| row.seq().0 >= last));
        }
        Ok(())
    };
    // Readers would wait forever for the rows of a writer that failed.
    tokio::try_join!(writer, watcher, reader).expect("written, and dense");
}

/// A reader at the end of a group's conversation never mistakes an unfinished write for a hole, and
/// never counts more of a member's own messages than there are positions.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn a_member_sees_no_hole_while_a_writer_adds() {
    let fresh = fresh();
    let store = Arc::new(ScyllaMessages::new(cql().await));
    let talk = Talk::group(&fresh);
    let (begin, count) = (BLOCK - 700, 1400);
    talk.say(&*store, [begin]).await;
    let batches = batches(&fresh, &talk, begin, count);
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for rows in batches {
                store.save(rows).await.expect("saves");
            }
        }
    });
    let reader = async {
        let mut last = begin;
        while last < begin + count {
            let own = own(&store, &talk, last, u64::MAX).await;
            let rows = page(&store, &talk, forward(last), 2_000).await;
            let rows = rows.expect("no hole");
            assert!(own <= rows.len() as u64, "{own} of {}", rows.len());
            for row in rows {
                last += 1;
                assert_eq!(row.seq().0, last);
            }
        }
        Ok(())
    };
    tokio::try_join!(writer, reader).expect("written");
}
