use std::collections::BTreeSet;

use backend::discovery::EmbeddedRegistry;
use backend::embedded::Engine;
use backend::hook::{Calls, Fault, Faults, Hooked};
use backend::installation::EmbeddedInstallation;

use super::*;

const RESERVE_LENGTH: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(3);
const RESERVATIONS: Calls = Calls::to("discovery").named("reserve_node");
const BEGIN: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// A clock that the test sets, also backwards.
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

async fn lease_from(registry: &EmbeddedRegistry, clock: &Arc<HandClock>) -> MessageIds {
    let store = EmbeddedInstallation::new(Engine::memory());
    lease_with(registry, Arc::new(store), clock).await
}

async fn lease_with(
    registry: &EmbeddedRegistry,
    store: Arc<dyn InstallationStore>,
    clock: &Arc<HandClock>,
) -> MessageIds {
    let registry = Arc::new(registry.clone());
    let ids = MessageIds::lease(registry, store, clock.clone(), RESERVE_LENGTH, DEADLINE);
    ids.await.expect("a number")
}

fn registry(engine: &Engine) -> EmbeddedRegistry {
    EmbeddedRegistry::new(engine.clone())
}

// A call that is never answered costs its deadline, not all ids to come.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_hangs_is_given_up_and_asked_for_again() {
    let clock = HandClock::at_begin();
    let engine = Engine::memory();
    let registry: Arc<dyn Registry> = Arc::new(registry(&engine));
    let faults = Arc::new(Faults::default());
    let registry = Hooked::new(registry, &faults.hook());
    let store = Arc::new(EmbeddedInstallation::new(engine));
    let ids = MessageIds::lease(registry, store, clock.clone(), RESERVE_LENGTH, DEADLINE);
    let ids = Arc::new(ids.await.expect("a number"));
    faults.begin(RESERVATIONS, Fault::Hang);
    let keeper = ids.clone();
    let task = tokio::spawn(async move { keeper.keep_reserved().await });
    tokio::time::sleep(RESERVE_LENGTH / 4 + DEADLINE / 2).await;
    faults.end(RESERVATIONS);
    clock.set(BEGIN + RESERVE_LENGTH * 2);
    let refusal = ids.draw(1).expect_err("none is left");
    assert!(refusal.code.retryable() && refusal.retry_after.is_some());
    tokio::time::sleep(DEADLINE / 2 + RETRY_AFTER + Duration::from_millis(1)).await;
    ids.draw(1).expect("the next try was answered");
    task.abort();
}

// T-N1: two stations at once never hold one number, and never make one id.
// proves S0 Pitfall D: a number is one holder's.
#[tokio::test(start_paused = true)]
async fn two_at_once_make_different_ids() {
    let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
    let one = lease_from(&registry, &clock).await;
    let other = lease_from(&registry, &clock).await;
    let mut seen_ids: BTreeSet<_> = one.draw(5000).expect("ids").into_iter().collect();
    seen_ids.extend(other.draw(5000).expect("ids"));
    assert_eq!(seen_ids.len(), 10_000);
}

// T-N1: a station that lost its number makes no id beyond its reservation, and goes on under
// another number.
#[tokio::test(start_paused = true)]
async fn a_lost_number_is_given_up_for_another() {
    let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
    let ids = Arc::new(lease_from(&registry, &clock).await);
    let number = ids.node.lock().lease.number();
    let mut seen_ids: BTreeSet<_> = ids.draw(100).expect("ids").into_iter().collect();
    assert!(registry.revoke_node(number));
    seen_ids.extend(ids.draw(100).expect("what is reserved stays ours"));
    clock.set(BEGIN + RESERVE_LENGTH + Duration::from_millis(1));
    assert!(ids.draw(1).is_err(), "nothing beyond");
    let keeper = ids.clone();
    let task = tokio::spawn(async move { keeper.keep_reserved().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_ne!(ids.node.lock().lease.number(), number);
    let (last, next) = (
        seen_ids.last().copied(),
        ids.draw(1).expect("under another"),
    );
    assert!(next.first().copied() > last, "ids go on upwards");
    task.abort();
}

// Discovery answers nobody while all numbers are held: the reservation is used up, then the station
// tries again.
#[tokio::test(start_paused = true)]
async fn a_lost_number_is_asked_for_again_until_there_is_one() {
    let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
    let ids = Arc::new(lease_from(&registry, &clock).await);
    let mut leases = Vec::new();
    while let Ok(other) = registry.lease_node().await {
        leases.push(other);
    }
    let number = ids.node.lock().lease.number();
    assert!(registry.revoke_node(number));
    leases.push(registry.lease_node().await.expect("the one that was lost"));
    let keeper = ids.clone();
    let task = tokio::spawn(async move { keeper.keep_reserved().await });
    tokio::time::sleep(RESERVE_LENGTH).await;
    ids.draw(1).expect("still reserved");
    clock.set(BEGIN + RESERVE_LENGTH * 2);
    assert!(ids.draw(1).is_err());
    leases.truncate(500);
    tokio::time::sleep(RETRY_AFTER * 2).await;
    ids.draw(1).expect("under another");
    task.abort();
}

// proves S0 Pitfall D in part: a clock that moved back makes no id twice.
// T-N2: back 30 s, ids go on from the last; forward 1 h waits for the reservation.
#[tokio::test(start_paused = true)]
async fn no_clock_makes_an_id_twice_or_beyond_the_reservation() {
    let clock = HandClock::at_begin();
    let ids = lease(&Engine::memory(), &clock).await;
    let first = ids.draw(1).expect("an id")[0];
    clock.set(BEGIN - Duration::from_secs(30));
    let second = ids.draw(1).expect("an id of a clock that is behind")[0];
    assert_eq!((second > first, second.timestamp()), (true, BEGIN));
    clock.set(BEGIN + Duration::from_secs(3600));
    let refusal = ids.draw(1).expect_err("not reserved so far");
    assert_eq!(refusal.code, Code::Unavailable);
    assert!(refusal.retry_after.is_some());
    clock.set(BEGIN);
    let third = ids.draw(1).expect("a clock that was wrong for a moment")[0];
    assert_eq!((third > second, third.timestamp()), (true, BEGIN));
    clock.set(BEGIN + Duration::from_secs(3600));
    ids.reserve().await.expect("reserved");
    let fourth = ids.draw(1).expect("an id")[0];
    clock.set(BEGIN);
    let last = ids.draw(1).expect("an hour back")[0];
    assert!(third < fourth && fourth < last);
}

// The clock stands an hour behind, and more ids are drawn than a reservation has milliseconds for.
#[tokio::test(start_paused = true)]
async fn ids_are_reserved_ahead_of_the_last_while_the_clock_is_behind() {
    let clock = HandClock::at_begin();
    let reserve_ahead = Duration::from_millis(20);
    let engine = Engine::memory();
    let store = Arc::new(EmbeddedInstallation::new(engine.clone()));
    let registry = Arc::new(registry(&engine));
    let ids = MessageIds::lease(registry, store, clock.clone(), reserve_ahead, DEADLINE);
    let ids = Arc::new(ids.await.expect("a number"));
    let mut last = ids.draw(1).expect("an id")[0];
    clock.set(BEGIN - Duration::from_secs(3600));
    let keeper = ids.clone();
    let task = tokio::spawn(async move { keeper.keep_reserved().await });
    for _ in 0..100 {
        let drawn = ids.draw(4096).expect("reserved in time");
        assert!(drawn[0] > last, "upwards");
        last = drawn[4095];
        tokio::time::sleep(reserve_ahead).await;
    }
    assert!(
        last.timestamp() > BEGIN + reserve_ahead,
        "beyond the first reservation"
    );
    task.abort();
}

// Each start finds that all numbers which it looks at have made ids ahead of its clock.
#[tokio::test(start_paused = true)]
async fn a_restart_under_a_clock_set_back_makes_no_id_twice() {
    let (mut engine, clock) = (Engine::memory(), HandClock::at_begin());
    let mut seen_ids = BTreeSet::new();
    for back in 0..3 * MAX_NODES_TRIED as u64 {
        clock.set(BEGIN - Duration::from_secs(60 * back));
        let ids = lease(&engine, &clock).await;
        let drawn = ids.draw(10).expect("ids at once");
        assert!(drawn.into_iter().all(|id| seen_ids.insert(id)));
        engine = engine.crash(0).expect("what was fsynced");
    }
}

// reliability R10: ids that a crashed station may have made lie before its successor's first id.
#[tokio::test(start_paused = true)]
async fn a_successor_begins_after_what_a_crash_took() {
    let (mut engine, clock) = (Engine::memory(), HandClock::at_begin());
    let mut seen_ids = BTreeSet::new();
    for _ in 0..20 {
        let ids = lease(&engine, &clock).await;
        let drawn = ids.draw(10).expect("ids at once, by another number");
        assert!(drawn.into_iter().all(|id| seen_ids.insert(id)));
        engine = engine.crash(0).expect("what was fsynced");
    }
}

#[tokio::test(start_paused = true)]
async fn the_reservation_is_kept_ahead_and_a_lost_registry_ends_it() {
    let (engine, clock) = (Engine::memory(), HandClock::at_begin());
    let ids = Arc::new(lease(&engine, &clock).await);
    let keeper = ids.clone();
    let task = tokio::spawn(async move { keeper.keep_reserved().await });
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
    task.abort();
}

const STORE: Calls = Calls::to("installation");

fn store() -> (Arc<Faults>, Arc<dyn InstallationStore>) {
    let faults = Arc::new(Faults::default());
    let store: Arc<dyn InstallationStore> = Arc::new(EmbeddedInstallation::new(Engine::memory()));
    let faulty_store = Hooked::new(store, &faults.hook());
    (faults, faulty_store)
}

// I5: discovery loses its data under two stations that make ids, and a third one joins before they
// notice.
#[tokio::test(start_paused = true)]
async fn no_id_is_made_twice_though_discovery_loses_its_data() {
    let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
    let (_, store) = store();
    let one = Arc::new(lease_with(&registry, store.clone(), &clock).await);
    let two = Arc::new(lease_with(&registry, store.clone(), &clock).await);
    let mut seen_ids = BTreeSet::new();
    let mut draw = |ids: &MessageIds, when: &str| {
        for id in ids.draw(100).expect(when) {
            assert!(seen_ids.insert(id), "{id} is made twice, {when}");
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
    let new_numbers = [&one, &two].map(|ids| ids.node.lock().lease.number());
    assert_eq!(new_numbers, numbers, "each holder claims its own");
    clock.set(BEGIN + RESERVE_LENGTH + Duration::from_secs(5));
    let late = lease_with(&registry, store, &clock).await;
    for ids in [&*one, &*two] {
        ids.reserve().await.expect("reserved");
        draw(ids, "later");
    }
    draw(&late, "later");
}

// The store is away as well: an earlier holder of the number may still make ids of its reservation.
#[tokio::test(start_paused = true)]
async fn a_number_that_nobody_can_tell_of_begins_behind_any_past() {
    let (registry, clock) = (registry(&Engine::memory()), HandClock::at_begin());
    let (faults, store) = store();
    let one = lease_with(&registry, store.clone(), &clock).await;
    faults.begin(STORE, Fault::Unavailable);
    registry.lose_numbers().expect("lost");
    one.reserve().await.expect("its own number needs no rest");
    registry.lose_numbers().expect("lost again");
    let late = lease_with(&registry, store.clone(), &clock).await;
    let late_id = late.draw(1).expect("behind what anybody may have reserved")[0];
    assert!(late_id.timestamp() > BEGIN + RESERVE_LENGTH);
    clock.set(BEGIN + RESERVE_LENGTH);
    let own = one.draw(4096).expect("what is reserved");
    assert!(own.into_iter().all(|id| id < late_id));
}

// One write in ten seconds, even if discovery is asked again each second.
#[tokio::test(start_paused = true)]
async fn copies_are_written_once_in_each_interval() {
    const RESERVE_AHEAD: Duration = Duration::from_secs(600);
    let (engine, clock) = (Engine::memory(), HandClock::at_begin());
    let (faults, store) = store();
    let registry = Arc::new(registry(&engine));
    let ids = MessageIds::lease(
        registry,
        store.clone(),
        clock.clone(),
        RESERVE_AHEAD,
        DEADLINE,
    );
    let ids = Arc::new(ids.await.expect("a number"));
    engine.fail_syncs();
    let keeper = ids.clone();
    let task = tokio::spawn(async move { keeper.keep_reserved().await });
    for second in 0..100 {
        clock.set(BEGIN + Duration::from_secs(second));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let writes = faults.calls("installation", "reserve_node");
    assert!((9..=11).contains(&writes), "{writes} writes in 100 s");
    task.abort();
}
