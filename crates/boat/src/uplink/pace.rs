//! A rate that several loops of a boat share: it bounds what a wave costs the store, and clients
//! that are already there.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Turns within this window pass together: one by one they would cost twice the CPU.
const WINDOW: Duration = Duration::from_millis(20);

pub(crate) struct Pace {
    interval: Duration,
    started_at: Instant,
    next: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(per_second: u32) -> Pace {
        Pace {
            interval: Duration::from_secs(1) / per_second.max(1),
            started_at: Instant::now(),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits for `count` turns and returns whether it had to wait; the next caller queues behind
    /// them. Dropping the future still spends the turns.
    pub(crate) async fn take(&self, count: usize) -> bool {
        let now = Instant::now();
        let at = {
            let mut next = self.next.lock();
            let earliest = now.checked_sub(WINDOW);
            let at = earliest.map_or(*next, |earliest| earliest.max(*next));
            *next = at + self.time_for(count);
            at
        };
        let has_waited = at > now;
        if has_waited {
            sleep_until(self.window_end(at)).await;
        }
        has_waited
    }

    fn window_end(&self, at: Instant) -> Instant {
        let windows = at.duration_since(self.started_at).as_micros() / WINDOW.as_micros() + 1;
        self.started_at + WINDOW * u32::try_from(windows).unwrap_or(u32::MAX)
    }

    /// Time that `count` turns take.
    pub(crate) fn time_for(&self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.interval.saturating_mul(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn taken_in_a_second(pace: &Pace, at_a_time: usize) -> usize {
        let end = Instant::now() + Duration::from_secs(1);
        let mut turn_count = 0;
        while Instant::now() < end {
            pace.take(at_a_time).await;
            turn_count += at_a_time;
        }
        turn_count
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_pass_in_a_second_one_by_one_or_in_batches() {
        for batch in [1, 50] {
            let pace = Pace::new(4_000);
            let turn_count = taken_in_a_second(&pace, batch).await;
            // Plus the burst at the start, give or take a window.
            let max = 4_000 + 80 + 80 + batch;
            assert!((3_900..=max).contains(&turn_count), "{batch}: {turn_count}");
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
