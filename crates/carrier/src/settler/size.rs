//! Adaptive size of a call.

use std::time::Duration;

/// Halved by a call that exceeds its deadline, doubled by one that needs less than a quarter of it,
/// and unchanged in between, so that a slow store is not driven into its deadline again and again.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSize {
    max: usize,
    current: usize,
    deadline: Duration,
}

/// A call that needs less than this share of its deadline could have been twice as large.
const QUICK_DIVISOR: u32 = 4;

impl CallSize {
    pub(super) fn new(max: usize, deadline: Duration) -> CallSize {
        let max = max.max(1);
        CallSize {
            max,
            current: max,
            deadline,
        }
    }

    pub(super) fn get(self) -> usize {
        self.current
    }

    pub(super) fn succeeded(&mut self, took: Duration) {
        if took * QUICK_DIVISOR < self.deadline {
            self.current = (self.current * 2).min(self.max);
        }
    }

    pub(super) fn failed(&mut self, took: Duration) {
        if took >= self.deadline {
            self.current = (self.current / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_deadline_halves_and_only_a_quick_call_doubles() {
        let second = Duration::from_secs(1);
        let mut size = CallSize::new(8, second);
        size.failed(second / 2);
        assert_eq!(size.get(), 8, "refused, not late");
        for expected in [4, 2, 1, 1] {
            size.failed(second);
            assert_eq!(size.get(), expected);
        }
        size.succeeded(second / 4);
        assert_eq!(size.get(), 1, "twice of it might be too much");
        for expected in [2, 4, 8, 8] {
            size.succeeded(second / 5);
            assert_eq!(size.get(), expected);
        }
    }
}
