//! Budget of records in flight: grows while devices acknowledge quickly, shrinks when they slow.

use std::time::Duration;

use super::DeliveryLimits;
use crate::Timestamp;

/// Interval between adjustments of the budget.
const WINDOW: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct Budget {
    limit: usize,
    least: usize,
    most: usize,
    target: Duration,
    /// Acknowledgements in the present window, and their total latency.
    acks: u32,
    waited: Duration,
    until: Timestamp,
}

impl Budget {
    pub(super) fn new(limits: &DeliveryLimits) -> Budget {
        let least = limits.in_flight_min.clamp(1, limits.in_flight_max.max(1));
        Budget {
            limit: (limits.in_flight_max / 4).max(least),
            least,
            most: limits.in_flight_max.max(least),
            target: limits.ack_latency_target,
            acks: 0,
            waited: Duration::ZERO,
            until: Timestamp::ZERO,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Counts the acknowledgement of a device. Devices that never acknowledge do not count: a dead
    /// client says nothing about the speed of the others.
    pub(super) fn acked(&mut self, now: Timestamp, waited: Duration) {
        self.acks += 1;
        self.waited += waited;
        if now < self.until {
            return;
        }
        let latency = self.waited / self.acks;
        self.limit = if latency > self.target {
            (self.limit / 4 * 3).max(self.least)
        } else {
            (self.limit + self.least).min(self.most)
        };
        (self.acks, self.waited) = (0, Duration::ZERO);
        self.until = now + WINDOW;
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
                now = now + WINDOW;
                budget.acked(now, waited);
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
