//! What the socket has taken and a slow link has yet to carry.

use super::Limits;
use crate::Timestamp;

/// Bytes that are still on their way where the link carries `link_bytes_min` a second and no more.
#[derive(Debug)]
pub(super) struct Travel {
    bytes: u64,
    at: Timestamp,
}

impl Travel {
    pub(super) fn new(now: Timestamp) -> Travel {
        Travel { bytes: 0, at: now }
    }

    /// The socket took so many more. Answers how many are on their way.
    pub(super) fn take(&mut self, bytes: u64, limits: &Limits, now: Timestamp) -> u64 {
        let millis = now.since(self.at).as_millis() as u64;
        let carried = millis.saturating_mul(u64::from(limits.link_bytes_min)) / 1000;
        self.bytes = self.bytes.saturating_sub(carried).saturating_add(bytes);
        self.at = now;
        self.bytes
    }
}
