//! Message ids of this station: never beyond what discovery has recorded as ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use backend::clock::Clock;
use backend::discovery::{NodeLease, Registry};
use parking_lot::Mutex;
use protocol::id::snowflake::{Snowflake, SnowflakeError};
use protocol::{Code, MessageId, Refusal, Timestamp};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How many node numbers a start may look at to find one whose past is over.
const NODES_TRIED: usize = 8;

/// How long to wait after a reservation failed, or while ids are refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Makes ids under a leased node number. A number is reserved ahead, durably: a successor begins after
/// the reservation, so that no id is ever made twice, whatever the clocks do (reliability R10).
pub(crate) struct MessageIds {
    snowflake: Mutex<Snowflake>,
    lease: Box<dyn NodeLease>,
    /// The last millisecond that ids may bear.
    reserved: AtomicI64,
    /// Somebody needed an id beyond the reservation.
    wanted: Notify,
    ahead: Duration,
    /// How long discovery may take to record a reservation; then it is asked anew.
    deadline: Duration,
    clock: Arc<dyn Clock>,
}

impl MessageIds {
    /// Leases a number and reserves it. A number that was held until a moment ago is reserved into the
    /// future; another one is taken then, where there is one, instead of waiting.
    pub(crate) async fn lease(
        registry: &dyn Registry,
        clock: Arc<dyn Clock>,
        ahead: Duration,
        deadline: Duration,
    ) -> backend::Result<MessageIds> {
        let mut best = registry.lease_node().await?;
        let mut passed_over = Vec::new();
        while best.not_before() > clock.now() && passed_over.len() < NODES_TRIED {
            // Held until the search ends: what is given back at once would be given out again.
            let Ok(next) = registry.lease_node().await else {
                break;
            };
            if next.not_before() < best.not_before() {
                passed_over.push(std::mem::replace(&mut best, next));
            } else {
                passed_over.push(next);
            }
        }
        let ids = MessageIds {
            snowflake: Mutex::new(Snowflake::new(best.number(), best.not_before())),
            reserved: AtomicI64::new(best.not_before().millis()),
            lease: best,
            wanted: Notify::new(),
            ahead,
            deadline,
            clock,
        };
        ids.reserve().await?;
        Ok(ids)
    }

    /// As many ids as asked for, ascending; all or none. A refusal may be tried again.
    pub(crate) fn draw(&self, count: usize) -> Result<Vec<MessageId>, Refusal> {
        let now = self.clock.now();
        let mut snowflake = self.snowflake.lock();
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let id = snowflake.next(now).map_err(unmade)?;
            if id.timestamp().millis() > self.reserved.load(Ordering::Acquire) {
                self.wanted.notify_one();
                return Err(unavailable(
                    "no message ids are left while discovery does not answer: resend under the same send_id",
                ));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Keeps the reservation ahead of the clock, for ever.
    pub(crate) async fn keep_reserved(&self) {
        let mut failing = false;
        loop {
            let pause = if failing { RETRY_AFTER } else { self.ahead / 4 };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wanted.notified(), if !failing => {}
            }
            match self.reserve().await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, until = %self.reserved_until(), "message ids cannot be reserved");
                    }
                    metrics::counter!("station_id_reservations_failed_total").increment(1);
                    failing = true;
                }
            }
        }
    }

    /// One that is given up may be recorded all the same: no earlier one takes a later one back.
    async fn reserve(&self) -> backend::Result<()> {
        let until = (self.clock.now() + self.ahead).max(self.reserved_until());
        let recorded = timeout(self.deadline, self.lease.reserve(until)).await;
        recorded.map_err(|late| backend::Error::unavailable("discovery", late))??;
        self.reserved.store(until.millis(), Ordering::Release);
        Ok(())
    }

    fn reserved_until(&self) -> Timestamp {
        Timestamp::from_millis(self.reserved.load(Ordering::Acquire))
    }
}

fn unmade(error: SnowflakeError) -> Refusal {
    metrics::counter!("station_ids_refused_total").increment(1);
    unavailable(error.to_string())
}

fn unavailable(text: impl Into<String>) -> Refusal {
    Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    use async_trait::async_trait;
    use backend::clock::SeededEntropy;
    use backend::discovery::EmbeddedRegistry;
    use backend::embedded::Engine;

    use super::*;

    const AHEAD: Duration = Duration::from_secs(10);
    const DEADLINE: Duration = Duration::from_secs(3);
    const BEGIN: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// A clock that goes where the test sets it, also back.
    struct HandClock(Mutex<Timestamp>);

    impl Clock for HandClock {
        fn now(&self) -> Timestamp {
            *self.0.lock()
        }
    }

    impl HandClock {
        fn at_begin() -> Arc<HandClock> {
            Arc::new(HandClock(Mutex::new(BEGIN)))
        }

        fn set(&self, now: Timestamp) {
            *self.0.lock() = now;
        }
    }

    async fn lease(engine: &Engine, clock: &Arc<HandClock>) -> MessageIds {
        let registry = registry(engine);
        lease_of(&registry, clock).await
    }

    async fn lease_of(registry: &EmbeddedRegistry, clock: &Arc<HandClock>) -> MessageIds {
        let ids = MessageIds::lease(registry, clock.clone(), AHEAD, DEADLINE);
        ids.await.expect("a number")
    }

    fn registry(engine: &Engine) -> EmbeddedRegistry {
        EmbeddedRegistry::new(engine.clone(), Arc::new(SeededEntropy::new(1)))
    }

    /// Never answers the first reservation.
    struct HangsOnce {
        lease: Box<dyn NodeLease>,
        hung: AtomicBool,
    }

    #[async_trait]
    impl NodeLease for HangsOnce {
        fn number(&self) -> u16 {
            self.lease.number()
        }

        fn not_before(&self) -> Timestamp {
            self.lease.not_before()
        }

        async fn reserve(&self, until: Timestamp) -> backend::Result<()> {
            if !self.hung.swap(true, Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            self.lease.reserve(until).await
        }
    }

    // A call that is never answered costs its deadline, not all ids to come.
    #[tokio::test(start_paused = true)]
    async fn a_reservation_that_hangs_is_given_up_and_asked_for_again() {
        let clock = HandClock::at_begin();
        let ids = lease(&Engine::memory(), &clock).await;
        let ids = Arc::new(MessageIds {
            lease: Box::new(HangsOnce {
                lease: ids.lease,
                hung: AtomicBool::new(false),
            }),
            ..ids
        });
        let keeper = ids.clone();
        let keeping = tokio::spawn(async move { keeper.keep_reserved().await });
        tokio::time::sleep(AHEAD / 4 + DEADLINE / 2).await;
        clock.set(BEGIN + AHEAD * 2);
        let refusal = ids.draw(1).expect_err("none is left");
        assert!(refusal.code.retryable() && refusal.retry_after.is_some());
        tokio::time::sleep(DEADLINE / 2 + RETRY_AFTER + Duration::from_millis(1)).await;
        ids.draw(1).expect("the next try was answered");
        keeping.abort();
    }

    // T-N1: two stations at once never hold one number, and never make one id.
    #[tokio::test]
    async fn two_at_once_make_different_ids() {
        let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
        let one = lease_of(&registry, &clock).await;
        let other = lease_of(&registry, &clock).await;
        let mut made: BTreeSet<_> = one.draw(5000).expect("ids").into_iter().collect();
        made.extend(other.draw(5000).expect("ids"));
        assert_eq!(made.len(), 10_000);
    }

    // T-N2: back 30 s is refused until the clock has caught up; forward 1 h waits for the reservation.
    #[tokio::test]
    async fn no_clock_makes_an_id_twice_or_beyond_the_reservation() {
        let clock = HandClock::at_begin();
        let ids = lease(&Engine::memory(), &clock).await;
        let first = ids.draw(1).expect("an id")[0];
        clock.set(BEGIN - Duration::from_secs(30));
        let refusal = ids.draw(1).expect_err("the clock is back");
        assert_eq!(refusal.code, Code::Unavailable);
        assert!(refusal.retry_after.is_some());
        clock.set(BEGIN + Duration::from_secs(3600));
        assert!(ids.draw(1).is_err(), "not reserved so far");
        ids.reserve().await.expect("reserved");
        let later = ids.draw(1).expect("an id")[0];
        assert!(later > first);
        clock.set(BEGIN);
        assert!(ids.draw(1).is_err(), "an hour back");
    }

    // reliability R10: what a crashed station may have made is before its successor's first id.
    #[tokio::test]
    async fn a_successor_begins_after_what_a_crash_took() {
        let (mut engine, clock) = (Engine::memory(), HandClock::at_begin());
        let mut made = BTreeSet::new();
        for _ in 0..20 {
            let ids = lease(&engine, &clock).await;
            let drawn = ids.draw(10).expect("ids at once, by another number");
            assert!(drawn.into_iter().all(|id| made.insert(id)));
            engine = engine.crash(0).expect("what was fsynced");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_reservation_is_kept_ahead_and_a_lost_registry_ends_it() {
        let (engine, clock) = (Engine::memory(), HandClock::at_begin());
        let ids = Arc::new(lease(&engine, &clock).await);
        let keeper = ids.clone();
        let keeping = tokio::spawn(async move { keeper.keep_reserved().await });
        for second in 0..60 {
            clock.set(BEGIN + Duration::from_secs(second));
            tokio::time::sleep(Duration::from_secs(1)).await;
            ids.draw(1).expect("kept ahead");
        }
        engine.fail_syncs();
        clock.set(BEGIN + Duration::from_secs(65));
        ids.draw(1).expect("still reserved");
        clock.set(BEGIN + Duration::from_secs(90));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(ids.draw(1).is_err(), "never beyond what is recorded");
        keeping.abort();
    }
}
