//! Read pace of one session: bytes per second, and a burst after a rest. Beyond them nothing is
//! refused and nothing is lost: reading pauses, and the client's own window closes.

use std::time::Duration;

use protocol::Timestamp;

/// A shorter pause is not worth its timer.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Bounds of a [`ReadPace`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadBounds {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

/// A leaky bucket. Times are monotonic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPace {
    /// Bytes in the bucket at `at`.
    bytes: u64,
    at: Timestamp,
}

impl ReadPace {
    pub(crate) fn new(now: Timestamp) -> ReadPace {
        ReadPace { bytes: 0, at: now }
    }

    /// Counts bytes read, even beyond the available room.
    pub(crate) fn read(&mut self, bytes: usize, bounds: ReadBounds, now: Timestamp) {
        self.bytes = self.level(bounds, now) + bytes as u64;
        self.at = self.at.max(now);
    }

    /// End of the pause; `None` if reading continues.
    pub(crate) fn pauses_until(&self, bounds: ReadBounds) -> Option<Timestamp> {
        let excess = self.bytes.checked_sub(u64::from(bounds.burst))?;
        let millis = (excess * 1000).div_ceil(u64::from(bounds.per_second.max(1)));
        (excess > 0).then(|| self.at + Duration::from_millis(millis).max(PAUSE_MIN))
    }

    fn level(&self, bounds: ReadBounds, now: Timestamp) -> u64 {
        let millis = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        let drained = millis.saturating_mul(u64::from(bounds.per_second)) / 1000;
        self.bytes.saturating_sub(drained)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: ReadBounds = ReadBounds {
        per_second: 262_144,
        burst: 1_048_576,
    };

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_passes_and_what_is_more_waits_its_time() {
        let mut pace = ReadPace::new(at(0));
        pace.read(1_048_576, BOUNDS, at(0));
        assert_eq!(pace.pauses_until(BOUNDS), None);
        pace.read(65_536, BOUNDS, at(0));
        assert_eq!(pace.pauses_until(BOUNDS), Some(at(250)));
        pace.read(65_536, BOUNDS, at(250));
        assert_eq!(pace.pauses_until(BOUNDS), Some(at(500)));
        // The bucket is empty after four seconds, and a longer rest saves no more than a burst.
        pace.read(1_048_576, BOUNDS, at(60_000));
        assert_eq!(pace.pauses_until(BOUNDS), None);
        pace.read(1, BOUNDS, at(60_000));
        assert_eq!(pace.pauses_until(BOUNDS), Some(at(60_050)));
    }

    proptest! {
        /// A session that reads whenever it may gets the rate, plus at most a burst and one read.
        #[test]
        fn no_reader_exceeds_its_rate(reads in prop::collection::vec((1..65_536usize, 0..400u64), 1..200)) {
            let (mut pace, mut now, mut sum) = (ReadPace::new(at(0)), 0, 0);
            for (bytes, pause) in reads {
                now += pause;
                if pace.pauses_until(BOUNDS).is_some_and(|pause_end| at(now) < pause_end) {
                    continue;
                }
                pace.read(bytes, BOUNDS, at(now));
                sum += bytes as u64;
                let limit = u64::from(BOUNDS.burst) + now * u64::from(BOUNDS.per_second) / 1000 + 65_536 + 1000;
                prop_assert!(sum <= limit, "{sum} in {now} ms");
            }
        }
    }
}
