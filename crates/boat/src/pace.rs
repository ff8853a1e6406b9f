//! A rate that several loops of a boat share: it bounds what a wave costs the store, and clients
//! that are already there.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Turns within this window pass together: one by one they would cost twice the CPU.
const WINDOW: Duration = Duration::from_millis(20);

pub(crate) struct Pace {
    each: Duration,
    begun: Instant,
    next: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(per_second: u32) -> Pace {
        Pace {
            each: Duration::from_secs(1) / per_second.max(1),
            begun: Instant::now(),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits for `count` turns and returns whether it had to wait; the next caller queues behind
    /// them. Dropping the future still spends the turns.
    pub(crate) async fn take(&self, count: usize) -> bool {
        let now = Instant::now();
        let at = {
            let mut next = self.next.lock();
            let rested = now.checked_sub(WINDOW);
            let at = rested.map_or(*next, |rested| rested.max(*next));
            *next = at + self.time_of(count);
            at
        };
        let waits = at > now;
        if waits {
            sleep_until(self.window_after(at)).await;
        }
        waits
    }

    fn window_after(&self, at: Instant) -> Instant {
        let windows = at.duration_since(self.begun).as_micros() / WINDOW.as_micros() + 1;
        self.begun + WINDOW * u32::try_from(windows).unwrap_or(u32::MAX)
    }

    /// Time that `count` turns take.
    pub(crate) fn time_of(&self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.each.saturating_mul(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn taken_in_a_second(pace: &Pace, at_a_time: usize) -> usize {
        let end = Instant::now() + Duration::from_secs(1);
        let mut taken = 0;
        while Instant::now() < end {
            pace.take(at_a_time).await;
            taken += at_a_time;
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_pass_in_a_second_one_by_one_or_in_batches() {
        for batch in [1, 50] {
            let pace = Pace::new(4_000);
            let taken = taken_in_a_second(&pace, batch).await;
            // Plus the burst at the start, give or take a window.
            let most = 4_000 + 80 + 80 + batch;
            assert!((3_900..=most).contains(&taken), "{batch}: {taken}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn loops_share_a_pace_evenly() {
        let pace = Pace::new(1_000);
        let (one, other) = tokio::join!(taken_in_a_second(&pace, 1), taken_in_a_second(&pace, 1));
        assert!((970..1_050).contains(&(one + other)), "{one} {other}");
        assert!(one.abs_diff(other) < 50, "{one} {other}");
    }
}
