//! Contract of every audit store. Each check uses minutes of its own; the store has a single head,
//! so a check moves it on from wherever it is.

use std::ops::Range;
use std::time::Duration;

use protocol::Timestamp;
use protocol::ledger::chain::{ChainHead, ChainPlace};
use protocol::ledger::minute::{
    Amendment, ChainLink, ClosedMinute, Digest, MINUTE, MinuteFigures, MinuteReading, MinuteRow,
    MinuteVerdict, OffsetRange, minute_start,
};

use super::AuditStore;
use crate::test_ids::TestIds;

/// Returns `count` minutes that no other check uses, on both sides of midnight.
fn minutes(fresh: &TestIds, count: u32) -> Range<Timestamp> {
    let day = 86_400_000 * (1 + fresh.message().timestamp().millis() % 9_999_999);
    let start = Timestamp::from_millis(day) - MINUTE * (count / 2);
    start..start + MINUTE * count
}

fn closed_minute(fresh: &TestIds, minute: Timestamp) -> ClosedMinute {
    let reading = MinuteReading {
        minute,
        accepted_count: u64::MAX,
        ids: Digest::from_ids([fresh.message()]),
        unread: u64::MAX,
        epoch: u32::MAX,
        stretches: vec![
            OffsetRange {
                from: 0,
                counted: 1,
                to: u64::MAX,
            };
            3
        ],
    };
    let figures = MinuteFigures {
        settled: 1,
        in_flight: 2,
        missing: 3,
        contradictions: u64::MAX,
    };
    ClosedMinute::after(ChainLink::beginning(minute), reading, figures)
}

async fn rows(store: &dyn AuditStore, minutes: &Range<Timestamp>) -> Vec<MinuteRow> {
    store.rows(minutes.clone(), 1000).await.expect("reads")
}

/// Returns a head that follows the current one.
async fn next(store: &dyn AuditStore, worker: u64, fresh: &TestIds) -> ChainHead {
    let current = store.head().await.expect("reads");
    let at = minute_start(fresh.message().timestamp());
    ChainHead {
        turn: current.map_or(0, |head| head.turn) + 1,
        worker,
        at,
        start: ChainLink::beginning(at),
        until: at,
        open_from: at,
        place: ChainPlace {
            epoch: 1,
            from: vec![0, u64::MAX],
            counted: vec![1, 2],
        },
        last: Some(closed_minute(fresh, at)),
    }
}

pub(super) async fn a_row_comes_back_whole(store: &dyn AuditStore, fresh: &TestIds) {
    let range = minutes(fresh, 2);
    let closed_minute = closed_minute(fresh, range.start);
    store.save(&closed_minute).await.expect("saves");
    let mut row = MinuteRow {
        minute: range.start,
        closed_minute: Some(closed_minute.clone()),
        amendment: None,
    };
    assert_eq!(rows(store, &range).await, [row.clone()]);
    let verdict = MinuteVerdict {
        in_flight_ids: fresh.messages(3),
        missing_ids: fresh.messages(1001),
        contradictions: 7,
    };
    let amendment = Amendment::of(&closed_minute, range.end, &verdict);
    store.amend(range.start, &amendment).await.expect("amends");
    row.amendment = Some(amendment);
    assert_eq!(rows(store, &range).await, [row.clone()]);
    store.save(&closed_minute).await.expect("saves it again");
    assert_eq!(rows(store, &range).await, [row]);
}

pub(super) async fn rows_come_in_order_and_within_bounds(store: &dyn AuditStore, fresh: &TestIds) {
    let range = minutes(fresh, 8);
    let all: Vec<Timestamp> = (0..8).map(|n| range.start + MINUTE * n).collect();
    for &minute in all.iter().rev() {
        store
            .save(&closed_minute(fresh, minute))
            .await
            .expect("saves");
    }
    let read = async |minutes: Range<Timestamp>, limit| {
        let rows = store.rows(minutes, limit).await.expect("reads");
        rows.iter().map(|row| row.minute).collect::<Vec<_>>()
    };
    assert_eq!(read(range.clone(), 100).await, all);
    assert_eq!(read(range.clone(), 5).await, all[..5]);
    assert_eq!(read(all[2]..all[6], 100).await, all[2..6]);
    assert_eq!(read(all[2]..all[2], 100).await, []);
    let odd = all[2] + Duration::from_millis(1)..all[6] + Duration::from_millis(1);
    assert_eq!(read(odd, 100).await, all[3..7]);
}

pub(super) async fn only_a_later_look_replaces(store: &dyn AuditStore, fresh: &TestIds) {
    let range = minutes(fresh, 2);
    let closed_minute = closed_minute(fresh, range.start);
    let look = |millis| {
        let at = range.end + Duration::from_millis(millis);
        let verdict = MinuteVerdict {
            contradictions: millis,
            ..MinuteVerdict::default()
        };
        Amendment::of(&closed_minute, at, &verdict)
    };
    store.save(&closed_minute).await.expect("saves");
    for (millis, stands) in [(20, 20), (10, 20), (30, 30), (20, 30)] {
        store
            .amend(range.start, &look(millis))
            .await
            .expect("amends");
        let row = rows(store, &range).await.remove(0);
        assert_eq!(row.amendment, Some(look(stands)));
        assert_eq!(row.closed_minute.as_ref(), Some(&closed_minute));
    }
}

pub(super) async fn the_head_moves_from_the_turn_before(store: &dyn AuditStore, fresh: &TestIds) {
    let first = next(store, 1, fresh).await;
    assert!(store.advance(&first).await.expect("answers"));
    assert_eq!(store.head().await.expect("reads").as_ref(), Some(&first));
    assert!(store.advance(&first).await.expect("may be repeated"));

    // A second worker starts from the same head and comes too late.
    let second = next(store, 2, fresh).await;
    let other = ChainHead {
        worker: 3,
        ..second.clone()
    };
    assert!(store.advance(&second).await.expect("answers"));
    assert!(!store.advance(&other).await.expect("answers"));
    assert!(!store.advance(&first).await.expect("answers"));
    let skipping_head = ChainHead {
        turn: second.turn + 2,
        ..second.clone()
    };
    assert!(!store.advance(&skipping_head).await.expect("answers"));
    assert_eq!(store.head().await.expect("reads"), Some(second));
}

/// Each turn has one winner, however many workers try at once.
pub(super) async fn one_concurrent_advance_wins(store: &dyn AuditStore, fresh: &TestIds) {
    for _ in 0..5 {
        let head = next(store, 0, fresh).await;
        let heads = [1, 2, 3, 4].map(|worker| ChainHead {
            worker,
            ..head.clone()
        });
        let [a, b, c, d] = &heads;
        let results = tokio::join!(
            store.advance(a),
            store.advance(b),
            store.advance(c),
            store.advance(d)
        );
        let results = [results.0, results.1, results.2, results.3].map(|one| one.expect("answers"));
        let current = store.head().await.expect("reads").expect("a head");
        let winners: Vec<_> = heads
            .iter()
            .zip(results)
            .filter(|(_, is_moved)| *is_moved)
            .collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        assert_eq!(winners[0].0, &current);
    }
}

pub(super) async fn forgotten_minutes_leave_no_row(store: &dyn AuditStore, fresh: &TestIds) {
    let range = minutes(fresh, 8);
    for n in 0..8 {
        let closed_minute = closed_minute(fresh, range.start + MINUTE * n);
        store.save(&closed_minute).await.expect("saves");
        let amendment = Amendment::of(&closed_minute, range.end, &MinuteVerdict::default());
        let result = store.amend(closed_minute.minute, &amendment).await;
        result.expect("amends");
    }
    let cut = range.start + MINUTE * 5;
    let start = range.start - Duration::from_secs(3 * 86_400);
    store.forget(start..cut).await.expect("forgets");
    store.forget(start..cut).await.expect("forgets again");
    let remaining: Vec<_> = rows(store, &range).await;
    let remaining: Vec<_> = remaining.iter().map(|row| row.minute).collect();
    assert_eq!(remaining, [5, 6, 7].map(|n| range.start + MINUTE * n));
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_row_comes_back_whole,
            rows_come_in_order_and_within_bounds,
            only_a_later_look_replaces,
            the_head_moves_from_the_turn_before,
            one_concurrent_advance_wins,
            forgotten_minutes_leave_no_row,
        );
    };
}
pub(crate) use checks;
