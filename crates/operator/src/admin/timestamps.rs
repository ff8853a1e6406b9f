//! Times for people.

use std::time::{Duration, UNIX_EPOCH};

use protocol::Timestamp;

/// Formats a time as `2026-03-01T09:00:00Z`; times before 1970 become its start.
pub fn utc(at: Timestamp) -> String {
    let since_1970 = Duration::from_millis(at.millis().max(0) as u64);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970).to_string()
}
