use proptest::prelude::*;

use super::*;
use crate::id::snowflake::EPOCH;

fn id(n: u64) -> MessageId {
    MessageId::floor_of(EPOCH + Duration::from_millis(1 + n))
}

fn closed_minute(count: u64) -> ClosedMinute {
    let minute = minute_start(EPOCH + MINUTE * 10);
    let reading = MinuteReading {
        minute,
        accepted_count: count,
        ids: Digest::from_ids((0..count).map(id)),
        unread: 0,
        epoch: 1,
        stretches: vec![OffsetRange {
            from: 3,
            counted: 4,
            to: 9,
        }],
    };
    ClosedMinute::after(
        ChainLink::beginning(minute),
        reading,
        MinuteFigures::default(),
    )
}

fn verdict(
    in_flight_ids: std::ops::Range<u64>,
    missing_ids: std::ops::Range<u64>,
) -> MinuteVerdict {
    MinuteVerdict {
        in_flight_ids: in_flight_ids.map(id).collect(),
        missing_ids: missing_ids.map(id).collect(),
        contradictions: 0,
    }
}

// A time that an operator asked for overflowed.
#[test]
fn every_time_is_in_a_minute() {
    let minute_millis = |millis| minute_start(Timestamp::from_millis(millis)).millis();
    assert_eq!(
        [minute_millis(-1), minute_millis(0), minute_millis(59_999)],
        [-60_000, 0, 0]
    );
    assert_eq!(minute_millis(i64::MIN), i64::MIN);
    assert_eq!(minute_millis(i64::MAX).rem_euclid(60_000), 0);
}

/// SHA-256 of the bytes that the format specifies, computed by another program.
#[test]
fn a_digest_is_the_published_hash_of_fixed_bytes() {
    // printf 'packetboat audit 1 ids\0' | sha256sum
    assert_eq!(
        Digest::from_ids([]).to_string(),
        "66448d104131f3ff1cb968853c26ef2a733259fba9b36ef41a2ea8814f160b0b"
    );
}

#[test]
fn a_late_record_counts_in_the_minute_of_its_arrival() {
    let minute = minute_start(EPOCH + MINUTE * 10);
    let stretch = OffsetRange {
        from: 3,
        counted: 6,
        to: 9,
    };
    let counts = |offset, at| stretch.counts(minute, offset, at);
    assert!(counts(3, minute) && counts(8, minute + Duration::from_secs(59)));
    assert!(!counts(2, minute) && !counts(9, minute));
    assert!(!counts(7, minute + MINUTE), "of the next");
    assert!(!counts(5, minute - MINUTE), "counted before");
    assert!(counts(6, minute - MINUTE), "it came when that was closed");
}

#[test]
fn amendments_go_on_until_all_is_settled_and_take_nothing_back() {
    let closed_minute = closed_minute(10);
    let at = |minutes: u32| closed_minute.minute + MINUTE * minutes;
    let first = Amendment::of(&closed_minute, at(3), &verdict(0..3, 3..4));
    assert_eq!(first.figures().settled, 6);
    assert_eq!(first.open().expect("named"), [0, 1, 2, 3].map(id));
    assert!(!first.is_settled());
    assert_eq!(first.again_at(closed_minute.minute), at(4));

    let mut later_amendment = first.amended(&closed_minute, at(40), &verdict(0..1, 1..1));
    assert_eq!(
        (later_amendment.settled, later_amendment.in_flight.count),
        (9, 1)
    );
    assert_eq!(later_amendment.again_at(closed_minute.minute), at(50));
    // A dead letter was redriven.
    later_amendment = later_amendment.amended(&closed_minute, at(50), &verdict(0..5, 5..5));
    assert_eq!(
        (later_amendment.settled, later_amendment.looked_at),
        (9, at(50))
    );
    later_amendment = later_amendment.amended(&closed_minute, at(60), &MinuteVerdict::default());
    assert!(later_amendment.is_settled());
    assert_eq!(later_amendment.settled, closed_minute.accepted);
    assert_eq!(
        later_amendment.seal,
        later_amendment.recomputed(&closed_minute)
    );
}

#[test]
fn more_than_can_be_named_are_counted() {
    let many = NAMES_MAX as u64 + 5;
    let amendment = Amendment::of(&closed_minute(many), EPOCH, &verdict(0..many, 0..0));
    assert_eq!(amendment.in_flight.first.len(), NAMES_MAX);
    assert_eq!(amendment.in_flight.count, many);
    assert_eq!(amendment.open(), None, "not all of them have names");
}

proptest! {
    #[test]
    fn the_order_of_ids_and_their_number_change_no_digest(
        ids in proptest::collection::btree_set(0u64..500, 0..40),
        repeat_index in 0usize..40,
        other in 0u64..500,
    ) {
        let straight = Digest::from_ids(ids.iter().map(|&n| id(n)));
        let mut other_order: Vec<_> = ids.iter().rev().map(|&n| id(n)).collect();
        other_order.extend(other_order.get(repeat_index).copied());
        prop_assert_eq!(straight, Digest::from_ids(other_order));
        let mut changed_ids = ids.clone();
        if !changed_ids.remove(&other) {
            changed_ids.insert(other);
        }
        prop_assert_ne!(straight, Digest::from_ids(changed_ids.iter().map(|&n| id(n))));
    }

    /// Every figure is covered: a change of any shows in the digest or the seal.
    #[test]
    fn every_change_shows_in_the_digest_or_the_seal(figure in 0usize..12, by in 1u64..1000) {
        let mut row = closed_minute(10);
        let amendment = Amendment::of(&row, EPOCH, &verdict(0..2, 2..3));
        let mut changed_amendment = amendment.clone();
        match figure {
            0 => row.number += by,
            1 => row.minute = row.minute + Duration::from_millis(by),
            2 => row.accepted += by,
            3 => row.ids = Digest::from_ids([id(by)]),
            4 => row.unread += by,
            5 => row.epoch += by as u32,
            6 => row.stretches[0].to += by,
            7 => row.then.missing += by,
            8 => row.before = Digest::from_ids([id(by)]),
            9 => changed_amendment.settled += by,
            10 => changed_amendment.missing.first[0] = id(100 + by),
            _ => changed_amendment.contradictions += by,
        }
        if figure < 9 {
            prop_assert_ne!(row.digest, row.recomputed());
        } else {
            prop_assert_ne!(changed_amendment.seal, changed_amendment.recomputed(&row));
            prop_assert_eq!(amendment.seal, amendment.recomputed(&row));
        }
    }
}
