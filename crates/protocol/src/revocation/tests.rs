use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LIFETIME: Duration = Duration::from_secs(24 * 3600);

fn at(secs: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + secs * 1000)
}

fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

fn revocation(number: i64, cutoff: i64, revoked_at: i64) -> Revocation {
    Revocation {
        user: user(number),
        before: at(cutoff),
        reason: "stolen".to_owned(),
        by: "ann".to_owned(),
        at: at(revoked_at),
    }
}

fn revocations_from(rows: &[Revocation]) -> Revocations {
    let mut set = Revocations::default();
    for row in rows {
        assert_ne!(set.insert(row.into()), Insertion::Full);
    }
    set
}

/// Rows of a store within a window.
fn read(store: &[Revocation], window: &Window) -> Vec<Revocation> {
    let is_in_window =
        |row: &&Revocation| row.at >= window.start && window.hours.contains(&row.hour());
    store.iter().filter(is_in_window).cloned().collect()
}

#[test]
fn numbers_are_those_of_the_promise() {
    let secs = Duration::from_secs;
    assert_eq!(REVOCATIONS_MAX, 1_000_000);
    assert_eq!(MAX_CLOCK_SKEW, secs(60));
    assert_eq!(retention(LIFETIME), secs(26 * 3600));
    assert_eq!((POLL_PAUSE.mean, POLL_PAUSE.around), (secs(5), secs(1)));
    assert_eq!((QUERY_PAUSE.mean, QUERY_PAUSE.around), (secs(10), secs(2)));
    assert_eq!(QUERY_TIMEOUT, secs(2));
    assert_eq!(STALE_AGE, secs(60));
    assert_eq!(PAGE_SIZE, 10_000);
}

// Reads and queries that are all answered late, with one of each lost.
#[test]
fn a_session_ends_within_a_minute() {
    let store_timeout = Duration::from_secs(3);
    let station = (POLL_PAUSE.longest() + store_timeout) * 2;
    let boat = (QUERY_PAUSE.longest() + QUERY_TIMEOUT) * 2;
    assert!(station + boat < Duration::from_secs(60));
}

#[test]
fn pauses_differ_and_stay_near_their_mean() {
    let secs = Duration::from_secs;
    assert_eq!(POLL_PAUSE.draw(0), secs(4));
    assert_eq!(POLL_PAUSE.draw(2000), secs(6));
    assert_eq!(POLL_PAUSE.draw(2001), secs(4));
    assert_eq!(QUERY_PAUSE.draw(4000), secs(12));
    assert_eq!(QUERY_PAUSE.longest(), secs(12));
}

#[test]
fn a_token_is_refused_that_was_issued_before() {
    let set = revocations_from(&[revocation(1, 100, 100)]);
    assert!(set.refuses(user(1), at(99)));
    assert!(set.refuses(user(1), UNDATED));
    assert!(!set.refuses(user(1), at(100)));
    assert!(!set.refuses(user(2), at(99)));
}

#[test]
fn the_largest_time_of_a_user_counts() {
    for order in [[0, 1], [1, 0]] {
        let rows = [revocation(1, 100, 200), revocation(1, 150, 160)];
        let set = revocations_from(&order.map(|place| rows[place].clone()));
        assert!(set.refuses(user(1), at(149)));
        assert!(!set.refuses(user(1), at(150)));
        assert_eq!(set.len(), 1);
    }
}

#[test]
fn at_the_bound_no_further_user_is_revoked() {
    let mut set = Revocations::with_room_for(2);
    let mut insert = |number, secs| set.insert((&revocation(number, secs, secs)).into());
    assert_eq!(insert(1, 1), Insertion::Changed);
    assert_eq!(insert(2, 1), Insertion::Changed);
    assert_eq!(insert(2, 1), Insertion::Unchanged);
    assert_eq!(insert(3, 1), Insertion::Full);
    let refusal = set.admit(user(3)).expect_err("it is full");
    assert_eq!(refusal.code, Code::Forbidden);
    assert!(refusal.text.contains("new keys"), "{refusal}");
    assert!(set.admit(user(2)).is_ok());
    let later_revocation = revocation(2, 5, 5);
    assert_eq!(set.insert((&later_revocation).into()), Insertion::Changed);
    assert!(set.refuses(user(2), at(4)));
    assert_eq!(Revocations::default().max, REVOCATIONS_MAX);
}

#[test]
fn a_revocation_goes_when_the_last_token_has() {
    let retention = retention(LIFETIME);
    let mut set = revocations_from(&[revocation(1, 100, 100), revocation(2, 200, 200)]);
    set.forget(at(99) + retention, retention);
    assert_eq!(set.len(), 2);
    set.forget(at(100) + retention, retention);
    assert!(!set.refuses(user(1), at(0)));
    assert!(set.refuses(user(2), at(0)));
    set.forget(at(200) + retention, retention);
    assert!(set.is_empty());
    assert_eq!(set.page(Follower::default().start(), 9), []);
}

// A million revocations that expired in one hour used to keep every sign-in waiting.
#[test]
fn a_step_of_forgetting_is_bounded() {
    let retention = retention(LIFETIME);
    let rows: Vec<_> = (1..=25_000)
        .map(|number| revocation(number, 0, number / 100))
        .collect();
    let mut set = revocations_from(&rows);
    let now = at(1_000) + retention;
    assert!(set.forget(now, retention));
    assert_eq!(set.len(), 15_000);
    assert!(set.refuses(user(10_001), at(-1)), "the oldest go first");
    assert!(set.forget(now, retention));
    assert!(!set.forget(now, retention));
    assert!(set.is_empty());
    assert!(!set.forget(now, retention));
}

#[test]
fn tokens_of_the_future_and_long_words_are_no_revocation() {
    let code = |revocation: Revocation| revocation.check().map_err(|refusal| refusal.code);
    assert_eq!(code(revocation(1, 60, 0)), Ok(()));
    assert_eq!(code(revocation(1, 61, 0)), Err(Code::InvalidArgument));
    let mut longest = revocation(1, 0, 0);
    longest.reason = "x".repeat(1024);
    longest.by = "x".repeat(256);
    assert_eq!(code(longest.clone()), Ok(()));
    longest.by.push('x');
    assert_eq!(code(longest.clone()), Err(Code::InvalidArgument));
    longest.by.pop();
    longest.reason.push('x');
    assert_eq!(code(longest), Err(Code::InvalidArgument));
}

#[test]
fn first_read_covers_the_retention_and_the_next_two_hours() {
    let retention = retention(LIFETIME);
    // Half an hour after a full hour.
    let now = at(0);
    let this_hour = hour(now);
    let mut cursor = RevocationCursor::default();
    let window = cursor.window(now, retention);
    assert_eq!(window.start, now - retention);
    assert_eq!(window.hours, this_hour - 26..=this_hour);

    cursor.handle_read(now, []);
    let later_read = at(5);
    assert_eq!(
        cursor.window(later_read, retention).hours,
        this_hour - 1..=this_hour
    );
    cursor.handle_read(later_read, [at(3)]);
    let window = cursor.window(at(10), retention);
    assert_eq!(window.start, at(3 - 60));
    assert_eq!(window.hours, this_hour - 1..=this_hour);

    // Three hours without a read.
    let window = cursor.window(at(3 * 3600), retention);
    assert_eq!(window.start, at(3 - 60));
    assert_eq!(window.hours, this_hour - 1..=this_hour + 3);
}

#[test]
fn a_clock_that_is_ahead_hides_nothing() {
    let mut cursor = RevocationCursor::default();
    cursor.handle_read(at(5), [at(600)]);
    let window = cursor.window(at(10), retention(LIFETIME));
    assert_eq!(window.start, at(5 - 60));
    let hour_end_millis = (hour(at(0)) + 1) * HOUR_MILLIS;
    let almost_full = Timestamp::from_millis(hour_end_millis) - Duration::from_secs(59);
    let window = cursor.window(almost_full, retention(LIFETIME));
    assert_eq!(*window.hours.end(), hour(almost_full) + 1);
}

#[test]
fn a_boat_ends_older_sessions_and_those_it_knows_the_time_of() {
    let set = revocations_from(&[revocation(1, 100, 100)]);
    let endings = Endings::of(set.page(Follower::default().start(), PAGE_SIZE));
    assert!(endings.ends(user(1), Some(at(99))));
    assert!(endings.ends(user(1), Some(UNDATED)));
    assert!(!endings.ends(user(1), Some(at(100))));
    assert!(!endings.ends(user(1), None));
    assert!(!endings.ends(user(2), Some(at(99))));
    assert!(Endings::default().is_empty());
}

#[test]
fn refusals_say_what_helps() {
    assert_eq!(refusal().code, Code::Unauthenticated);
    assert_eq!(closing().code, Code::KickedOut);
    assert!(!closing().code.retryable(), "clients stay away");
    let stale = stale_refusal(Duration::from_secs(61));
    assert_eq!(stale.code, Code::Unavailable);
    assert!(stale.text.contains("61 s"), "{stale}");
}

/// (user, before, at), in seconds.
fn rows() -> impl Strategy<Value = Vec<Revocation>> {
    let row = (1..6i64, 0..300i64, 0..300i64).prop_map(|(number, cutoff, revoked_at)| {
        // A `cutoff` no later than the write.
        revocation(number, cutoff.min(revoked_at), revoked_at)
    });
    vec(row, 0..20)
}

proptest! {
    #[test]
    fn the_order_of_arrival_does_not_matter(
        (rows, shuffled_rows) in rows().prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
    ) {
        let (in_order, out_of_order) = (revocations_from(&rows), revocations_from(&shuffled_rows));
        let start = Follower::default().start();
        prop_assert_eq!(in_order.page(start, PAGE_SIZE), out_of_order.page(start, PAGE_SIZE));
        for number in 1..6 {
            for issued_at in (0..300).step_by(7) {
                let is_revoked = |row: &Revocation| row.user == user(number) && at(issued_at) < row.before;
                let expected = rows.iter().any(is_revoked);
                prop_assert_eq!(in_order.refuses(user(number), at(issued_at)), expected);
                prop_assert_eq!(out_of_order.refuses(user(number), at(issued_at)), expected);
            }
        }
    }

    #[test]
    fn pages_together_are_all(rows in rows(), limit in 1..5usize, start_secs in -60..300i64) {
        let set = revocations_from(&rows);
        let start = PageStart::of(at(start_secs));
        let mut pages = Vec::new();
        let mut next = Some(start);
        while let Some(page_start) = next {
            let page = set.page(page_start, limit);
            prop_assert!(page.len() <= limit);
            next = page.last().map(|last| PageStart::behind(last.at, last.user));
            pages.extend(page);
        }
        prop_assert_eq!(pages, set.page(start, PAGE_SIZE));
    }

    // A station whose reads fail now and then, with writers' clocks up to a minute off.
    #[test]
    fn a_lost_poll_is_made_up_for(
        writes in vec((0..20_000i64, -59..=59i64, 1..50i64), 0..30),
        polls in vec((1..4000i64, any::<bool>()), 1..40),
    ) {
        let retention = retention(LIFETIME);
        let (mut set, mut cursor, mut now, mut complete_until) = (Revocations::default(), RevocationCursor::default(), 0, -1);
        for (pause, succeeds) in polls {
            now += pause;
            let store: Vec<_> = (writes.iter())
                .filter(|(revoked_at, ..)| *revoked_at <= now)
                .map(|&(revoked_at, skew, number)| revocation(number, revoked_at, revoked_at + skew))
                .collect();
            if !succeeds {
                continue;
            }
            let rows = read(&store, &cursor.window(at(now), retention));
            for row in &rows {
                set.insert(row.into());
            }
            cursor.handle_read(at(now), rows.iter().map(|row| row.at));
            complete_until = now;
        }
        for &(revoked_at, _, number) in &writes {
            if revoked_at <= complete_until {
                prop_assert!(set.refuses(user(number), at(revoked_at - 1)));
            }
        }
    }

    // A boat whose queries get lost, or reach stations that have read nothing for minutes but know
    // their own writes. Clocks of writers and stations differ by less than a minute.
    #[test]
    fn a_question_that_was_lost_is_made_up_for(
        writes in vec((0..3600i64, -29..=29i64, 1..50i64, 0..3usize), 0..30),
        asks in vec((1..200i64, any::<bool>(), 0..3usize, 0..900i64), 1..60),
        skews in [-29..=29i64, -29..=29i64, -29..=29i64],
    ) {
        let (mut follower, mut now) = (Follower::default(), 0);
        let mut read_until = [-1; 3];
        let mut cutoffs = BTreeMap::new();
        for (pause, succeeds, station, lag) in asks {
            now += pause;
            let complete_until = read_until[station].max(now - lag);
            read_until[station] = complete_until;
            if !succeeds {
                continue;
            }
            let rows: Vec<_> = (writes.iter())
                .filter(|(revoked_at, _, _, station_of_row)| *revoked_at <= complete_until || (*station_of_row == station && *revoked_at <= now))
                .map(|&(revoked_at, skew, number, _)| revocation(number, revoked_at, revoked_at + skew))
                .collect();
            let page = revocations_from(&rows).page(follower.start(), PAGE_SIZE);
            follower.handle_page(&page);
            follower.handle_end(at(complete_until + skews[station]));
            for revocation_row in page {
                let cutoff = cutoffs.entry(revocation_row.user).or_insert(revocation_row.before);
                *cutoff = revocation_row.before.max(*cutoff);
            }
            for &(revoked_at, _, number, _) in &writes {
                if revoked_at <= complete_until {
                    prop_assert!(cutoffs.get(&user(number)).is_some_and(|cutoff| *cutoff >= at(revoked_at)));
                }
            }
        }
    }
}

fn ask(follower: &mut Follower, rows: &[Revocation], complete_until: i64) -> Vec<UserRevocation> {
    let page = revocations_from(rows).page(follower.start(), PAGE_SIZE);
    follower.handle_page(&page);
    follower.handle_end(at(complete_until));
    page
}

#[test]
fn station_that_reads_nothing_hides_no_revocation_from_boats() {
    let (unread_row, own_row) = (revocation(1, 500, 500), revocation(2, 900, 900));
    let mut follower = Follower::default();
    // The station's store is away since 400, and it wrote one revocation itself.
    for _ in 0..3 {
        ask(&mut follower, std::slice::from_ref(&own_row), 400);
    }
    let page = ask(&mut follower, &[unread_row, own_row], 1000);
    assert!(page.iter().any(|row| row.user == user(1)), "{page:?}");
}

#[test]
fn a_station_whose_clock_is_ahead_leads_no_boat_past_the_next() {
    let future_row = revocation(1, 100, 800);
    let mut follower = Follower::default();
    ask(&mut follower, std::slice::from_ref(&future_row), 810);
    ask(&mut follower, std::slice::from_ref(&future_row), 120);
    let next = revocation(2, 130, 130);
    let page = ask(&mut follower, &[future_row.clone(), next.clone()], 140);
    assert!(page.iter().any(|row| row.user == user(2)), "{page:?}");
    // The clock is right again, and queries are short.
    ask(&mut follower, &[future_row.clone(), next.clone()], 1000);
    ask(&mut follower, &[future_row, next], 1000);
    assert_eq!(follower.start(), PageStart::of(at(740)));
}

#[test]
fn station_with_unknown_progress_is_asked_for_everything() {
    let mut follower = Follower::default();
    ask(&mut follower, &[revocation(1, 100, 100)], 200);
    let first = Follower::default().start();
    assert_eq!(follower.start(), first);
    follower.handle_end(Timestamp::ZERO);
    assert_eq!(follower.start(), first);
}
