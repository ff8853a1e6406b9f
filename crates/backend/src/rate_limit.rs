//! Rates by key in memory that never grows: there is nothing to sweep, and nothing an attacker
//! could push out.
//!
//! Each key has one cell in each of two tables, at places chosen by a keyed hash, and is refused if
//! both cells refuse. Keys that share a cell share its tokens; two keys rarely share both cells:
//! beside 1,000 keys that are always refused, one innocent key in 17,000 is refused, too.

mod address;

use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use metrics::Counter;
use tokio::time::Instant;

pub use address::{AddressDefaults, AddressKey, AddressLimit, AddressWarnings};

/// Cells of one table: a power of two.
const CELLS: usize = 1 << 17;
const TABLES: usize = 2;
/// Largest debt of tokens, for a cost beyond the burst.
const MAX_DEBT: NonZeroU32 = NonZeroU32::new(1 << 16).expect("positive");

/// Memory of one limit; it never changes.
pub const LIMIT_BYTES: usize = TABLES * CELLS * size_of::<InMemoryState>();

const _: () = assert!(LIMIT_BYTES == 2 << 20);

/// Tokens over time, and tokens at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(Quota);

impl Rate {
    pub fn per_second(count: NonZeroU32, burst: NonZeroU32) -> Rate {
        Rate(Quota::per_second(count).allow_burst(burst))
    }

    pub fn per_minute(count: NonZeroU32, burst: NonZeroU32) -> Rate {
        Rate(Quota::per_minute(count).allow_burst(burst))
    }
}

/// Rate limit per key; refusals are counted.
pub struct RateLimit<K, S = RandomState> {
    keys: PhantomData<fn(K)>,
    hasher: S,
    tables: [Table; TABLES],
    burst: NonZeroU32,
    refusals: Counter,
}

type Limiter = RateLimiter<usize, Cells, RuntimeClock, NoOpMiddleware<Duration>>;

/// One table with three limiters over it.
struct Table {
    limiter: Limiter,
    /// Checks for tokens without taking them.
    peek_limiter: Limiter,
    /// Takes tokens in advance, as a debt.
    debt_limiter: Limiter,
}

impl Table {
    fn new(rate: Rate, clock: RuntimeClock) -> Table {
        let cells = Cells::default();
        Table {
            peek_limiter: RateLimiter::new(rate.0, cells.unchanging(), clock),
            debt_limiter: RateLimiter::new(rate.0.allow_burst(MAX_DEBT), cells.clone(), clock),
            limiter: RateLimiter::new(rate.0, cells, clock),
        }
    }
}

impl<K: Hash> RateLimit<K> {
    /// Counts refusals as `limits_total{limit}`. The hash is random: no other process has the same.
    pub fn new(limit: &'static str, rate: Rate) -> RateLimit<K> {
        RateLimit::with_hasher(limit, rate, RandomState::new())
    }
}

impl<K: Hash, S: BuildHasher> RateLimit<K, S> {
    fn with_hasher(limit: &'static str, rate: Rate, hasher: S) -> RateLimit<K, S> {
        let clock = RuntimeClock::default();
        RateLimit {
            keys: PhantomData,
            hasher,
            tables: [(); TABLES].map(|()| Table::new(rate, clock)),
            burst: rate.0.burst_size(),
            refusals: metrics::counter!("limits_total", "limit" => limit),
        }
    }

    /// Takes one token, or returns the wait for one.
    pub fn check(&self, key: K) -> Result<(), Duration> {
        self.check_cost(key, NonZeroU32::MIN)
    }

    /// Takes `cost` tokens, or none and returns the wait for them. A cost beyond the burst leaves a
    /// debt: later calls wait for it, too.
    pub fn check_cost(&self, key: K, cost: NonZeroU32) -> Result<(), Duration> {
        self.check_with(key, cost, |table| &table.limiter)
    }

    /// Looks for a token and leaves it: for events that cost one only on failure.
    pub fn look(&self, key: K) -> Result<(), Duration> {
        self.check_with(key, NonZeroU32::MIN, |table| &table.peek_limiter)
    }

    fn check_with(
        &self,
        key: K,
        cost: NonZeroU32,
        way: fn(&Table) -> &Limiter,
    ) -> Result<(), Duration> {
        let debt = NonZeroU32::new(cost.get().saturating_sub(self.burst.get()));
        // The burst refills in finite time, so that waiting helps.
        let cost = cost.min(self.burst);
        let mut places = self.hasher.hash_one(key);
        let mut wait = Some(Duration::MAX);
        for table in &self.tables {
            let limiter = way(table);
            let place = places as usize % CELLS;
            places >>= u64::BITS as usize / TABLES;
            let decision = limiter.check_key_n(&place, cost);
            if let (Ok(Ok(())), Some(debt)) = (&decision, debt) {
                let _ = table.debt_limiter.check_key_n(&place, debt.min(MAX_DEBT));
            }
            wait = match (wait, decision) {
                (Some(wait), Ok(Err(early))) => {
                    Some(wait.min(early.wait_time_from(limiter.clock().now())))
                }
                (_, _) => None,
            };
        }
        match wait {
            Some(wait) => {
                self.refusals.increment(1);
                Err(wait)
            }
            None => Ok(()),
        }
    }
}

/// Tokens of all cells.
#[derive(Clone)]
struct Cells {
    cells: Arc<[InMemoryState]>,
    changes: bool,
}

impl Default for Cells {
    fn default() -> Cells {
        let cells = std::iter::repeat_with(InMemoryState::default);
        Cells {
            cells: cells.take(CELLS).collect(),
            changes: true,
        }
    }
}

impl Cells {
    fn unchanging(&self) -> Cells {
        Cells {
            changes: false,
            ..self.clone()
        }
    }
}

impl StateStore for Cells {
    type Key = usize;

    fn measure_and_replace<T, F, E>(&self, place: &usize, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let cell = &self.cells[*place % CELLS];
        if self.changes {
            return cell.measure_and_replace(&NotKeyed::NonKey, decide);
        }
        cell.measure_and_replace(&NotKeyed::NonKey, |previous| {
            let (answer, _) = decide(previous)?;
            Ok((answer, previous.unwrap_or(Nanos::new(0))))
        })
    }
}

/// The runtime's timer, which a test may stop.
#[derive(Clone, Copy, Debug)]
struct RuntimeClock {
    zero: Instant,
}

impl Default for RuntimeClock {
    fn default() -> RuntimeClock {
        RuntimeClock {
            zero: Instant::now(),
        }
    }
}

impl Clock for RuntimeClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.zero.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn count(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).expect("not zero")
    }

    fn limit(rate: Rate) -> RateLimit<u64> {
        RateLimit::new("test", rate)
    }

    /// Counts the calls let through at once.
    fn drain(limit: &RateLimit<u64>, key: u64) -> usize {
        (0..10_000).take_while(|_| limit.check(key).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_has_its_burst_and_then_its_rate() {
        let limit = limit(Rate::per_second(count(20), count(200)));
        assert_eq!(drain(&limit, 1), 200);
        assert_eq!(limit.check(1), Err(Duration::from_millis(50)));
        assert_eq!(limit.check(2), Ok(()), "others go on");
        tokio::time::advance(Duration::from_millis(49)).await;
        assert_eq!(limit.check(1), Err(Duration::from_millis(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(drain(&limit, 1), 1);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(drain(&limit, 1), 100);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(drain(&limit, 1), 200, "no more than the burst");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_takes_nothing() {
        let limit = limit(Rate::per_minute(count(10), count(2)));
        for _ in 0..3 {
            for _ in 0..100 {
                assert_eq!(limit.look(1), Ok(()));
            }
            assert_eq!(drain(&limit, 1), 2);
            assert_eq!(limit.look(1), Err(Duration::from_secs(6)));
            tokio::time::advance(Duration::from_secs(12)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_may_be_by_the_minute() {
        let limit = limit(Rate::per_minute(count(30), count(20)));
        assert_eq!(drain(&limit, 1), 20);
        assert_eq!(limit.check(1), Err(Duration::from_secs(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn each_refusal_is_counted_and_nothing_else() {
        let refusals = Arc::new(AtomicU64::new(0));
        let limit = RateLimit {
            refusals: Counter::from_arc(refusals.clone()),
            ..limit(Rate::per_second(count(1), count(3)))
        };
        for expected in [0, 0, 0, 1, 2] {
            let _ = limit.check(1);
            assert_eq!(refusals.load(Ordering::Relaxed), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cost_is_taken_whole_or_not_at_all() {
        let limit = limit(Rate::per_second(count(10), count(100)));
        assert_eq!(limit.check_cost(1, count(70)), Ok(()));
        assert_eq!(limit.check_cost(1, count(40)), Err(Duration::from_secs(1)));
        assert_eq!(limit.check_cost(1, count(30)), Ok(()));
        // A cost beyond the burst waits for the whole burst.
        assert_eq!(
            limit.check_cost(1, count(5000)),
            Err(Duration::from_secs(10))
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(limit.check_cost(1, count(5000)), Ok(()));
        // Later calls wait for the rest of the cost.
        let wait = limit.check(1).expect_err("4,900 are owed");
        assert_eq!(wait, Duration::from_millis(490_100));
        assert_eq!(limit.check(2), Ok(()), "others owe nothing");
    }

    // A fixed hash, for a fixed figure.
    #[tokio::test(start_paused = true)]
    async fn one_innocent_in_17_000_shares_the_fate_of_1_000_abusers() {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let burst = count(1_000);
        let limit = RateLimit::with_hasher("test", Rate::per_minute(count(1), burst), hasher);
        for abuser in 0_u64..1_000 {
            assert_eq!(limit.check_cost(abuser, burst), Ok(()));
            assert!(limit.check(abuser).is_err());
        }
        let innocent = 1_000_000_u64..1_340_000;
        let refused_count = innocent.filter(|key| limit.check(*key).is_err()).count();
        assert!(
            (8..=32).contains(&refused_count),
            "20 expected, {refused_count} found"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_what_it_was_after_a_million_keys() {
        let limit = limit(Rate::per_second(count(1), count(1)));
        for key in 0_u64..1_000_000 {
            let _ = limit.check(key);
        }
        let cells = limit
            .tables
            .map(|table| table.limiter.into_state_store().cells.len());
        assert_eq!(cells, [1 << 17; 2]);
        assert_eq!(size_of::<InMemoryState>(), 8);
        assert_eq!(LIMIT_BYTES, 2_097_152);
    }
}
