//! Backoff of `accept` when the system is out of sockets: growing pauses, a warning now and then,
//! and, if it lasts, a server that reports itself as not ready.

use std::time::Duration;

use crate::Timestamp;
use crate::pause::Backoff;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Trouble that lasts this long makes the server not ready.
const MAX_TROUBLE: Duration = Duration::from_secs(5);
const WARN_INTERVAL: Duration = Duration::from_secs(10);
/// Trouble counts as over after this long without an error: with nobody connecting, no `accept`
/// would ever clear it.
const QUIET_PERIOD: Duration = Duration::from_secs(2);

/// Linux's numbers: a process's files, the system's files, socket buffers, memory.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOBUFS: i32 = 105;
const ENOMEM: i32 = 12;

/// True for errors of `accept` that a pause may cure. Any other concerns one connection only, and
/// the next one is accepted at once.
pub fn is_exhaustion(os_error: i32) -> bool {
    matches!(os_error, EMFILE | ENFILE | ENOBUFS | ENOMEM)
}

/// Pause after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub length: Duration,
    /// Log a warning as well.
    pub warn: bool,
}

/// Errors so far. Times are monotonic.
#[derive(Clone, Debug, Default)]
pub struct AcceptBackoff {
    trouble: Option<Trouble>,
    warned_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Trouble {
    start: Timestamp,
    last: Timestamp,
    backoff: Backoff,
}

impl AcceptBackoff {
    pub fn failed(&mut self, now: Timestamp) -> Pause {
        let mut trouble = self.present(now).unwrap_or(Trouble {
            start: now,
            last: now,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
        });
        trouble.last = now;
        let length = trouble.backoff.failed();
        self.trouble = Some(trouble);
        let warn = self
            .warned_at
            .is_none_or(|at| now.since(at) >= WARN_INTERVAL);
        if warn {
            self.warned_at = Some(now);
        }
        Pause { length, warn }
    }

    pub fn accepted(&mut self) {
        self.trouble = None;
    }

    pub fn is_ready(&self, now: Timestamp) -> bool {
        let present = self.present(now);
        present.is_none_or(|trouble| now.since(trouble.start) < MAX_TROUBLE)
    }

    fn present(&self, now: Timestamp) -> Option<Trouble> {
        self.trouble
            .filter(|trouble| now.since(trouble.last) <= QUIET_PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn errors_that_pass_are_told_from_others() {
        let errors = [
            std::io::ErrorKind::OutOfMemory,
            std::io::ErrorKind::ConnectionAborted,
        ];
        let kinds = [12, 103].map(|number| std::io::Error::from_raw_os_error(number).kind());
        assert_eq!(kinds, errors, "the numbers are Linux's");
        for (number, expected) in [
            (12, true),
            (23, true),
            (24, true),
            (105, true),
            (11, false),
            (103, false),
        ] {
            assert_eq!(is_exhaustion(number), expected, "{number}");
        }
    }

    #[test]
    fn pauses_double_from_a_tenth_of_a_second_to_one() {
        let (mut backoff, mut now) = (AcceptBackoff::default(), 0);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let pause = backoff.failed(at(now)).length.as_millis() as u64;
            now += pause;
            pauses.push(pause);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        backoff.accepted();
        assert_eq!(backoff.failed(at(now)).length.as_millis(), 100);
    }

    #[test]
    fn others_hear_of_it_after_five_seconds() {
        let (mut backoff, mut now) = (AcceptBackoff::default(), 0);
        while now < 5_000 {
            assert!(backoff.is_ready(at(now)), "{now}");
            now += backoff.failed(at(now)).length.as_millis() as u64;
        }
        backoff.failed(at(now));
        assert!(backoff.is_ready(at(4_999)));
        assert!(!backoff.is_ready(at(5_000)));
        backoff.accepted();
        assert!(backoff.is_ready(at(now)));
    }

    // A balancer sends no connections to a server that is not ready: no accept would ever succeed.
    #[test]
    fn readiness_comes_back_where_nobody_connects() {
        let (mut backoff, mut now) = (AcceptBackoff::default(), 0);
        while now < 8_000 {
            now += backoff.failed(at(now)).length.as_millis() as u64;
        }
        let last = now - 1_000;
        assert!(!backoff.is_ready(at(last + 2_000)));
        assert!(backoff.is_ready(at(last + 2_001)));
        let next = backoff.failed(at(last + 2_001));
        assert_eq!(next.length.as_millis(), 100, "a new trouble");
    }

    #[test]
    fn one_warning_in_ten_seconds() {
        let mut backoff = AcceptBackoff::default();
        let warns_at = |millis| backoff.failed(at(millis)).warn;
        let warns_at: Vec<_> = [0, 100, 9_999, 10_000, 10_100, 19_999, 20_000]
            .map(warns_at)
            .into();
        assert_eq!(warns_at, [true, false, false, true, false, false, true]);
    }
}
