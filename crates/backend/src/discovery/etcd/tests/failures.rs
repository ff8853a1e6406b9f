//! Failures of etcd (reliability T-E1 to T-E4). Each test has its own etcd.

use std::time::Duration;

use protocol::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use super::super::directory_snapshot::DirectorySnapshot;
use super::super::*;
use super::servers::Servers;
use super::world::{Process, World};
use crate::Kind;

/// Far more than anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

async fn boat(registry: &EtcdRegistry) -> Result<Registration> {
    registry.register(Role::Boat, "b", "http://b").await
}

/// Registers like a service, over and over.
async fn boat_at_last(registry: &EtcdRegistry) -> Registration {
    let attempts = async {
        loop {
            match boat(registry).await {
                Ok(registration) => break registration,
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    };
    timeout(TEST_TIMEOUT, attempts).await.expect("etcd answers")
}

// T-E1: nothing visible.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_leader_that_dies_ends_no_lease_and_no_watch() {
    let mut servers = Servers::start(3).await;
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let registration = boat(&registry).await.unwrap();
    let node = registry.lease_node().await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    assert_eq!(boats.borrow_and_update().len(), 1);

    servers.kill(servers.leader().await);
    let attempts = async {
        loop {
            match registry.register(Role::Boat, "c", "http://c").await {
                Ok(other) => break other,
                // Before the others have a leader.
                Err(error) => assert_eq!(error.kind, Kind::Unavailable, "{error}"),
            }
        }
    };
    let other = timeout(TEST_TIMEOUT, attempts).await.expect("in time");
    let arrival = boats.wait_for(|directory| directory.len() == 2);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!registration.lost_token.is_cancelled() && !other.lost_token.is_cancelled());
    node.reserve(Timestamp::from_millis(1)).await.unwrap();
    assert_eq!(boats.borrow().len(), 2);
}

// T-E2, proves S1-10: nobody vanishes because etcd is away, and each holder learns it within a bound.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn etcd_is_away_for_longer_than_a_lease() {
    let mut servers = Servers::start(1).await;
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let registration = boat(&registry).await.unwrap();
    let node = registry.lease_node().await.unwrap();
    node.reserve(Timestamp::from_millis(5_000)).await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    boats.borrow_and_update();

    servers.kill_all();
    let start = Instant::now();
    timeout(TEST_TIMEOUT, registration.lost_token.cancelled())
        .await
        .expect("told");
    let delay = start.elapsed();
    assert!(delay <= world.config.lease_ttl * 4, "{delay:?}");
    assert_eq!(boats.borrow().len(), 1, "who was there last stays");
    let error = boat(&registry).await.err().expect("nobody answers");
    assert_eq!(error.kind, Kind::Unavailable);
    let error = node.reserve(Timestamp::from_millis(6_000)).await;
    assert_eq!(error.unwrap_err().kind, Kind::Unavailable);
    assert!(!boats.has_changed().unwrap(), "nobody vanished");

    servers.up().await;
    let second = boat_at_last(&registry).await;
    assert!(second.instance.life.incarnation > registration.instance.life.incarnation);
    drop(registration);
    let arrival = boats.wait_for(|directory| directory[..] == [second.instance.clone()]);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();
    // The number's lease had no time to expire unrenewed, so the number is still held.
    node.reserve(Timestamp::from_millis(7_000)).await.unwrap();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!second.lost_token.is_cancelled());
    assert_eq!(boats.borrow()[..], [second.instance]);
}

// A registry may connect before etcd exists.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn an_etcd_that_comes_later_is_found() {
    let mut servers = Servers::start(1).await;
    servers.kill_all();
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let error = timeout(TEST_TIMEOUT, registry.cluster())
        .await
        .expect("in time");
    assert_eq!(error.unwrap_err().kind, Kind::Unavailable);
    assert!(
        registry.watch(Role::Boat).await.is_err(),
        "no list, no roster"
    );
    servers.up().await;
    let _registration = boat_at_last(&registry).await;
    assert_eq!(registry.watch(Role::Boat).await.unwrap().borrow().len(), 1);
}

// T-E4: the revision a watch would resume from is compacted; it lists instead.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_compacted_watch_lists_anew() {
    let servers = Servers::start(1).await;
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let prefix = world.keys().instances(Role::Boat);
    let answer = registry.state.keeper.calls.list(&prefix).await.unwrap();
    let snapshot = DirectorySnapshot::from_list(Role::Boat, &prefix, &answer);
    let registration = boat(&registry).await.unwrap();
    compact(&world).await;
    let mut boats = registry.state.watchers.begin(Role::Boat, snapshot);
    let arrival = boats.wait_for(|directory| directory[..] == [registration.instance.clone()]);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();
}

// T-E4: the watcher stood still while etcd was started anew, changed, and compacted.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_watcher_that_stood_still_catches_up() {
    let mut servers = Servers::start(1).await;
    let world = World::on(servers.endpoints()).await;
    let mut boats = world.etcd().watch(Role::Boat).await.unwrap();
    let other = Process::start(&world.config).await;
    let departing_boat = other.registry.register(Role::Boat, "gone", "http://g");
    let departing_boat = departing_boat.await.unwrap();
    let arrival = boats.wait_for(|directory| directory.len() == 1);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();

    let pause = world.process.pause();
    drop(departing_boat);
    other.registry.flush().await;
    servers.kill_all();
    servers.up().await;
    let registration = boat_at_last(&other.registry).await;
    compact(&world).await;
    assert_eq!(boats.borrow().len(), 1, "it stands still");
    drop(pause);
    let catch_up = boats.wait_for(|directory| directory[..] == [registration.instance.clone()]);
    timeout(TEST_TIMEOUT, catch_up)
        .await
        .expect("in time")
        .unwrap();
}

// An etcd restored to an earlier state: its list counts, although its revision is lower.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn an_etcd_of_another_past_is_believed() {
    let mut servers = Servers::start(1).await;
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let registration = boat(&registry).await.unwrap();
    let old_incarnation = registry.next_incarnation("b").await.unwrap();
    let node = registry.lease_node().await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    servers.lose_all().await;
    timeout(TEST_TIMEOUT, registration.lost_token.cancelled())
        .await
        .expect("told");
    let error = node.reserve(Timestamp::from_millis(1)).await;
    assert_eq!(
        error.unwrap_err().kind,
        Kind::Conflict,
        "its record is gone"
    );
    let second = boat_at_last(&registry).await;
    assert!(second.instance.life.incarnation > old_incarnation);
    let arrival = boats.wait_for(|directory| directory[..] == [second.instance.clone()]);
    timeout(TEST_TIMEOUT, arrival)
        .await
        .expect("in time")
        .unwrap();
}

async fn compact(world: &World) {
    let mut client = world.client.clone();
    let put = client.put(world.keys().cluster(), "1", None).await.unwrap();
    let now = put.header().unwrap().revision();
    client.compact(now, None).await.unwrap();
}
