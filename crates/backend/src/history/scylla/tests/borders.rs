//! Pages across partitions: windows of 28 days, blocks of positions.

use protocol::frame::HistoryRange;

use super::*;
use crate::Kind;
use crate::scylla::fixture::{cql, fresh};

const WINDOW: u64 = 28 * 86_400 * 1_000;
const BLOCK: u64 = 1 << 14;

async fn page(
    store: &ScyllaHistory,
    owner: UserId,
    range: IdRange,
    order: Order,
) -> Vec<MessageId> {
    let rows = store.find_private(owner, range, order, 7).await;
    rows.expect("reads").iter().map(|row| row.id).collect()
}

/// Pages show each id once, in order, across windows with empty ones between, while a writer adds
/// to the last window and opens another.
// proves S0-60e, S0 Pitfall A
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn pages_cross_windows_while_a_writer_adds() {
    let store = Arc::new(ScyllaHistory::new(cql().await));
    let talk = Arc::new(Talk::new(&fresh()));
    let times = [0, 1, 4, 5].map(|window| window * WINDOW + 1);
    let mut ids = Vec::new();
    for start in times {
        // Ids up to the border and beyond it.
        for millis in (start..start + 10).chain(start + WINDOW - 12..start + WINDOW - 2) {
            ids.push(talk.say(&store, millis, ids.len() as u64 + 1).await);
        }
    }
    let before = ids.len();
    let last = 7 * WINDOW;
    let writer = tokio::spawn({
        let (store, talk) = (store.clone(), talk.clone());
        async move {
            for n in 0..60 {
                talk.say(&store, last - 30 + n, before as u64 + n + 1).await;
            }
        }
    });
    let mut seen: Vec<MessageId> = Vec::new();
    loop {
        let range = IdRange {
            after: seen.last().copied(),
            before: None,
        };
        let next = page(&store, talk.a, range, Order::Forward).await;
        if next.is_empty() && writer.is_finished() {
            break;
        }
        seen.extend(next);
    }
    writer.await.expect("writes");
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert_eq!(seen[..before], ids);

    let mut down: Vec<MessageId> = Vec::new();
    loop {
        let range = IdRange {
            after: None,
            before: down.last().copied(),
        };
        let next = page(&store, talk.b, range, Order::Backward).await;
        if next.is_empty() {
            break;
        }
        down.extend(next);
    }
    down.reverse();
    assert_eq!(down.len(), before + 60);
    assert!(down.starts_with(&ids));
    // Messages added after the last forward page are in both lists, or only in `down`.
    assert!(down.starts_with(&seen));
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_conversation_is_dense_across_blocks() {
    let fresh = fresh();
    let store = ScyllaHistory::new(cql().await);
    let talk = Talk::new(&fresh);
    let first = BLOCK - 4;
    let rows = (first..first + 8).flat_map(|seq| talk.rows(fresh.message(), seq, seq, "hello"));
    store.save_private(rows.collect()).await.expect("saves");
    let read = async |range, limit| {
        let rows = store
            .conversation(talk.a, talk.conversation(), range, limit)
            .await?;
        Ok::<_, Error>(rows.iter().map(|row| row.seq.0).collect::<Vec<_>>())
    };
    let forward = |after| HistoryRange::Forward { after: Seq(after) };
    let backward = |before: Option<u64>| HistoryRange::Backward {
        before: before.map(Seq),
    };
    let all: Vec<u64> = (first..first + 8).collect();
    let down = |range: std::ops::Range<u64>| range.rev().collect::<Vec<u64>>();
    assert_eq!(read(forward(first - 1), 100).await.expect("reads"), all);
    assert_eq!(read(forward(first + 1), 3).await.expect("reads"), all[2..5]);
    assert_eq!(
        read(forward(BLOCK - 1), 100).await.expect("reads"),
        all[4..]
    );
    assert!(
        read(forward(first + 7), 100)
            .await
            .expect("reads")
            .is_empty()
    );
    let whole = down(first..first + 8);
    assert_eq!(read(backward(None), 100).await.expect("reads"), whole);
    assert_eq!(
        read(backward(Some(u64::MAX)), 100).await.expect("reads"),
        whole
    );
    let lower = down(first..BLOCK);
    assert_eq!(
        read(backward(Some(BLOCK)), 100).await.expect("reads"),
        lower
    );
    assert_eq!(read(backward(None), 2).await.expect("reads"), whole[..2]);
    assert!(
        read(backward(Some(first)), 100)
            .await
            .expect("reads")
            .is_empty()
    );
    // A hole: the page begins in an empty block, or before the first position of its block.
    for after in [0, first - 2] {
        let error = read(forward(after), 100).await.expect_err("a hole");
        assert_eq!(error.kind, Kind::Corrupt, "{after}");
    }
    let far = talk.rows(fresh.message(), 3 * BLOCK, 3 * BLOCK, "hello");
    store.save_private(far).await.expect("saves");
    let error = read(forward(first + 7), 100).await.expect_err("a hole");
    assert_eq!(error.kind, Kind::Corrupt);
    assert_eq!(read(backward(None), 100).await.expect("reads"), [3 * BLOCK]);
    assert_eq!(
        read(backward(Some(3 * BLOCK)), 100).await.expect("reads"),
        whole
    );
}

/// A reader at the end of a conversation never mistakes an unfinished write for a hole.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the real parts: make e2e"]
async fn a_reader_sees_no_hole_while_a_writer_adds() {
    let fresh = Arc::new(fresh());
    let store = Arc::new(ScyllaHistory::new(cql().await));
    let talk = Arc::new(Talk::new(&fresh));
    let (begin, count, batch) = (BLOCK - 700, 1400, 140);
    let before = talk.rows(fresh.message(), begin, begin, "hello");
    store.save_private(before).await.expect("saves");
    let writer = tokio::spawn({
        let (store, talk, fresh) = (store.clone(), talk.clone(), fresh.clone());
        async move {
            for start in (begin + 1..=begin + count).step_by(batch as usize) {
                let seqs = start..start + batch;
                let rows = seqs.flat_map(|seq| talk.rows(fresh.message(), seq, seq, "hello"));
                store.save_private(rows.collect()).await.expect("saves");
            }
        }
    });
    // Every single read is dense, too.
    let watcher = tokio::spawn({
        let (store, pair) = (
            store.clone(),
            UserPair::of_conversation(talk.conversation()),
        );
        let (pair, mut next) = (pair.expect("private"), begin as i64);
        async move {
            while next < BLOCK as i64 - 1 {
                let positions = &store.positions;
                let seen = positions.slice(&store.cql, Order::Forward, pair, next, 5_000);
                let seen = seen.await.expect("reads");
                assert!(
                    seen.iter()
                        .zip(next..)
                        .all(|(&(seq, _), wanted)| seq == wanted),
                    "{seen:?}"
                );
                next += seen.len() as i64 - 1;
            }
        }
    });
    let mut last = begin;
    while last < begin + count {
        let range = HistoryRange::Forward { after: Seq(last) };
        let page = store
            .conversation(talk.b, talk.conversation(), range, 40)
            .await;
        for row in page.expect("no hole") {
            last += 1;
            assert_eq!(row.seq.0, last);
        }
        let down = HistoryRange::Backward { before: None };
        let page = store
            .conversation(talk.a, talk.conversation(), down, 3)
            .await;
        assert!(
            page.expect("no hole")
                .first()
                .is_some_and(|row| row.seq.0 >= last)
        );
    }
    writer.await.expect("writes");
    watcher.await.expect("dense");
}
