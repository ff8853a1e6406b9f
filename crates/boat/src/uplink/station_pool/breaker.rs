//! Circuit breakers of stations: those that were unreachable or silent rest while others are asked.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::Timestamp;
use protocol::circuit::{Circuit, CircuitLimits, Pass};

/// A station rests after a call that did not reach it, or after so many in a row without an answer
/// in time. Fewer may be mere slowness, and the station asked instead would be slow next.
const LIMITS: CircuitLimits = CircuitLimits {
    failures_max: 3,
    pause_min: Duration::from_millis(500),
    pause_max: Duration::from_secs(16),
};

/// Circuits by station address. Times are monotonic.
#[derive(Debug, Default)]
pub(super) struct Breakers(BTreeMap<String, Breaker>);

#[derive(Debug)]
struct Breaker {
    circuit: Circuit,
    /// `Probe` from a trial until the first failure after it: calls that were in flight together
    /// count once.
    pass: Pass,
}

impl Breaker {
    fn take_pass(&mut self) -> Pass {
        std::mem::replace(&mut self.pass, Pass::Call)
    }
}

impl Breakers {
    pub(super) fn record_unreachable(&mut self, address: &str, now: Timestamp) {
        let breaker = self.breaker(address);
        let pass = breaker.take_pass();
        breaker.circuit.unreachable(pass, now);
    }

    /// Counts a call that got no answer in time.
    pub(super) fn record_silence(&mut self, address: &str, now: Timestamp) {
        let breaker = self.breaker(address);
        let pass = breaker.take_pass();
        breaker.circuit.failed(pass, now);
    }

    fn breaker(&mut self, address: &str) -> &mut Breaker {
        self.0.entry(address.to_owned()).or_insert_with(|| Breaker {
            circuit: Circuit::new(LIMITS),
            pass: Pass::Call,
        })
    }

    pub(super) fn record_answer(&mut self, address: &str) {
        self.0.remove(address);
    }

    pub(super) fn is_resting(&self, address: &str, now: Timestamp) -> bool {
        let breaker = self.0.get(address);
        breaker.is_some_and(|breaker| breaker.circuit.rests(now))
    }

    /// Notes a call that is about to go to the station. After a rest it is a trial, and the only
    /// one: for all other calls the next rest begins, until the station has answered.
    pub(super) fn record_trial(&mut self, address: &str, now: Timestamp) {
        if let Some(breaker) = self.0.get_mut(address)
            && breaker.circuit.pass(now) == Ok(Pass::Probe)
        {
            breaker.pass = Pass::Probe;
        }
    }

    /// Forgets stations that are no longer registered.
    pub(super) fn retain(&mut self, is_registered: impl Fn(&str) -> bool) {
        self.0.retain(|address, _| is_registered(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: &str = "http://station-1";
    const FIRST_REST: Duration = LIMITS.pause_min;

    #[test]
    fn rests_grow_with_each_trial_that_fails() {
        let mut breakers = Breakers::default();
        let mut now = Timestamp::ZERO;
        for expected in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000] {
            let expected = Duration::from_millis(expected);
            breakers.record_trial(STATION, now);
            breakers.record_unreachable(STATION, now);
            breakers.record_unreachable(STATION, now + expected / 2);
            let last = now + expected - Duration::from_millis(1);
            assert!(breakers.is_resting(STATION, last), "{expected:?}");
            now = now + expected;
            assert!(!breakers.is_resting(STATION, now), "{expected:?}");
        }
    }

    #[test]
    fn after_a_rest_one_call_is_the_trial() {
        let mut breakers = Breakers::default();
        let now = Timestamp::ZERO;
        breakers.record_trial(STATION, now);
        assert!(!breakers.is_resting(STATION, now), "it never failed");
        breakers.record_unreachable(STATION, now);
        let trial_at = now + FIRST_REST;
        assert!(!breakers.is_resting(STATION, trial_at));
        breakers.record_trial(STATION, trial_at);
        assert!(
            breakers.is_resting(STATION, trial_at),
            "the others wait for the trial"
        );
        // A trial that fails at once begins a rest twice as long.
        breakers.record_unreachable(STATION, trial_at);
        assert!(!breakers.is_resting(STATION, trial_at + 2 * FIRST_REST));
        breakers.record_answer(STATION);
        assert!(!breakers.is_resting(STATION, trial_at));
    }

    #[test]
    fn station_rests_after_repeated_silence() {
        let mut breakers = Breakers::default();
        let now = Timestamp::ZERO;
        for _ in 0..2 * LIMITS.failures_max {
            breakers.record_silence(STATION, now);
            assert!(
                !breakers.is_resting(STATION, now),
                "it is slow now and then"
            );
            breakers.record_answer(STATION);
        }
        for _ in 1..LIMITS.failures_max {
            breakers.record_silence(STATION, now);
            breakers.record_trial(STATION, now);
        }
        assert!(!breakers.is_resting(STATION, now));
        breakers.record_silence(STATION, now);
        assert!(breakers.is_resting(STATION, now));
        // The trial gets no answer either.
        let trial_at = now + FIRST_REST;
        breakers.record_trial(STATION, trial_at);
        breakers.record_silence(STATION, trial_at + FIRST_REST);
        assert!(breakers.is_resting(STATION, trial_at + FIRST_REST));
        breakers.record_answer(STATION);
        assert!(!breakers.is_resting(STATION, trial_at + FIRST_REST));
    }

    #[test]
    fn unregistered_station_is_forgotten() {
        let mut breakers = Breakers::default();
        breakers.record_unreachable(STATION, Timestamp::ZERO);
        breakers.retain(|address| address != STATION);
        assert!(!breakers.is_resting(STATION, Timestamp::ZERO));
    }
}
