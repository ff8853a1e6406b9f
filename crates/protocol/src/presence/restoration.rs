//! Which clients sync when the store had forgotten their sessions.
//!
//! A store that lost its data has another marker: what came meanwhile may be gone with it, and the client
//! has to ask. Under a marker that is the same, sessions were removed one by one, as those of a boat that
//! counts as over because its lease is away. Then the mail is there, and a word to every client would bring
//! all of them at once, again and again, for as long as the lease is away.

use std::collections::BTreeSet;
use std::time::Duration;

/// All clients are told to sync at most once in this time, unless the store has another marker.
pub const RESYNC_REST: Duration = Duration::from_secs(600);

/// Markers that are remembered: some for each part of the store. Beyond it all count as new once more, which
/// costs a sync.
const MARKERS_MAX: usize = 8192;

/// The markers under which a boat's sessions were registered.
#[derive(Clone, Debug, Default)]
pub struct Restoration {
    markers: BTreeSet<u64>,
}

impl Restoration {
    /// A session was registered under this marker. True: the boat had not met it.
    pub fn handle_marker(&mut self, marker: u64) -> bool {
        if self.markers.contains(&marker) {
            return false;
        }
        if self.markers.len() >= MARKERS_MAX {
            self.markers.clear();
        }
        self.markers.insert(marker)
    }
}

/// Is the client of a restored session to sync? While the lease is away only where the store is another:
/// with the next lease all are told.
pub fn syncs_restored(has_lease: bool, is_new_marker: bool) -> bool {
    has_lease || is_new_marker
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_new_once() {
        let mut restoration = Restoration::default();
        assert!(restoration.handle_marker(7));
        assert!(!restoration.handle_marker(7));
        assert!(restoration.handle_marker(8));
        assert!(!restoration.handle_marker(7));
    }

    #[test]
    fn markers_are_bounded() {
        let mut restoration = Restoration::default();
        for marker in 0..=MARKERS_MAX as u64 {
            assert!(restoration.handle_marker(marker));
            assert!(restoration.markers.len() <= MARKERS_MAX);
        }
        assert!(restoration.handle_marker(0), "forgotten, so a sync more");
    }

    #[test]
    fn without_a_lease_only_another_store_makes_clients_sync() {
        assert!(syncs_restored(true, false) && syncs_restored(true, true));
        assert!(syncs_restored(false, true));
        assert!(!syncs_restored(false, false));
    }

    #[test]
    fn the_rest_is_ten_minutes() {
        assert_eq!(RESYNC_REST, Duration::from_secs(10 * 60));
    }
}
