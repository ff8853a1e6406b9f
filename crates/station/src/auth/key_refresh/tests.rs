use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp::from_millis(1_000_000_000);
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);

fn at(millis: u64) -> Timestamp {
    START + Duration::from_millis(millis)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A refresh whose set arrived at the start, with the next fetch in ten minutes.
fn fetched() -> KeyRefresh {
    let mut refresh = KeyRefresh::new(STALE_MAX, START);
    assert!(refresh.begin(START));
    refresh.arrived(None, START, 60_000);
    assert_eq!(refresh.due(), at(600_000));
    refresh
}

/// Time from an arrival to the next fetch, for this random number.
fn fetch_period(fresh_for: Option<Duration>, random: u64) -> Duration {
    let mut refresh = KeyRefresh::new(STALE_MAX, START);
    refresh.arrived(fresh_for, START, random);
    refresh.due().since(START)
}

#[test]
fn the_first_look_is_due_at_once_and_alone() {
    let mut refresh = KeyRefresh::new(STALE_MAX, START);
    assert!(!refresh.is_fit(START));
    assert!(refresh.begin(START));
    assert!(!refresh.begin(at(3_600_000)), "single flight");
    assert_eq!(refresh.missing(Some("a"), at(1)), MissingKey::Wait);
    refresh.arrived(None, at(10), 0);
    assert!(refresh.is_fit(at(10)));
    assert!(!refresh.begin(at(11)));
}

#[test]
fn looks_are_ten_minutes_apart_more_or_less_by_a_tenth() {
    for (random, period) in [
        (0, 540_000),
        (60_000, 600_000),
        (120_000, 660_000),
        (120_001, 540_000),
    ] {
        assert_eq!(fetch_period(None, random).as_millis(), period, "{random}");
    }
    let mut refresh = fetched();
    assert!(!refresh.begin(at(599_999)));
    assert!(refresh.begin(at(600_000)));
}

#[test]
fn a_provider_says_when_to_look_again_from_a_minute_to_an_hour() {
    for (fresh_for, random, period) in [
        (300, 0, 270_000),
        (300, 60_000, 330_000),
        (0, 0, 60_000),
        (59, 0, 60_000),
        (60, 0, 60_000),
        (60, 12_000, 66_000),
        (3600, 0, 3_240_000),
        (3600, 720_000, 3_600_000),
        (3601, 0, 3_240_000),
        (u64::MAX, 360_000, 3_600_000),
    ] {
        let fresh_for = Some(secs(fresh_for));
        let actual = fetch_period(fresh_for, random).as_millis();
        assert_eq!(actual, period, "{fresh_for:?} {random}");
    }
}

#[test]
fn cache_control_is_read_as_it_is_written() {
    for (text, expected) in [
        ("max-age=300", Some(300)),
        ("public, Max-Age=\"300\" , must-revalidate", Some(300)),
        ("max-age=300, max-age=400", Some(300)),
        ("max-age=300, no-cache", Some(0)),
        ("No-Store", Some(0)),
        ("no-cache=\"set-cookie\", max-age=300", Some(0)),
        ("s-maxage=300", None),
        ("max-age=-1", None),
        ("max-age=+1", None),
        ("max-age=", None),
        ("max-age", None),
        ("max-age=5m", None),
        ("public", None),
        ("", None),
        ("max-age=99999999999999999999999", Some(u64::MAX)),
    ] {
        assert_eq!(fresh_for(text), expected.map(secs), "{text}");
    }
}

#[test]
fn pauses_after_failures_double_from_a_second_to_a_minute() {
    let pauses = |random| {
        let (mut refresh, mut now) = (KeyRefresh::new(STALE_MAX, START), START);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(refresh.begin(now));
            refresh.failed(now, random);
            assert!(!refresh.begin(refresh.due() - Duration::from_millis(1)));
            pauses.push(refresh.due().since(now).as_millis());
            now = refresh.due();
        }
        refresh.arrived(None, now, 0);
        refresh.failed(now, random);
        assert_eq!(refresh.due().since(now).as_millis(), pauses[0]);
        pauses
    };
    let full_pauses = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000];
    assert_eq!(pauses(0), full_pauses);
    for (random, first, last) in [(500, 500, 59_500), (30_000, 1_000 - 30_000 % 501, 30_000)] {
        let pauses = pauses(random);
        assert_eq!((pauses[0], pauses[7]), (first, last));
    }
}

#[test]
fn an_unknown_kid_causes_one_look_in_half_a_minute() {
    let mut refresh = fetched();
    assert_eq!(refresh.missing(Some("a"), at(29_999)), MissingKey::Refuse);
    assert!(!refresh.begin(at(29_999)));
    assert_eq!(refresh.missing(Some("a"), at(30_000)), MissingKey::Wait);
    assert!(refresh.begin(at(30_000)));
    assert_eq!(refresh.missing(Some("b"), at(30_001)), MissingKey::Wait);
    assert!(!refresh.begin(at(30_001)), "single flight");
    refresh.failed(at(35_000), 0);
    assert_eq!(refresh.missing(Some("b"), at(35_001)), MissingKey::Away);
    assert_eq!(refresh.due(), at(36_000), "a look that failed comes again");
}

// An unreachable provider used to make honest tokens unknown for a minute.
#[test]
fn only_a_look_that_succeeded_makes_a_kid_unknown() {
    let mut refresh = fetched();
    assert_eq!(refresh.missing(Some("a"), at(30_000)), MissingKey::Wait);
    assert!(refresh.begin(at(30_000)));
    refresh.failed(at(31_000), 0);
    assert_eq!(refresh.again_after(at(31_000)), secs(1));
    for millis in [31_001, 31_999] {
        assert_eq!(refresh.missing(Some("a"), at(millis)), MissingKey::Away);
    }
    assert_eq!(refresh.missing(None, at(31_001)), MissingKey::Refuse);
    assert!(refresh.begin(at(32_000)));
    refresh.arrived(None, at(32_001), 0);
    assert_eq!(refresh.missing(Some("a"), at(32_002)), MissingKey::Refuse);
    for _ in 0..10 {
        refresh.failed(at(33_000), 0);
    }
    assert_eq!(refresh.again_after(at(33_000)), secs(60));
    // A fetch is under way, or due.
    assert_eq!(refresh.again_after(at(100_000)), secs(1));
}

#[test]
fn a_set_that_is_good_for_an_hour_is_no_trouble() {
    let mut refresh = KeyRefresh::new(STALE_MAX, START);
    assert!(refresh.begin(START));
    refresh.arrived(Some(secs(3600)), START, 720_000);
    let due_at = refresh.due();
    assert_eq!(due_at.since(START), secs(3600));
    for minute in 0..60 {
        assert!(!refresh.warns(at(minute * 60_000)), "{minute}");
    }
    assert!(!refresh.warns(due_at) && !refresh.warns(due_at + secs(59)));
    assert!(refresh.begin(due_at));
    refresh.failed(due_at + secs(5), 0);
    assert!(refresh.warns(due_at + secs(5)), "it failed");
    refresh.arrived(Some(secs(3600)), due_at + secs(10), 0);
    assert!(!refresh.warns(due_at + secs(3000)));
    let overdue_at = refresh.due() + secs(60);
    assert!(refresh.warns(overdue_at), "it did not come");
}

#[test]
fn a_kid_that_was_not_found_causes_no_look_for_a_minute() {
    let mut refresh = fetched();
    refresh.remember_unknown("a", at(40_000));
    refresh.remember_unknown("a", at(50_000));
    assert_eq!(refresh.missing(Some("a"), at(99_999)), MissingKey::Refuse);
    assert_eq!(refresh.missing(None, at(99_999)), MissingKey::Refuse);
    assert_eq!(refresh.missing(Some("a"), at(100_000)), MissingKey::Wait);
    let mut refresh = fetched();
    refresh.remember_unknown("a", at(40_000));
    assert_eq!(refresh.missing(Some("b"), at(40_000)), MissingKey::Wait);
    // Also while another token's fetch is under way.
    assert!(refresh.begin(at(40_000)));
    assert_eq!(refresh.missing(Some("a"), at(40_001)), MissingKey::Refuse);
}

#[test]
fn kids_that_were_not_found_are_1024_at_most() {
    let fill = |count: usize| {
        let mut refresh = fetched();
        for kid in 0..count {
            refresh.remember_unknown(&kid.to_string(), at(30_000));
        }
        assert!(refresh.unknown.len() == refresh.names.len());
        (
            refresh.names.len(),
            refresh.missing(Some("0"), at(30_000)),
            refresh.missing(Some("1"), at(30_000)),
        )
    };
    assert_eq!(fill(1024), (1024, MissingKey::Refuse, MissingKey::Refuse));
    let (count, first, _) = fill(1025);
    assert_eq!((count, first), (1024, MissingKey::Wait), "the oldest goes");
    let mut refresh = fetched();
    for kid in 0..1025 {
        refresh.remember_unknown(&kid.to_string(), at(30_000));
    }
    assert_eq!(refresh.missing(Some("1"), at(30_000)), MissingKey::Refuse);
}

#[test]
fn a_long_kid_causes_nothing_and_is_not_remembered() {
    let (longest_kid, too_long_kid) = ("k".repeat(256), "k".repeat(257));
    let mut refresh = fetched();
    assert_eq!(
        refresh.missing(Some(&too_long_kid), at(40_000)),
        MissingKey::Refuse
    );
    refresh.remember_unknown(&too_long_kid, at(40_000));
    assert_eq!(refresh.names.len(), 0);
    assert_eq!(
        refresh.missing(Some(&longest_kid), at(40_000)),
        MissingKey::Wait
    );
    refresh.remember_unknown(&longest_kid, at(40_000));
    assert_eq!(
        refresh.missing(Some(&longest_kid), at(40_000)),
        MissingKey::Refuse
    );
}

#[test]
fn keys_prove_nothing_once_they_are_stale() {
    let refresh = fetched();
    let stale = STALE_MAX.as_millis() as u64;
    assert!(refresh.is_fit(at(stale)));
    assert!(!refresh.is_fit(at(stale + 1)));
    // Every token then causes a fetch, once in half a minute.
    let mut refresh = fetched();
    assert!(refresh.begin(at(stale)));
    refresh.failed(at(stale + 1), 0);
    for _ in 0..7 {
        let due_at = refresh.due();
        assert!(refresh.begin(due_at));
        refresh.failed(due_at, 0);
    }
    let begun_at = refresh.begun_at.expect("it began");
    let too_early = begun_at + Duration::from_millis(29_999);
    assert_eq!(refresh.missing(None, too_early), MissingKey::Away);
    assert_eq!(refresh.missing(None, begun_at + secs(30)), MissingKey::Wait);
    assert!(refresh.begin(begun_at + secs(30)));
}

#[test]
fn restored_keys_have_their_age_and_the_first_fetch_stays_due() {
    let mut refresh = KeyRefresh::new(STALE_MAX, START);
    refresh.restore(STALE_MAX - secs(1), START);
    assert!(refresh.is_fit(at(1_000)) && !refresh.is_fit(at(1_001)));
    assert_eq!(refresh.age(at(500)), STALE_MAX - Duration::from_millis(500));
    assert!(refresh.begin(START));
    let wall = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    assert_eq!(copy_age(wall(100), wall(400)), Some(secs(300)));
    assert_eq!(copy_age(wall(460), wall(400)), Some(Duration::ZERO));
    assert_eq!(copy_age(wall(461), wall(400)), None, "of no age");
}

#[test]
fn an_age_is_said_from_half_an_hour_on_every_ten_minutes() {
    let mut refresh = fetched();
    let minute = 60_000;
    assert_eq!(refresh.age(at(29 * minute)), secs(29 * 60));
    let mut warns_at = |millis| refresh.warns(at(millis));
    let times = [30 * minute - 1, 30 * minute, 40 * minute - 1, 40 * minute];
    assert_eq!(times.map(&mut warns_at), [false, true, false, true]);
    refresh.arrived(None, at(41 * minute), 0);
    assert!(!refresh.warns(at(70 * minute)));
    assert!(refresh.warns(at(71 * minute)), "a new trouble");
    let mut without_keys = KeyRefresh::new(STALE_MAX, START);
    assert!(!without_keys.warns(at(30 * minute - 1)) && without_keys.warns(at(30 * minute)));
}

#[test]
fn a_sign_in_waits_two_seconds_and_64_of_them_at_a_time() {
    assert_eq!(FETCH_TIMEOUT, secs(2));
    assert_eq!(WAITERS_MAX, 64);
}

proptest! {
    // Strangers ask for any key, at any rate, and the provider sees two fetches a minute.
    #[test]
    fn strangers_cause_two_looks_a_minute_at_most(
        steps in prop::collection::vec((0_u64..3_000, 0_u8..4, 0_u64..6_000), 1..400),
        seed in any::<u64>(),
    ) {
        let mut refresh = fetched();
        let (mut now, mut ends_at, mut begun_at) = (0, None, vec![0_u64]);
        for (step, (pause, kid, length)) in steps.into_iter().enumerate() {
            now += pause;
            if ends_at.is_some_and(|end| end <= now) {
                refresh.arrived(Some(Duration::ZERO), at(now), seed);
                ends_at = None;
            }
            let kid = match kid {
                0 => format!("new {step}"),
                kid => kid.to_string(),
            };
            if refresh.missing(Some(&kid), at(now)) == MissingKey::Refuse && kid.len() < 3 {
                refresh.remember_unknown(&kid, at(now));
            }
            if refresh.begin(at(now)) {
                begun_at.push(now);
                ends_at = Some(now + length);
            }
        }
        for pair in begun_at.windows(2) {
            prop_assert!(pair[1] - pair[0] >= 30_000, "{pair:?}");
        }
    }
}
