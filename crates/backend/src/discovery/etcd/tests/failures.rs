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
const SOON: Duration = Duration::from_secs(60);

async fn boat(registry: &EtcdRegistry) -> Result<Registration> {
    registry.register(Role::Boat, "b", "http://b").await
}

/// Registers like a service, over and over.
async fn boat_at_last(registry: &EtcdRegistry) -> Registration {
    let trying = async {
        loop {
            match boat(registry).await {
                Ok(registration) => break registration,
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    };
    timeout(SOON, trying).await.expect("etcd answers")
}

// T-E1: nothing visible.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_leader_that_dies_ends_no_lease_and_no_watch() {
    let mut servers = Servers::start(3).await;
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let held = boat(&registry).await.unwrap();
    let node = registry.lease_node().await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    assert_eq!(boats.borrow_and_update().len(), 1);

    servers.kill(servers.leader().await);
    let registering = async {
        loop {
            match registry.register(Role::Boat, "c", "http://c").await {
                Ok(other) => break other,
                // Before the others have a leader.
                Err(error) => assert_eq!(error.kind, Kind::Unavailable, "{error}"),
            }
        }
    };
    let other = timeout(SOON, registering).await.expect("in time");
    let both = boats.wait_for(|roster| roster.len() == 2);
    timeout(SOON, both).await.expect("in time").unwrap();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!held.lost.is_cancelled() && !other.lost.is_cancelled());
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
    let held = boat(&registry).await.unwrap();
    let node = registry.lease_node().await.unwrap();
    node.reserve(Timestamp::from_millis(5_000)).await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    boats.borrow_and_update();

    servers.kill_all();
    let began = Instant::now();
    timeout(SOON, held.lost.cancelled()).await.expect("told");
    let told = began.elapsed();
    assert!(told <= world.config.lease_ttl * 4, "{told:?}");
    assert_eq!(boats.borrow().len(), 1, "who was there last stays");
    let error = boat(&registry).await.err().expect("nobody answers");
    assert_eq!(error.kind, Kind::Unavailable);
    let error = node.reserve(Timestamp::from_millis(6_000)).await;
    assert_eq!(error.unwrap_err().kind, Kind::Unavailable);
    assert!(!boats.has_changed().unwrap(), "nobody vanished");

    servers.up().await;
    let again = boat_at_last(&registry).await;
    assert!(again.instance.life.incarnation > held.instance.life.incarnation);
    drop(held);
    let back = boats.wait_for(|roster| roster[..] == [again.instance.clone()]);
    timeout(SOON, back).await.expect("in time").unwrap();
    // The number's lease had no time to expire unrenewed, so the number is still held.
    node.reserve(Timestamp::from_millis(7_000)).await.unwrap();
    sleep(world.config.lease_ttl * 2).await;
    assert!(!again.lost.is_cancelled());
    assert_eq!(boats.borrow()[..], [again.instance]);
}

// A registry may connect before etcd exists.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn an_etcd_that_comes_later_is_found() {
    let mut servers = Servers::start(1).await;
    servers.kill_all();
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let error = timeout(SOON, registry.cluster()).await.expect("in time");
    assert_eq!(error.unwrap_err().kind, Kind::Unavailable);
    assert!(
        registry.watch(Role::Boat).await.is_err(),
        "no list, no roster"
    );
    servers.up().await;
    let _held = boat_at_last(&registry).await;
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
    let found = registry.shared.keeping.calls.list(&prefix).await.unwrap();
    let past = DirectorySnapshot::listed(Role::Boat, &prefix, &found);
    let held = boat(&registry).await.unwrap();
    compact(&world).await;
    let mut boats = registry.shared.watchers.begin(Role::Boat, past);
    let came = boats.wait_for(|roster| roster[..] == [held.instance.clone()]);
    timeout(SOON, came).await.expect("in time").unwrap();
}

// T-E4: the watcher stood still while etcd was started anew, changed, and compacted.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_watcher_that_stood_still_catches_up() {
    let mut servers = Servers::start(1).await;
    let world = World::on(servers.endpoints()).await;
    let mut boats = world.etcd().watch(Role::Boat).await.unwrap();
    let other = Process::start(&world.config).await;
    let gone = other.registry.register(Role::Boat, "gone", "http://g");
    let gone = gone.await.unwrap();
    let came = boats.wait_for(|roster| roster.len() == 1);
    timeout(SOON, came).await.expect("in time").unwrap();

    let stands_still = world.process.pause();
    drop(gone);
    other.registry.flush().await;
    servers.kill_all();
    servers.up().await;
    let held = boat_at_last(&other.registry).await;
    compact(&world).await;
    assert_eq!(boats.borrow().len(), 1, "it stands still");
    drop(stands_still);
    let caught_up = boats.wait_for(|roster| roster[..] == [held.instance.clone()]);
    timeout(SOON, caught_up).await.expect("in time").unwrap();
}

// An etcd restored to an earlier state: its list counts, although its revision is lower.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn an_etcd_of_another_past_is_believed() {
    let mut servers = Servers::start(1).await;
    let world = World::on(servers.endpoints()).await;
    let registry = world.etcd();
    let held = boat(&registry).await.unwrap();
    let before = registry.next_incarnation("b").await.unwrap();
    let node = registry.lease_node().await.unwrap();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    servers.lose_all().await;
    timeout(SOON, held.lost.cancelled()).await.expect("told");
    let error = node.reserve(Timestamp::from_millis(1)).await;
    assert_eq!(
        error.unwrap_err().kind,
        Kind::Conflict,
        "its record is gone"
    );
    let again = boat_at_last(&registry).await;
    assert!(again.instance.life.incarnation > before);
    let back = boats.wait_for(|roster| roster[..] == [again.instance.clone()]);
    timeout(SOON, back).await.expect("in time").unwrap();
}

async fn compact(world: &World) {
    let mut client = world.client.clone();
    let put = client.put(world.keys().cluster(), "1", None).await.unwrap();
    let now = put.header().unwrap().revision();
    client.compact(now, None).await.unwrap();
}
