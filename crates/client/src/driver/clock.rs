use std::time::SystemTime;

use protocol::Timestamp;
use tokio::time::Instant;

/// The time of day, set or read once and carried on by the runtime's timer: it never jumps while a client
/// runs, and stands still in tests with paused time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: Instant,
    start: Timestamp,
}

impl Clock {
    #[allow(
        clippy::disallowed_methods,
        reason = "a client may not depend on backend, where the services' clock is"
    )]
    fn machine() -> Timestamp {
        let unix_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let millis = i64::try_from(unix_time.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(millis)
    }

    /// Starts at this time, or at the machine's.
    pub(super) fn start(at: Option<Timestamp>) -> Clock {
        Clock {
            zero: Instant::now(),
            start: at.unwrap_or_else(Clock::machine),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.start + self.zero.elapsed()
    }

    /// Instant not before `at`: timestamps are whole milliseconds.
    pub(super) fn instant(&self, at: Timestamp) -> Instant {
        self.zero + at.since(self.start)
    }
}
