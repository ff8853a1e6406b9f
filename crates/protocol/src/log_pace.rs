//! Lines of a log that strangers cause: one now and then, which says how many there would have been.

use std::time::Duration;

use crate::Timestamp;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Events of one kind so far. Times are of a timer that never steps.
#[derive(Clone, Debug, Default)]
pub struct LogPace {
    said_at: Option<Timestamp>,
    unsaid: u64,
}

impl LogPace {
    /// One more event. Where it is time for a line, the events since the last one, this one included.
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
