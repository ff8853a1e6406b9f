//! Pauses that double.

use std::time::Duration;

use backend::clock::Entropy;

use crate::Config;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(config: &Config) -> Backoff {
        Backoff {
            min: config.backoff_min,
            max: config.backoff_max,
            next: config.backoff_min,
        }
    }

    /// Returns the pause after one more failure: between half and all of the current step, so that
    /// callers that failed together do not come back together.
    pub(crate) fn failed(&mut self, entropy: &dyn Entropy) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.max);
        let half = whole / 2;
        let share = (entropy.next() % 1024) as u32;
        half + half / 1024 * share
    }

    pub(crate) fn succeeded(&mut self) {
        self.next = self.min;
    }
}
