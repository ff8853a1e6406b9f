//! Message ids of this station: never beyond what discovery has recorded as ours.

use std::sync::Arc;
use std::time::Duration;

use backend::Kind;
use backend::clock::Clock;
use backend::discovery::{NodeLease, Registry};
use backend::installation::InstallationStore;
use parking_lot::Mutex;
use protocol::id::installation::{node_is_still_ours, node_rests_until};
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
/// the lease is lost, what is reserved can still be used up, and another number is leased meanwhile. Each
/// reservation is copied to the store: discovery may lose its data.
pub(crate) struct MessageIds {
    node: Mutex<Node>,
    /// Somebody needed an id beyond the reservation.
    wanted: Notify,
    ahead: Duration,
    /// How long discovery may take to record a reservation, or to lease a number; then it is asked anew.
    deadline: Duration,
    registry: Arc<dyn Registry>,
    store: Arc<dyn InstallationStore>,
    clock: Arc<dyn Clock>,
}

/// A number, and how far its ids have come.
struct Node {
    snowflake: Snowflake,
    lease: Arc<dyn NodeLease>,
    /// The last millisecond that ids may bear.
    reserved: Timestamp,
    /// As far as the store has a copy of it.
    copied: Timestamp,
}

/// A leased number, and when its past is over.
struct Rested {
    lease: Arc<dyn NodeLease>,
    not_before: Timestamp,
}

impl MessageIds {
    /// Leases a number and reserves it.
    pub(crate) async fn lease(
        registry: Arc<dyn Registry>,
        store: Arc<dyn InstallationStore>,
        clock: Arc<dyn Clock>,
        ahead: Duration,
        deadline: Duration,
    ) -> backend::Result<MessageIds> {
        let numbers = Numbers {
            registry: &*registry,
            store: &*store,
            now: clock.now(),
            ahead,
            deadline,
        };
        let Rested { lease, not_before } = numbers.lease_rested().await?;
        let ids = MessageIds {
            node: Mutex::new(Node {
                snowflake: Snowflake::new(lease.number(), not_before),
                reserved: not_before,
                copied: Timestamp::ZERO,
                lease,
            }),
            wanted: Notify::new(),
            ahead,
            deadline,
            registry,
            store,
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
                self.reserve_every()
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

    fn reserve_every(&self) -> Duration {
        (self.ahead / 4).min(RESERVE_EVERY_MAX)
    }

    /// One that is given up may be recorded all the same: no earlier one takes a later one back.
    async fn reserve(&self) -> backend::Result<()> {
        let (lease, reserved, copied) = {
            let node = self.node.lock();
            (node.lease.clone(), node.reserved, node.copied)
        };
        let mut copied = copied;
        let answer = self.reserve_under(&*lease, reserved, &mut copied).await;
        self.node.lock().copied = copied;
        match answer {
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
        let (number, reserved, last) = {
            let node = self.node.lock();
            (node.lease.number(), node.reserved, node.snowflake.last())
        };
        let numbers = Numbers {
            registry: &*self.registry,
            store: &*self.store,
            now: self.clock.now(),
            ahead: self.ahead,
            deadline: self.deadline,
        };
        let Rested { lease, not_before } = match numbers.lease_again(number, reserved).await {
            Some(lease) => Rested {
                lease,
                not_before: last,
            },
            None => numbers.lease_rested().await?,
        };
        if not_before > numbers.now && reserved > numbers.now {
            let text = "no node number has rested yet; what is reserved is used up meanwhile";
            return Err(backend::Error::unavailable("discovery", text));
        }
        let from = not_before.max(reserved);
        let mut copied = Timestamp::ZERO;
        let reserved = self.reserve_under(&*lease, from, &mut copied).await?;
        let mut node = self.node.lock();
        let not_before = not_before.max(node.snowflake.last());
        *node = Node {
            snowflake: Snowflake::new(lease.number(), not_before),
            lease,
            reserved,
            copied,
        };
        metrics::counter!("station_node_numbers_lost_total").increment(1);
        Ok(())
    }

    /// Reserves ahead of now, and not less than `at_least`. The copy first: what discovery takes is known to the
    /// store then, unless it is away.
    async fn reserve_under(
        &self,
        lease: &dyn NodeLease,
        at_least: Timestamp,
        copied: &mut Timestamp,
    ) -> backend::Result<Timestamp> {
        let ahead = self.clock.now() + self.ahead;
        // A try that failed soon after another one needs no copy of its own.
        let is_copied = *copied + self.reserve_every() > ahead && *copied >= at_least;
        let until = if is_copied {
            *copied
        } else {
            ahead.max(at_least)
        };
        if !is_copied {
            let copying = self.store.reserve_node(lease.number(), until);
            match within(self.deadline, copying).await {
                Ok(()) => *copied = until,
                Err(error) => {
                    tracing::debug!(%error, source = %error.source, "a reservation is not copied");
                    metrics::counter!("station_id_reservations_uncopied_total").increment(1);
                }
            }
        }
        within(self.deadline, lease.reserve(until)).await?;
        Ok(until)
    }

    fn reserved_until(&self) -> Timestamp {
        self.node.lock().reserved
    }
}

/// Leases node numbers, and asks the store for their pasts.
struct Numbers<'a> {
    registry: &'a dyn Registry,
    store: &'a dyn InstallationStore,
    now: Timestamp,
    ahead: Duration,
    deadline: Duration,
}

impl Numbers<'_> {
    /// A number that was held until a moment ago is reserved into the future; another one is taken then,
    /// where there is one, instead of waiting.
    async fn lease_rested(&self) -> backend::Result<Rested> {
        let mut best = self.lease().await?;
        let mut passed_over = Vec::new();
        while best.not_before > self.now && passed_over.len() < NODES_TRIED {
            // Held until the search ends: what is given back at once would be given out again.
            let Ok(next) = self.lease().await else {
                break;
            };
            if next.not_before < best.not_before {
                passed_over.push(std::mem::replace(&mut best, next));
            } else {
                passed_over.push(next);
            }
        }
        Ok(best)
    }

    async fn lease(&self) -> backend::Result<Rested> {
        let lease = within(self.deadline, self.registry.lease_node()).await?;
        let copied = self.copied(lease.number()).await;
        Ok(Rested {
            not_before: node_rests_until(lease.not_before(), copied, self.now, self.ahead),
            lease: lease.into(),
        })
    }

    /// Discovery that lost its data knows nothing of our number: it is still ours, if nobody reserved more.
    async fn lease_again(&self, number: u16, reserved: Timestamp) -> Option<Arc<dyn NodeLease>> {
        let leasing = self.registry.lease_node_again(number);
        let lease = within(self.deadline, leasing).await.ok().flatten()?;
        let copied = self.copied(number).await;
        node_is_still_ours(reserved, copied).then(|| lease.into())
    }

    /// Asked behind the lease: whoever had the number reserves nothing more.
    async fn copied(&self, number: u16) -> Option<Timestamp> {
        within(self.deadline, self.store.reserved(number))
            .await
            .ok()
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use backend::discovery::EmbeddedRegistry;
    use backend::embedded::Engine;
    use backend::hook::{Calls, Fault, Faults, Hook, Hooked};
    use backend::installation::EmbeddedInstallation;

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
        let store = Arc::new(EmbeddedInstallation::new(engine.clone()));
        lease_with(&registry(engine), store, clock).await
    }

    async fn lease_of(registry: &EmbeddedRegistry, clock: &Arc<HandClock>) -> MessageIds {
        let store = EmbeddedInstallation::new(Engine::memory());
        lease_with(registry, Arc::new(store), clock).await
    }

    async fn lease_with(
        registry: &EmbeddedRegistry,
        store: Arc<dyn InstallationStore>,
        clock: &Arc<HandClock>,
    ) -> MessageIds {
        let registry = Arc::new(registry.clone());
        let ids = MessageIds::lease(registry, store, clock.clone(), AHEAD, DEADLINE);
        ids.await.expect("a number")
    }

    fn registry(engine: &Engine) -> EmbeddedRegistry {
        EmbeddedRegistry::new(engine.clone())
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
    // proves S0 Pitfall D: a number is one holder's.
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

    // proves S0 Pitfall D: a clock that moved back makes nothing.
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

    const STORE: Calls = Calls::to("installation");

    fn store() -> (Arc<Faults>, Arc<dyn InstallationStore>) {
        let faults = Arc::new(Faults::default());
        let hook: Arc<dyn Hook> = faults.clone();
        let store: Arc<dyn InstallationStore> =
            Arc::new(EmbeddedInstallation::new(Engine::memory()));
        (faults, Hooked::new(store, &hook))
    }

    // I5: discovery loses its data under two stations that make ids, and a third one joins before they notice.
    #[tokio::test(start_paused = true)]
    async fn no_id_is_made_twice_though_discovery_loses_its_data() {
        let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
        let (_, store) = store();
        let one = Arc::new(lease_with(&registry, store.clone(), &clock).await);
        let two = Arc::new(lease_with(&registry, store.clone(), &clock).await);
        let mut made = BTreeSet::new();
        let mut draw = |ids: &MessageIds, when: &str| {
            for id in ids.draw(100).expect(when) {
                assert!(made.insert(id), "{id} is made twice, {when}");
            }
        };
        draw(&one, "before");
        draw(&two, "before");
        registry.lose_numbers().expect("lost");
        let three = lease_with(&registry, store.clone(), &clock).await;
        draw(&three, "by a newcomer");
        draw(&one, "under what was reserved");
        draw(&two, "under what was reserved");
        let numbers = [&one, &two].map(|ids| ids.node.lock().lease.number());
        for ids in [&one, &two, &Arc::new(three)] {
            ids.reserve()
                .await
                .expect("under the same number, or another");
            draw(ids, "after it was noticed");
        }
        let again = [&one, &two].map(|ids| ids.node.lock().lease.number());
        assert_eq!(again, numbers, "each holder claims its own");
        clock.set(BEGIN + AHEAD + Duration::from_secs(5));
        let late = lease_with(&registry, store, &clock).await;
        for ids in [&*one, &*two] {
            ids.reserve().await.expect("reserved");
            draw(ids, "later");
        }
        draw(&late, "later");
    }

    // The store is away as well: whoever had the number may still make ids of what it reserved.
    #[tokio::test(start_paused = true)]
    async fn a_number_that_nobody_can_tell_of_rests_first() {
        let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
        let (faults, store) = store();
        let one = lease_with(&registry, store.clone(), &clock).await;
        faults.begin(STORE, Fault::Unavailable);
        registry.lose_numbers().expect("lost");
        one.reserve().await.expect("its own number needs no rest");
        registry.lose_numbers().expect("lost again");
        let late = lease_with(&registry, store.clone(), &clock).await;
        assert!(late.draw(1).is_err(), "its past may last");
        one.draw(1).expect("what is reserved");
        clock.set(BEGIN + AHEAD + Duration::from_millis(1));
        late.reserve().await.expect("reserved");
        late.draw(1).expect("rested");
    }

    // One write in ten seconds, also where discovery is asked again each second.
    #[tokio::test(start_paused = true)]
    async fn copies_are_written_once_in_each_interval() {
        const LONG: Duration = Duration::from_secs(600);
        let (engine, clock) = (Engine::memory(), HandClock::at_begin());
        let (faults, store) = store();
        let registry = Arc::new(registry(&engine));
        let ids = MessageIds::lease(registry, store.clone(), clock.clone(), LONG, DEADLINE);
        let ids = Arc::new(ids.await.expect("a number"));
        engine.fail_syncs();
        let keeper = ids.clone();
        let keeping = tokio::spawn(async move { keeper.keep_reserved().await });
        for second in 0..100 {
            clock.set(BEGIN + Duration::from_secs(second));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let writes = faults.calls("installation", "reserve_node");
        assert!((9..=11).contains(&writes), "{writes} writes in 100 s");
        keeping.abort();
    }
}
