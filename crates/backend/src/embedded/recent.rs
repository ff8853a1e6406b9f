//! What a store remembers of its newest writes, so that it need not read before it writes.

use std::collections::HashMap;
use std::hash::Hash;

/// At most this many in each of two generations.
const GENERATION: usize = 32_768;

/// A bounded memory: what was neither written nor asked for during a whole generation is forgotten.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    generation: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Default for Recent<K, V> {
    fn default() -> Self {
        Recent::new(GENERATION)
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    fn new(generation: usize) -> Recent<K, V> {
        Recent {
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
    fn what_is_used_stays_and_the_rest_is_forgotten() {
        let mut recent = Recent::new(10);
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
        let mut recent = Recent::new(2);
        for n in 0..4 {
            recent.put(n, n);
        }
        recent.put(1, 10);
        assert_eq!(recent.get(&1), Some(10));
    }
}
