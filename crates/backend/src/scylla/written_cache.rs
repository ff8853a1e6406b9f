//! Memory of rows that this process has written and need not write again.

use std::hash::Hash;

use parking_lot::Mutex;

use crate::embedded::aging_map::AgingMap;

/// Set of keys of rows that only record existence. Such rows stay for good, so a remembered key is
/// never wrong. Absence is never remembered.
pub(crate) struct WrittenCache<K: Copy + Eq + Hash>(Mutex<AgingMap<K, ()>>);

impl<K: Copy + Eq + Hash> Default for WrittenCache<K> {
    fn default() -> Self {
        WrittenCache(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> WrittenCache<K> {
    pub(crate) fn has(&self, key: &K) -> bool {
        self.0.lock().get(key).is_some()
    }

    /// Remembers a key. Call it after the write, never before.
    pub(crate) fn add(&self, key: K) {
        self.0.lock().put(key, ());
    }
}
