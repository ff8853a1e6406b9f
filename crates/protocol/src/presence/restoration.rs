//! Resync of clients whose sessions the store had forgotten.
//!
//! A store that lost its data has a new marker: mail that arrived meanwhile may be lost, too, so
//! the client has to sync. Under an unchanged marker, sessions were removed one by one, such as
//! those of a boat that counts as over because its lease is away. Then the mail is there, and a
//! notice to every client would bring them all at once, again and again, for as long as the lease
//! is away.

use std::collections::BTreeSet;
use std::time::Duration;

/// Minimum interval between two resyncs of all clients, unless the store has a new marker.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(600);

/// Markers remembered: each part of the store has a few. Beyond this number all count as new once
/// more, which costs a sync.
const MARKERS_MAX: usize = 8192;

/// Markers under which a boat's sessions were registered.
#[derive(Clone, Debug, Default)]
pub struct Restoration {
    markers: BTreeSet<u64>,
}

impl Restoration {
    /// A session was registered under this marker. Returns true if the marker is new to the boat.
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

/// Whether the client of a restored session has to sync. While the lease is away, only a new marker
/// of the store requires it: with the next lease all clients sync.
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
        assert_eq!(RESYNC_INTERVAL, Duration::from_secs(10 * 60));
    }
}
