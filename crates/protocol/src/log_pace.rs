//! Pace of log lines that strangers cause: one now and then, with the number of events behind it.

use std::time::Duration;

use crate::Timestamp;

/// Minimum time between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Events of one kind so far. Times are monotonic.
#[derive(Clone, Debug, Default)]
pub struct LogPace {
    said_at: Option<Timestamp>,
    unsaid: u64,
}

impl LogPace {
    /// Counts one more event. If a line is due, returns the events since the last one, this one
    /// included.
    pub fn count(&mut self, now: Timestamp) -> Option<u64> {
        self.unsaid += 1;
        if self.said_at.is_some_and(|at| now.since(at) < EVERY) {
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
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
