//! Budget of records in flight: grows while devices acknowledge quickly, shrinks when they slow.

use std::time::Duration;

use super::DeliveryLimits;
use crate::Timestamp;

/// Interval between two adjustments of the budget.
const ADJUST_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct Budget {
    limit: usize,
    min_limit: usize,
    max_limit: usize,
    target: Duration,
    /// Acknowledgements in the present window, and their total latency.
    acks: u32,
    total_latency: Duration,
    window_end: Timestamp,
}

impl Budget {
    pub(super) fn new(limits: &DeliveryLimits) -> Budget {
        let least = limits.in_flight_min.clamp(1, limits.in_flight_max.max(1));
        Budget {
            limit: (limits.in_flight_max / 4).max(least),
            min_limit: least,
            max_limit: limits.in_flight_max.max(least),
            target: limits.ack_latency_target,
            acks: 0,
            total_latency: Duration::ZERO,
            window_end: Timestamp::ZERO,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Counts the acknowledgement of a device. Devices that never acknowledge do not count: a dead
    /// client says nothing about the speed of the others.
    pub(super) fn record_ack(&mut self, now: Timestamp, latency: Duration) {
        self.acks += 1;
        self.total_latency += latency;
        if now < self.window_end {
            return;
        }
        let mean_latency = self.total_latency / self.acks;
        self.limit = if mean_latency > self.target {
            (self.limit / 4 * 3).max(self.min_limit)
        } else {
            (self.limit + self.min_limit).min(self.max_limit)
        };
        (self.acks, self.total_latency) = (0, Duration::ZERO);
        self.window_end = now + ADJUST_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_acknowledgements_shrink_it_and_quick_ones_let_it_grow() {
        let limits = DeliveryLimits::default();
        let mut budget = Budget::new(&limits);
        let start = budget.limit();
        let mut now = Timestamp::from_millis(1_000_000);
        let mut round = |budget: &mut Budget, waited, rounds| {
            for _ in 0..rounds {
                now = now + ADJUST_INTERVAL;
                budget.record_ack(now, waited);
            }
        };
        round(&mut budget, limits.ack_latency_target * 2, 3);
        assert!(budget.limit() < start);
        round(&mut budget, limits.ack_latency_target * 2, 100);
        assert_eq!(budget.limit(), limits.in_flight_min);
        round(&mut budget, Duration::from_millis(1), 200);
        assert_eq!(budget.limit(), limits.in_flight_max);
    }
}
