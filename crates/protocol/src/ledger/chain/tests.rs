use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::MessageId;
use crate::id::snowflake::EPOCH;
use crate::ledger::minute::{
    Amendment, Digest, MINUTE, MinuteFigures, MinuteReading, MinuteVerdict,
};

fn minute(n: u64) -> Timestamp {
    EPOCH + MINUTE * 100 + MINUTE * n as u32
}

/// An intact chain, with a quiet minute after every third.
fn chain(count: u64) -> (ChainHead, Vec<MinuteRow>) {
    let start = ChainLink::beginning(minute(0));
    let mut head = ChainHead {
        turn: 1,
        worker: 7,
        at: minute(0),
        start,
        until: minute(0),
        open_from: minute(0),
        place: ChainPlace::default(),
        last: None,
    };
    let mut rows = Vec::new();
    for n in 0..count {
        let at = minute(n + n / 3);
        let ids = (0..=n).map(|k| MessageId::floor_of(at + Duration::from_millis(k)));
        let reading = MinuteReading {
            minute: at,
            accepted_count: n + 1,
            ids: Digest::from_ids(ids),
            unread: 0,
            epoch: 1,
            stretches: Vec::new(),
        };
        let closed_minute = ClosedMinute::after(head.link(), reading, MinuteFigures::default());
        let amendment = Amendment::of(&closed_minute, at, &MinuteVerdict::default());
        head.last = Some(closed_minute.clone());
        head.until = at + MINUTE;
        rows.push(MinuteRow {
            minute: at,
            closed_minute: Some(closed_minute),
            amendment: Some(amendment),
        });
    }
    (head, rows)
}

fn flaws(walk: ChainWalk, rows: &[MinuteRow]) -> Vec<ChainFlaw> {
    let mut walk = walk;
    rows.iter().for_each(|row| walk.step(row));
    walk.end().0
}

fn whole(head: &ChainHead, rows: &[MinuteRow]) -> Vec<ChainFlaw> {
    flaws(ChainWalk::whole(head), rows)
}

fn closed_mut(row: &mut MinuteRow) -> &mut ClosedMinute {
    row.closed_minute.as_mut().expect("a row")
}

#[test]
fn a_chain_that_nobody_touched_holds_from_wherever_it_is_walked() {
    for count in 0..8 {
        let (head, rows) = chain(count);
        assert_eq!(whole(&head, &rows), []);
        for from in 0..rows.len() {
            let start = rows[from].minute;
            assert_eq!(flaws(ChainWalk::since(&head, start), &rows[from..]), []);
        }
    }
}

#[test]
fn a_changed_figure_is_named() {
    let (head, mut rows) = chain(6);
    closed_mut(&mut rows[2]).accepted += 1;
    let flaw = ChainFlaw::Altered {
        minute: rows[2].minute,
    };
    assert_eq!(whole(&head, &rows), [flaw]);
}

/// A forger who recomputes the digest is caught at the next link, or at the head.
#[test]
fn a_changed_figure_with_a_digest_to_match_is_named_by_the_next() {
    for (changed_index, named_index) in [(2, 3), (5, 5)] {
        let (head, mut rows) = chain(6);
        let row = closed_mut(&mut rows[changed_index]);
        row.accepted += 1;
        row.digest = row.recomputed();
        let row = row.clone();
        rows[changed_index].amendment =
            Some(Amendment::of(&row, row.minute, &MinuteVerdict::default()));
        let flaw = ChainFlaw::Unlinked {
            minute: rows[named_index].minute,
        };
        assert_eq!(whole(&head, &rows), [flaw]);
    }
}

#[test]
fn a_removed_minute_is_named_wherever_it_was() {
    for (index, previous, next) in [
        (0, None, Some(1)),
        (2, Some(1), Some(3)),
        (5, Some(4), None),
    ] {
        let (head, mut rows) = chain(6);
        let flaw = ChainFlaw::Removed {
            first: index as u64 + 1,
            last: index as u64 + 1,
            previous_minute: previous.map_or_else(|| minute(0), |n: usize| rows[n].minute),
            next_minute: next.map_or(rows[5].minute, |n: usize| rows[n].minute),
        };
        rows.remove(index);
        assert_eq!(whole(&head, &rows), [flaw]);
    }
    let (head, rows) = chain(6);
    let all = whole(&head, &[]);
    assert!(
        matches!(
            all[..],
            [ChainFlaw::Removed {
                first: 1,
                last: 6,
                ..
            }]
        ),
        "{all:?}"
    );
    let late = flaws(ChainWalk::since(&head, rows[5].minute), &[]);
    assert!(
        matches!(late[..], [ChainFlaw::Removed { last: 6, .. }]),
        "{late:?}"
    );
    assert_eq!(flaws(ChainWalk::since(&head, head.until), &[]), []);
}

#[test]
fn two_swapped_minutes_are_both_named() {
    let (head, mut rows) = chain(6);
    let (one, other) = (rows[1].minute, rows[4].minute);
    rows.swap(1, 4);
    (rows[1].minute, rows[4].minute) = (one, other);
    let flaw_minutes: Vec<_> = whole(&head, &rows).iter().map(ChainFlaw::minute).collect();
    assert!(
        flaw_minutes.contains(&one) && flaw_minutes.contains(&other),
        "{flaw_minutes:?}"
    );
}

#[test]
fn an_amendment_that_was_changed_exchanged_or_removed_is_named() {
    let (head, rows) = chain(6);
    let at = rows[2].minute;
    let mut changed_rows = rows.clone();
    let amendment = changed_rows[2].amendment.as_mut().expect("it is there");
    amendment.settled -= 1;
    assert_eq!(
        whole(&head, &changed_rows),
        [ChainFlaw::AmendmentAltered { minute: at }]
    );
    let mut exchanged_rows = rows.clone();
    exchanged_rows[2].amendment = rows[3].amendment.clone();
    assert_eq!(
        whole(&head, &exchanged_rows),
        [ChainFlaw::AmendmentAltered { minute: at }]
    );
    let mut removed_rows = rows.clone();
    removed_rows[2].amendment = None;
    assert_eq!(
        whole(&head, &removed_rows),
        [ChainFlaw::AmendmentRemoved { minute: at }]
    );
    // The last link's amendment may still be on its way.
    let mut last = rows;
    last[5].amendment = None;
    assert_eq!(whole(&head, &last), []);
}

#[test]
fn a_row_that_cannot_be_read_is_named_and_hides_no_other() {
    let (head, mut rows) = chain(6);
    rows[1].closed_minute = None;
    closed_mut(&mut rows[4]).accepted += 1;
    let flaws = whole(&head, &rows);
    assert!(flaws.contains(&ChainFlaw::Unreadable {
        minute: rows[1].minute
    }));
    assert!(flaws.contains(&ChainFlaw::Altered {
        minute: rows[4].minute
    }));
}

/// Links removed by retention, even if the removal was interrupted, are not reported missing.
#[test]
fn a_chain_begins_where_its_head_says() {
    let (mut head, rows) = chain(6);
    head.start = rows[2].closed_minute.as_ref().expect("a row").link();
    assert_eq!(whole(&head, &rows[3..]), []);
    assert_eq!(whole(&head, &rows[1..]), []);
    let flaws = whole(&head, &rows[4..]);
    assert!(matches!(
        flaws[..],
        [ChainFlaw::Removed {
            first: 4,
            last: 4,
            ..
        }]
    ));
}

proptest! {
    /// No single change to a chain goes unnoticed.
    #[test]
    fn no_change_goes_unnoticed(count in 2u64..12, index in 0usize..12, kind in 0u8..5) {
        let (head, mut rows) = chain(count);
        let index = index % rows.len();
        match kind {
            0 => closed_mut(&mut rows[index]).accepted += 1,
            1 => closed_mut(&mut rows[index]).ids = Digest::NONE,
            2 => closed_mut(&mut rows[index]).before = Digest::from_ids([]),
            3 => drop(rows.remove(index)),
            _ => {
                let other = (index + 1) % rows.len();
                let (a, b) = (rows[index].closed_minute.clone(), rows[other].closed_minute.clone());
                (rows[index].closed_minute, rows[other].closed_minute) = (b, a);
            }
        }
        prop_assert_ne!(whole(&head, &rows), []);
    }
}
