//! The contract, and checks beyond it, on an etcd in use by other tests at the same time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::super::contract;
use super::super::directory_snapshot::DirectorySnapshot;
use super::super::*;
use super::world::{Process, World};
use crate::clock::{SystemClock, SystemEntropy};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

async fn boat(registry: &EtcdRegistry) -> Registration {
    let registration = registry.register(Role::Boat, "b", "http://b");
    registration.await.unwrap()
}

async fn eventually(description: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < deadline, "not seen: {description}");
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
    let registration = boat(&world.etcd()).await;
    let node = world.etcd().lease_node().await.unwrap();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!registration.lost_token.is_cancelled());
    node.reserve(protocol::Timestamp::from_millis(1))
        .await
        .unwrap();
    let keys = world.keys();
    assert_eq!(world.keys_below(&keys.instances(Role::Boat)).await, 1);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn released_leases_are_revoked_before_a_flush_ends() {
    let world = World::shared().await;
    let (keys, registry) = (world.keys(), world.etcd());
    let registration = boat(&registry).await;
    let node = registry.lease_node().await.unwrap();
    drop((registration, node));
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
    let registration = boat(&world.etcd()).await;
    client.delete(key.as_str(), None).await.unwrap();
    timeout(TEST_TIMEOUT, registration.lost_token.cancelled())
        .await
        .expect("gone");
    let registration = boat(&world.etcd()).await;
    client.put(key.as_str(), "{}", None).await.unwrap();
    timeout(TEST_TIMEOUT, registration.lost_token.cancelled())
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
        let prefix = world.keys().instances(Role::Boat);
        world.keys_below(&prefix).await
    };
    eventually("no boat", async || leases().await == 0).await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn many_of_one_name_at_once_get_different_incarnations() {
    let world = World::shared().await;
    let registry = world.etcd();
    let incarnations = (0..8).map(|_| registry.next_incarnation("b"));
    let incarnations = futures_util::future::join_all(incarnations).await;
    let mut incarnations: Vec<_> = incarnations.into_iter().map(|one| one.unwrap()).collect();
    incarnations.sort();
    incarnations.dedup();
    assert_eq!(incarnations.len(), 8);
}

// An etcd that lost its data must not give the incarnations of before again.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn incarnations_survive_the_loss_of_the_counter() {
    let world = World::shared().await;
    let old_incarnation = world.etcd().next_incarnation("b").await.unwrap();
    let key = world.keys().incarnation("b");
    world.client.clone().delete(key, None).await.unwrap();
    sleep(Duration::from_millis(2)).await;
    assert!(world.etcd().next_incarnation("b").await.unwrap() > old_incarnation);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_watcher_is_shared_and_ends_with_its_last_listener() {
    let world = World::shared().await;
    let registry = world.etcd();
    let watchers = registry.state.watchers.clone();
    let one = registry.watch(Role::Boat).await.unwrap();
    let other = registry.watch(Role::Boat).await.unwrap();
    assert!(one.same_channel(&other));
    drop(one);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(watchers.senders.lock().len(), 1);
    drop(other);
    eventually("no watcher", async || watchers.senders.lock().is_empty()).await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn watchers_end_with_their_registry_and_leases_do_not() {
    let world = World::shared().await;
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let registry = EtcdRegistry::connect(&world.config, clock, entropy);
    let registry = registry.await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    let registration = boat(&registry).await;
    let arrival = boats.wait_for(|directory| directory.len() == 1);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();
    drop(registry);
    let end = timeout(TEST_TIMEOUT, boats.changed());
    end.await.expect("in time").unwrap_err();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!registration.lost_token.is_cancelled());
    let prefix = world.keys().instances(Role::Boat);
    assert_eq!(world.keys_below(&prefix).await, 1);
}

// T-E4, reliability F: a watch that missed something is repaired by the periodic list.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn missed_events_are_found_by_the_periodic_list() {
    let mut world = World::shared().await;
    world.config.list_every = Duration::from_secs(1);
    world.process = Process::start(&world.config).await;
    let registry = world.etcd();
    let registration = boat(&registry).await;
    let prefix = world.keys().instances(Role::Boat);
    let answer = registry.state.keeper.calls.list(&prefix).await.unwrap();
    // Current, and yet without the boat.
    let mut snapshot = DirectorySnapshot::from_list(Role::Boat, &prefix, &answer);
    snapshot.forget();
    let mut boats = registry.state.watchers.begin(Role::Boat, snapshot);
    assert!(boats.borrow().is_empty());
    let arrival = boats.wait_for(|directory| directory[..] == [registration.instance.clone()]);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();
}

// T-B2: a process paused for longer than its lease learns of the loss, and its successor keeps the
// name.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_paused_process_loses_its_lease() {
    let world = World::shared().await;
    let registration = boat(&world.etcd()).await;
    let node = world.etcd().lease_node().await.unwrap();
    let pause = world.process.pause();
    // The second process has a longer lease, which outlives a slow machine: only the first lease is
    // to end.
    let patient = EtcdConfig {
        lease_ttl: Duration::from_secs(30),
        ..world.config.clone()
    };
    let other = Process::start(&patient).await;
    let mut boats = other.registry.watch(Role::Boat).await.unwrap();
    let departure = boats.wait_for(|directory| directory.is_empty());
    timeout(TEST_TIMEOUT, departure)
        .await
        .expect("the lease ends")
        .unwrap();
    let next = boat(&other.registry).await;
    // The number has a lease of its own, which a busy server may end later.
    sleep(world.config.lease_ttl).await;
    drop(pause);
    timeout(TEST_TIMEOUT, registration.lost_token.cancelled())
        .await
        .expect("its holder learns that");
    drop(registration);
    // The connection may have been dropped meanwhile, so the first conclusive answer must be a
    // refusal.
    eventually("a refused reservation", async || {
        let reservation = node.reserve(protocol::Timestamp::from_millis(9)).await;
        let error = reservation.expect_err("the number is another's");
        let is_retried = error.kind == crate::Kind::Unavailable;
        assert!(is_retried || error.kind == crate::Kind::Conflict, "{error}");
        !is_retried
    })
    .await;
    sleep(Duration::from_secs(1)).await;
    assert!(
        !next.lost_token.is_cancelled(),
        "the successor keeps the name"
    );
    let expected = [next.instance.clone()];
    let arrival = boats.wait_for(|directory| directory[..] == expected);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("its name")
        .unwrap();
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_registration_dropped_after_its_runtime_runs_out() {
    let mut world = World::shared().await;
    let registration = boat(&world.etcd()).await;
    world.process.kill();
    drop(registration);
    let prefix = world.keys().instances(Role::Boat);
    assert_eq!(world.keys_below(&prefix).await, 1);
    eventually("run out", async || world.keys_below(&prefix).await == 0).await;
}
