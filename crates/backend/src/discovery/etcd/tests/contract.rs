//! The contract, and checks beyond it, on an etcd in use by other tests at the same time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::super::contract;
use super::super::directory_snapshot::DirectorySnapshot;
use super::super::*;
use super::world::{Process, World};
use crate::clock::{SystemClock, SystemEntropy};

const SOON: Duration = Duration::from_secs(60);

async fn boat(registry: &EtcdRegistry) -> Registration {
    let registering = registry.register(Role::Boat, "b", "http://b");
    registering.await.unwrap()
}

async fn eventually(what: &str, mut seen: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !seen().await {
        assert!(Instant::now() < end, "not seen: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn keeps_the_contract() {
    Box::pin(contract::all(|_| Box::pin(World::shared()))).await;
    crate::test_servers::ran("discovery", "etcd");
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    let world = World::shared().await;
    let held = boat(&world.etcd()).await;
    let node = world.etcd().lease_node().await.unwrap();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!held.lost.is_cancelled());
    node.reserve(protocol::Timestamp::from_millis(1))
        .await
        .unwrap();
    let keys = world.keys();
    assert_eq!(world.keys_below(&keys.instances(Role::Boat)).await, 1);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn what_is_given_up_is_revoked_before_a_flush_ends() {
    let world = World::shared().await;
    let (keys, registry) = (world.keys(), world.etcd());
    let held = boat(&registry).await;
    let node = registry.lease_node().await.unwrap();
    drop((held, node));
    registry.flush().await;
    assert_eq!(world.keys_below(&keys.instances(Role::Boat)).await, 0);
    assert_eq!(world.keys_below(&keys.nodes()).await, 0);
    assert_eq!(world.keys_below(&keys.pasts()).await, 1, "a past stays");
}

// T-E3, and an etcd that renews a lease whose key is gone (reliability E): the key decides.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_key_that_is_gone_or_anothers_is_a_lost_lease() {
    let world = World::shared().await;
    let key = world.keys().instance(Role::Boat, "b");
    let mut client = world.client.clone();
    let held = boat(&world.etcd()).await;
    client.delete(key.as_str(), None).await.unwrap();
    timeout(SOON, held.lost.cancelled()).await.expect("gone");
    let held = boat(&world.etcd()).await;
    client.put(key.as_str(), "{}", None).await.unwrap();
    timeout(SOON, held.lost.cancelled())
        .await
        .expect("replaced");
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_register_that_is_given_up_leaves_no_lease_behind() {
    let world = World::shared().await;
    let registry = world.etcd();
    for millis in 0..10 {
        let _ = timeout(Duration::from_millis(millis), boat(&registry)).await;
    }
    let leases = async || {
        let below = world.keys().instances(Role::Boat);
        world.keys_below(&below).await
    };
    eventually("no boat", async || leases().await == 0).await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn many_of_one_name_at_once_get_different_incarnations() {
    let world = World::shared().await;
    let registry = world.etcd();
    let drawn = (0..8).map(|_| registry.next_incarnation("b"));
    let drawn = futures_util::future::join_all(drawn).await;
    let mut drawn: Vec<_> = drawn.into_iter().map(|one| one.unwrap()).collect();
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 8);
}

// An etcd that lost its data must not give the incarnations of before again.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn incarnations_survive_the_loss_of_the_counter() {
    let world = World::shared().await;
    let before = world.etcd().next_incarnation("b").await.unwrap();
    let key = world.keys().incarnation("b");
    world.client.clone().delete(key, None).await.unwrap();
    sleep(Duration::from_millis(2)).await;
    assert!(world.etcd().next_incarnation("b").await.unwrap() > before);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_watcher_is_shared_and_ends_with_its_last_listener() {
    let world = World::shared().await;
    let registry = world.etcd();
    let watchers = registry.shared.watchers.clone();
    let one = registry.watch(Role::Boat).await.unwrap();
    let other = registry.watch(Role::Boat).await.unwrap();
    assert!(one.same_channel(&other));
    drop(one);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(watchers.told.lock().len(), 1);
    drop(other);
    eventually("no watcher", async || watchers.told.lock().is_empty()).await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn watchers_end_with_their_registry_and_leases_do_not() {
    let world = World::shared().await;
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let registry = EtcdRegistry::connect(&world.config, clock, entropy);
    let registry = registry.await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    let held = boat(&registry).await;
    let came = boats.wait_for(|roster| roster.len() == 1);
    timeout(SOON, came).await.expect("in time").unwrap();
    drop(registry);
    let end = timeout(SOON, boats.changed());
    end.await.expect("in time").unwrap_err();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!held.lost.is_cancelled());
    let below = world.keys().instances(Role::Boat);
    assert_eq!(world.keys_below(&below).await, 1);
}

// T-E4, reliability F: a watch that missed something is repaired by the periodic list.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn what_a_watch_missed_comes_by_the_list() {
    let mut world = World::shared().await;
    world.config.list_every = Duration::from_secs(1);
    world.process = Process::start(&world.config).await;
    let registry = world.etcd();
    let held = boat(&registry).await;
    let prefix = world.keys().instances(Role::Boat);
    let found = registry.shared.keeping.calls.list(&prefix).await.unwrap();
    // Current, and yet without the boat.
    let mut blind = DirectorySnapshot::listed(Role::Boat, &prefix, &found);
    blind.forget();
    let mut boats = registry.shared.watchers.begin(Role::Boat, blind);
    assert!(boats.borrow().is_empty());
    let came = boats.wait_for(|roster| roster[..] == [held.instance.clone()]);
    timeout(SOON, came).await.expect("in time").unwrap();
}

// T-B2: a process paused for longer than its lease learns of the loss, and its successor keeps the
// name.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_process_that_stood_still_has_lost_its_lease() {
    let world = World::shared().await;
    let held = boat(&world.etcd()).await;
    let node = world.etcd().lease_node().await.unwrap();
    let stands_still = world.process.pause();
    // The second process has a longer lease, which outlives a slow machine: only the first lease is
    // to end.
    let patient = EtcdConfig {
        lease_ttl: Duration::from_secs(30),
        ..world.config.clone()
    };
    let other = Process::start(&patient).await;
    let mut boats = other.registry.watch(Role::Boat).await.unwrap();
    let gone = boats.wait_for(|roster| roster.is_empty());
    timeout(SOON, gone).await.expect("the lease ends").unwrap();
    let next = boat(&other.registry).await;
    // The number has a lease of its own, which a busy server may end later.
    sleep(world.config.lease_ttl).await;
    drop(stands_still);
    timeout(SOON, held.lost.cancelled())
        .await
        .expect("its holder learns that");
    drop(held);
    // The connection may have been dropped meanwhile, so the first conclusive answer must be a
    // refusal.
    eventually("a refused reservation", async || {
        let reserved = node.reserve(protocol::Timestamp::from_millis(9)).await;
        let error = reserved.expect_err("the number is another's");
        let is_retried = error.kind == crate::Kind::Unavailable;
        assert!(is_retried || error.kind == crate::Kind::Conflict, "{error}");
        !is_retried
    })
    .await;
    sleep(Duration::from_secs(1)).await;
    assert!(!next.lost.is_cancelled(), "the successor keeps the name");
    let registered = [next.instance.clone()];
    let came = boats.wait_for(|roster| roster[..] == registered);
    timeout(SOON, came).await.expect("its name").unwrap();
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_registration_dropped_after_its_runtime_runs_out() {
    let mut world = World::shared().await;
    let held = boat(&world.etcd()).await;
    world.process.kill();
    drop(held);
    let below = world.keys().instances(Role::Boat);
    assert_eq!(world.keys_below(&below).await, 1);
    eventually("run out", async || world.keys_below(&below).await == 0).await;
}
