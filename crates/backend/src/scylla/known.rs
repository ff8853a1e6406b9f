//! What this process has written before and need not write again.

use std::hash::Hash;

use parking_lot::Mutex;

use crate::embedded::recent::Recent;

/// Rows that only say *there is something*: they stay for good, so that what is known is never wrong. That
/// something is not there is never remembered.
pub(crate) struct Known<K: Copy + Eq + Hash>(Mutex<Recent<K, ()>>);

impl<K: Copy + Eq + Hash> Default for Known<K> {
    fn default() -> Self {
        Known(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> Known<K> {
    pub(crate) fn has(&self, key: &K) -> bool {
        self.0.lock().get(key).is_some()
    }

    /// After it was written, never before.
    pub(crate) fn add(&self, key: K) {
        self.0.lock().put(key, ());
    }
}
