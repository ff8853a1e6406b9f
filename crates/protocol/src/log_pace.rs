//! Rate limit of log lines that unauthenticated clients can cause: one line per interval, with the
//! number of events since the last one.

use std::time::Duration;

use crate::Timestamp;

/// Minimum time between two lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Events of one kind so far. Times are monotonic.
#[derive(Clone, Debug, Default)]
pub struct LogPace {
    logged_at: Option<Timestamp>,
    unlogged: u64,
}

impl LogPace {
    /// Counts one more event. If a line is due, returns the events since the last one, this one
    /// included.
    pub fn count(&mut self, now: Timestamp) -> Option<u64> {
        self.unlogged += 1;
        if self
            .logged_at
            .is_some_and(|at| now.since(at) < LOG_INTERVAL)
        {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_every_ten_seconds_and_counts_what_was_not_said() {
        let mut pace = LogPace::default();
        let mut count = |seconds: u64| pace.count(Timestamp::ZERO + Duration::from_secs(seconds));
        assert_eq!(count(0), Some(1));
        for second in 1..10 {
            assert_eq!(count(second), None);
        }
        assert_eq!(count(10), Some(10));
        assert_eq!(count(10), None);
        assert_eq!(count(100), Some(2));
        assert_eq!(count(110), Some(1));
    }
}
