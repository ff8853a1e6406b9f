//! Records for one partition: at most one call under way, and order within each key.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use backend::clock::Entropy;
use backend::queue::{NewRecord, Partition};
use bytes::Bytes;
use protocol::delivery::Source;
use tokio::time::Instant;

use super::schedule::{EffectsId, ScheduleLimits};
use super::size::CallSize;
use crate::backoff::Backoff;

/// A record that is to be published.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) effects: EffectsId,
    /// Record that this one is an effect of.
    pub(super) origin: Source,
    /// Grows with each item of a settler.
    pub(super) number: u64,
    pub(super) record: NewRecord,
}

impl Item {
    fn source(&self) -> Partition {
        Partition {
            topic: self.origin.topic,
            number: self.origin.partition,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let headers = self.record.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        self.record.key.len() + self.record.value.len() + headers
    }
}

pub(super) struct Lane {
    /// Never tried.
    fresh: VecDeque<Item>,
    /// Tried without success, or behind such an item of the same key; by number.
    held_items: BTreeMap<u64, Item>,
    /// Number of held items of each key.
    held_keys: BTreeMap<Bytes, usize>,
    /// Time of the next try of held items; `None` if nothing is held.
    retry_at: Option<Instant>,
    /// The last call took nothing at all: fresh items wait as well.
    is_closed: bool,
    is_calling: bool,
    call_bytes_max: usize,
    size: CallSize,
    backoff: Backoff,
    /// Items that are not done, including those of a call under way.
    open: usize,
    bytes: usize,
    sources: BTreeMap<Partition, usize>,
}

impl Lane {
    pub(super) fn new(limits: &ScheduleLimits) -> Lane {
        Lane {
            fresh: VecDeque::new(),
            held_items: BTreeMap::new(),
            held_keys: BTreeMap::new(),
            retry_at: None,
            is_closed: false,
            is_calling: false,
            call_bytes_max: limits.call_bytes,
            size: CallSize::new(limits.call_records, limits.deadline),
            backoff: limits.backoff,
            open: 0,
            bytes: 0,
            sources: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, item: Item) {
        self.open += 1;
        self.bytes += item.bytes();
        *self.sources.entry(item.source()).or_default() += 1;
        self.fresh.push_back(item);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
    }

    pub(super) fn is_full(&self, limits: &ScheduleLimits) -> bool {
        self.open >= limits.lane_records || self.bytes >= limits.lane_bytes
    }

    /// Source partitions of the records that have effects here.
    pub(super) fn sources(&self) -> impl Iterator<Item = Partition> {
        self.sources.keys().copied()
    }

    /// Time of the next call, if there is anything to publish.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        if self.is_calling {
            return None;
        }
        let fresh = (!self.fresh.is_empty() && !self.is_closed).then_some(now);
        fresh.into_iter().chain(self.retry_at).min()
    }

    /// Takes the items to publish now: held ones first, oldest first, then fresh ones that overtake
    /// none of those.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Item> {
        let is_retry_due = self.retry_at.is_some_and(|at| at <= now);
        if self.is_calling || (self.is_closed && !is_retry_due) {
            return Vec::new();
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        if is_retry_due {
            while let Some((_, item)) = self.held_items.first_key_value()
                && self.has_room(&batch, bytes + item.bytes())
                && let Some((_, item)) = self.held_items.pop_first()
            {
                bytes += item.bytes();
                self.release_key(&item.record.key);
                batch.push(item);
            }
            self.retry_at = (!self.held_items.is_empty()).then_some(now);
        }
        while let Some(item) = self.fresh.front() {
            let overtakes = self.held_keys.contains_key(&item.record.key);
            if !overtakes && !self.has_room(&batch, bytes + item.bytes()) {
                break;
            }
            let Some(item) = self.fresh.pop_front() else {
                break;
            };
            if overtakes {
                self.hold(item);
            } else {
                bytes += item.bytes();
                batch.push(item);
            }
        }
        self.is_calling = !batch.is_empty();
        batch
    }

    fn has_room(&self, batch: &[Item], bytes: usize) -> bool {
        batch.is_empty() || (batch.len() < self.size.get() && bytes <= self.call_bytes_max)
    }

    /// Ends the call under way: `failed_items` are published again, `finished_items` never.
    pub(super) fn finish_call(
        &mut self,
        now: Instant,
        took: Duration,
        finished_items: &[Item],
        failed_items: Vec<Item>,
        entropy: &dyn Entropy,
    ) -> Option<Duration> {
        self.is_calling = false;
        for item in finished_items {
            self.open -= 1;
            self.bytes -= item.bytes();
            if let Some(count) = self.sources.get_mut(&item.source()) {
                *count -= 1;
            }
        }
        self.sources.retain(|_, count| *count > 0);
        self.is_closed = finished_items.is_empty() && !failed_items.is_empty();
        if failed_items.is_empty() {
            self.backoff.succeeded();
            self.size.succeeded(took);
            return None;
        }
        self.size.failed(took);
        failed_items.into_iter().for_each(|item| self.hold(item));
        let pause = self.backoff.failed(entropy);
        self.retry_at = Some(now + pause);
        Some(pause)
    }

    fn hold(&mut self, item: Item) {
        *self.held_keys.entry(item.record.key.clone()).or_default() += 1;
        self.held_items.insert(item.number, item);
    }

    fn release_key(&mut self, key: &Bytes) {
        if let Some(count) = self.held_keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.held_keys.remove(key);
            }
        }
    }
}
