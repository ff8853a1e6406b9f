//! Time as the rules see it: milliseconds, from outside.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, by some outside clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp(0);
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Time from `other` to `self`; zero if `other` is the later one.
    pub fn since(self, other: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(other.0).max(0) as u64)
    }
}

/// One moment on two clocks. Deadlines use the monotonic timer; records use the wall clock. Only
/// times of the same clock are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time of day: steps when somebody sets the clock.
    pub wall: Timestamp,
    /// Time since some start, always forward.
    pub timer: Timestamp,
}

/// For worlds in which the time of day is the only clock, as in simulation.
impl From<Timestamp> for Moment {
    fn from(now: Timestamp) -> Moment {
        Moment {
            wall: now,
            timer: now,
        }
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_add(millis))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, duration: Duration) -> Timestamp {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
