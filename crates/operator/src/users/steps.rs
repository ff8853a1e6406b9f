//! Steps of a sign-out: time for each, and answers that send the request to another station. Steps
//! go on when their request breaks off, and all of them end before the operator's terminal stops
//! waiting.

use std::time::Duration;

use protocol::Code;

/// Time for an entry in the log of operations: one before any step, one about the end.
pub(super) const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for one station to answer, and for discovery to name them.
pub(crate) const STATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for one step, revocation or kick, at any number of stations.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(15);

/// Patience of an operator's terminal, longer than all steps and both entries.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Users that one desk signs out at a time; further requests must retry.
pub(super) const MAX_CONCURRENT_SIGN_OUTS: usize = 16;

/// Whether another station may answer otherwise: this one cannot now, or its version does not know
/// the call.
pub(super) const fn asks_another(code: Code) -> bool {
    code.retryable() || matches!(code, Code::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_end_before_their_operator_stops_waiting() {
        let total = LOG_TIMEOUT * 2 + STEP_TIMEOUT * 2;
        assert!(
            total + Duration::from_secs(10) <= ANSWER_TIMEOUT,
            "{total:?}"
        );
        // A station that is silent leaves time for another.
        assert!(STATION_TIMEOUT * 2 <= STEP_TIMEOUT);
    }

    #[test]
    fn another_station_is_asked_where_it_may_answer_otherwise() {
        for code in [
            Code::Unavailable,
            Code::Draining,
            Code::DeadlineExceeded,
            Code::RateLimited,
            Code::Unsupported,
        ] {
            assert!(asks_another(code), "{code}");
        }
        for code in [Code::InvalidArgument, Code::Forbidden, Code::NotFound] {
            assert!(!asks_another(code), "{code}");
        }
    }
}
