//! Time from a question to its answer, as one end of a connection measures it.

use std::time::Duration;

/// Longest round trip that is believed: the other end may answer as late as it likes.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(30);

/// Smoothed round trip of one connection; zero until something was measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    millis: u32,
}

impl RoundTrip {
    /// Takes over a longer time at once, and a shorter one by an eighth of the difference.
    pub fn measure(&mut self, sample: Duration) {
        let sample = sample.min(ROUND_TRIP_MAX).as_millis() as u32;
        self.millis = sample.max((self.millis * 7 + sample) / 8);
    }

    /// Time that an answer may take without being late: twice the round trip.
    pub fn wait(self) -> Duration {
        2 * Duration::from_millis(u64::from(self.millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_at_once_and_shrinks_by_and_by() {
        let secs = Duration::from_secs;
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.wait(), Duration::ZERO);
        round_trip.measure(secs(10));
        assert_eq!(round_trip.wait(), secs(20));
        round_trip.measure(secs(2));
        assert_eq!(round_trip.wait(), secs(18));
        round_trip.measure(secs(1000));
        assert_eq!(round_trip.wait(), secs(60));
        for _ in 0..100 {
            round_trip.measure(Duration::ZERO);
        }
        assert_eq!(round_trip.wait(), Duration::ZERO);
    }
}
