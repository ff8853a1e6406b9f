use proptest::prelude::*;

use super::*;
use crate::id::snowflake::EPOCH;

fn id(n: u64) -> MessageId {
    MessageId::floor_of(EPOCH + Duration::from_millis(1 + n))
}

fn closed(accepted: u64) -> ClosedMinute {
    let minute = minute_of(EPOCH + MINUTE * 10);
    let reading = MinuteReading {
        minute,
        accepted,
        ids: Digest::of_ids((0..accepted).map(id)),
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

fn found(in_flight: std::ops::Range<u64>, missing: std::ops::Range<u64>) -> MinuteVerdict {
    MinuteVerdict {
        in_flight: in_flight.map(id).collect(),
        missing: missing.map(id).collect(),
        contradictions: 0,
    }
}

// A time that an operator asked for overflowed.
#[test]
fn every_time_is_in_a_minute() {
    let of = |millis| minute_of(Timestamp::from_millis(millis)).millis();
    assert_eq!([of(-1), of(0), of(59_999)], [-60_000, 0, 0]);
    assert_eq!(of(i64::MIN), i64::MIN);
    assert_eq!(of(i64::MAX).rem_euclid(60_000), 0);
}

/// SHA-256 of the bytes that the format specifies, computed by another program.
#[test]
fn a_digest_is_the_published_hash_of_fixed_bytes() {
    // printf 'packetboat audit 1 ids\0' | sha256sum
    assert_eq!(
        Digest::of_ids([]).to_string(),
        "66448d104131f3ff1cb968853c26ef2a733259fba9b36ef41a2ea8814f160b0b"
    );
}

#[test]
fn a_record_counts_in_its_own_minute_or_where_it_came_too_late_for_it() {
    let minute = minute_of(EPOCH + MINUTE * 10);
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
    let closed = closed(10);
    let at = |minutes: u32| closed.minute + MINUTE * minutes;
    let first = Amendment::of(&closed, at(3), &found(0..3, 3..4));
    assert_eq!(first.figures().settled, 6);
    assert_eq!(first.open().expect("named"), [0, 1, 2, 3].map(id));
    assert!(!first.is_settled());
    assert_eq!(first.again_at(closed.minute), at(4));

    let mut later = first.amended(&closed, at(40), &found(0..1, 1..1));
    assert_eq!((later.settled, later.in_flight.count), (9, 1));
    assert_eq!(later.again_at(closed.minute), at(50));
    // A dead letter was redriven.
    later = later.amended(&closed, at(50), &found(0..5, 5..5));
    assert_eq!((later.settled, later.looked_at), (9, at(50)));
    later = later.amended(&closed, at(60), &MinuteVerdict::default());
    assert!(later.is_settled());
    assert_eq!(later.settled, closed.accepted);
    assert_eq!(later.seal, later.recomputed(&closed));
}

#[test]
fn more_than_can_be_named_are_counted() {
    let many = NAMES_MAX as u64 + 5;
    let amendment = Amendment::of(&closed(many), EPOCH, &found(0..many, 0..0));
    assert_eq!(amendment.in_flight.first.len(), NAMES_MAX);
    assert_eq!(amendment.in_flight.count, many);
    assert_eq!(amendment.open(), None, "not all of them have names");
}

proptest! {
    #[test]
    fn the_order_of_ids_and_their_number_change_no_digest(
        ids in proptest::collection::btree_set(0u64..500, 0..40),
        again in 0usize..40,
        other in 0u64..500,
    ) {
        let straight = Digest::of_ids(ids.iter().map(|&n| id(n)));
        let mut turned: Vec<_> = ids.iter().rev().map(|&n| id(n)).collect();
        turned.extend(turned.get(again).copied());
        prop_assert_eq!(straight, Digest::of_ids(turned));
        let mut changed = ids.clone();
        if !changed.remove(&other) {
            changed.insert(other);
        }
        prop_assert_ne!(straight, Digest::of_ids(changed.iter().map(|&n| id(n))));
    }

    /// Every figure is covered: a change of any shows in the digest or the seal.
    #[test]
    fn whatever_is_changed_is_seen(which in 0usize..12, by in 1u64..1000) {
        let mut row = closed(10);
        let amendment = Amendment::of(&row, EPOCH, &found(0..2, 2..3));
        let mut changed = amendment.clone();
        match which {
            0 => row.number += by,
            1 => row.minute = row.minute + Duration::from_millis(by),
            2 => row.accepted += by,
            3 => row.ids = Digest::of_ids([id(by)]),
            4 => row.unread += by,
            5 => row.epoch += by as u32,
            6 => row.stretches[0].to += by,
            7 => row.then.missing += by,
            8 => row.before = Digest::of_ids([id(by)]),
            9 => changed.settled += by,
            10 => changed.missing.first[0] = id(100 + by),
            _ => changed.contradictions += by,
        }
        if which < 9 {
            prop_assert_ne!(row.digest, row.recomputed());
        } else {
            prop_assert_ne!(changed.seal, changed.recomputed(&row));
            prop_assert_eq!(amendment.seal, amendment.recomputed(&row));
        }
    }
}
