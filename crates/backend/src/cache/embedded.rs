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
    held: Mutex<CacheSlots>,
}

/// Entries, and the order in which they were used.
#[derive(Default)]
struct CacheSlots {
    entries: Entries<Bytes>,
    /// Moment of the last use of each slot.
    used_at: HashMap<CacheKey, u64>,
    /// Moment of the last use → owner.
    used: BTreeMap<u64, CacheKey>,
    moment: u64,
    bytes: usize,
}

impl EmbeddedCache {
    /// `Conflict` on settings that cannot work.
    pub fn new(config: CacheConfig) -> Result<EmbeddedCache> {
        config.check()?;
        Ok(EmbeddedCache {
            config,
            held: Mutex::default(),
        })
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
        let mut held = self.held.lock();
        let found = owners.iter().map(|owner| Ok(held.find(*owner))).collect();
        held.shrink(self.config.memory_bytes_max);
        found
    }

    async fn keep(&self, copies: Vec<CacheRecord>) -> Vec<Result<bool>> {
        if self.config.is_off() {
            return copies.iter().map(|_| Ok(false)).collect();
        }
        let mut held = self.held.lock();
        let kept = copies.into_iter().map(|copy| Ok(held.keep(copy))).collect();
        held.shrink(self.config.memory_bytes_max);
        kept
    }

    async fn forget(&self, outdated: &[Invalidation]) -> Vec<Result<()>> {
        let mut held = self.held.lock();
        outdated.iter().for_each(|outdated| held.forget(outdated));
        outdated.iter().map(|_| Ok(())).collect()
    }
}

impl CacheSlots {
    fn find(&mut self, owner: CacheKey) -> CacheLookup {
        self.moment += 1;
        match self.used_at.insert(owner, self.moment) {
            Some(before) => drop(self.used.remove(&before)),
            None => self.bytes += OVERHEAD,
        }
        self.used.insert(self.moment, owner);
        let (token, entry) = self.entries.look_up(owner);
        CacheLookup {
            token: FillToken(token.to_string()),
            copy: entry.cloned(),
        }
    }

    fn keep(&mut self, copy: CacheRecord) -> bool {
        let Ok(token) = copy.token.0.parse() else {
            return false;
        };
        let (before, after) = (self.bytes_of(copy.owner), copy.bytes.len());
        let is_kept = (self.entries).fill(copy.owner, token, copy.reach, copy.bytes);
        if is_kept {
            self.bytes = self.bytes + after - before;
        }
        is_kept
    }

    fn forget(&mut self, outdated: &Invalidation) {
        let bytes = self.bytes_of(outdated.owner);
        if self.entries.invalidate(outdated) {
            self.unlink(outdated.owner, bytes);
        }
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some((_, &oldest)) = self.used.first_key_value()
        {
            let bytes = self.bytes_of(oldest);
            self.entries.remove(oldest);
            self.unlink(oldest, bytes);
        }
    }

    fn bytes_of(&self, owner: CacheKey) -> usize {
        self.entries.get(owner).map_or(0, Bytes::len)
    }

    /// Forgets the use of a slot that is gone.
    fn unlink(&mut self, owner: CacheKey, bytes: usize) {
        if let Some(used) = self.used_at.remove(&owner) {
            self.used.remove(&used);
            self.bytes -= OVERHEAD + bytes;
        }
    }
}

#[cfg(test)]
mod tests;
