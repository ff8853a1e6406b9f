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
pub(super) struct Breakers(BTreeMap<String, Circuit>);

impl Breakers {
    pub(super) fn record_unreachable(&mut self, address: &str, now: Timestamp) {
        let (circuit, pass) = self.take_pass(address, now);
        circuit.unreachable(pass, now);
    }

    /// Counts a call that got no answer in time.
    pub(super) fn record_silence(&mut self, address: &str, now: Timestamp) {
        let (circuit, pass) = self.take_pass(address, now);
        circuit.failed(pass, now);
    }

    /// Circuit of a station that failed, and the pass of its call. A rest under way is not extended:
    /// calls that were in flight together count once.
    fn take_pass(&mut self, address: &str, now: Timestamp) -> (&mut Circuit, Pass) {
        let circuit = (self.0.entry(address.to_owned())).or_insert_with(|| Circuit::new(LIMITS));
        let pass = circuit.pass(now).unwrap_or(Pass::Call);
        (circuit, pass)
    }

    pub(super) fn record_answer(&mut self, address: &str) {
        self.0.remove(address);
    }

    pub(super) fn is_resting(&self, address: &str, now: Timestamp) -> bool {
        let circuit = self.0.get(address);
        circuit.is_some_and(|circuit| circuit.rests(now))
    }

    /// Notes a call that is about to go to the station. After a rest it is a trial, and the only
    /// one: for all other calls the next rest begins, until the station has answered.
    pub(super) fn record_trial(&mut self, address: &str, now: Timestamp) {
        if let Some(circuit) = self.0.get_mut(address)
            && circuit.pass(now) == Ok(Pass::Probe)
        {
            // A silent station shows only after the call's deadline: it counts as failed until it
            // answers.
            circuit.failed(Pass::Probe, now);
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
        // A failed trial does not extend the rest it began.
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
    fn trials_of_a_silent_station_become_rarer_before_the_first_one_fails() {
        let mut breakers = Breakers::default();
        breakers.record_unreachable(STATION, Timestamp::ZERO);
        let mut trials = Vec::new();
        for millis in (0..16_000).step_by(100) {
            let now = Timestamp::from_millis(millis);
            if !breakers.is_resting(STATION, now) {
                breakers.record_trial(STATION, now);
                trials.push(millis);
            }
        }
        assert_eq!(trials, [500, 1_500, 3_500, 7_500, 15_500]);
    }

    #[test]
    fn unregistered_station_is_forgotten() {
        let mut breakers = Breakers::default();
        breakers.record_unreachable(STATION, Timestamp::ZERO);
        breakers.retain(|address| address != STATION);
        assert!(!breakers.is_resting(STATION, Timestamp::ZERO));
    }
}
