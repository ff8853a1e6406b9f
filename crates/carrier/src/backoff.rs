//! Pauses while a store, or the log, is unavailable.

use std::time::Duration;

use backend::clock::Entropy;
use protocol::pause::{self, between};

use crate::Config;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff(pause::Backoff);

impl Backoff {
    pub(crate) fn new(config: &Config) -> Backoff {
        Backoff(pause::Backoff::new(config.backoff_min, config.backoff_max))
    }

    /// Returns the pause after one more failure: between half and all of the current step, so that
    /// callers that failed together do not come back together.
    pub(crate) fn failed(&mut self, entropy: &dyn Entropy) -> Duration {
        let whole = self.0.failed();
        between(whole / 2, whole, entropy.next())
    }

    pub(crate) fn succeeded(&mut self) {
        self.0.succeeded();
    }
}
