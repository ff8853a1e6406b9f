//! Contract of every revocation store. Each check uses hours of its own.

use std::time::Duration;

use protocol::revocation::{PageStart, Revocation};
use protocol::{Timestamp, UserId};

use super::RevocationStore;
use crate::test_ids::TestIds;

const RETENTION: Duration = Duration::from_secs(3600);
const HOUR_MILLIS: i64 = 3_600_000;
const MAX_ROWS: usize = 1000;

/// Returns an hour whose neighbours are unused, too.
fn hour(fresh: &TestIds) -> i64 {
    450_000 + 3 * (fresh.user().get() % 9_999_999)
}

fn at(hour: i64, millis: i64) -> Timestamp {
    Timestamp::from_millis(hour * HOUR_MILLIS + millis)
}

fn revocation(user: UserId, at: Timestamp) -> Revocation {
    Revocation {
        user,
        before: at - Duration::from_millis(5),
        reason: "a phone was stolen".to_owned(),
        by: "ann".to_owned(),
        at,
    }
}

async fn add(store: &dyn RevocationStore, revocation: &Revocation) {
    store.add(revocation, RETENTION).await.expect("writes");
}

async fn rows(store: &dyn RevocationStore, hour: i64) -> Vec<Revocation> {
    let all = PageStart::of(Timestamp::ZERO);
    store.page(hour, all, MAX_ROWS).await.expect("reads")
}

pub(super) async fn a_row_comes_back_whole(store: &dyn RevocationStore, fresh: &TestIds) {
    let hour = hour(fresh);
    assert_eq!(rows(store, hour).await, []);
    let expected = revocation(fresh.user(), at(hour, 7));
    add(store, &expected).await;
    add(store, &expected).await;
    assert_eq!(rows(store, hour).await, [expected]);
}

pub(super) async fn pages_go_by_time_and_user(store: &dyn RevocationStore, fresh: &TestIds) {
    let hour = hour(fresh);
    let users: Vec<UserId> = (0..3).map(|_| fresh.user()).collect();
    let mut expected = Vec::new();
    for millis in [0, 10, 11] {
        expected.extend(users.iter().map(|user| revocation(*user, at(hour, millis))));
    }
    for revocation in expected.iter().rev() {
        add(store, revocation).await;
    }
    assert_eq!(rows(store, hour).await, expected);
    for (from, limit, places) in [
        (PageStart::of(at(hour, 10)), MAX_ROWS, 3..9),
        (PageStart::of(at(hour, 5)), 4, 3..7),
        (PageStart::behind(at(hour, 10), users[1]), MAX_ROWS, 5..9),
        (PageStart::behind(at(hour, 10), users[1]), 2, 5..7),
        (PageStart::behind(at(hour, 11), users[2]), MAX_ROWS, 9..9),
        (PageStart::of(Timestamp::ZERO), 0, 0..0),
    ] {
        let page = store.page(hour, from, limit).await.expect("reads");
        assert_eq!(page, expected[places], "{from:?}");
    }
}

pub(super) async fn an_hour_ends_with_its_last_millisecond(
    store: &dyn RevocationStore,
    fresh: &TestIds,
) {
    let hour = hour(fresh);
    let last = revocation(fresh.user(), at(hour, HOUR_MILLIS - 1));
    let next = revocation(fresh.user(), at(hour + 1, 0));
    add(store, &last).await;
    add(store, &next).await;
    assert_eq!(rows(store, hour).await, [last]);
    assert_eq!(rows(store, hour + 1).await, [next]);
    let late = PageStart::of(at(hour + 1, 0));
    assert_eq!(store.page(hour, late, MAX_ROWS).await.expect("reads"), []);
}

pub(super) async fn larger_cutoff_wins_at_equal_times(
    store: &dyn RevocationStore,
    fresh: &TestIds,
) {
    let hour = hour(fresh);
    let (early, late) = (fresh.user(), fresh.user());
    let revocation_before = |user, millis| Revocation {
        before: at(hour, millis),
        ..revocation(user, at(hour, 9))
    };
    for (user, befores) in [(early, [1, 2]), (late, [2, 1])] {
        for millis in befores {
            add(store, &revocation_before(user, millis)).await;
        }
    }
    assert_eq!(
        rows(store, hour).await,
        [revocation_before(early, 2), revocation_before(late, 2)]
    );
}

/// Expires by passage of time, or by the time of the next revocation.
pub(super) async fn a_revocation_outlives_its_retention_only_until_the_next(
    store: &dyn RevocationStore,
    fresh: &TestIds,
) {
    let (hour, retention) = (hour(fresh), Duration::from_secs(1));
    let first = revocation(fresh.user(), at(hour, 0));
    store.add(&first, retention).await.expect("writes");
    tokio::time::sleep(retention * 2).await;
    let next = revocation(fresh.user(), at(hour, 2000));
    store.add(&next, RETENTION).await.expect("writes");
    store.add(&next, retention).await.expect("writes");
    let remaining = rows(store, hour).await;
    assert!(!remaining.contains(&first), "{remaining:?}");
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_row_comes_back_whole,
            pages_go_by_time_and_user,
            an_hour_ends_with_its_last_millisecond,
            larger_cutoff_wins_at_equal_times,
            a_revocation_outlives_its_retention_only_until_the_next,
        );
    };
}
pub(crate) use checks;
