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

fn revocation(number: i64, before: i64, written: i64) -> Revocation {
    Revocation {
        user: user(number),
        before: at(before),
        reason: "stolen".to_owned(),
        by: "ann".to_owned(),
        at: at(written),
    }
}

fn set_of(rows: &[Revocation]) -> Revocations {
    let mut set = Revocations::default();
    for row in rows {
        assert_ne!(set.insert(row.into()), Insertion::Full);
    }
    set
}

/// Rows of a store within a window.
fn read(store: &[Revocation], window: &Window) -> Vec<Revocation> {
    let asked = |row: &&Revocation| row.at >= window.since && window.hours.contains(&row.hour());
    store.iter().filter(asked).cloned().collect()
}

#[test]
fn numbers_are_those_of_the_promise() {
    let secs = Duration::from_secs;
    assert_eq!(REVOCATIONS_MAX, 1_000_000);
    assert_eq!(CLOCKS_APART, secs(60));
    assert_eq!(retention(LIFETIME), secs(26 * 3600));
    assert_eq!((POLL.mean, POLL.around), (secs(5), secs(1)));
    assert_eq!((ASK.mean, ASK.around), (secs(10), secs(2)));
    assert_eq!(ASK_WITHIN, secs(2));
    assert_eq!(STALE_FROM, secs(60));
    assert_eq!(PAGE, 10_000);
}

// Reads and queries that are all answered late, with one of each lost.
#[test]
fn a_session_ends_within_a_minute() {
    let store_within = Duration::from_secs(3);
    let station = (POLL.longest() + store_within) * 2;
    let boat = (ASK.longest() + ASK_WITHIN) * 2;
    assert!(station + boat < Duration::from_secs(60));
}

#[test]
fn pauses_differ_and_stay_near_their_mean() {
    let secs = Duration::from_secs;
    assert_eq!(POLL.draw(0), secs(4));
    assert_eq!(POLL.draw(2000), secs(6));
    assert_eq!(POLL.draw(2001), secs(4));
    assert_eq!(ASK.draw(4000), secs(12));
    assert_eq!(ASK.longest(), secs(12));
}

#[test]
fn a_token_is_refused_that_was_issued_before() {
    let set = set_of(&[revocation(1, 100, 100)]);
    assert!(set.refuses(user(1), at(99)));
    assert!(set.refuses(user(1), UNDATED));
    assert!(!set.refuses(user(1), at(100)));
    assert!(!set.refuses(user(2), at(99)));
}

#[test]
fn the_largest_time_of_a_user_counts() {
    for order in [[0, 1], [1, 0]] {
        let rows = [revocation(1, 100, 200), revocation(1, 150, 160)];
        let set = set_of(&order.map(|place| rows[place].clone()));
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
    let later = revocation(2, 5, 5);
    assert_eq!(set.insert((&later).into()), Insertion::Changed);
    assert!(set.refuses(user(2), at(4)));
    assert_eq!(Revocations::default().max, REVOCATIONS_MAX);
}

#[test]
fn a_revocation_goes_when_the_last_token_has() {
    let retention = retention(LIFETIME);
    let mut set = set_of(&[revocation(1, 100, 100), revocation(2, 200, 200)]);
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
    let mut set = set_of(&rows);
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
    let mut wordy = revocation(1, 0, 0);
    wordy.reason = "x".repeat(1024);
    wordy.by = "x".repeat(256);
    assert_eq!(code(wordy.clone()), Ok(()));
    wordy.by.push('x');
    assert_eq!(code(wordy.clone()), Err(Code::InvalidArgument));
    wordy.by.pop();
    wordy.reason.push('x');
    assert_eq!(code(wordy), Err(Code::InvalidArgument));
}

#[test]
fn the_first_read_is_of_all_that_may_matter_and_the_next_of_two_hours() {
    let retention = retention(LIFETIME);
    // Half an hour after a full hour.
    let now = at(0);
    let this = hour(now);
    let mut cursor = RevocationCursor::default();
    let window = cursor.window(now, retention);
    assert_eq!(window.since, now - retention);
    assert_eq!(window.hours, this - 26..=this);

    cursor.handle_read(now, []);
    let later = at(5);
    assert_eq!(cursor.window(later, retention).hours, this - 1..=this);
    cursor.handle_read(later, [at(3)]);
    let window = cursor.window(at(10), retention);
    assert_eq!(window.since, at(3 - 60));
    assert_eq!(window.hours, this - 1..=this);

    // Three hours without a read.
    let window = cursor.window(at(3 * 3600), retention);
    assert_eq!(window.since, at(3 - 60));
    assert_eq!(window.hours, this - 1..=this + 3);
}

#[test]
fn a_clock_that_is_ahead_hides_nothing() {
    let mut cursor = RevocationCursor::default();
    cursor.handle_read(at(5), [at(600)]);
    let window = cursor.window(at(10), retention(LIFETIME));
    assert_eq!(window.since, at(5 - 60));
    let full = (hour(at(0)) + 1) * HOUR_MILLIS;
    let before = Timestamp::from_millis(full) - Duration::from_secs(59);
    let window = cursor.window(before, retention(LIFETIME));
    assert_eq!(*window.hours.end(), hour(before) + 1);
}

#[test]
fn a_boat_ends_older_sessions_and_those_it_knows_the_time_of() {
    let set = set_of(&[revocation(1, 100, 100)]);
    let endings = Endings::of(set.page(Follower::default().start(), PAGE));
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
    let row = (1..6i64, 0..300i64, 0..300i64).prop_map(|(number, before, written)| {
        // A `before` no later than the write.
        revocation(number, before.min(written), written)
    });
    vec(row, 0..20)
}

proptest! {
    #[test]
    fn the_order_of_arrival_does_not_matter(
        (rows, shuffled) in rows().prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
    ) {
        let (one, other) = (set_of(&rows), set_of(&shuffled));
        let start = Follower::default().start();
        prop_assert_eq!(one.page(start, PAGE), other.page(start, PAGE));
        for number in 1..6 {
            for issued in (0..300).step_by(7) {
                let before = |row: &Revocation| row.user == user(number) && at(issued) < row.before;
                let expected = rows.iter().any(before);
                prop_assert_eq!(one.refuses(user(number), at(issued)), expected);
                prop_assert_eq!(other.refuses(user(number), at(issued)), expected);
            }
        }
    }

    #[test]
    fn pages_together_are_all(rows in rows(), limit in 1..5usize, since in -60..300i64) {
        let set = set_of(&rows);
        let start = PageStart::of(at(since));
        let mut pages = Vec::new();
        let mut next = Some(start);
        while let Some(from) = next {
            let page = set.page(from, limit);
            prop_assert!(page.len() <= limit);
            next = page.last().map(|last| PageStart::behind(last.at, last.user));
            pages.extend(page);
        }
        prop_assert_eq!(pages, set.page(start, PAGE));
    }

    // A station whose reads fail now and then, with writers' clocks up to a minute off.
    #[test]
    fn a_lost_poll_is_made_up_for(
        writes in vec((0..20_000i64, -59..=59i64, 1..50i64), 0..30),
        polls in vec((1..4000i64, any::<bool>()), 1..40),
    ) {
        let retention = retention(LIFETIME);
        let (mut set, mut cursor, mut now, mut through) = (Revocations::default(), RevocationCursor::default(), 0, -1);
        for (pause, succeeds) in polls {
            now += pause;
            let store: Vec<_> = (writes.iter())
                .filter(|(written, ..)| *written <= now)
                .map(|&(written, skew, number)| revocation(number, written, written + skew))
                .collect();
            if !succeeds {
                continue;
            }
            let rows = read(&store, &cursor.window(at(now), retention));
            for row in &rows {
                set.insert(row.into());
            }
            cursor.handle_read(at(now), rows.iter().map(|row| row.at));
            through = now;
        }
        for &(written, _, number) in &writes {
            if written <= through {
                prop_assert!(set.refuses(user(number), at(written - 1)));
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
        let mut read = [-1; 3];
        let mut ends = BTreeMap::new();
        for (pause, succeeds, station, lag) in asks {
            now += pause;
            let through = read[station].max(now - lag);
            read[station] = through;
            if !succeeds {
                continue;
            }
            let rows: Vec<_> = (writes.iter())
                .filter(|(written, _, _, by)| *written <= through || (*by == station && *written <= now))
                .map(|&(written, skew, number, _)| revocation(number, written, written + skew))
                .collect();
            let page = set_of(&rows).page(follower.start(), PAGE);
            follower.handle_page(&page);
            follower.handle_end(at(through + skews[station]));
            for one in page {
                let before = ends.entry(one.user).or_insert(one.before);
                *before = one.before.max(*before);
            }
            for &(written, _, number, _) in &writes {
                if written <= through {
                    prop_assert!(ends.get(&user(number)).is_some_and(|before| *before >= at(written)));
                }
            }
        }
    }
}

fn ask(follower: &mut Follower, known: &[Revocation], until: i64) -> Vec<UserRevocation> {
    let page = set_of(known).page(follower.start(), PAGE);
    follower.handle_page(&page);
    follower.handle_end(at(until));
    page
}

#[test]
fn a_station_that_reads_nothing_leads_no_boat_past_what_it_lacks() {
    let (unread, own) = (revocation(1, 500, 500), revocation(2, 900, 900));
    let mut follower = Follower::default();
    // The station's store is away since 400, and it wrote one revocation itself.
    for _ in 0..3 {
        ask(&mut follower, std::slice::from_ref(&own), 400);
    }
    let page = ask(&mut follower, &[unread, own], 1000);
    assert!(page.iter().any(|of| of.user == user(1)), "{page:?}");
}

#[test]
fn a_station_whose_clock_is_ahead_leads_no_boat_past_the_next() {
    let ahead = revocation(1, 100, 800);
    let mut follower = Follower::default();
    ask(&mut follower, std::slice::from_ref(&ahead), 810);
    ask(&mut follower, std::slice::from_ref(&ahead), 120);
    let next = revocation(2, 130, 130);
    let page = ask(&mut follower, &[ahead.clone(), next.clone()], 140);
    assert!(page.iter().any(|of| of.user == user(2)), "{page:?}");
    // The clock is right again, and queries are short.
    ask(&mut follower, &[ahead.clone(), next.clone()], 1000);
    ask(&mut follower, &[ahead, next], 1000);
    assert_eq!(follower.start(), PageStart::of(at(740)));
}

#[test]
fn a_station_that_does_not_say_what_it_knows_is_asked_for_all_again() {
    let mut follower = Follower::default();
    ask(&mut follower, &[revocation(1, 100, 100)], 200);
    let first = Follower::default().start();
    assert_eq!(follower.start(), first);
    follower.handle_end(Timestamp::ZERO);
    assert_eq!(follower.start(), first);
}
