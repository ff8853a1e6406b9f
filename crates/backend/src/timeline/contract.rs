//! Contract of every timeline, under default settings. Each check uses groups of its own, so that
//! all may share one timeline.

use bytes::Bytes;
use protocol::{GroupId, MessageId, Seq};

use super::{Timeline, TimelineConfig, TimelineEntry};
use crate::Kind;
use crate::test_ids::{TestIds, seqs};

const ALL: usize = 5_000;

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

pub(super) async fn push(line: &dyn Timeline, group: GroupId, seqs: impl IntoIterator<Item = u64>) {
    line.push(group, entries(seqs)).await.expect("pushes");
}

pub(super) async fn latest(
    line: &dyn Timeline,
    group: GroupId,
    offset: usize,
    count: usize,
) -> Vec<TimelineEntry> {
    let latest = line.latest(group, offset, count).await;
    latest.expect("reads")
}

pub(super) async fn count(line: &dyn Timeline, group: GroupId, most: usize) -> usize {
    line.count(group, most).await.expect("reads")
}

/// Returns all positions in order; `count` must agree.
async fn all(line: &dyn Timeline, group: GroupId) -> Vec<Seq> {
    let all = latest(line, group, 0, ALL).await;
    assert_eq!(count(line, group, ALL).await, all.len());
    all.iter().rev().map(|entry| entry.seq).collect()
}

// proves S0-62d, S0-62e, S0-62f, S0 Pitfall C: the newest first, by page from the newest, and how many, bounded.
pub(super) async fn the_newest_come_first(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    assert_eq!(latest(line, group, 0, 9).await, []);
    assert_eq!(count(line, group, 9).await, 0);
    push(line, group, 1..=7).await;
    let mut down = entries(1..=7);
    down.reverse();
    assert_eq!(latest(line, group, 0, 3).await, down[..3]);
    assert_eq!(latest(line, group, 0, 7).await, down);
    assert_eq!(latest(line, group, 0, 100).await, down);
    assert_eq!(latest(line, group, 3, 3).await, down[3..6]);
    assert_eq!(latest(line, group, 6, 3).await, down[6..]);
    assert_eq!(latest(line, group, 7, 3).await, []);
    assert_eq!(latest(line, group, usize::MAX, 3).await, []);
    assert_eq!(latest(line, group, 0, 0).await, []);
    for (most, found) in [(0, 0), (3, 3), (7, 7), (8, 7), (usize::MAX, 7)] {
        assert_eq!(count(line, group, most).await, found, "at most {most}");
    }
    assert_eq!(latest(line, fresh.group(), 0, 9).await, []);
}

// proves S0-62b, S0-62c: after the 1001st push there are 1000, and the oldest is gone.
pub(super) async fn the_oldest_goes(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    assert_eq!(TimelineConfig::default().keep, 1000);
    push(line, group, 1..=1000).await;
    assert_eq!(all(line, group).await, seqs(1..=1000));
    push(line, group, [1001]).await;
    assert_eq!(all(line, group).await, seqs(2..=1001));
    // More messages in one call than are kept.
    push(line, group, 1002..=3500).await;
    assert_eq!(all(line, group).await, seqs(2501..=3500));
}

/// A redelivery pushes messages that are present or already dropped: none of them doubles,
/// displaces another or comes back.
pub(super) async fn pushing_again_changes_nothing(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(line, group, 1..=5).await;
    push(line, group, 2..=4).await;
    push(line, group, [5, 5]).await;
    assert_eq!(all(line, group).await, seqs(1..=5));
    push(line, group, 6..=1200).await;
    for again in [1..=5, 150..=250, 1200..=1200] {
        push(line, group, again).await;
        assert_eq!(all(line, group).await, seqs(201..=1200));
    }
    let oldest = latest(line, group, 999, 9).await;
    assert_eq!(oldest, [entry(201)]);
}

// proves S2-11: the score is the position.
/// Positions give the order, whatever the order of pushes or ids.
pub(super) async fn they_may_come_in_any_order(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(line, group, [5, 2]).await;
    push(line, group, [1]).await;
    push(line, group, [4, 9, 3]).await;
    assert_eq!(all(line, group).await, [1, 2, 3, 4, 5, 9].map(Seq));
    // Far apart, and so large that text would order them otherwise.
    let large = [7 << 40, (1 << 53) - 1, (1 << 53) - 2];
    push(line, group, large).await;
    let top = latest(line, group, 0, 3).await;
    assert_eq!(top, entries([large[1], large[2], large[0]]));

    let group = fresh.group();
    let against = (1..=3).map(|seq| TimelineEntry {
        id: MessageId::new(100 - seq as i64).expect("positive"),
        ..entry(seq)
    });
    line.push(group, against.collect()).await.expect("pushes");
    assert_eq!(all(line, group).await, seqs(1..=3));
}

/// A changed message replaces its earlier body.
pub(super) async fn the_last_body_stays(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(line, group, 1..=3).await;
    let recalled = TimelineEntry {
        body: Bytes::new(),
        ..entry(2)
    };
    let pushed = line.push(group, vec![entry(2), recalled.clone()]).await;
    pushed.expect("pushes");
    let found = latest(line, group, 0, 9).await;
    assert_eq!(found, [entry(3), recalled, entry(1)]);
}

/// One message per position, and one position per message.
pub(super) async fn a_place_has_one_message(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    push(line, group, 1..=4).await;
    let moved = TimelineEntry {
        seq: Seq(3),
        ..entry(1)
    };
    line.push(group, vec![moved.clone()]).await.expect("pushes");
    let found = latest(line, group, 0, 9).await;
    assert_eq!(found, [entry(4), moved, entry(2)]);
    assert_eq!(count(line, group, 9).await, 3);
    push(line, group, [1, 3]).await;
    assert_eq!(all(line, group).await, seqs(1..=4));
}

/// A page of large messages ends early; a reader that continues behind it sees each once.
pub(super) async fn large_messages_come_by_page(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    let large = |seq| TimelineEntry {
        body: Bytes::from(vec![seq as u8; 64 << 10]),
        ..entry(seq)
    };
    let mut wanted: Vec<_> = (1..=40).map(large).collect();
    line.push(group, wanted.clone()).await.expect("pushes");
    wanted.reverse();
    let mut seen: Vec<TimelineEntry> = Vec::new();
    let mut pages = 0;
    loop {
        let page = latest(line, group, seen.len(), 100).await;
        if page.is_empty() {
            break;
        }
        let bytes: usize = page.iter().map(|entry| entry.body.len()).sum();
        assert!(bytes <= TimelineConfig::default().page_bytes_max);
        seen.extend(page);
        pages += 1;
    }
    assert!(seen == wanted, "{} of them", seen.len());
    assert_eq!(pages, 3);
    // A message larger than a page is a page.
    let huge = TimelineEntry {
        body: Bytes::from(vec![1; 2 << 20]),
        ..entry(41)
    };
    line.push(group, vec![huge.clone()]).await.expect("pushes");
    assert!(latest(line, group, 0, 9).await == [huge]);
}

/// Two concurrent writers, one reader: each read has every position once, in order.
pub(super) async fn who_reads_sees_an_order(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    let writer = async |odd: u64| {
        for n in 0..60 {
            push(line, group, [4 * n + odd, 4 * n + odd + 2]).await;
            tokio::task::yield_now().await;
        }
    };
    let reader = async {
        for _ in 0..60 {
            let seen = latest(line, group, 0, 50).await;
            let falls = seen.is_sorted_by(|above, below| above.seq > below.seq);
            assert!(falls, "{seen:?}");
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(writer(1), writer(2), reader);
    assert_eq!(all(line, group).await, seqs(1..=240));
}

pub(super) async fn what_is_forgotten_is_gone(line: &dyn Timeline, fresh: &TestIds) {
    let (group, other) = (fresh.group(), fresh.group());
    push(line, group, 1..=250).await;
    push(line, other, 1..=3).await;
    for _ in 0..2 {
        line.forget(group).await.expect("forgets");
        assert_eq!(all(line, group).await, []);
    }
    assert_eq!(all(line, other).await, seqs(1..=3));
    push(line, group, [251]).await;
    assert_eq!(all(line, group).await, [Seq(251)]);
}

pub(super) async fn what_has_no_place_is_refused(line: &dyn Timeline, fresh: &TestIds) {
    let group = fresh.group();
    for seq in [0, 1 << 53] {
        let pushed = line.push(
            group,
            entries([1])
                .into_iter()
                .chain([TimelineEntry {
                    seq: Seq(seq),
                    ..entry(2)
                }])
                .collect(),
        );
        let error = pushed.await.expect_err("no position");
        assert_eq!(error.kind, Kind::Conflict, "{seq}");
    }
    assert_eq!(all(line, group).await, []);
    push(line, group, []).await;
    assert_eq!(all(line, group).await, []);
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
            who_reads_sees_an_order,
            what_is_forgotten_is_gone,
            what_has_no_place_is_refused,
        );
    };
}
pub(crate) use checks;
