//! What follows an attempt to tell a user: done, again later, or never.

use std::time::Duration;

use crate::Timestamp;
use crate::ledger::DeadReason;

/// How long and how often a notification is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts in all.
    pub attempts_max: u32,
    /// Between the first attempt and the second; doubles from there.
    pub delay: Duration,
    /// The longest delay of our own. A provider may ask for a longer one.
    pub delay_max: Duration,
    /// A message older than this is no news any more.
    pub age_max: Duration,
}

/// Why a provider did not take a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not reachable, too slow, or in trouble of its own.
    Unavailable,
    /// It asks for less; everything that goes to it should wait.
    Throttled,
    /// It will never take this one.
    Refused,
    /// There is nobody to tell any more: the device let go of its token.
    Gone,
    /// The user does not want to be disturbed by this conversation now.
    Muted,
    /// Our own code failed on it.
    Panicked,
}

/// What becomes of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Again {
        after: Duration,
    },
    /// A dead letter.
    GiveUp(DeadReason),
    /// Done: nobody is there to be told.
    Nobody,
    /// Done: they do not want to be told.
    Muted,
}

impl Limits {
    /// Whether a notification of a message accepted at `accepted_at` is still news.
    pub fn is_news(&self, accepted_at: Timestamp, now: Timestamp) -> bool {
        now.since(accepted_at) <= self.age_max
    }

    /// After the n-th attempt (counted from 1) failed. `asked` is how long the provider wants to be left
    /// alone; `chance` spreads those that failed together over the second half of the delay.
    pub fn after(
        &self,
        failure: Failure,
        attempts: u32,
        asked: Option<Duration>,
        chance: u64,
    ) -> Next {
        match failure {
            Failure::Gone => Next::Nobody,
            Failure::Muted => Next::Muted,
            Failure::Refused => Next::GiveUp(DeadReason::Refused),
            Failure::Panicked => Next::GiveUp(DeadReason::HandlerPanic),
            Failure::Unavailable | Failure::Throttled if attempts >= self.attempts_max => {
                Next::GiveUp(DeadReason::MaxRetries)
            }
            Failure::Unavailable | Failure::Throttled => {
                let doublings = attempts.saturating_sub(1).min(31);
                let delay = self
                    .delay
                    .saturating_mul(1 << doublings)
                    .min(self.delay_max);
                let share = 0.5 + 0.5 * (chance as f64 / u64::MAX as f64);
                let own = delay.mul_f64(share);
                Next::Again {
                    after: asked.map_or(own, |asked| asked.max(own).min(self.age_max)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> Limits {
        Limits {
            attempts_max: 8,
            delay: Duration::from_secs(1),
            delay_max: Duration::from_secs(60),
            age_max: Duration::from_secs(86_400),
        }
    }

    fn delay(attempts: u32, asked: Option<Duration>, chance: u64) -> Duration {
        match limits().after(Failure::Unavailable, attempts, asked, chance) {
            Next::Again { after } => after,
            other => panic!("{other:?} after {attempts} attempts"),
        }
    }

    #[test]
    fn delays_double_up_to_their_bound() {
        let longest: Vec<u64> = (1..8).map(|n| delay(n, None, u64::MAX).as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 60]);
        assert_eq!(delay(3, None, 0), Duration::from_secs(2));
    }

    #[test]
    fn a_provider_may_ask_for_more_but_not_for_ever() {
        let hour = Duration::from_secs(3600);
        assert_eq!(delay(1, Some(hour), 0), hour);
        assert_eq!(delay(7, Some(Duration::ZERO), u64::MAX).as_secs(), 60);
        assert_eq!(delay(1, Some(Duration::MAX), 0), limits().age_max);
    }

    #[test]
    fn the_last_attempt_and_final_answers_end_it() {
        let after = |failure, attempts| limits().after(failure, attempts, None, 0);
        let give_up = |why| Next::GiveUp(why);
        assert_eq!(
            after(Failure::Throttled, 8),
            give_up(DeadReason::MaxRetries)
        );
        assert_eq!(after(Failure::Refused, 1), give_up(DeadReason::Refused));
        assert_eq!(after(Failure::Gone, 1), Next::Nobody);
        assert_eq!(after(Failure::Muted, 1), Next::Muted);
    }

    #[test]
    fn yesterday_is_no_news() {
        let accepted = Timestamp::from_millis(0);
        assert!(limits().is_news(accepted, Timestamp::from_millis(86_400_000)));
        assert!(!limits().is_news(accepted, Timestamp::from_millis(86_400_001)));
    }

    proptest! {
        #[test]
        fn whatever_happens_attempts_are_bounded(attempts in 0..u32::MAX, chance: u64) {
            match limits().after(Failure::Unavailable, attempts, None, chance) {
                Next::Again { after } => {
                    prop_assert!(attempts < 8);
                    prop_assert!(after <= limits().delay_max);
                }
                Next::GiveUp(_) => prop_assert!(attempts >= 8),
                Next::Nobody | Next::Muted => prop_assert!(false),
            }
        }
    }
}
