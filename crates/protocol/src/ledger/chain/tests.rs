use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::MessageId;
use crate::id::snowflake::EPOCH;
use crate::ledger::minute::{Amendment, Digest, Figures, Found, MINUTE, Reading};

fn minute(n: u64) -> Timestamp {
    EPOCH + MINUTE * 100 + MINUTE * n as u32
}

/// A whole chain, with a quiet minute after each third.
fn chain(count: u64) -> (Head, Vec<Row>) {
    let start = Link::beginning(minute(0));
    let mut head = Head {
        turn: 1,
        worker: 7,
        at: minute(0),
        start,
        until: minute(0),
        open_from: minute(0),
        place: Place::default(),
        last: None,
    };
    let mut rows = Vec::new();
    for n in 0..count {
        let at = minute(n + n / 3);
        let ids = (0..=n).map(|k| MessageId::floor_of(at + Duration::from_millis(k)));
        let reading = Reading {
            minute: at,
            accepted: n + 1,
            ids: Digest::of_ids(ids),
            unread: 0,
            epoch: 1,
            stretches: Vec::new(),
        };
        let closed = Closed::after(head.link(), reading, Figures::default());
        let amendment = Amendment::of(&closed, at, &Found::default());
        head.last = Some(closed.clone());
        head.until = at + MINUTE;
        rows.push(Row {
            minute: at,
            closed: Some(closed),
            amendment: Some(amendment),
        });
    }
    (head, rows)
}

fn flaws(walk: Walk, rows: &[Row]) -> Vec<Flaw> {
    let mut walk = walk;
    rows.iter().for_each(|row| walk.step(row));
    walk.end().0
}

fn whole(head: &Head, rows: &[Row]) -> Vec<Flaw> {
    flaws(Walk::whole(head), rows)
}

fn closed(row: &mut Row) -> &mut Closed {
    row.closed.as_mut().expect("a row")
}

#[test]
fn a_chain_that_nobody_touched_holds_from_wherever_it_is_walked() {
    for count in 0..8 {
        let (head, rows) = chain(count);
        assert_eq!(whole(&head, &rows), []);
        for from in 0..rows.len() {
            let since = rows[from].minute;
            assert_eq!(flaws(Walk::since(&head, since), &rows[from..]), []);
        }
    }
}

#[test]
fn a_changed_figure_is_named() {
    let (head, mut rows) = chain(6);
    closed(&mut rows[2]).accepted += 1;
    let altered = Flaw::Altered {
        minute: rows[2].minute,
    };
    assert_eq!(whole(&head, &rows), [altered]);
}

/// Who computes the digest anew as well is found at the next link, or at the head.
#[test]
fn a_changed_figure_with_a_digest_to_match_is_named_by_the_next() {
    for (changed, named) in [(2, 3), (5, 5)] {
        let (head, mut rows) = chain(6);
        let row = closed(&mut rows[changed]);
        row.accepted += 1;
        row.digest = row.recomputed();
        let row = row.clone();
        rows[changed].amendment = Some(Amendment::of(&row, row.minute, &Found::default()));
        let unlinked = Flaw::Unlinked {
            minute: rows[named].minute,
        };
        assert_eq!(whole(&head, &rows), [unlinked]);
    }
}

#[test]
fn a_removed_minute_is_named_wherever_it_was() {
    for (place, after, before) in [
        (0, None, Some(1)),
        (2, Some(1), Some(3)),
        (5, Some(4), None),
    ] {
        let (head, mut rows) = chain(6);
        let removed = Flaw::Removed {
            first: place as u64 + 1,
            last: place as u64 + 1,
            after: after.map_or_else(|| minute(0), |n: usize| rows[n].minute),
            before: before.map_or(rows[5].minute, |n: usize| rows[n].minute),
        };
        rows.remove(place);
        assert_eq!(whole(&head, &rows), [removed]);
    }
    let (head, rows) = chain(6);
    let all = whole(&head, &[]);
    assert!(
        matches!(
            all[..],
            [Flaw::Removed {
                first: 1,
                last: 6,
                ..
            }]
        ),
        "{all:?}"
    );
    let late = flaws(Walk::since(&head, rows[5].minute), &[]);
    assert!(
        matches!(late[..], [Flaw::Removed { last: 6, .. }]),
        "{late:?}"
    );
    assert_eq!(flaws(Walk::since(&head, head.until), &[]), []);
}

#[test]
fn two_swapped_minutes_are_both_named() {
    let (head, mut rows) = chain(6);
    let (one, other) = (rows[1].minute, rows[4].minute);
    rows.swap(1, 4);
    (rows[1].minute, rows[4].minute) = (one, other);
    let named: Vec<_> = whole(&head, &rows).iter().map(Flaw::minute).collect();
    assert!(named.contains(&one) && named.contains(&other), "{named:?}");
}

#[test]
fn an_amendment_that_was_changed_exchanged_or_removed_is_named() {
    let (head, rows) = chain(6);
    let at = rows[2].minute;
    let mut changed = rows.clone();
    let amendment = changed[2].amendment.as_mut().expect("it is there");
    amendment.settled -= 1;
    assert_eq!(
        whole(&head, &changed),
        [Flaw::AmendmentAltered { minute: at }]
    );
    let mut exchanged = rows.clone();
    exchanged[2].amendment = rows[3].amendment.clone();
    assert_eq!(
        whole(&head, &exchanged),
        [Flaw::AmendmentAltered { minute: at }]
    );
    let mut removed = rows.clone();
    removed[2].amendment = None;
    assert_eq!(
        whole(&head, &removed),
        [Flaw::AmendmentRemoved { minute: at }]
    );
    // Of the last link it may be on its way.
    let mut last = rows;
    last[5].amendment = None;
    assert_eq!(whole(&head, &last), []);
}

#[test]
fn a_row_that_cannot_be_read_is_named_and_hides_no_other() {
    let (head, mut rows) = chain(6);
    rows[1].closed = None;
    closed(&mut rows[4]).accepted += 1;
    let found = whole(&head, &rows);
    assert!(found.contains(&Flaw::Unreadable {
        minute: rows[1].minute
    }));
    assert!(found.contains(&Flaw::Altered {
        minute: rows[4].minute
    }));
}

/// What was removed for its age, even where that was broken off, is not missed.
#[test]
fn a_chain_begins_where_its_head_says() {
    let (mut head, rows) = chain(6);
    head.start = rows[2].closed.as_ref().expect("a row").link();
    assert_eq!(whole(&head, &rows[3..]), []);
    assert_eq!(whole(&head, &rows[1..]), []);
    let removed = whole(&head, &rows[4..]);
    assert!(matches!(
        removed[..],
        [Flaw::Removed {
            first: 4,
            last: 4,
            ..
        }]
    ));
}

proptest! {
    /// One change anywhere in a chain is never overlooked.
    #[test]
    fn no_change_goes_unnoticed(count in 2u64..12, place in 0usize..12, kind in 0u8..5) {
        let (head, mut rows) = chain(count);
        let place = place % rows.len();
        match kind {
            0 => closed(&mut rows[place]).accepted += 1,
            1 => closed(&mut rows[place]).ids = Digest::NONE,
            2 => closed(&mut rows[place]).before = Digest::of_ids([]),
            3 => drop(rows.remove(place)),
            _ => {
                let other = (place + 1) % rows.len();
                let (a, b) = (rows[place].closed.clone(), rows[other].closed.clone());
                (rows[place].closed, rows[other].closed) = (b, a);
            }
        }
        prop_assert_ne!(whole(&head, &rows), []);
    }
}
