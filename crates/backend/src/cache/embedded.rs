//! Cache in memory: entries are worthless after a restart.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::cache::{CacheKey, Entries, Invalidation};

use super::{Cache, CacheConfig, CacheLookup, CacheRecord, FillToken};
use crate::Result;

/// Overhead of an entry beside its bytes, approximately.
const OVERHEAD: usize = 200;

/// [`Cache`] in memory.
pub struct EmbeddedCache {
    config: CacheConfig,
    slots: Mutex<CacheSlots>,
}

/// Entries, and the order in which they were used.
#[derive(Default)]
struct CacheSlots {
    entries: Entries<Bytes>,
    /// Moment of the last use of each slot.
    used_at: HashMap<CacheKey, u64>,
    /// Moment of the last use → owner.
    use_order: BTreeMap<u64, CacheKey>,
    moment: u64,
    bytes: usize,
}

impl EmbeddedCache {
    pub fn new(config: CacheConfig) -> EmbeddedCache {
        EmbeddedCache {
            config,
            slots: Mutex::default(),
        }
    }
}

#[async_trait]
impl Cache for EmbeddedCache {
    fn keep_for(&self) -> Duration {
        self.config.keep_for
    }

    async fn find(&self, owners: &[CacheKey]) -> Vec<Result<CacheLookup>> {
        if self.config.is_off() {
            return owners.iter().map(|_| Ok(CacheLookup::nothing())).collect();
        }
        let mut slots = self.slots.lock();
        let lookups = owners.iter().map(|owner| Ok(slots.find(*owner))).collect();
        slots.shrink(self.config.memory_bytes_max);
        lookups
    }

    async fn keep(&self, records: Vec<CacheRecord>) -> Vec<Result<bool>> {
        if self.config.is_off() {
            return records.iter().map(|_| Ok(false)).collect();
        }
        let mut slots = self.slots.lock();
        let results = records
            .into_iter()
            .map(|record| Ok(slots.keep(record)))
            .collect();
        slots.shrink(self.config.memory_bytes_max);
        results
    }

    async fn forget(&self, invalidations: &[Invalidation]) -> Vec<Result<()>> {
        let mut slots = self.slots.lock();
        invalidations
            .iter()
            .for_each(|invalidation| slots.forget(invalidation));
        invalidations.iter().map(|_| Ok(())).collect()
    }
}

impl CacheSlots {
    fn find(&mut self, owner: CacheKey) -> CacheLookup {
        self.moment += 1;
        match self.used_at.insert(owner, self.moment) {
            Some(previous) => drop(self.use_order.remove(&previous)),
            None => self.bytes += OVERHEAD,
        }
        self.use_order.insert(self.moment, owner);
        let (token, entry) = self.entries.look_up(owner);
        CacheLookup {
            token: FillToken(token.to_string()),
            entry: entry.cloned(),
        }
    }

    fn keep(&mut self, record: CacheRecord) -> bool {
        let Ok(token) = record.token.0.parse() else {
            return false;
        };
        let (old_size, new_size) = (self.entry_size(record.owner), record.bytes.len());
        let is_kept = (self.entries).fill(record.owner, token, record.reach, record.bytes);
        if is_kept {
            self.bytes = self.bytes + new_size - old_size;
        }
        is_kept
    }

    fn forget(&mut self, invalidation: &Invalidation) {
        let bytes = self.entry_size(invalidation.owner);
        if self.entries.invalidate(invalidation) {
            self.unlink(invalidation.owner, bytes);
        }
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some((_, &oldest)) = self.use_order.first_key_value()
        {
            let bytes = self.entry_size(oldest);
            self.entries.remove(oldest);
            self.unlink(oldest, bytes);
        }
    }

    fn entry_size(&self, owner: CacheKey) -> usize {
        self.entries.get(owner).map_or(0, Bytes::len)
    }

    /// Forgets the use of a slot that is gone.
    fn unlink(&mut self, owner: CacheKey, bytes: usize) {
        if let Some(moment) = self.used_at.remove(&owner) {
            self.use_order.remove(&moment);
            self.bytes -= OVERHEAD + bytes;
        }
    }
}

#[cfg(test)]
mod tests;
