use std::collections::BTreeSet;

use proptest::prelude::*;
use protocol::id::snowflake::EPOCH;

use super::*;

const SETTLE: Duration = Duration::from_secs(120);

fn at(seconds: u64) -> Timestamp {
    EPOCH + MINUTE * 100 + Duration::from_secs(seconds)
}

fn id(seconds: u64, n: i64) -> MessageId {
    MessageId::new(MessageId::floor_of(at(seconds)).get() + n).expect("positive")
}

fn place(partitions: usize) -> ChainPlace {
    ChainPlace {
        epoch: 1,
        from: vec![0; partitions],
        counted: vec![0; partitions],
    }
}

/// A log record: its append time and its message.
type Record = (Timestamp, Option<MessageId>);

/// Reads a log as of `now`, as far as the builder wants, and closes the minutes that can be closed.
fn go_on(gather: &mut MinuteBuilder, log: &[Vec<Record>], now: Timestamp) -> Vec<LogMove> {
    let mut moves = Vec::new();
    loop {
        for (partition, records) in log.iter().enumerate() {
            while let Some(next) = gather.wants(partition) {
                match records
                    .get(next as usize)
                    .filter(|(appended_at, _)| *appended_at <= now)
                {
                    Some(&(appended_at, message)) => {
                        gather.handle_record(partition, next, appended_at, message);
                    }
                    None => {
                        gather.handle_end(partition, now);
                        break;
                    }
                }
            }
        }
        match gather.poll_move() {
            Some(one) => moves.push(one),
            None => return moves,
        }
    }
}

fn closed_minutes(moves: &[LogMove]) -> Vec<(Timestamp, Vec<MessageId>)> {
    let closes = moves.iter().filter_map(|one| one.closes.as_ref());
    closes
        .map(|(reading, ids)| (reading.minute, ids.iter().map(|(id, _)| *id).collect()))
        .collect()
}

#[test]
fn a_minute_is_closed_a_settle_time_after_its_end() {
    let log = [
        vec![(at(5), Some(id(5, 0))), (at(65), Some(id(65, 0)))],
        vec![],
    ];
    let mut builder = MinuteBuilder::new(place(2), at(0), SETTLE);
    assert_eq!(go_on(&mut builder, &log, at(179)), []);
    let moves = go_on(&mut builder, &log, at(180));
    assert_eq!(closed_minutes(&moves), [(at(0), vec![id(5, 0)])]);
    let (reading, _) = moves[0].closes.as_ref().expect("closed");
    assert_eq!((reading.accepted_count, reading.unread), (1, 0));
    assert_eq!(moves[0].place.from, [1, 0], "the second is of the next");
    assert_eq!(moves[0].place.counted, [2, 0]);
    assert_eq!(builder.held(), 1);
}

#[test]
fn quiet_minutes_are_one_step_and_close_nothing() {
    let log = [vec![(at(5), None), (at(1210), Some(id(1205, 0)))]];
    let mut builder = MinuteBuilder::new(place(1), at(0), SETTLE);
    let moves = go_on(&mut builder, &log, at(3600));
    assert_eq!(closed_minutes(&moves), [(at(1200), vec![id(1205, 0)])]);
    assert_eq!(moves.last().expect("moved").closed_until, at(3480));
    assert!(moves.len() < 6, "{moves:?}");
}

/// A record that arrives while its minute is being closed counts in the next one closed.
#[test]
fn late_messages_are_counted_later_and_once() {
    let late = (at(200), Some(id(6, 1)));
    let records = [5, 70, 185].map(|second| (at(second), Some(id(second, 0))));
    let log = [[&records[..], &[late]].concat()];
    let mut builder = MinuteBuilder::new(place(1), at(0), SETTLE);
    let moves = go_on(&mut builder, &log, at(600));
    let expected = [
        (at(0), vec![id(5, 0)]),
        (at(60), vec![id(6, 1), id(70, 0)]),
        (at(180), vec![id(185, 0)]),
    ];
    assert_eq!(closed_minutes(&moves), expected);
}

#[test]
fn records_removed_unread_are_counted() {
    let mut builder = MinuteBuilder::new(place(1), at(0), SETTLE);
    builder.handle_start(0, 7);
    builder.handle_start(0, 7);
    builder.handle_end(0, at(600));
    let one = builder.poll_move().expect("a move");
    let (reading, ids) = one.closes.expect("closed, though nothing is in it");
    assert_eq!((reading.unread, ids.len()), (7, 0));
    assert_eq!(builder.wants(0), None, "it was read to the end");
}

proptest! {
    /// Whatever the restarts, and wherever the log stood at each: every message is in exactly one
    /// closed minute, never in one earlier than its own, and the messages counted in a closed
    /// minute can be found again by its offset ranges.
    #[test]
    fn every_message_is_counted_once_whatever_is_begun_anew(
        records in proptest::collection::vec((0usize..3, 0u64..40, 0u64..90, any::<bool>()), 0..60),
        stops in proptest::collection::vec((1u64..400, any::<bool>()), 1..12),
    ) {
        let mut log = vec![Vec::new(); 3];
        let (mut now, mut all) = (0, BTreeSet::new());
        for (n, &(partition, duration, age, message)) in records.iter().enumerate() {
            now += duration;
            // Clocks differ, and some records are very late.
            let accepted_at = now.saturating_sub(if age > 80 { age * 10 } else { age / 4 });
            let id = message.then(|| id(accepted_at, n as i64));
            all.extend(id);
            log[partition].push((at(now), id));
        }
        let mut builder = MinuteBuilder::new(place(3), at(0), SETTLE);
        let (mut head, mut moves, mut time) = (None, Vec::new(), 0);
        for (duration, anew) in stops.into_iter().chain([(now + 1000, true)]) {
            time += duration;
            if let (true, Some((place, closed_until))) = (anew, &head) {
                builder = MinuteBuilder::new(ChainPlace::clone(place), *closed_until, SETTLE);
            }
            let more = go_on(&mut builder, &log, at(time));
            head = more.last().map(|one| (one.place.clone(), one.closed_until)).or(head);
            moves.extend(more);
        }
        let mut counted_ids = BTreeSet::new();
        for (reading, ids) in moves.iter().filter_map(|one| one.closes.as_ref()) {
            for (id, partition) in ids {
                let is_there = log[*partition].iter().any(|(_, message)| *message == Some(*id));
                prop_assert!(is_there, "{id} was not read there");
                prop_assert!(counted_ids.insert(*id), "counted twice");
                prop_assert!(minute_start(id.timestamp()) <= reading.minute);
            }
            let mut recount = BTreeSet::new();
            for (records, stretch) in log.iter().zip(&reading.stretches) {
                for (offset, (_, message)) in (0..).zip(records) {
                    let counts = |id: &MessageId| stretch.counts(reading.minute, offset, id.timestamp());
                    recount.extend(message.filter(counts));
                }
            }
            prop_assert_eq!(Digest::from_ids(recount), reading.ids);
        }
        prop_assert_eq!(counted_ids, all);
        for pair in moves.windows(2) {
            prop_assert!(pair[0].closed_until < pair[1].closed_until);
        }
    }
}
