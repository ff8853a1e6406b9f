//! Outcome of an attempt to notify a user: done, retry, or give up.

use std::time::Duration;

use crate::Timestamp;
use crate::ledger::DeadReason;
use crate::pause::{between, doubled};

/// Limits of a notification's attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyLimits {
    /// Total attempts.
    pub attempts_max: u32,
    /// Delay between the first attempt and the second; doubles from there.
    pub delay: Duration,
    /// Maximum of our own delay. A provider may ask for a longer one.
    pub delay_max: Duration,
    /// Age above which a message is no longer news.
    pub age_max: Duration,
}

/// Reasons why a provider did not accept a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyFailure {
    /// Unreachable, too slow, or failing.
    Unavailable,
    /// The provider asks for less; all calls to it should wait.
    Throttled,
    /// The provider will never accept this one.
    Refused,
    /// Nobody is left to notify: the device gave up its token.
    Gone,
    /// The user does not want to be disturbed by this conversation now.
    Muted,
    /// Our own code failed on it.
    Panicked,
}

/// Next step of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    Again {
        delay: Duration,
    },
    /// A dead letter.
    GiveUp(DeadReason),
    /// Done: no device is left to notify.
    Nobody,
    /// Done: the user does not want to be disturbed.
    Muted,
}

impl NotifyLimits {
    /// Whether a notification of a message accepted at `accepted_at` is still news.
    pub fn is_news(&self, accepted_at: Timestamp, now: Timestamp) -> bool {
        now.since(accepted_at) <= self.age_max
    }

    /// Decides after the failure of the n-th attempt (counted from 1). `retry_after` is the
    /// provider's; `chance` spreads simultaneous failures over the second half of the
    /// delay.
    pub fn next_attempt(
        &self,
        failure: NotifyFailure,
        attempts: u32,
        retry_after: Option<Duration>,
        chance: u64,
    ) -> NextAttempt {
        match failure {
            NotifyFailure::Gone => NextAttempt::Nobody,
            NotifyFailure::Muted => NextAttempt::Muted,
            NotifyFailure::Refused => NextAttempt::GiveUp(DeadReason::Refused),
            NotifyFailure::Panicked => NextAttempt::GiveUp(DeadReason::HandlerPanic),
            NotifyFailure::Unavailable | NotifyFailure::Throttled
                if attempts >= self.attempts_max =>
            {
                NextAttempt::GiveUp(DeadReason::MaxRetries)
            }
            NotifyFailure::Unavailable | NotifyFailure::Throttled => {
                let delay = doubled(self.delay, attempts.saturating_sub(1), self.delay_max);
                let own_delay = between(delay / 2, delay, chance);
                NextAttempt::Again {
                    delay: retry_after.map_or(own_delay, |retry_after| {
                        retry_after.max(own_delay).min(self.age_max)
                    }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> NotifyLimits {
        NotifyLimits {
            attempts_max: 8,
            delay: Duration::from_secs(1),
            delay_max: Duration::from_secs(60),
            age_max: Duration::from_secs(86_400),
        }
    }

    fn delay(attempts: u32, retry_after: Option<Duration>, chance: u64) -> Duration {
        match limits().next_attempt(NotifyFailure::Unavailable, attempts, retry_after, chance) {
            NextAttempt::Again { delay } => delay,
            other => panic!("{other:?} after {attempts} attempts"),
        }
    }

    #[test]
    fn delays_double_up_to_their_bound() {
        let delays = (1..8).map(|n| (0..=30_000).map(move |chance| delay(n, None, chance)));
        let longest: Vec<u64> = (delays.clone().filter_map(Iterator::max))
            .map(|delay| delay.as_millis() as u64)
            .collect();
        assert_eq!(
            longest,
            [1, 2, 4, 8, 16, 32, 60].map(|seconds| seconds * 1000)
        );
        let shortest: Vec<u64> = (delays.filter_map(Iterator::min))
            .map(|delay| delay.as_millis() as u64)
            .collect();
        assert_eq!(
            shortest,
            [1, 2, 4, 8, 16, 32, 60].map(|seconds| seconds * 500)
        );
    }

    #[test]
    fn a_provider_may_ask_for_more_but_not_for_ever() {
        let hour = Duration::from_secs(3600);
        assert_eq!(delay(1, Some(hour), 0), hour);
        assert_eq!(delay(7, Some(Duration::ZERO), 30_000).as_secs(), 60);
        assert_eq!(delay(1, Some(Duration::MAX), 0), limits().age_max);
    }

    #[test]
    fn the_last_attempt_and_final_answers_end_it() {
        let next_attempt = |failure, attempts| limits().next_attempt(failure, attempts, None, 0);
        let give_up = |reason| NextAttempt::GiveUp(reason);
        assert_eq!(
            next_attempt(NotifyFailure::Throttled, 8),
            give_up(DeadReason::MaxRetries)
        );
        assert_eq!(
            next_attempt(NotifyFailure::Refused, 1),
            give_up(DeadReason::Refused)
        );
        assert_eq!(next_attempt(NotifyFailure::Gone, 1), NextAttempt::Nobody);
        assert_eq!(next_attempt(NotifyFailure::Muted, 1), NextAttempt::Muted);
    }

    #[test]
    fn yesterday_is_no_news() {
        let accepted_at = Timestamp::from_millis(0);
        assert!(limits().is_news(accepted_at, Timestamp::from_millis(86_400_000)));
        assert!(!limits().is_news(accepted_at, Timestamp::from_millis(86_400_001)));
    }

    proptest! {
        #[test]
        fn attempts_are_bounded(attempts in 0..u32::MAX, chance: u64) {
            match limits().next_attempt(NotifyFailure::Unavailable, attempts, None, chance) {
                NextAttempt::Again { delay } => {
                    prop_assert!(attempts < 8);
                    prop_assert!(delay <= limits().delay_max);
                }
                NextAttempt::GiveUp(_) => prop_assert!(attempts >= 8),
                NextAttempt::Nobody | NextAttempt::Muted => prop_assert!(false),
            }
        }
    }
}
