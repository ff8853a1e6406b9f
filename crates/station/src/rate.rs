//! How many sends a user may make.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use protocol::UserId;
use tokio::time::Instant;

/// A bucket of tokens per user. Users whose bucket is full again take no memory after a sweep.
pub(crate) struct SendRate {
    limiter: RateLimiter<UserId, DashMapStateStore<UserId>, RuntimeClock, NoOpMiddleware<Duration>>,
}

/// How often full buckets are forgotten.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(10);

impl SendRate {
    pub(crate) fn new(per_second: NonZeroU32, burst: NonZeroU32) -> SendRate {
        let quota = Quota::per_second(per_second).allow_burst(burst);
        let clock = RuntimeClock {
            zero: Instant::now(),
        };
        SendRate {
            limiter: RateLimiter::dashmap_with_clock(quota, clock),
        }
    }

    /// Takes one token, or says after how long there is one.
    pub(crate) fn take(&self, user: UserId) -> Result<(), Duration> {
        self.limiter
            .check_key(&user)
            .map_err(|early| early.wait_time_from(self.limiter.clock().now()))
    }

    pub(crate) fn sweep(&self) {
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
    }

    #[cfg(test)]
    fn users(&self) -> usize {
        self.limiter.len()
    }
}

/// The runtime's timer: stands still where a test lets it.
#[derive(Clone, Copy, Debug)]
struct RuntimeClock {
    zero: Instant,
}

impl Clock for RuntimeClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.zero.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_who_sends_too_much_is_told_when_to_go_on() {
        let two = NonZeroU32::new(2).expect("not zero");
        let rate = SendRate::new(two, two);
        let (one, other) = (UserId::new(1).expect("1"), UserId::new(2).expect("2"));
        assert_eq!(rate.take(one), Ok(()));
        assert_eq!(rate.take(one), Ok(()));
        let wait = rate.take(one).expect_err("a third one at once");
        assert_eq!(wait, Duration::from_millis(500));
        assert_eq!(rate.take(other), Ok(()), "others go on");
        tokio::time::advance(wait).await;
        assert_eq!(rate.take(one), Ok(()));
        tokio::time::advance(Duration::from_secs(2)).await;
        rate.sweep();
        assert_eq!(rate.users(), 0);
    }
}
