//! Message ids of this station: never beyond what discovery has recorded as ours.

use std::sync::Arc;
use std::time::Duration;

use backend::Kind;
use backend::clock::Clock;
use backend::discovery::{NodeLease, Registry};
use parking_lot::Mutex;
use protocol::id::snowflake::{Snowflake, SnowflakeError};
use protocol::{Code, MessageId, Refusal, Timestamp};
use tokio::sync::Notify;

use crate::deadline::answered_within as within;

/// How many node numbers a start may look at to find one whose past is over.
const NODES_TRIED: usize = 8;

/// How long to wait after a reservation failed, or while ids are refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the loss of the number may stay unknown.
const RESERVE_EVERY_MAX: Duration = Duration::from_secs(10);

/// Makes ids under a leased node number. A number is reserved ahead, durably: a successor begins after
/// the reservation, so that no id is ever made twice, whatever the clocks do (reliability R10). When
/// the lease is lost, what is reserved can still be used up, and another number is leased meanwhile.
pub(crate) struct MessageIds {
    node: Mutex<Node>,
    /// Somebody needed an id beyond the reservation.
    wanted: Notify,
    ahead: Duration,
    /// How long discovery may take to record a reservation, or to lease a number; then it is asked anew.
    deadline: Duration,
    registry: Arc<dyn Registry>,
    clock: Arc<dyn Clock>,
}

/// A number, and how far its ids have come.
struct Node {
    snowflake: Snowflake,
    lease: Arc<dyn NodeLease>,
    /// The last millisecond that ids may bear.
    reserved: Timestamp,
}

impl MessageIds {
    /// Leases a number and reserves it.
    pub(crate) async fn lease(
        registry: Arc<dyn Registry>,
        clock: Arc<dyn Clock>,
        ahead: Duration,
        deadline: Duration,
    ) -> backend::Result<MessageIds> {
        let lease = within(deadline, lease_rested(&*registry, clock.now())).await?;
        let ids = MessageIds {
            node: Mutex::new(Node {
                snowflake: Snowflake::new(lease.number(), lease.not_before()),
                reserved: lease.not_before(),
                lease: lease.into(),
            }),
            wanted: Notify::new(),
            ahead,
            deadline,
            registry,
            clock,
        };
        ids.reserve().await?;
        Ok(ids)
    }

    /// As many ids as asked for, ascending; all or none. A refusal may be tried again.
    pub(crate) fn draw(&self, count: usize) -> Result<Vec<MessageId>, Refusal> {
        let now = self.clock.now();
        let mut node = self.node.lock();
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let id = node.snowflake.next(now).map_err(unmade)?;
            if id.timestamp() > node.reserved {
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
            let pause = if failing {
                RETRY_AFTER
            } else {
                (self.ahead / 4).min(RESERVE_EVERY_MAX)
            };
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
        let lease = self.node.lock().lease.clone();
        match self.reserve_under(&*lease).await {
            Ok(until) => {
                self.node.lock().reserved = until;
                Ok(())
            }
            Err(error) if error.kind == Kind::Conflict => {
                tracing::warn!(%error, source = %error.source, "the node number is lost; leasing another");
                self.take_another().await
            }
            Err(error) => Err(error),
        }
    }

    /// Ids go on upwards under the new number.
    async fn take_another(&self) -> backend::Result<()> {
        let leasing = lease_rested(&*self.registry, self.clock.now());
        let lease: Arc<dyn NodeLease> = within(self.deadline, leasing).await?.into();
        let reserved = self.reserve_under(&*lease).await?;
        let mut node = self.node.lock();
        let not_before = lease.not_before().max(node.snowflake.last());
        *node = Node {
            snowflake: Snowflake::new(lease.number(), not_before),
            lease,
            reserved,
        };
        metrics::counter!("station_node_numbers_lost_total").increment(1);
        Ok(())
    }

    async fn reserve_under(&self, lease: &dyn NodeLease) -> backend::Result<Timestamp> {
        let until = (self.clock.now() + self.ahead).max(lease.not_before());
        let until = until.max(self.reserved_until());
        within(self.deadline, lease.reserve(until)).await?;
        Ok(until)
    }

    fn reserved_until(&self) -> Timestamp {
        self.node.lock().reserved
    }
}

/// A number that was held until a moment ago is reserved into the future; another one is taken then,
/// where there is one, instead of waiting.
async fn lease_rested(
    registry: &dyn Registry,
    now: Timestamp,
) -> backend::Result<Box<dyn NodeLease>> {
    let mut best = registry.lease_node().await?;
    let mut passed_over = Vec::new();
    while best.not_before() > now && passed_over.len() < NODES_TRIED {
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
    Ok(best)
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
    use std::sync::atomic::{AtomicBool, Ordering};

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
        lease_of(&registry(engine), clock).await
    }

    async fn lease_of(registry: &EmbeddedRegistry, clock: &Arc<HandClock>) -> MessageIds {
        let registry = Arc::new(registry.clone());
        let ids = MessageIds::lease(registry, clock.clone(), AHEAD, DEADLINE);
        ids.await.expect("a number")
    }

    fn registry(engine: &Engine) -> EmbeddedRegistry {
        EmbeddedRegistry::new(engine.clone(), Arc::new(SeededEntropy::new(1)))
    }

    /// Never answers the first reservation.
    struct HangsOnce {
        lease: Arc<dyn NodeLease>,
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
        let lease = ids.node.lock().lease.clone();
        let hung = AtomicBool::new(false);
        ids.node.lock().lease = Arc::new(HangsOnce { lease, hung });
        let ids = Arc::new(ids);
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

    // T-N1: who lost its number makes no id beyond what it reserved, and goes on under another.
    #[tokio::test(start_paused = true)]
    async fn a_lost_number_is_given_up_for_another() {
        let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
        let ids = Arc::new(lease_of(&registry, &clock).await);
        let number = ids.node.lock().lease.number();
        let mut made: BTreeSet<_> = ids.draw(100).expect("ids").into_iter().collect();
        assert!(registry.revoke_node(number));
        made.extend(ids.draw(100).expect("what is reserved stays ours"));
        clock.set(BEGIN + AHEAD + Duration::from_millis(1));
        assert!(ids.draw(1).is_err(), "nothing beyond");
        let keeper = ids.clone();
        let keeping = tokio::spawn(async move { keeper.keep_reserved().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_ne!(ids.node.lock().lease.number(), number);
        let (last, next) = (made.last().copied(), ids.draw(1).expect("under another"));
        assert!(next.first().copied() > last, "ids go on upwards");
        keeping.abort();
    }

    // Discovery answers nobody while all numbers are held: what is reserved is used up, then it is tried
    // again.
    #[tokio::test(start_paused = true)]
    async fn a_lost_number_is_asked_for_again_until_there_is_one() {
        let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
        let ids = Arc::new(lease_of(&registry, &clock).await);
        let mut others = Vec::new();
        while let Ok(other) = registry.lease_node().await {
            others.push(other);
        }
        let number = ids.node.lock().lease.number();
        assert!(registry.revoke_node(number));
        others.push(registry.lease_node().await.expect("the one that was lost"));
        let keeper = ids.clone();
        let keeping = tokio::spawn(async move { keeper.keep_reserved().await });
        tokio::time::sleep(AHEAD).await;
        ids.draw(1).expect("still reserved");
        clock.set(BEGIN + AHEAD * 2);
        assert!(ids.draw(1).is_err());
        others.truncate(500);
        tokio::time::sleep(RETRY_AFTER * 2).await;
        ids.draw(1).expect("under another");
        keeping.abort();
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
