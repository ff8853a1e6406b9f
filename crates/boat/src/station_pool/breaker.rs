//! Circuit breaker: stations that were unreachable or silent rest while others are asked.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Rest of a station after the first call that did not reach it; each further failure doubles it,
/// up to `LONGEST`.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(16);

/// Calls in a row without an answer in time before a station rests. Fewer may be mere slowness, and
/// the station asked instead would be slow next.
const SILENCES: u32 = 3;

/// Rests and silences by station address.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker {
    resting: BTreeMap<String, Rest>,
    /// Calls without an answer since the last answer.
    silences: BTreeMap<String, u32>,
}

#[derive(Debug)]
struct Rest {
    until: Instant,
    next: Duration,
}

impl Rest {
    /// Begins a rest. One under way is not extended: calls that were in flight together count once.
    fn begin(&mut self, now: Instant) {
        if self.until <= now {
            self.until = now + self.next;
            self.next = (self.next * 2).min(LONGEST);
        }
    }
}

impl CircuitBreaker {
    pub(super) fn unreached(&mut self, address: &str, now: Instant) {
        let rest = self.resting.entry(address.to_owned()).or_insert(Rest {
            until: now,
            next: FIRST,
        });
        rest.begin(now);
    }

    /// Counts a call that got no answer in time.
    pub(super) fn silent(&mut self, address: &str, now: Instant) {
        let silences = self.silences.entry(address.to_owned()).or_default();
        *silences = silences.saturating_add(1);
        if *silences >= SILENCES {
            self.unreached(address, now);
        }
    }

    pub(super) fn answered(&mut self, address: &str) {
        if !self.resting.is_empty() || !self.silences.is_empty() {
            self.resting.remove(address);
            self.silences.remove(address);
        }
    }

    pub(super) fn rests(&self, address: &str, now: Instant) -> bool {
        self.resting
            .get(address)
            .is_some_and(|rest| now < rest.until)
    }

    /// Notes a call that is about to go to the station. After a rest it is a trial, and the only
    /// one: for all other calls the next rest begins, until the station has answered.
    pub(super) fn tried(&mut self, address: &str, now: Instant) {
        if let Some(rest) = self.resting.get_mut(address) {
            rest.begin(now);
        }
    }

    /// Forgets stations that are no longer registered.
    pub(super) fn retain(&mut self, known: impl Fn(&str) -> bool) {
        self.resting.retain(|address, _| known(address));
        self.silences.retain(|address, _| known(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: &str = "http://station-1";

    #[test]
    fn rests_grow_with_each_trial_that_fails() {
        let mut rests = CircuitBreaker::default();
        let mut now = Instant::now();
        for expected in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000] {
            let expected = Duration::from_millis(expected);
            rests.unreached(STATION, now);
            rests.unreached(STATION, now + expected / 2);
            let last = now + expected - Duration::from_millis(1);
            assert!(rests.rests(STATION, last), "{expected:?}");
            now += expected;
            assert!(!rests.rests(STATION, now), "{expected:?}");
        }
    }

    #[test]
    fn after_a_rest_one_call_is_the_trial() {
        let mut rests = CircuitBreaker::default();
        let now = Instant::now();
        rests.tried(STATION, now);
        assert!(!rests.rests(STATION, now), "it never failed");
        rests.unreached(STATION, now);
        let after = now + FIRST;
        assert!(!rests.rests(STATION, after));
        rests.tried(STATION, after);
        assert!(rests.rests(STATION, after), "the others wait for the trial");
        // A failed trial does not extend the rest it began.
        rests.unreached(STATION, after);
        assert!(!rests.rests(STATION, after + 2 * FIRST));
        rests.answered(STATION);
        assert!(!rests.rests(STATION, after));
    }

    #[test]
    fn who_says_nothing_again_and_again_rests() {
        let mut rests = CircuitBreaker::default();
        let now = Instant::now();
        for _ in 0..2 * SILENCES {
            rests.silent(STATION, now);
            assert!(!rests.rests(STATION, now), "it is slow now and then");
            rests.answered(STATION);
        }
        for _ in 1..SILENCES {
            rests.silent(STATION, now);
            rests.tried(STATION, now);
        }
        assert!(!rests.rests(STATION, now));
        rests.silent(STATION, now);
        assert!(rests.rests(STATION, now));
        // The trial gets no answer either.
        let after = now + FIRST;
        rests.tried(STATION, after);
        rests.silent(STATION, after + FIRST);
        assert!(rests.rests(STATION, after + FIRST));
        rests.answered(STATION);
        assert!(!rests.rests(STATION, after + FIRST));
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let mut rests = CircuitBreaker::default();
        let now = Instant::now();
        rests.unreached(STATION, now);
        rests.retain(|address| address != STATION);
        assert!(!rests.rests(STATION, now));
    }
}
