//! Schedules calls for the effects of settled records: a value without IO.
//!
//! Effects are added, calls taken out, answers put in, and settled records come out. A record is
//! settled when all its records are published and, after that, all its entries are in the ledger.
//! Each partition, and the ledger, has a call, a pause and a bound of its own, so that an
//! unavailable one holds only the records that depend on it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use backend::clock::Entropy;
use backend::queue::{NewRecord, Partition};
use protocol::delivery::Source;
use protocol::ledger::LedgerEntry;
use tokio::time::Instant;

use super::entries::{Portion, UnwrittenEntries};
use super::lane::{Item, Lane};
use crate::backoff::Backoff;
use crate::executor_queue::SettleWork;

/// Records with nothing but ledger entries wait until this many portions gather, or this long:
/// nobody waits for the entries, and a call for each would cost more than its write.
const LEDGER_BATCH_MIN: usize = 256;
const LINGER: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduleLimits {
    /// Deadline of a call.
    pub(super) deadline: Duration,
    pub(super) backoff: Backoff,
    /// Records of one call at most.
    pub(super) call_records: usize,
    /// Bytes of these records, unless a single one has more.
    pub(super) call_bytes: usize,
    /// Ledger entries of one call at most.
    pub(super) call_entries: usize,
    /// Records that wait for one partition; at this bound their source partitions are paused.
    pub(super) lane_records: usize,
    /// Bytes of these records, likewise.
    pub(super) lane_bytes: usize,
    /// Records, and ledger entries, that wait for the ledger; at these bounds nothing more may
    /// begin.
    pub(super) ledger_records: usize,
    pub(super) ledger_entries: usize,
}

/// Id of one record's effects within a settler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EffectsId(u64);

/// A call to be made.
#[derive(Debug)]
pub(super) enum ScheduledCall {
    /// All for one partition.
    Publish(Partition, Vec<Item>),
    Append(Vec<Portion>),
}

/// Result of publishing one record of a call.
#[derive(Debug)]
pub(super) enum PublishResult {
    Taken(Item),
    Again(Item),
    /// The log will never take it. Carries the record to publish in its place, and entries for the
    /// ledger.
    Refused(Item, Option<NewRecord>, Vec<LedgerEntry>),
}

/// Effects of a record that is not settled.
struct OpenRecord {
    source: Source,
    /// Records not published yet.
    records: usize,
    ledger: Vec<LedgerEntry>,
    /// Latest time to write the ledger entries; `None`: as soon as the records are published.
    due_at: Option<Instant>,
}

pub(super) struct Schedule {
    limits: ScheduleLimits,
    open: HashMap<EffectsId, OpenRecord>,
    last_number: u64,
    lanes: BTreeMap<Partition, Lane>,
    entries: UnwrittenEntries,
    /// Records whose effects are published and whose ledger entries are not written.
    unwritten: usize,
    settled_sources: Vec<Source>,
}

impl Schedule {
    pub(super) fn new(limits: ScheduleLimits) -> Schedule {
        Schedule {
            entries: UnwrittenEntries::new(&limits),
            limits,
            open: HashMap::new(),
            last_number: 0,
            lanes: BTreeMap::new(),
            unwritten: 0,
            settled_sources: Vec::new(),
        }
    }

    /// Records that are not settled.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn add(&mut self, now: Instant, effects: SettleWork) {
        self.last_number += 1;
        let id = EffectsId(self.last_number);
        let is_lingering =
            effects.records.is_empty() && self.entries.portion_count() < LEDGER_BATCH_MIN;
        let source = effects.source;
        self.open.insert(
            id,
            OpenRecord {
                source,
                records: effects.records.len(),
                ledger: effects.ledger,
                due_at: is_lingering.then(|| now + LINGER),
            },
        );
        for record in effects.records {
            self.enqueue(id, source, record);
        }
        self.advance_record(now, id);
    }

    fn enqueue(&mut self, effects: EffectsId, source: Source, record: NewRecord) {
        self.last_number += 1;
        let limits = &self.limits;
        let lane = self.lanes.entry(record.partition);
        lane.or_insert_with(|| Lane::new(limits)).add(Item {
            effects,
            origin: source,
            number: self.last_number,
            record,
        });
    }

    /// Takes the next step of a record whose previous one is done.
    fn advance_record(&mut self, now: Instant, id: EffectsId) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        if open.records > 0 {
            return;
        }
        if open.ledger.is_empty() {
            self.settled_sources.push(open.source);
            self.open.remove(&id);
        } else {
            let entries = std::mem::take(&mut open.ledger);
            self.unwritten += 1;
            self.entries.add(id, entries, open.due_at.unwrap_or(now));
        }
    }

    /// Calls that are due, at most one at a time to each partition and to the ledger.
    pub(super) fn calls(&mut self, now: Instant) -> Vec<ScheduledCall> {
        let mut calls = Vec::new();
        for (&partition, lane) in &mut self.lanes {
            let items = lane.take(now);
            if !items.is_empty() {
                calls.push(ScheduledCall::Publish(partition, items));
            }
        }
        let portions = self.entries.take(now);
        if !portions.is_empty() {
            calls.push(ScheduledCall::Append(portions));
        }
        calls
    }

    /// Time of the next call; `None`: not before an answer or an addition.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lanes.values().filter_map(|lane| lane.wakes_at(now));
        lanes.chain(self.entries.wakes_at()).min()
    }

    /// Ends a call to a partition. Returns the pause before its next one, if anything is to be
    /// tried again.
    pub(super) fn published(
        &mut self,
        now: Instant,
        took: Duration,
        partition: Partition,
        answers: Vec<PublishResult>,
        entropy: &dyn Entropy,
    ) -> Option<Duration> {
        let (mut finished_items, mut failed_items, mut replacements) =
            (Vec::new(), Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                PublishResult::Taken(item) => finished_items.push(item),
                PublishResult::Again(item) => failed_items.push(item),
                PublishResult::Refused(item, record, entries) => {
                    replacements.push((item.effects, record, entries));
                    finished_items.push(item);
                }
            }
        }
        let lane = self.lanes.get_mut(&partition)?;
        let pause = lane.finish_call(now, took, &finished_items, failed_items, entropy);
        if lane.is_empty() {
            self.lanes.remove(&partition);
        }
        for (id, record, mut entries) in replacements {
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
        for item in finished_items {
            if let Some(open) = self.open.get_mut(&item.effects) {
                open.records -= 1;
            }
            self.advance_record(now, item.effects);
        }
        pause
    }

    pub(super) fn appended(&mut self, took: Duration, portions: Vec<Portion>) {
        self.entries.succeeded(took, &portions);
        for portion in portions.into_iter().filter(|portion| portion.is_last) {
            self.unwritten -= 1;
            if let Some(open) = self.open.remove(&portion.effects) {
                self.settled_sources.push(open.source);
            }
        }
    }

    /// Takes back portions that the ledger did not take. Returns the pause before its next call.
    pub(super) fn not_appended(
        &mut self,
        now: Instant,
        took: Duration,
        portions: Vec<Portion>,
        entropy: &dyn Entropy,
    ) -> Duration {
        self.entries.failed(now, took, portions, entropy)
    }

    /// Records settled since the last call.
    pub(super) fn settled(&mut self) -> Vec<Source> {
        std::mem::take(&mut self.settled_sources)
    }

    /// Whether the ledger's backlog is at its bound.
    pub(super) fn is_full(&self) -> bool {
        self.unwritten >= self.limits.ledger_records
            || self.entries.open() >= self.limits.ledger_entries
    }

    /// Source partitions of the records that wait for a full partition.
    pub(super) fn crowded(&self) -> BTreeSet<Partition> {
        let lanes = self.lanes.values();
        let full = lanes.filter(|lane| lane.is_full(&self.limits));
        full.flat_map(Lane::sources).collect()
    }
}
