//! Copies in memory: they are of no use after a restart.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::cached::{Outdated, Owner, Reach};

use super::{Cache, CacheConfig, Copy, Found, Token};
use crate::Result;

/// What one takes beside its bytes, about.
const OVERHEAD: usize = 200;

/// [`Cache`] in memory.
pub struct EmbeddedCache {
    config: CacheConfig,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    by_owner: HashMap<Owner, Slot>,
    /// Moment of the last use → owner.
    used: BTreeMap<u64, Owner>,
    /// Of uses, and for tokens: none comes twice.
    moment: u64,
    bytes: usize,
}

struct Slot {
    token: u64,
    used: u64,
    kept: Option<(Reach, Bytes)>,
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

    async fn find(&self, owners: &[Owner]) -> Vec<Result<Found>> {
        if self.config.is_off() {
            return owners.iter().map(|_| Ok(Found::nothing())).collect();
        }
        let mut held = self.held.lock();
        let found = owners.iter().map(|owner| Ok(held.find(*owner))).collect();
        held.shrink(self.config.memory_bytes_max);
        found
    }

    async fn keep(&self, copies: Vec<Copy>) -> Vec<Result<bool>> {
        if self.config.is_off() {
            return copies.iter().map(|_| Ok(false)).collect();
        }
        let mut held = self.held.lock();
        let kept = copies.into_iter().map(|copy| Ok(held.keep(copy))).collect();
        held.shrink(self.config.memory_bytes_max);
        kept
    }

    async fn forget(&self, outdated: &[Outdated]) -> Vec<Result<()>> {
        let mut held = self.held.lock();
        outdated.iter().for_each(|outdated| held.forget(outdated));
        outdated.iter().map(|_| Ok(())).collect()
    }
}

impl Held {
    fn find(&mut self, owner: Owner) -> Found {
        self.moment += 1;
        let moment = self.moment;
        let slot = self.by_owner.entry(owner).or_insert_with(|| {
            self.bytes += OVERHEAD;
            Slot {
                token: moment,
                used: moment,
                kept: None,
            }
        });
        self.used.remove(&slot.used);
        slot.used = moment;
        self.used.insert(moment, owner);
        Found {
            token: Token(slot.token.to_string()),
            copy: slot.kept.as_ref().map(|(_, bytes)| bytes.clone()),
        }
    }

    fn keep(&mut self, copy: Copy) -> bool {
        let Some(slot) = self.by_owner.get_mut(&copy.owner) else {
            return false;
        };
        if copy.token.0 != slot.token.to_string() {
            return false;
        }
        self.moment += 1;
        slot.token = self.moment;
        let before = slot.kept.replace((copy.reach, copy.bytes.clone()));
        self.bytes += copy.bytes.len();
        self.bytes -= before.map_or(0, |(_, bytes)| bytes.len());
        true
    }

    fn forget(&mut self, Outdated { owner, unless }: &Outdated) {
        let slot = self.by_owner.get(owner);
        let reach = slot.and_then(|slot| slot.kept.as_ref()).map(|kept| kept.0);
        let is_new = |(reach, unless): (Reach, &Reach)| reach.covers(*unless);
        if !reach.zip(unless.as_ref()).is_some_and(is_new) {
            self.drop_one(*owner);
        }
    }

    fn drop_one(&mut self, owner: Owner) {
        if let Some(slot) = self.by_owner.remove(&owner) {
            self.used.remove(&slot.used);
            self.bytes -= OVERHEAD + slot.kept.map_or(0, |(_, bytes)| bytes.len());
        }
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some((_, &oldest)) = self.used.first_key_value()
        {
            self.drop_one(oldest);
        }
    }
}

#[cfg(test)]
mod tests;
