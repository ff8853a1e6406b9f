//! Entries of a cache with their fill tokens: the rule that every cache follows.

use std::collections::BTreeMap;

use super::{CacheKey, Coverage, Invalidation};

/// Entries by owner. A filler looks an entry up, reads the stores, and fills the entry under the
/// token of its lookup. Whatever happens to the entry in between, a fill or an invalidation, ends
/// the token: data from before a change is never stored after it. No token is given twice.
#[derive(Clone, Debug)]
pub struct Entries<V> {
    slots: BTreeMap<CacheKey, EntrySlot<V>>,
    /// Last token given.
    token: u64,
}

#[derive(Clone, Debug)]
struct EntrySlot<V> {
    token: u64,
    entry: Option<(Coverage, V)>,
}

impl<V> Default for Entries<V> {
    fn default() -> Entries<V> {
        Entries {
            slots: BTreeMap::new(),
            token: 0,
        }
    }
}

impl<V> Entries<V> {
    /// The entry, if there is one, and the token to fill it.
    pub fn look_up(&mut self, owner: CacheKey) -> (u64, Option<&V>) {
        self.token += 1;
        let token = self.token;
        let slot = self
            .slots
            .entry(owner)
            .or_insert(EntrySlot { token, entry: None });
        (slot.token, slot.entry.as_ref().map(|(_, entry)| entry))
    }

    pub fn get(&self, owner: CacheKey) -> Option<&V> {
        let (_, entry) = self.slots.get(&owner)?.entry.as_ref()?;
        Some(entry)
    }

    /// Whether the owner has a slot: an entry, or a token that still fills it.
    pub fn contains(&self, owner: CacheKey) -> bool {
        self.slots.contains_key(&owner)
    }

    /// Token of the owner's slot, as long as nothing happens to it.
    pub fn token(&self, owner: CacheKey) -> Option<u64> {
        Some(self.slots.get(&owner)?.token)
    }

    /// Stores an entry, if its token has not ended. Returns whether it did.
    pub fn fill(&mut self, owner: CacheKey, token: u64, coverage: Coverage, entry: V) -> bool {
        let Some(slot) = self
            .slots
            .get_mut(&owner)
            .filter(|slot| slot.token == token)
        else {
            return false;
        };
        self.token += 1;
        slot.token = self.token;
        slot.entry = Some((coverage, entry));
        true
    }

    /// Removes the entry, unless it covers what the invalidation excepts. Returns whether it did.
    pub fn invalidate(&mut self, invalidation: &Invalidation) -> bool {
        let slot = self.slots.get(&invalidation.owner);
        let entry = slot.and_then(|slot| slot.entry.as_ref());
        let coverage = entry
            .map(|(coverage, _)| *coverage)
            .zip(invalidation.unless);
        if coverage.is_some_and(|(coverage, unless)| coverage.covers(unless)) {
            return false;
        }
        self.remove(invalidation.owner)
    }

    /// Removes a slot: its token has ended.
    pub fn remove(&mut self, owner: CacheKey) -> bool {
        self.slots.remove(&owner).is_some()
    }

    /// Removes all slots. The tokens given so far stay ended.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, Seq};

    fn owner() -> CacheKey {
        CacheKey::Group(GroupId::new(7).expect("positive"))
    }

    fn reach(seq: u64) -> Coverage {
        Coverage {
            seq: Seq(seq),
            rev: 0,
        }
    }

    fn unless(seq: Option<u64>) -> Invalidation {
        Invalidation {
            owner: owner(),
            unless: seq.map(reach),
        }
    }

    #[test]
    fn a_token_fills_once_and_only_what_nothing_happened_to() {
        let mut entries = Entries::default();
        let (token, entry) = entries.look_up(owner());
        assert_eq!(entry, None);
        assert_eq!(entries.look_up(owner()).0, token, "nothing happened to it");
        assert!(entries.fill(owner(), token, reach(5), "five"));
        assert!(!entries.fill(owner(), token, reach(5), "again"));
        let (token, entry) = entries.look_up(owner());
        assert_eq!(entry, Some(&"five"));
        assert!(entries.invalidate(&unless(None)));
        assert!(!entries.fill(owner(), token, reach(4), "old"));
        assert_ne!(entries.look_up(owner()).0, token);
        entries.clear();
        assert!(!entries.fill(owner(), token, reach(4), "old"));
    }

    #[test]
    fn an_entry_that_covers_it_stays() {
        let mut entries = Entries::default();
        let (token, _) = entries.look_up(owner());
        entries.fill(owner(), token, reach(5), "five");
        assert!(!entries.invalidate(&unless(Some(5))));
        assert_eq!(entries.get(owner()), Some(&"five"));
        assert!(entries.invalidate(&unless(Some(6))));
        assert_eq!(entries.get(owner()), None);
        // A reader that looked it up meanwhile has read what the invalidation is about, or not.
        let (token, _) = entries.look_up(owner());
        assert!(
            entries.invalidate(&unless(Some(6))),
            "an empty slot covers nothing"
        );
        assert!(!entries.fill(owner(), token, reach(5), "five"));
    }
}
