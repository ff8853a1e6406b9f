//! Schedule of a settler, for any answers of the log and the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backend::clock::SeededEntropy;
use backend::queue::{NewRecord, Partition};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::MessageId;
use protocol::Timestamp;
use protocol::delivery::Source;
use protocol::keys::Topic;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use tokio::time::Instant;

use super::schedule::{PublishResult, Schedule, ScheduleLimits, ScheduledCall};
use crate::Config;
use crate::backoff::Backoff;
use crate::executor_queue::SettleWork;

const DEADLINE: Duration = Duration::from_secs(5);

fn limits() -> ScheduleLimits {
    ScheduleLimits {
        deadline: DEADLINE,
        backoff: Backoff::new(&Config::default()),
        call_records: 4,
        call_bytes: 64,
        call_entries: 3,
        lane_records: 6,
        lane_bytes: 1000,
        ledger_records: 8,
        ledger_entries: 20,
    }
}

fn partition(number: u32) -> Partition {
    Partition {
        topic: Topic::Retry(1),
        number,
    }
}

/// Effects with a record for each of these partitions and keys, and this many entries.
fn effects(offset: u64, records: &[(u32, u8)], entries: usize) -> SettleWork {
    let record = |&(number, key): &(u32, u8)| NewRecord {
        partition: partition(number),
        key: Bytes::from(vec![key]),
        headers: Vec::new(),
        value: Bytes::from(vec![0; 20]),
    };
    let entry = LedgerEntry {
        message: MessageId::new(1).expect("positive"),
        at: Timestamp::from_millis(0),
        target: None,
        event: LedgerEvent::Settled,
    };
    SettleWork {
        source: Source {
            topic: Topic::Message,
            partition: (offset % 3) as u32,
            offset,
        },
        records: records.iter().map(record).collect(),
        ledger: vec![entry; entries],
    }
}

/// Reaction of a log or a ledger to a call.
#[derive(Clone, Copy, Debug)]
enum Mood {
    Well,
    /// Takes this many records of a call, and then no more.
    Takes(usize),
    Silent,
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![
        Just(Mood::Well),
        (0..4_usize).prop_map(Mood::Takes),
        Just(Mood::Silent)
    ]
}

#[derive(Clone, Debug)]
enum Turn {
    Add(Vec<(u32, u8)>, usize),
    /// Time passes, and calls meet this mood.
    Pass(u64, Mood),
}

fn event() -> impl Strategy<Value = Turn> {
    let record = (0..3_u32, 0..3_u8);
    prop_oneof![
        (prop::collection::vec(record, 0..4), 0..5_usize).prop_map(|(r, e)| Turn::Add(r, e)),
        (0..8000_u64, mood()).prop_map(|(time, mood)| Turn::Pass(time, mood)),
    ]
}

/// A schedule, and the results of its calls.
struct Run {
    schedule: Schedule,
    now: Instant,
    entropy: SeededEntropy,
    /// Records and entries that each offset still lacks.
    lacks: BTreeMap<u64, (usize, usize)>,
    settled_offsets: BTreeSet<u64>,
    /// Offsets in the order in which they were taken, by partition and key.
    published_offsets: BTreeMap<(u32, Bytes), Vec<u64>>,
    tries: BTreeMap<u32, usize>,
}

impl Run {
    fn new() -> Run {
        Run {
            schedule: Schedule::new(limits()),
            now: Instant::now(),
            entropy: SeededEntropy::new(1),
            lacks: BTreeMap::new(),
            settled_offsets: BTreeSet::new(),
            published_offsets: BTreeMap::new(),
            tries: BTreeMap::new(),
        }
    }

    fn add(&mut self, records: &[(u32, u8)], entries: usize) -> u64 {
        let offset = self.lacks.len() as u64;
        self.lacks.insert(offset, (records.len(), entries));
        self.schedule
            .add(self.now, effects(offset, records, entries));
        self.check();
        offset
    }

    /// Makes the calls that are due, and returns their number.
    fn step(&mut self, mood: impl Fn(Option<Partition>) -> Mood) -> usize {
        let calls = self.schedule.calls(self.now);
        let partitions: Vec<_> = calls.iter().filter_map(call_partition).collect();
        let distinct: BTreeSet<_> = partitions.iter().collect();
        assert_eq!(distinct.len(), partitions.len(), "one call a partition");
        let second_calls: Vec<_> = self.schedule.calls(self.now);
        assert!(second_calls.is_empty(), "a second call: {second_calls:?}");
        let count = calls.len();
        for call in calls {
            let mood = mood(call_partition(&call));
            self.answer(call, mood);
        }
        self.check();
        count
    }

    fn answer(&mut self, call: ScheduledCall, mood: Mood) {
        let took = match mood {
            Mood::Well | Mood::Takes(_) => Duration::from_millis(1),
            Mood::Silent => DEADLINE,
        };
        match call {
            ScheduledCall::Publish(partition, items) => {
                assert!(items.len() <= limits().call_records);
                assert!(items.len() == 1 || items.iter().map(|i| i.bytes()).sum::<usize>() <= 64);
                *self.tries.entry(partition.number).or_default() += items.len();
                let takes = match mood {
                    Mood::Well => items.len(),
                    Mood::Takes(count) => count,
                    Mood::Silent => 0,
                };
                let mut answers = Vec::new();
                for (place, item) in items.into_iter().enumerate() {
                    if place >= takes {
                        answers.push(PublishResult::Again(item));
                        continue;
                    }
                    let key = (partition.number, item.record.key.clone());
                    self.published_offsets
                        .entry(key)
                        .or_default()
                        .push(item.origin.offset);
                    self.lacks.get_mut(&item.origin.offset).expect("added").0 -= 1;
                    answers.push(PublishResult::Taken(item));
                }
                (self.schedule).published(self.now, took, partition, answers, &self.entropy);
            }
            ScheduledCall::Append(portions) => {
                assert!(portions.iter().map(|p| p.entries.len()).sum::<usize>() <= 3);
                if matches!(mood, Mood::Well) {
                    self.schedule.appended(took, portions);
                } else {
                    (self.schedule).not_appended(self.now, took, portions, &self.entropy);
                }
            }
        }
    }

    fn check(&mut self) {
        for source in self.schedule.settled() {
            assert_eq!(self.lacks[&source.offset].0, 0, "its records first");
            assert!(self.settled_offsets.insert(source.offset), "settled twice");
        }
        assert_eq!(
            self.schedule.len() + self.settled_offsets.len(),
            self.lacks.len(),
            "nothing is forgotten"
        );
    }

    /// Runs with a log and a ledger that take everything.
    fn finish(&mut self) {
        for _ in 0..1000 {
            while self.step(|_| Mood::Well) > 0 {}
            let Some(at) = self.schedule.wakes_at(self.now) else {
                break;
            };
            self.now = self.now.max(at);
        }
        assert_eq!(self.schedule.len(), 0);
    }
}

fn call_partition(call: &ScheduledCall) -> Option<Partition> {
    match call {
        ScheduledCall::Publish(partition, _) => Some(*partition),
        ScheduledCall::Append(_) => None,
    }
}

proptest! {
    #[test]
    fn everything_settles_once_and_in_the_order_of_its_key(
        events in prop::collection::vec(event(), 1..60)
    ) {
        let mut run = Run::new();
        for event in events {
            match event {
                Turn::Add(records, entries) => _ = run.add(&records, entries),
                Turn::Pass(time, mood) => {
                    run.now += Duration::from_millis(time);
                    run.step(|_| mood);
                }
            }
        }
        run.finish();
        for offsets in run.published_offsets.values() {
            prop_assert!(offsets.is_sorted(), "overtaken: {:?}", offsets);
        }
        prop_assert!(run.lacks.values().all(|(records, _)| *records == 0));
        prop_assert!(!run.schedule.is_full() && run.schedule.crowded().is_empty());
    }

    #[test]
    fn a_healthy_partition_is_asked_once_for_each_record(
        events in prop::collection::vec(event(), 1..60)
    ) {
        let mut run = Run::new();
        let mut healthy = 0;
        for event in events {
            match event {
                Turn::Add(records, entries) => {
                    healthy += records.iter().filter(|(number, _)| *number != 0).count();
                    run.add(&records, entries);
                }
                Turn::Pass(time, mood) => {
                    run.now += Duration::from_millis(time);
                    run.step(|to| if to == Some(partition(0)) { mood } else { Mood::Well });
                }
            }
        }
        run.finish();
        let tries = run.tries.get(&1).copied().unwrap_or(0) + run.tries.get(&2).copied().unwrap_or(0);
        prop_assert_eq!(tries, healthy);
    }
}

#[test]
fn a_full_partition_pauses_only_those_whose_records_it_holds() {
    let mut run = Run::new();
    // Offsets 0, 3, 6 … are of source partition 0.
    for _ in 0..16 {
        let offset = run.lacks.len() as u64;
        let number = u32::from(!offset.is_multiple_of(3));
        run.add(&[(number, 7)], 0);
        run.step(|to| match to {
            Some(to) if to == partition(0) => Mood::Silent,
            _ => Mood::Well,
        });
    }
    let source = Partition {
        topic: Topic::Message,
        number: 0,
    };
    assert_eq!(run.schedule.crowded(), BTreeSet::from([source]));
    assert_eq!(run.schedule.len(), 6, "the others are settled");
    run.finish();
    assert!(run.schedule.crowded().is_empty());
}

#[test]
fn bytes_fill_a_partition_as_records_do() {
    let mut run = Run::new();
    let mut large = effects(0, &[(0, 1)], 0);
    large.records[0].value = Bytes::from(vec![0; 998]);
    run.lacks.insert(0, (1, 0));
    run.schedule.add(run.now, large);
    assert!(run.schedule.crowded().is_empty(), "999 of 1000");
    run.add(&[(0, 1)], 0);
    assert_eq!(run.schedule.crowded().len(), 2);
    run.finish();
}

#[test]
fn a_ledger_that_is_away_holds_no_publishing_and_has_a_bound() {
    let mut run = Run::new();
    let unavailable_ledger = |to: Option<Partition>| to.map_or(Mood::Takes(0), |_| Mood::Well);
    for count in 0..8 {
        assert!(!run.schedule.is_full(), "{count}");
        run.add(&[(0, 1)], 1);
        run.now += Duration::from_secs(6);
        run.step(unavailable_ledger);
    }
    assert!(run.schedule.is_full(), "eight records");
    assert_eq!(run.tries[&0], 8, "each was published once");
    run.finish();
    assert!(!run.schedule.is_full());
    run.add(&[], 20);
    assert!(run.schedule.is_full(), "twenty entries");
    run.finish();
}
