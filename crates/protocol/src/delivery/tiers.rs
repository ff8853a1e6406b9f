//! Delays between the attempts of a failed delivery.

use std::time::Duration;

use crate::Timestamp;
use crate::keys::RETRY_TIERS;

/// Pause before the next attempt, as a multiple of the time since the first.
const AGE_FACTOR: u32 = 2;

/// The delays of the retry topics, shortest first; tiers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers([Duration; RETRY_TIERS as usize]);

impl Tiers {
    /// `None` unless the delays grow.
    pub fn new(delays: [Duration; RETRY_TIERS as usize]) -> Option<Tiers> {
        delays.is_sorted().then_some(Tiers(delays))
    }

    pub fn delay(&self, tier: u8) -> Duration {
        self.0[usize::from(tier.clamp(1, RETRY_TIERS)) - 1]
    }

    /// Tier of the n-th retry: each waits longer, and the last tier serves all further ones.
    pub fn retry_tier(&self, retry_count: u32) -> u8 {
        u8::try_from(retry_count).map_or(RETRY_TIERS, |n| n.clamp(1, RETRY_TIERS))
    }

    /// Tier of a record that could not be tried, whose attempt does not count: the longest delay
    /// that is at most twice its age. So while a part of the system is away, a message's attempts
    /// grow with the logarithm of the time, and leave the processors to messages that can be
    /// delivered.
    pub fn age_tier(&self, age: Duration) -> u8 {
        let pause_max = age.saturating_mul(AGE_FACTOR);
        let short_delays = self.0.iter().take_while(|delay| **delay <= pause_max);
        (short_delays.count() as u8).clamp(1, RETRY_TIERS)
    }
}

/// Time until a retry is due, at `now` on the wall: never more than the delay of its tier, whatever
/// clock dated it.
pub fn retry_wait(due_at: Timestamp, now: Timestamp, delay: Duration) -> Duration {
    due_at.since(now).min(delay)
}

impl Default for Tiers {
    /// 1 s, 5 s, 30 s, 2 min, 10 min.
    fn default() -> Self {
        Tiers([1, 5, 30, 120, 600].map(Duration::from_secs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_retry_waits_longer_and_the_last_tier_serves_the_rest() {
        let tiers = Tiers::default();
        let waits: Vec<u64> = (1..=7)
            .map(|n| tiers.delay(tiers.retry_tier(n)).as_secs())
            .collect();
        assert_eq!(waits, [1, 5, 30, 120, 600, 600, 600]);
    }

    #[test]
    fn untried_records_are_retried_less_often_as_they_age() {
        let tiers = Tiers::default();
        let tier = |secs| tiers.age_tier(Duration::from_secs(secs));
        assert_eq!([tier(0), tier(1), tier(2), tier(3)], [1, 1, 1, 2]);
        assert_eq!([tier(14), tier(15), tier(59), tier(60)], [2, 3, 3, 4]);
        assert_eq!([tier(299), tier(300), tier(86_400)], [4, 5, 5]);
    }

    #[test]
    fn a_two_minute_outage_costs_eight_attempts() {
        let tiers = Tiers::default();
        let mut ages = vec![Duration::ZERO];
        while let Some(age) = ages.last().filter(|age| age.as_secs() < 120) {
            ages.push(*age + tiers.delay(tiers.age_tier(*age)));
        }
        let ages: Vec<u64> = ages.iter().map(Duration::as_secs).collect();
        assert_eq!(ages, [0, 1, 2, 3, 8, 13, 18, 48, 78, 198]);
    }

    #[test]
    fn a_clock_that_stepped_back_delays_no_retry_beyond_its_tier() {
        let at = |secs: i64| Timestamp::from_millis(secs * 1000);
        let wait = |due, now| retry_wait(at(due), at(now), Duration::from_secs(5)).as_secs();
        assert_eq!([wait(7, 4), wait(7, 2), wait(7, 9)], [3, 5, 0]);
        assert_eq!(wait(3600, 0), 5, "dated before the step");
    }

    #[test]
    fn tiers_that_shrink_are_refused() {
        assert_eq!(
            Tiers::new([5, 1, 30, 120, 600].map(Duration::from_secs)),
            None
        );
    }
}
