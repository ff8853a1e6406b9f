//! A circuit breaker: leaves a service that keeps failing alone for a while, and probes it once
//! before it counts as back.

use std::time::Duration;

use crate::Timestamp;
use crate::pause::Backoff;

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct CircuitLimits {
    /// Failures in a row that open the circuit.
    pub failures_max: u32,
    /// The first pause, which doubles up to the longest.
    pub pause_min: Duration,
    pub pause_max: Duration,
}

/// One caller's view of one service. Times are monotonic.
#[derive(Clone, Debug)]
pub struct Circuit {
    limits: CircuitLimits,
    failures: u32,
    /// Set while the circuit is open.
    open: Option<OpenCircuit>,
}

#[derive(Clone, Copy, Debug)]
struct OpenCircuit {
    backoff: Backoff,
    pause: Duration,
    probe_at: Timestamp,
}

impl OpenCircuit {
    fn new(mut backoff: Backoff, now: Timestamp) -> OpenCircuit {
        let pause = backoff.failed();
        OpenCircuit {
            backoff,
            pause,
            probe_at: now + pause,
        }
    }
}

/// Permission for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Call,
    /// The one call of a pause. If it never ends, another follows after the next pause.
    Probe,
}

impl Circuit {
    pub fn new(limits: CircuitLimits) -> Circuit {
        Circuit {
            limits,
            failures: 0,
            open: None,
        }
    }

    /// Whether no call passes now.
    pub fn rests(&self, now: Timestamp) -> bool {
        self.open.is_some_and(|open| now < open.probe_at)
    }

    /// Permission for a call now.
    ///
    /// # Errors
    /// The time until the next permitted call.
    pub fn pass(&mut self, now: Timestamp) -> Result<Pass, Duration> {
        match &mut self.open {
            None => Ok(Pass::Call),
            Some(open) if open.probe_at <= now => {
                open.probe_at = now + open.pause;
                Ok(Pass::Probe)
            }
            Some(open) => Err(open.probe_at.since(now)),
        }
    }

    /// Records an answer, of any content. Returns whether the circuit was open.
    pub fn answered(&mut self) -> bool {
        self.failures = 0;
        self.open.take().is_some()
    }

    /// Records a missing or late answer. Returns whether this opens the circuit.
    pub fn failed(&mut self, pass: Pass, now: Timestamp) -> bool {
        match (&mut self.open, pass) {
            (Some(open), Pass::Probe) => {
                *open = OpenCircuit::new(open.backoff, now);
                false
            }
            // A call from before the circuit opened.
            (Some(_), Pass::Call) => false,
            (None, _) => {
                self.failures += 1;
                let opens = self.failures >= self.limits.failures_max;
                if opens {
                    let backoff = Backoff::new(self.limits.pause_min, self.limits.pause_max);
                    self.open = Some(OpenCircuit::new(backoff, now));
                }
                opens
            }
        }
    }

    /// Records that the service cannot be reached, which opens the circuit at once.
    pub fn unreachable(&mut self, pass: Pass, now: Timestamp) {
        self.failures = self.limits.failures_max - 1;
        self.failed(pass, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    const FAILURES_MAX: u32 = 8;
    const PAUSE_MIN: Duration = Duration::from_secs(1);

    fn closed() -> Circuit {
        Circuit::new(CircuitLimits {
            failures_max: FAILURES_MAX,
            pause_min: PAUSE_MIN,
            pause_max: Duration::from_secs(30),
        })
    }

    fn opened() -> Circuit {
        let mut circuit = closed();
        for failure in 1..=FAILURES_MAX {
            let pass = circuit.pass(at(0)).expect("closed");
            assert_eq!(circuit.failed(pass, at(0)), failure == FAILURES_MAX);
        }
        circuit
    }

    #[test]
    fn consecutive_failures_open_it_and_an_answer_resets_the_count() {
        let mut circuit = closed();
        for _ in 0..3 * FAILURES_MAX {
            for _ in 1..FAILURES_MAX {
                assert!(!circuit.failed(Pass::Call, at(0)));
            }
            assert!(!circuit.answered());
        }
        assert_eq!(circuit.pass(at(0)), Ok(Pass::Call));
        assert_eq!(opened().pass(at(400)), Err(Duration::from_millis(600)));
    }

    #[test]
    fn an_unreachable_service_opens_it_at_once() {
        let mut circuit = closed();
        circuit.unreachable(Pass::Call, at(0));
        circuit.unreachable(Pass::Call, at(500));
        assert!(circuit.rests(at(999)) && !circuit.rests(at(1_000)));
        assert_eq!(circuit.pass(at(1_000)), Ok(Pass::Probe));
        circuit.unreachable(Pass::Probe, at(1_000));
        assert!(circuit.rests(at(2_999)) && !circuit.rests(at(3_000)));
    }

    #[test]
    fn one_probe_a_pause_and_its_answer_closes_it() {
        let mut circuit = opened();
        assert_eq!(circuit.pass(at(1_000)), Ok(Pass::Probe));
        assert_eq!(circuit.pass(at(1_000)), Err(PAUSE_MIN), "one at a time");
        assert!(circuit.answered());
        assert_eq!(circuit.pass(at(1_001)), Ok(Pass::Call));
        assert!(!circuit.failed(Pass::Call, at(1_001)), "it counts anew");
    }

    #[test]
    fn probes_that_fail_double_the_pause_up_to_a_bound() {
        let (mut circuit, mut now, mut pauses) = (opened(), at(1_000), Vec::new());
        for _ in 0..7 {
            let probe = circuit.pass(now).expect("a probe is due");
            circuit.failed(probe, now);
            let pause = circuit.pass(now).expect_err("open");
            pauses.push(pause.as_secs());
            now = now + pause;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_lost_probe_and_calls_of_before_change_no_pause() {
        let mut circuit = opened();
        assert_eq!(circuit.pass(at(1_000)), Ok(Pass::Probe));
        assert!(!circuit.failed(Pass::Call, at(1_500)));
        assert_eq!(circuit.pass(at(1_500)), Err(Duration::from_millis(500)));
        assert_eq!(
            circuit.pass(at(2_000)),
            Ok(Pass::Probe),
            "nobody heard of the first"
        );
    }
}
