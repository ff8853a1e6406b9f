//! Circuit breaker: stations that were unreachable or silent rest while others are asked.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Rest of a station after the first call that did not reach it; each further failure doubles it,
/// up to `MAX_REST`.
const FIRST_REST: Duration = Duration::from_millis(500);
const MAX_REST: Duration = Duration::from_secs(16);

/// Calls in a row without an answer in time before a station rests. Fewer may be mere slowness, and
/// the station asked instead would be slow next.
const SILENCES: u32 = 3;

/// Rests and silences by station address.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker {
    rests: BTreeMap<String, Rest>,
    /// Calls without an answer since the last answer.
    silences: BTreeMap<String, u32>,
}

#[derive(Debug)]
struct Rest {
    ends_at: Instant,
    next_length: Duration,
}

impl Rest {
    /// Begins a rest. One under way is not extended: calls that were in flight together count once.
    fn begin(&mut self, now: Instant) {
        if self.ends_at <= now {
            self.ends_at = now + self.next_length;
            self.next_length = (self.next_length * 2).min(MAX_REST);
        }
    }
}

impl CircuitBreaker {
    pub(super) fn record_unreachable(&mut self, address: &str, now: Instant) {
        let rest = self.rests.entry(address.to_owned()).or_insert(Rest {
            ends_at: now,
            next_length: FIRST_REST,
        });
        rest.begin(now);
    }

    /// Counts a call that got no answer in time.
    pub(super) fn record_silence(&mut self, address: &str, now: Instant) {
        let silences = self.silences.entry(address.to_owned()).or_default();
        *silences = silences.saturating_add(1);
        if *silences >= SILENCES {
            self.record_unreachable(address, now);
        }
    }

    pub(super) fn record_answer(&mut self, address: &str) {
        if !self.rests.is_empty() || !self.silences.is_empty() {
            self.rests.remove(address);
            self.silences.remove(address);
        }
    }

    pub(super) fn is_resting(&self, address: &str, now: Instant) -> bool {
        self.rests
            .get(address)
            .is_some_and(|rest| now < rest.ends_at)
    }

    /// Notes a call that is about to go to the station. After a rest it is a trial, and the only
    /// one: for all other calls the next rest begins, until the station has answered.
    pub(super) fn record_trial(&mut self, address: &str, now: Instant) {
        if let Some(rest) = self.rests.get_mut(address) {
            rest.begin(now);
        }
    }

    /// Forgets stations that are no longer registered.
    pub(super) fn retain(&mut self, is_registered: impl Fn(&str) -> bool) {
        self.rests.retain(|address, _| is_registered(address));
        self.silences.retain(|address, _| is_registered(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: &str = "http://station-1";

    #[test]
    fn rests_grow_with_each_trial_that_fails() {
        let mut breaker = CircuitBreaker::default();
        let mut now = Instant::now();
        for expected in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000] {
            let expected = Duration::from_millis(expected);
            breaker.record_unreachable(STATION, now);
            breaker.record_unreachable(STATION, now + expected / 2);
            let last = now + expected - Duration::from_millis(1);
            assert!(breaker.is_resting(STATION, last), "{expected:?}");
            now += expected;
            assert!(!breaker.is_resting(STATION, now), "{expected:?}");
        }
    }

    #[test]
    fn after_a_rest_one_call_is_the_trial() {
        let mut breaker = CircuitBreaker::default();
        let now = Instant::now();
        breaker.record_trial(STATION, now);
        assert!(!breaker.is_resting(STATION, now), "it never failed");
        breaker.record_unreachable(STATION, now);
        let trial_at = now + FIRST_REST;
        assert!(!breaker.is_resting(STATION, trial_at));
        breaker.record_trial(STATION, trial_at);
        assert!(
            breaker.is_resting(STATION, trial_at),
            "the others wait for the trial"
        );
        // A failed trial does not extend the rest it began.
        breaker.record_unreachable(STATION, trial_at);
        assert!(!breaker.is_resting(STATION, trial_at + 2 * FIRST_REST));
        breaker.record_answer(STATION);
        assert!(!breaker.is_resting(STATION, trial_at));
    }

    #[test]
    fn station_rests_after_repeated_silence() {
        let mut breaker = CircuitBreaker::default();
        let now = Instant::now();
        for _ in 0..2 * SILENCES {
            breaker.record_silence(STATION, now);
            assert!(!breaker.is_resting(STATION, now), "it is slow now and then");
            breaker.record_answer(STATION);
        }
        for _ in 1..SILENCES {
            breaker.record_silence(STATION, now);
            breaker.record_trial(STATION, now);
        }
        assert!(!breaker.is_resting(STATION, now));
        breaker.record_silence(STATION, now);
        assert!(breaker.is_resting(STATION, now));
        // The trial gets no answer either.
        let trial_at = now + FIRST_REST;
        breaker.record_trial(STATION, trial_at);
        breaker.record_silence(STATION, trial_at + FIRST_REST);
        assert!(breaker.is_resting(STATION, trial_at + FIRST_REST));
        breaker.record_answer(STATION);
        assert!(!breaker.is_resting(STATION, trial_at + FIRST_REST));
    }

    #[test]
    fn unregistered_station_is_forgotten() {
        let mut breaker = CircuitBreaker::default();
        let now = Instant::now();
        breaker.record_unreachable(STATION, now);
        breaker.retain(|address| address != STATION);
        assert!(!breaker.is_resting(STATION, now));
    }
}
