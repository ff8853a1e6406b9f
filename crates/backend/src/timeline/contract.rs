//! Contract of every timeline, under default settings. Each check uses groups of its own, so that
//! all may share one timeline.

use bytes::Bytes;
use protocol::{GroupId, MessageId, Seq};

use super::{PAGE_BYTES_MAX, Timeline, TimelineConfig, TimelineEntry};
use crate::Kind;
use crate::test_ids::{TestIds, seqs};

const MAX_ENTRIES: usize = 5_000;

/// Message at this position of a group: the same at each call.
pub(super) fn entry(seq: u64) -> TimelineEntry {
    TimelineEntry {
        seq: Seq(seq),
        id: MessageId::new((1 << 60) + seq as i64).expect("positive"),
        body: Bytes::from(format!("\0\r\n$-1 {seq} \u{fe0f}")),
    }
}

fn entries(seqs: impl IntoIterator<Item = u64>) -> Vec<TimelineEntry> {
    seqs.into_iter().map(entry).collect()
}

pub(super) async fn push(
    timeline: &dyn Timeline,
    group: GroupId,
    seqs: impl IntoIterator<Item = u64>,
) {
    timeline.push(group, entries(seqs)).await.expect("pushes");
}

pub(super) async fn latest(
    timeline: &dyn Timeline,
    group: GroupId,
    offset: usize,
    count: usize,
) -> Vec<TimelineEntry> {
    let latest = timeline.latest(group, offset, count).await;
    latest.expect("reads")
}

pub(super) async fn count(timeline: &dyn Timeline, group: GroupId, limit: usize) -> usize {
    timeline.count(group, limit).await.expect("reads")
}

/// Returns all positions in order; `count` must agree.
async fn all(timeline: &dyn Timeline, group: GroupId) -> Vec<Seq> {
    let all = latest(timeline, group, 0, MAX_ENTRIES).await;
    assert_eq!(count(timeline, group, MAX_ENTRIES).await, all.len());
    all.iter().rev().map(|entry| entry.seq).collect()
}

// proves S0-62d, S0-62e, S0-62f, S0 Pitfall C: the newest first, by page from the newest, and how many, bounded.
pub(super) async fn the_newest_come_first(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    assert_eq!(latest(timeline, group, 0, 9).await, []);
    assert_eq!(count(timeline, group, 9).await, 0);
    push(timeline, group, 1..=7).await;
    let mut down = entries(1..=7);
    down.reverse();
    assert_eq!(latest(timeline, group, 0, 3).await, down[..3]);
    assert_eq!(latest(timeline, group, 0, 7).await, down);
    assert_eq!(latest(timeline, group, 0, 100).await, down);
    assert_eq!(latest(timeline, group, 3, 3).await, down[3..6]);
    assert_eq!(latest(timeline, group, 6, 3).await, down[6..]);
    assert_eq!(latest(timeline, group, 7, 3).await, []);
    assert_eq!(latest(timeline, group, usize::MAX, 3).await, []);
    assert_eq!(latest(timeline, group, 0, 0).await, []);
    for (limit, expected) in [(0, 0), (3, 3), (7, 7), (8, 7), (usize::MAX, 7)] {
        assert_eq!(
            count(timeline, group, limit).await,
            expected,
            "at most {limit}"
        );
    }
    assert_eq!(latest(timeline, fresh.group(), 0, 9).await, []);
}

// proves S0-62b, S0-62c: after the 1001st push there are 1000, and the oldest is gone.
pub(super) async fn the_oldest_goes(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    assert_eq!(TimelineConfig::default().keep, 1000);
    push(timeline, group, 1..=1000).await;
    assert_eq!(all(timeline, group).await, seqs(1..=1000));
    push(timeline, group, [1001]).await;
    assert_eq!(all(timeline, group).await, seqs(2..=1001));
    // More messages in one call than are kept.
    push(timeline, group, 1002..=3500).await;
    assert_eq!(all(timeline, group).await, seqs(2501..=3500));
}

/// A redelivery pushes messages that are present or already dropped: none of them doubles,
/// displaces another or comes back.
pub(super) async fn pushing_again_changes_nothing(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(timeline, group, 1..=5).await;
    push(timeline, group, 2..=4).await;
    push(timeline, group, [5, 5]).await;
    assert_eq!(all(timeline, group).await, seqs(1..=5));
    push(timeline, group, 6..=1200).await;
    for repeats in [1..=5, 150..=250, 1200..=1200] {
        push(timeline, group, repeats).await;
        assert_eq!(all(timeline, group).await, seqs(201..=1200));
    }
    let oldest = latest(timeline, group, 999, 9).await;
    assert_eq!(oldest, [entry(201)]);
}

// proves S2-11: the score is the position.
/// Positions give the order, whatever the order of pushes or ids.
pub(super) async fn they_may_come_in_any_order(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(timeline, group, [5, 2]).await;
    push(timeline, group, [1]).await;
    push(timeline, group, [4, 9, 3]).await;
    assert_eq!(all(timeline, group).await, [1, 2, 3, 4, 5, 9].map(Seq));
    // Far apart, and so large that text would order them otherwise.
    let large = [7 << 40, (1 << 53) - 1, (1 << 53) - 2];
    push(timeline, group, large).await;
    let top = latest(timeline, group, 0, 3).await;
    assert_eq!(top, entries([large[1], large[2], large[0]]));

    let group = fresh.group();
    let reversed_ids = (1..=3).map(|seq| TimelineEntry {
        id: MessageId::new(100 - seq as i64).expect("positive"),
        ..entry(seq)
    });
    timeline
        .push(group, reversed_ids.collect())
        .await
        .expect("pushes");
    assert_eq!(all(timeline, group).await, seqs(1..=3));
}

/// A changed message replaces its earlier body.
pub(super) async fn the_last_body_stays(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(timeline, group, 1..=3).await;
    let empty = TimelineEntry {
        body: Bytes::new(),
        ..entry(2)
    };
    let result = timeline.push(group, vec![entry(2), empty.clone()]).await;
    result.expect("pushes");
    let entries = latest(timeline, group, 0, 9).await;
    assert_eq!(entries, [entry(3), empty, entry(1)]);
}

/// One message per position, and one position per message.
pub(super) async fn a_place_has_one_message(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(timeline, group, 1..=4).await;
    let moved_entry = TimelineEntry {
        seq: Seq(3),
        ..entry(1)
    };
    timeline
        .push(group, vec![moved_entry.clone()])
        .await
        .expect("pushes");
    let newest = latest(timeline, group, 0, 9).await;
    assert_eq!(newest, [entry(4), moved_entry, entry(2)]);
    assert_eq!(count(timeline, group, 9).await, 3);
    push(timeline, group, [1, 3]).await;
    assert_eq!(all(timeline, group).await, seqs(1..=4));
}

/// A page of large messages ends early; a reader that continues behind it sees each once.
pub(super) async fn large_messages_come_by_page(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    let large = |seq| TimelineEntry {
        body: Bytes::from(vec![seq as u8; 64 << 10]),
        ..entry(seq)
    };
    let mut expected: Vec<_> = (1..=40).map(large).collect();
    timeline
        .push(group, expected.clone())
        .await
        .expect("pushes");
    expected.reverse();
    let mut all_pages: Vec<TimelineEntry> = Vec::new();
    let mut pages = 0;
    loop {
        let page = latest(timeline, group, all_pages.len(), 100).await;
        if page.is_empty() {
            break;
        }
        let bytes: usize = page.iter().map(|entry| entry.body.len()).sum();
        assert!(bytes <= PAGE_BYTES_MAX);
        all_pages.extend(page);
        pages += 1;
    }
    assert!(all_pages == expected, "{} of them", all_pages.len());
    assert_eq!(pages, 3);
    // A message larger than a page is a page.
    let huge = TimelineEntry {
        body: Bytes::from(vec![1; 2 << 20]),
        ..entry(41)
    };
    timeline
        .push(group, vec![huge.clone()])
        .await
        .expect("pushes");
    assert!(latest(timeline, group, 0, 9).await == [huge]);
}

/// Two concurrent writers, one reader: each read has every position once, in order.
pub(super) async fn readers_see_positions_in_order(timeline: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    let writer = async |odd: u64| {
        for n in 0..60 {
            push(timeline, group, [4 * n + odd, 4 * n + odd + 2]).await;
            tokio::task::yield_now().await;
        }
    };
    let reader = async {
        for _ in 0..60 {
            let page = latest(timeline, group, 0, 50).await;
            let is_descending = page.is_sorted_by(|newer, older| newer.seq > older.seq);
            assert!(is_descending, "{page:?}");
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(writer(1), writer(2), reader);
    assert_eq!(all(timeline, group).await, seqs(1..=240));
}

pub(super) async fn forgotten_groups_are_empty(timeline: &dyn Timeline, fresh: &TestIds) {
    let (group, other) = (fresh.group(), fresh.group());
    push(timeline, group, 1..=250).await;
    push(timeline, other, 1..=3).await;
    for _ in 0..2 {
        timeline.forget(group).await.expect("forgets");
        assert_eq!(all(timeline, group).await, []);
    }
    assert_eq!(all(timeline, other).await, seqs(1..=3));
    push(timeline, group, [251]).await;
    assert_eq!(all(timeline, group).await, [Seq(251)]);
}

pub(super) async fn entries_without_a_position_are_refused(
    timeline: &dyn Timeline,
    fresh: &TestIds,
) {
    let group = fresh.group();
    for seq in [0, 1 << 53] {
        let result = timeline.push(
            group,
            entries([1])
                .into_iter()
                .chain([TimelineEntry {
                    seq: Seq(seq),
                    ..entry(2)
                }])
                .collect(),
        );
        let error = result.await.expect_err("no position");
        assert_eq!(error.kind, Kind::Conflict, "{seq}");
    }
    assert_eq!(all(timeline, group).await, []);
    push(timeline, group, []).await;
    assert_eq!(all(timeline, group).await, []);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            the_newest_come_first,
            the_oldest_goes,
            pushing_again_changes_nothing,
            they_may_come_in_any_order,
            the_last_body_stays,
            a_place_has_one_message,
            large_messages_come_by_page,
            readers_see_positions_in_order,
            forgotten_groups_are_empty,
            entries_without_a_position_are_refused,
        );
    };
}
pub(crate) use checks;
