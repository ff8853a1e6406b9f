//! Ceiling of a process's memory. Near it, new connections have to wait; still nearer, the sessions
//! that hold the most memory are closed; all others are served as before.

use std::time::Duration;

use protocol::Timestamp;

/// Default ceiling, in percent of the container's limit.
pub(crate) const CEILING_PERCENT: u64 = 85;
/// Interval between samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Percent of the ceiling.
const TIGHT_FROM: u64 = 80;
const TIGHT_UNTIL: u64 = 75;
const SHEDDING_FROM: u64 = 95;
const SHEDDING_UNTIL: u64 = 90;

/// Percentage of sessions closed per second of shedding.
const SHED_PERCENT: usize = 5;
const SHED_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    #[default]
    Normal,
    /// Not ready: newcomers must come later, and sessions may queue less.
    Tight,
    /// As `Tight`, and sessions are closed, those with the most queued bytes first.
    Shedding,
}

/// Ceiling for a container's limit.
pub(crate) fn memory_ceiling(limit: u64) -> u64 {
    (u128::from(limit) * u128::from(CEILING_PERCENT) / 100) as u64
}

/// Pressure so far. Times are monotonic.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryPressure {
    pressure: Pressure,
    shed_at: Option<Timestamp>,
}

impl MemoryPressure {
    pub(crate) fn now(&self) -> Pressure {
        self.pressure
    }

    /// Takes a sample of the bytes in use, under this ceiling, and returns the pressure.
    pub(crate) fn sample(&mut self, used_bytes: u64, max_bytes: u64) -> Pressure {
        let at_least = |percent: u64| used_is_at_least(used_bytes, max_bytes, percent);
        let is_above = |percent: u64| {
            u128::from(used_bytes) * 100 > u128::from(max_bytes) * u128::from(percent)
        };
        self.pressure = match self.pressure {
            _ if at_least(SHEDDING_FROM) => Pressure::Shedding,
            Pressure::Shedding if is_above(SHEDDING_UNTIL) => Pressure::Shedding,
            _ if at_least(TIGHT_FROM) => Pressure::Tight,
            Pressure::Tight | Pressure::Shedding if is_above(TIGHT_UNTIL) => Pressure::Tight,
            _ => Pressure::Normal,
        };
        self.pressure
    }

    /// Number of sessions to close now: a share of them once a second while shedding, at least one.
    pub(crate) fn shed(&mut self, sessions: usize, now: Timestamp) -> usize {
        let has_shed = self.shed_at.is_some_and(|at| now.since(at) < SHED_INTERVAL);
        if self.pressure != Pressure::Shedding || has_shed || sessions == 0 {
            return 0;
        }
        self.shed_at = Some(now);
        (sessions * SHED_PERCENT / 100).max(1)
    }
}

fn used_is_at_least(used_bytes: u64, max_bytes: u64, percent: u64) -> bool {
    u128::from(used_bytes) * 100 >= u128::from(max_bytes) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_numbers_are_those_of_the_design() {
        assert_eq!(memory_ceiling(1 << 30), (1 << 30) * 85 / 100);
        assert_eq!(memory_ceiling(u64::MAX), u64::MAX / 100 * 85 + 12);
        assert_eq!(SAMPLE_INTERVAL, Duration::from_millis(250));
    }

    #[test]
    fn pressure_begins_high_and_ends_lower() {
        use Pressure::{Normal, Shedding, Tight};
        let mut memory = MemoryPressure::default();
        for (used_bytes, expected) in [
            (799, Normal),
            (800, Tight),
            (751, Tight),
            (750, Normal),
            (799, Normal),
            (949, Tight),
            (950, Shedding),
            (901, Shedding),
            (900, Tight),
            (949, Tight),
            (1200, Shedding),
            // In one step, as after many have gone.
            (751, Tight),
            (950, Shedding),
            (750, Normal),
            (0, Normal),
        ] {
            assert_eq!(memory.sample(used_bytes, 1000), expected, "{used_bytes}");
            assert_eq!(memory.now(), expected);
        }
    }

    #[test]
    fn one_in_twenty_goes_each_second() {
        let mut memory = MemoryPressure::default();
        memory.sample(949, 1000);
        assert_eq!(memory.shed(1000, at(0)), 0, "tight is not shedding");
        memory.sample(950, 1000);
        assert_eq!(memory.shed(1000, at(0)), 50);
        assert_eq!(memory.shed(950, at(999)), 0);
        assert_eq!(memory.shed(950, at(1000)), 47);
        assert_eq!(memory.shed(19, at(2000)), 1, "the last ones go, too");
        assert_eq!(memory.shed(0, at(3000)), 0);
        assert_eq!(memory.shed(1, at(3000)), 1);
        memory.sample(900, 1000);
        assert_eq!(memory.shed(1000, at(9000)), 0);
    }

    proptest! {
        #[test]
        fn no_second_sheds_more_than_its_share(
            samples in vec((900..1000_u64, 0..400_i64), 1..100),
        ) {
            let (mut memory, mut now, mut sheds) = (MemoryPressure::default(), 0, Vec::new());
            for (used_bytes, pause) in samples {
                now += pause;
                memory.sample(used_bytes, 1000);
                sheds.push((now, memory.shed(100, at(now))));
                let second = sheds.iter().filter(|(shed_at, _)| now - shed_at < 1000);
                prop_assert!(second.map(|(_, count)| count).sum::<usize>() <= 5);
            }
        }
    }
}
