//! Timers of thousands of connections, as a value: time is an argument.
//!
//! Hierarchical timing wheel (Varghese and Lauck, 1987): six levels of 64 buckets, each bucket of a
//! level as long as the whole level below it. An entry moves down at most five times before it
//! rings.

use protocol::Timestamp;

const LEVELS: usize = 6;
/// Width of a bucket index.
const BITS: u32 = 6;
const BUCKETS: usize = 1 << BITS;
/// Milliseconds of all levels: two years.
const SPAN: u64 = 1 << (BITS * LEVELS as u32);
/// Reach of the last level; an entry beyond it is moved more often.
const AHEAD_MAX: u64 = SPAN - SPAN / BUCKETS as u64;

/// Entries by the millisecond in which they ring. Entries are never removed: a stale one rings, and
/// its owner ignores it.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    zero: Timestamp,
    /// Milliseconds since `zero` that are over.
    elapsed: u64,
    levels: [Level; LEVELS],
    /// Entries that were due on insertion.
    due: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at: Timestamp,
    pub(crate) key: u32,
}

#[derive(Debug)]
struct Level {
    /// A bit for each bucket that holds entries.
    occupied: u64,
    buckets: [Vec<Entry>; BUCKETS],
}

impl TimerWheel {
    pub(crate) fn new(now: Timestamp) -> TimerWheel {
        TimerWheel {
            zero: now,
            elapsed: 0,
            levels: std::array::from_fn(|_| Level {
                occupied: 0,
                buckets: std::array::from_fn(|_| Vec::new()),
            }),
            due: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, at: Timestamp, key: u32) {
        let entry = Entry { at, key };
        let tick = self.tick(at);
        if tick <= self.elapsed {
            self.due.push(entry);
            return;
        }
        let tick = tick.min(self.elapsed + AHEAD_MAX);
        // The highest digit in which the two differ gives the level.
        let differs = ((self.elapsed ^ tick) | (BUCKETS as u64 - 1)).min(SPAN - 1);
        let level = (63 - differs.leading_zeros()) / BITS;
        let bucket = (tick >> (level * BITS)) as usize % BUCKETS;
        let level = &mut self.levels[level as usize];
        level.occupied |= 1 << bucket;
        level.buckets[bucket].push(entry);
    }

    /// Rings the entries due until `now`, in no order within a millisecond.
    pub(crate) fn advance(&mut self, now: Timestamp, mut ring: impl FnMut(Entry)) {
        let now = self.tick(now);
        self.due.drain(..).for_each(&mut ring);
        while let Some((level, bucket, begins)) = self.first()
            && begins <= now
        {
            self.elapsed = begins;
            let level = &mut self.levels[level];
            level.occupied &= !(1 << bucket);
            for entry in std::mem::take(&mut level.buckets[bucket]) {
                if self.tick(entry.at) <= now {
                    ring(entry);
                } else {
                    self.insert(entry.at, entry.key);
                }
            }
        }
        self.elapsed = self.elapsed.max(now);
    }

    /// Time of the next `advance`: never later than the first entry's time, and earlier if that
    /// lies far ahead.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        if !self.due.is_empty() {
            return Some(self.at(self.elapsed));
        }
        self.first().map(|(_, _, begins)| self.at(begins))
    }

    /// The bucket that begins first: those of a lower level come before those of a higher one.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        let shift = level as u32 * BITS;
        let here = (self.elapsed >> shift) as u32 % BUCKETS as u32;
        let ahead = self.levels[level]
            .occupied
            .rotate_right(here)
            .trailing_zeros();
        let begins = ((self.elapsed >> shift) + u64::from(ahead)) << shift;
        let bucket = (here + ahead) as usize % BUCKETS;
        Some((level, bucket, begins))
    }

    fn tick(&self, at: Timestamp) -> u64 {
        u64::try_from(at.since(self.zero).as_millis()).unwrap_or(u64::MAX / 2)
    }

    fn at(&self, tick: u64) -> Timestamp {
        self.zero + std::time::Duration::from_millis(tick)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const ZERO: Timestamp = Timestamp::from_millis(1_700_000_000_123);

    fn after(millis: u64) -> Timestamp {
        ZERO + Duration::from_millis(millis)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let far = prop_oneof![0..70u64, 0..5_000u64, 0..300_000u64, 0..200_000_000u64];
        prop_oneof![
            far.clone().prop_map(Step::Insert),
            far.prop_map(Step::Advance)
        ]
    }

    proptest! {
        #[test]
        fn entries_ring_in_their_millisecond_and_once(steps in prop::collection::vec(step(), 1..200)) {
            let mut wheel = TimerWheel::new(ZERO);
            let (mut now, mut waiting) = (0, Vec::new());
            for (key, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(ahead) => {
                        wheel.insert(after(now + ahead), key as u32);
                        waiting.push((now + ahead, key as u32));
                    }
                    Step::Advance(by) => {
                        now += by;
                        let mut rung = Vec::new();
                        wheel.advance(after(now), |entry| rung.push(entry.key));
                        let mut due: Vec<u32> = (waiting.extract_if(.., |(at, _)| *at <= now))
                            .map(|(_, key)| key)
                            .collect();
                        rung.sort_unstable();
                        due.sort_unstable();
                        prop_assert_eq!(rung, due);
                    }
                }
                let first = waiting.iter().map(|&(at, _)| at).min();
                let next = wheel.next();
                prop_assert_eq!(next.is_some(), first.is_some());
                prop_assert!(next.is_none_or(|next| next <= after(first.unwrap_or(0).max(now))));
            }
        }

        /// A driver that sleeps until `next` each time wakes at most once per level for one entry.
        #[test]
        fn sleeping_until_the_next_look_reaches_an_entry_soon(ahead in 1..u64::MAX >> 20) {
            let mut wheel = TimerWheel::new(ZERO);
            wheel.advance(after(777_777), |_| ());
            let at = after(777_777 + ahead);
            wheel.insert(at, 1);
            let (mut rung, mut looks) = (None, 0);
            while let Some(next) = wheel.next() {
                wheel.advance(next, |entry| rung = Some((entry, next)));
                looks += 1;
                prop_assert!(looks <= LEVELS + (ahead / AHEAD_MAX) as usize + 1);
            }
            prop_assert_eq!(rung, Some((Entry { at, key: 1 }, at)));
        }
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 16);
    }
}
