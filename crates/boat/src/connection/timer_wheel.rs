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
/// Entries that an owner remembers: frames linger for tenths of a second, an acknowledgement is
/// waited for seconds, a read for tens of them, a sign of life for more than a minute.
const PENDING_MAX: usize = 4;
const NEVER: Timestamp = Timestamp::MAX;
/// Reach of the last level; an entry beyond it is moved more often.
const AHEAD_MAX: u64 = SPAN - SPAN / BUCKETS as u64;

/// Entries by the millisecond in which they ring. Entries are never removed: a stale one rings, and
/// its owner finds nothing due.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    zero: Timestamp,
    /// Milliseconds since `zero` that are over.
    elapsed_ticks: u64,
    levels: [Level; LEVELS],
    /// Entries that were due on insertion.
    due_entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at: Timestamp,
    pub(crate) key: u32,
}

#[derive(Debug)]
struct Level {
    /// A bit for each bucket that holds entries.
    occupancy: u64,
    buckets: [Vec<Entry>; BUCKETS],
}

/// Entries of one owner that have not rung, the earliest first. A deadline that moved to a later
/// time leaves its entry in the wheel: the owner hears it early, and it serves the deadlines
/// behind it, so that a busy owner adds none each time.
#[derive(Debug)]
pub(crate) struct PendingEntries([Timestamp; PENDING_MAX]);

impl Default for PendingEntries {
    fn default() -> PendingEntries {
        PendingEntries([NEVER; PENDING_MAX])
    }
}

impl PendingEntries {
    /// Whether the deadline needs an entry of its own. The latest one known is forgotten if there
    /// are too many.
    pub(crate) fn add(&mut self, deadline: Timestamp) -> bool {
        let is_first = deadline < self.0[0];
        if is_first {
            self.0.rotate_right(1);
            self.0[0] = deadline;
        }
        is_first
    }

    /// Takes out an entry that rings; false if it was forgotten.
    pub(crate) fn ring(&mut self, at: Timestamp) -> bool {
        let Some(index) = self.0.iter().position(|entry| *entry == at) else {
            return false;
        };
        self.0[index..].rotate_left(1);
        self.0[PENDING_MAX - 1] = NEVER;
        true
    }
}

impl TimerWheel {
    pub(crate) fn new(now: Timestamp) -> TimerWheel {
        TimerWheel {
            zero: now,
            elapsed_ticks: 0,
            levels: std::array::from_fn(|_| Level {
                occupancy: 0,
                buckets: std::array::from_fn(|_| Vec::new()),
            }),
            due_entries: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, at: Timestamp, key: u32) {
        let entry = Entry { at, key };
        let tick = self.tick(at);
        if tick <= self.elapsed_ticks {
            self.due_entries.push(entry);
            return;
        }
        let tick = tick.min(self.elapsed_ticks + AHEAD_MAX);
        // The highest digit in which the two differ gives the level.
        let difference = ((self.elapsed_ticks ^ tick) | (BUCKETS as u64 - 1)).min(SPAN - 1);
        let level = (63 - difference.leading_zeros()) / BITS;
        let bucket = (tick >> (level * BITS)) as usize % BUCKETS;
        let level = &mut self.levels[level as usize];
        level.occupancy |= 1 << bucket;
        level.buckets[bucket].push(entry);
    }

    /// Rings the entries due until `now`, in no order within a millisecond.
    pub(crate) fn advance(&mut self, now: Timestamp, mut ring: impl FnMut(Entry)) {
        let now = self.tick(now);
        self.due_entries.drain(..).for_each(&mut ring);
        while let Some((level, bucket, start)) = self.first()
            && start <= now
        {
            self.elapsed_ticks = start;
            let level = &mut self.levels[level];
            level.occupancy &= !(1 << bucket);
            for entry in std::mem::take(&mut level.buckets[bucket]) {
                if self.tick(entry.at) <= now {
                    ring(entry);
                } else {
                    self.insert(entry.at, entry.key);
                }
            }
        }
        self.elapsed_ticks = self.elapsed_ticks.max(now);
    }

    /// Time of the next `advance`: never later than the first entry's time, and earlier if that
    /// lies far ahead.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        if !self.due_entries.is_empty() {
            return Some(self.at(self.elapsed_ticks));
        }
        self.first().map(|(_, _, start)| self.at(start))
    }

    /// The bucket that begins first: those of a lower level come before those of a higher one.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let level = self.levels.iter().position(|level| level.occupancy != 0)?;
        let shift = level as u32 * BITS;
        let offset = (self.elapsed_ticks >> shift) as u32 % BUCKETS as u32;
        let distance = self.levels[level]
            .occupancy
            .rotate_right(offset)
            .trailing_zeros();
        let start = ((self.elapsed_ticks >> shift) + u64::from(distance)) << shift;
        let bucket = (offset + distance) as usize % BUCKETS;
        Some((level, bucket, start))
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

    fn at_millis(millis: u64) -> Timestamp {
        ZERO + Duration::from_millis(millis)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let delay = prop_oneof![0..70u64, 0..5_000u64, 0..300_000u64, 0..200_000_000u64];
        prop_oneof![
            delay.clone().prop_map(Step::Insert),
            delay.prop_map(Step::Advance)
        ]
    }

    proptest! {
        #[test]
        fn entries_ring_in_their_millisecond_and_once(steps in prop::collection::vec(step(), 1..200)) {
            let mut wheel = TimerWheel::new(ZERO);
            let (mut now, mut pending) = (0, Vec::new());
            for (key, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(ahead) => {
                        wheel.insert(at_millis(now + ahead), key as u32);
                        pending.push((now + ahead, key as u32));
                    }
                    Step::Advance(by) => {
                        now += by;
                        let mut rung_keys = Vec::new();
                        wheel.advance(at_millis(now), |entry| rung_keys.push(entry.key));
                        let mut due_keys: Vec<u32> = (pending.extract_if(.., |(at, _)| *at <= now))
                            .map(|(_, key)| key)
                            .collect();
                        rung_keys.sort_unstable();
                        due_keys.sort_unstable();
                        prop_assert_eq!(rung_keys, due_keys);
                    }
                }
                let first = pending.iter().map(|&(at, _)| at).min();
                let next = wheel.next();
                prop_assert_eq!(next.is_some(), first.is_some());
                prop_assert!(next.is_none_or(|next| next <= at_millis(first.unwrap_or(0).max(now))));
            }
        }

        /// A driver that sleeps until `next` each time wakes at most once per level for one entry.
        #[test]
        fn sleeping_until_the_next_look_reaches_an_entry_soon(ahead in 1..u64::MAX >> 20) {
            let mut wheel = TimerWheel::new(ZERO);
            wheel.advance(at_millis(777_777), |_| ());
            let at = at_millis(777_777 + ahead);
            wheel.insert(at, 1);
            let (mut rung_entry, mut advance_count) = (None, 0);
            while let Some(next) = wheel.next() {
                wheel.advance(next, |entry| rung_entry = Some((entry, next)));
                advance_count += 1;
                prop_assert!(advance_count <= LEVELS + (ahead / AHEAD_MAX) as usize + 1);
            }
            prop_assert_eq!(rung_entry, Some((Entry { at, key: 1 }, at)));
        }
    }

    impl TimerWheel {
        fn len(&self) -> usize {
            let buckets = self.levels.iter().flat_map(|level| &level.buckets);
            buckets.map(Vec::len).sum::<usize>() + self.due_entries.len()
        }
    }

    /// A connection that gets a message each second and acknowledges it at once, whose notices
    /// linger, and whose silence is waited for.
    #[test]
    fn a_busy_connection_has_few_entries() {
        let mut wheel = TimerWheel::new(ZERO);
        let (mut timers, mut max_len) = (PendingEntries::default(), 0);
        for millis in (0..600_000).step_by(50) {
            wheel.advance(at_millis(millis), |entry| {
                timers.ring(entry.at);
            });
            let silence = 75_000;
            let reading = (millis % 5000 == 100).then_some(20_000);
            let ack_timeout = (millis % 1000 == 0).then_some(2000);
            let linger = (millis % 1000 == 500).then_some(200);
            let timeouts = [Some(silence), reading, ack_timeout, linger];
            let first = timeouts.into_iter().flatten().min();
            let deadline = at_millis(millis + first.unwrap_or(silence));
            if timers.add(deadline) {
                wheel.insert(deadline, 1);
            }
            max_len = max_len.max(wheel.len());
        }
        assert!(max_len <= PENDING_MAX, "{max_len}");
    }

    #[test]
    fn no_deadline_is_slept_over() {
        let mut wheel = TimerWheel::new(ZERO);
        let mut timers = PendingEntries::default();
        // Each is earlier than all before it, and there are more than are remembered.
        for millis in [60_000, 50_000, 40_000, 30_000, 20_000, 10_000] {
            assert!(timers.add(at_millis(millis)));
            wheel.insert(at_millis(millis), 1);
        }
        assert!(!timers.add(at_millis(15_000)), "it is heard at 10 s first");
        let mut rung_at = Vec::new();
        wheel.advance(at_millis(70_000), |entry| {
            if timers.ring(entry.at) {
                rung_at.push(entry.at);
            }
        });
        rung_at.sort_unstable();
        assert_eq!(rung_at, [10_000, 20_000, 30_000, 40_000].map(at_millis));
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 16);
    }
}
