//! Pauses before the next attempt: how they grow with failures, and how callers spread over them,
//! with the random numbers that they spread by.

use std::time::Duration;

/// Pauses of one caller, doubled with each failure in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            first,
            longest,
            failures: 0,
        }
    }

    /// Pause after one more failure.
    pub fn failed(&mut self) -> Duration {
        let pause = doubled(self.first, self.failures, self.longest);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// The first pause, doubled so many times, up to the longest.
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(times))
        .min(longest)
}

/// A pause from `least` to `most` by a random number, in whole milliseconds from the least on, so
/// that callers who failed together do not come back together.
pub fn between(least: Duration, most: Duration, random: u64) -> Duration {
    let width = most.saturating_sub(least).as_millis();
    let width = u64::try_from(width).unwrap_or(u64::MAX);
    least + Duration::from_millis(random % width.saturating_add(1))
}

/// One step of splitmix64 for each number: every bit of it moves half of the bits of the result.
pub fn mix(state: u64, number: u64) -> u64 {
    let mut z = (state ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(millis(100), millis(1_500));
        let pauses = [(); 6].map(|()| backoff.failed().as_millis());
        assert_eq!(pauses, [100, 200, 400, 800, 1_500, 1_500]);
        backoff.succeeded();
        assert_eq!(backoff.failed(), millis(100));
        assert_eq!(
            doubled(millis(1), u32::MAX, Duration::MAX),
            millis(u64::from(u32::MAX))
        );
    }

    #[test]
    fn random_pauses_reach_both_bounds() {
        let pauses = |least, most| (0..100).map(move |random| between(least, most, random));
        assert_eq!(pauses(millis(20), millis(30)).min(), Some(millis(20)));
        assert_eq!(pauses(millis(20), millis(30)).max(), Some(millis(30)));
        assert_eq!(pauses(millis(20), millis(20)).max(), Some(millis(20)));
        assert!(between(Duration::ZERO, Duration::MAX, u64::MAX) < Duration::MAX);
    }
}
