//! Bytes that the socket has taken and a slow link has yet to carry.

use super::SessionLimits;
use crate::Timestamp;

/// Bytes still on their way if the link carries only `link_bytes_min` per second.
#[derive(Debug)]
pub(super) struct SocketBacklog {
    bytes: u64,
    at: Timestamp,
}

impl SocketBacklog {
    pub(super) fn new(now: Timestamp) -> SocketBacklog {
        SocketBacklog { bytes: 0, at: now }
    }

    /// Notes that the socket took this many more bytes. Returns the bytes on their way.
    pub(super) fn take(&mut self, bytes: u64, limits: &SessionLimits, now: Timestamp) -> u64 {
        let millis = now.since(self.at).as_millis() as u64;
        let drained = millis.saturating_mul(u64::from(limits.link_bytes_min)) / 1000;
        self.bytes = self.bytes.saturating_sub(drained).saturating_add(bytes);
        self.at = now;
        self.bytes
    }
}
