//! What of the effects of settled records goes into which call, and when: a value without IO.
//!
//! Effects are added, calls taken out, answers put in, and records come out that are settled. A record is
//! settled when all its records are published and, after that, all its entries are in the ledger. Partitions
//! and the ledger have a call, a pause and a bound each of their own, so that one that is away holds only what
//! depends on it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use backend::clock::Entropy;
use backend::queue::{NewRecord, Partition};
use protocol::delivery::Source;
use protocol::ledger::LedgerEntry;
use tokio::time::Instant;

use super::entries::{Entries, Portion};
use super::lane::{Item, Lane};
use crate::backoff::Backoff;
use crate::batch::Effects;

/// What only the ledger is to be told waits for this many, or so long: nobody waits for it, and a call for
/// each costs more than what it writes.
const COMPANY: usize = 256;
const LINGER: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long a call may take.
    pub(super) deadline: Duration,
    pub(super) backoff: Backoff,
    /// Records of one call at most.
    pub(super) call_records: usize,
    /// Their bytes, unless one record alone has more.
    pub(super) call_bytes: usize,
    /// Ledger entries of one call at most.
    pub(super) call_entries: usize,
    /// Records that wait for one partition; at it, their source partitions are to be paused.
    pub(super) lane_records: usize,
    /// Their bytes, in the same way.
    pub(super) lane_bytes: usize,
    /// Records, and ledger entries, that wait for the ledger; at it nothing more is to be begun.
    pub(super) ledger_records: usize,
    pub(super) ledger_entries: usize,
}

/// Names the effects of one record within a settler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EffectsId(u64);

/// A call to be made.
#[derive(Debug)]
pub(super) enum Call {
    /// All for one partition.
    Publish(Partition, Vec<Item>),
    Append(Vec<Portion>),
}

/// What came of one record of a call.
#[derive(Debug)]
pub(super) enum Published {
    Taken(Item),
    Again(Item),
    /// The log will never take it. What is published in its place, and what the ledger is to be told.
    Refused(Item, Option<NewRecord>, Vec<LedgerEntry>),
}

/// Effects of a record that is not settled.
struct Open {
    source: Source,
    /// That are not published.
    records: usize,
    ledger: Vec<LedgerEntry>,
    /// When the ledger is told at the latest; `None`: as soon as the records are published.
    due: Option<Instant>,
}

pub(super) struct Schedule {
    limits: Limits,
    open: HashMap<EffectsId, Open>,
    numbers: u64,
    lanes: BTreeMap<Partition, Lane>,
    entries: Entries,
    /// Records whose effects are published and wait for the ledger.
    unwritten: usize,
    settled: Vec<Source>,
}

impl Schedule {
    pub(super) fn new(limits: Limits) -> Schedule {
        Schedule {
            entries: Entries::new(&limits),
            limits,
            open: HashMap::new(),
            numbers: 0,
            lanes: BTreeMap::new(),
            unwritten: 0,
            settled: Vec::new(),
        }
    }

    /// Records that are not settled.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn add(&mut self, now: Instant, effects: Effects) {
        self.numbers += 1;
        let id = EffectsId(self.numbers);
        let lingers = effects.records.is_empty() && self.entries.waiting() < COMPANY;
        let source = effects.source;
        self.open.insert(
            id,
            Open {
                source,
                records: effects.records.len(),
                ledger: effects.ledger,
                due: lingers.then(|| now + LINGER),
            },
        );
        for record in effects.records {
            self.enqueue(id, source, record);
        }
        self.go_on(now, id);
    }

    fn enqueue(&mut self, effects: EffectsId, source: Source, record: NewRecord) {
        self.numbers += 1;
        let limits = &self.limits;
        let lane = self.lanes.entry(record.partition);
        lane.or_insert_with(|| Lane::new(limits)).add(Item {
            effects,
            origin: source,
            number: self.numbers,
            record,
        });
    }

    /// The next step of a record whose last one is done.
    fn go_on(&mut self, now: Instant, id: EffectsId) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        if open.records > 0 {
            return;
        }
        if open.ledger.is_empty() {
            self.settled.push(open.source);
            self.open.remove(&id);
        } else {
            let entries = std::mem::take(&mut open.ledger);
            self.unwritten += 1;
            self.entries.add(id, entries, open.due.unwrap_or(now));
        }
    }

    /// The calls that are due: to each partition and to the ledger at most one at a time.
    pub(super) fn calls(&mut self, now: Instant) -> Vec<Call> {
        let mut calls = Vec::new();
        for (&partition, lane) in &mut self.lanes {
            let items = lane.take(now);
            if !items.is_empty() {
                calls.push(Call::Publish(partition, items));
            }
        }
        let portions = self.entries.take(now);
        if !portions.is_empty() {
            calls.push(Call::Append(portions));
        }
        calls
    }

    /// When there is a call to be made; `None`: not before an answer or an addition.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lanes.values().filter_map(|lane| lane.wakes_at(now));
        lanes.chain(self.entries.wakes_at()).min()
    }

    /// A call to a partition ended. Answers how long it is left alone where something is to be tried again.
    pub(super) fn published(
        &mut self,
        now: Instant,
        took: Duration,
        partition: Partition,
        answers: Vec<Published>,
        entropy: &dyn Entropy,
    ) -> Option<Duration> {
        let (mut done, mut failed, mut instead) = (Vec::new(), Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Published::Taken(item) => done.push(item),
                Published::Again(item) => failed.push(item),
                Published::Refused(item, record, entries) => {
                    instead.push((item.effects, record, entries));
                    done.push(item);
                }
            }
        }
        let lane = self.lanes.get_mut(&partition)?;
        let pause = lane.called(now, took, &done, failed, entropy);
        if lane.is_empty() {
            self.lanes.remove(&partition);
        }
        for (id, record, mut entries) in instead {
            let Some(open) = self.open.get_mut(&id) else {
                continue;
            };
            open.ledger.append(&mut entries);
            if let Some(record) = record {
                open.records += 1;
                let source = open.source;
                self.enqueue(id, source, record);
            }
        }
        for item in done {
            if let Some(open) = self.open.get_mut(&item.effects) {
                open.records -= 1;
            }
            self.go_on(now, item.effects);
        }
        pause
    }

    pub(super) fn appended(&mut self, took: Duration, portions: Vec<Portion>) {
        self.entries.succeeded(took, &portions);
        for portion in portions.into_iter().filter(|portion| portion.last) {
            self.unwritten -= 1;
            if let Some(open) = self.open.remove(&portion.effects) {
                self.settled.push(open.source);
            }
        }
    }

    /// The ledger did not take this. Answers how long it is left alone.
    pub(super) fn not_appended(
        &mut self,
        now: Instant,
        took: Duration,
        portions: Vec<Portion>,
        entropy: &dyn Entropy,
    ) -> Duration {
        self.entries.failed(now, took, portions, entropy)
    }

    /// Settled since the last question.
    pub(super) fn settled(&mut self) -> Vec<Source> {
        std::mem::take(&mut self.settled)
    }

    /// More waits for the ledger than may.
    pub(super) fn is_full(&self) -> bool {
        self.unwritten >= self.limits.ledger_records
            || self.entries.open() >= self.limits.ledger_entries
    }

    /// Source partitions of what waits for a partition that has no room for more.
    pub(super) fn crowded(&self) -> BTreeSet<Partition> {
        let lanes = self.lanes.values();
        let full = lanes.filter(|lane| lane.is_full(&self.limits));
        full.flat_map(Lane::sources).collect()
    }
}
