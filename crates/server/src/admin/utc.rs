//! Times for people.

use std::time::{Duration, UNIX_EPOCH};

use protocol::Timestamp;

/// `2026-03-01T09:00:00Z`; what lies before 1970 is its beginning.
pub(crate) fn utc(at: Timestamp) -> String {
    let since_1970 = Duration::from_millis(at.millis().max(0) as u64);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970).to_string()
}
