//! Time and chance: all other code takes both from here, never from the machine.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use protocol::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

/// The time of day, in milliseconds.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// Source of unguessable or seeded numbers.
pub trait Entropy: Send + Sync {
    fn next(&self) -> u64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the seam for it")]
    fn now(&self) -> Timestamp {
        let elapsed = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::from_millis(i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Time of day that follows the runtime's timer: in a test with paused time it stands still until
/// the test lets it pass.
#[derive(Clone, Debug)]
pub struct TimerClock {
    zero: Instant,
    start: Timestamp,
}

impl TimerClock {
    pub fn starting_at(start: Timestamp) -> Self {
        TimerClock {
            zero: Instant::now(),
            start,
        }
    }
}

impl Clock for TimerClock {
    fn now(&self) -> Timestamp {
        self.start + self.zero.elapsed()
    }
}

/// Numbers from the operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(clippy::disallowed_methods, reason = "this is the seam for it")]
    fn next(&self) -> u64 {
        rand::rng().random()
    }
}

/// Seeded generator: the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct SeededEntropy(Arc<Mutex<StdRng>>);

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        SeededEntropy(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }
}

impl Entropy for SeededEntropy {
    fn next(&self) -> u64 {
        self.0.lock().random()
    }
}
