//! Memory of a store's newest writes, which saves it a read before each write.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries in each of two generations, at most.
const GENERATION: usize = 32_768;

/// Bounded map: an entry neither written nor read during a whole generation is dropped.
#[derive(Debug)]
pub(crate) struct AgingMap<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    generation: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Default for AgingMap<K, V> {
    fn default() -> Self {
        AgingMap::new(GENERATION)
    }
}

impl<K: Copy + Eq + Hash, V: Copy> AgingMap<K, V> {
    fn new(generation: usize) -> AgingMap<K, V> {
        AgingMap {
            young: HashMap::new(),
            old: HashMap::new(),
            generation,
        }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(*value);
        }
        let value = self.old.remove(key)?;
        self.put(*key, value);
        Some(value)
    }

    pub(crate) fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.generation && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_entries_stay_and_others_are_forgotten() {
        let mut recent = AgingMap::new(10);
        recent.put(0, "kept");
        for n in 1..1000 {
            recent.put(n, "passing");
            assert_eq!(recent.get(&0), Some("kept"));
            assert!(recent.young.len() + recent.old.len() <= 20);
        }
        assert_eq!(recent.get(&1), None);
    }

    #[test]
    fn the_newest_value_counts() {
        let mut recent = AgingMap::new(2);
        for n in 0..4 {
            recent.put(n, n);
        }
        recent.put(1, 10);
        assert_eq!(recent.get(&1), Some(10));
    }
}
