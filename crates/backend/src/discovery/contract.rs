//! Contract tests of every discovery. A backend runs [`all`] over its [`World`].

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use protocol::drain::{BoatLoad, BoatState, Load};
use protocol::{Incarnation, Timestamp};
use tokio::time::{sleep, timeout};

use super::{Directory, Instance, Registration, Registry, Role};
use crate::Kind;
use crate::hook::Hooked;
use crate::hook::tests::passing;

/// An installation that can crash. It may forget anything that the contract does not promise to
/// keep.
#[async_trait]
pub(crate) trait World: Send {
    fn registry(&self) -> Arc<dyn Registry>;

    /// Ends all processes at once; `registry` then returns a new one on the same installation.
    async fn crash(&mut self);

    /// Revokes the lease of a live service.
    async fn revoke(&self, instance: &Instance);

    /// Holds all node numbers but one for the life of the world.
    async fn hold_all_but(&mut self, number: u16);

    /// Revokes the node number of a live station.
    async fn revoke_node(&self, number: u16);
}

/// Another world, its discovery behind a hook.
pub(crate) struct BehindAHook<W>(pub(crate) W);

#[async_trait]
impl<W: World + Sync> World for BehindAHook<W> {
    fn registry(&self) -> Arc<dyn Registry> {
        Hooked::new(self.0.registry(), &passing())
    }

    async fn crash(&mut self) {
        self.0.crash().await;
    }

    async fn revoke(&self, instance: &Instance) {
        self.0.revoke(instance).await;
    }

    async fn hold_all_but(&mut self, number: u16) {
        self.0.hold_all_but(number).await;
    }

    async fn revoke_node(&self, number: u16) {
        self.0.revoke_node(number).await;
    }
}

/// Time for watchers to learn of changes: generous, because real ones wait for leases to expire.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn all<W, F>(make: F)
where
    W: World,
    F: Fn(u64) -> Pin<Box<dyn Future<Output = W> + Send>>,
{
    watchers_see_registrations_come_and_go(make(1).await).await;
    a_lost_lease_is_reported_to_both_sides(make(2).await).await;
    the_later_of_two_lives_counts(make(3).await).await;
    incarnations_are_never_used_again(make(4).await).await;
    node_numbers_are_never_reused_in_their_own_past(make(5).await).await;
    a_cluster_has_one_number(make(6).await).await;
    only_a_number_without_a_past_is_taken_again(make(7).await).await;
    crashed_services_disappear(make(8).await).await;
    a_number_that_was_lost_is_fenced(make(9).await).await;
    many_at_once_get_different_numbers(make(10).await).await;
    loads_go_with_their_lease(make(11).await).await;
}

async fn wait_until(
    watch: &mut tokio::sync::watch::Receiver<Directory>,
    description: &str,
    condition: impl Fn(&[Instance]) -> bool,
) {
    timeout(
        EVENT_TIMEOUT,
        watch.wait_for(|directory| condition(directory)),
    )
    .await
    .unwrap_or_else(|_| panic!("watcher was not told: {description}"))
    .expect("the registry lives");
}

async fn watchers_see_registrations_come_and_go(world: impl World) {
    let registry = world.registry();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    let mut stations = registry.watch(Role::Station).await.unwrap();
    let b = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    let a = registry
        .register(Role::Boat, "a", "http://a")
        .await
        .unwrap();
    let station = registry
        .register(Role::Station, "a", "http://s")
        .await
        .unwrap();
    let (in_a, in_b) = (a.instance.clone(), b.instance.clone());
    wait_until(&mut boats, "both boats, by name", |directory| {
        directory == [in_a.clone(), in_b.clone()]
    })
    .await;
    wait_until(&mut stations, "the station", |directory| {
        directory == [station.instance.clone()]
    })
    .await;
    let late = registry.watch(Role::Boat).await.unwrap();
    assert_eq!(
        late.borrow().len(),
        2,
        "a new watcher gets the present list"
    );
    drop(b);
    wait_until(&mut boats, "b gave up", |directory| {
        directory == [in_a.clone()]
    })
    .await;
    assert!(!a.lost_token.is_cancelled());
    drop(a);
    wait_until(&mut boats, "a gave up", <[Instance]>::is_empty).await;
    assert_eq!(stations.borrow().len(), 1);
}

async fn a_lost_lease_is_reported_to_both_sides(world: impl World) {
    let registry = world.registry();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    let boat = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    wait_until(&mut boats, "came", |directory| directory.len() == 1).await;
    world.revoke(&boat.instance).await;
    timeout(EVENT_TIMEOUT, boat.lost_token.cancelled())
        .await
        .expect("the holder is told");
    wait_until(&mut boats, "lost", <[Instance]>::is_empty).await;
    let second_boat = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    assert!(second_boat.instance.life.incarnation > boat.instance.life.incarnation);
    // The old guard is dropped late and must not take the new registration with it.
    drop(boat);
    let present = second_boat.instance.clone();
    wait_until(&mut boats, "back", |directory| {
        directory == [present.clone()]
    })
    .await;
    assert!(!second_boat.lost_token.is_cancelled());
}

async fn the_later_of_two_lives_counts(world: impl World) {
    let registry = world.registry();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    let first = registry
        .register(Role::Boat, "b", "http://1")
        .await
        .unwrap();
    let second = registry
        .register(Role::Boat, "b", "http://2")
        .await
        .unwrap();
    timeout(EVENT_TIMEOUT, first.lost_token.cancelled())
        .await
        .expect("the earlier life is told");
    let present = second.instance.clone();
    wait_until(&mut boats, "the second", |directory| {
        directory == [present.clone()]
    })
    .await;
    assert!(!second.lost_token.is_cancelled());
}

async fn incarnations_are_never_used_again(mut world: impl World) {
    let mut last = Incarnation(0);
    for _ in 0..3 {
        let registry = world.registry();
        let boat = registry
            .register(Role::Boat, "b", "http://b")
            .await
            .unwrap();
        assert!(boat.instance.life.incarnation > last);
        last = boat.instance.life.incarnation;
        let next = registry.next_incarnation("b").await.unwrap();
        assert!(next > last);
        last = next;
        // A crash releases nothing in order.
        world.crash().await;
        drop(boat);
    }
}

async fn crashed_services_disappear(mut world: impl World) {
    let registry = world.registry();
    let boat = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    world.crash().await;
    drop((boat, registry));
    let registry = world.registry();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    wait_until(&mut boats, "crashed", <[Instance]>::is_empty).await;
}

// proves S0 Pitfall D in part
async fn node_numbers_are_never_reused_in_their_own_past(mut world: impl World) {
    let registry = world.registry();
    let a = registry.lease_node().await.unwrap();
    let b = registry.lease_node().await.unwrap();
    assert_ne!(a.number(), b.number(), "each is one holder's");
    assert!(a.number() < 1024 && b.number() < 1024);
    let (number, limit) = (a.number(), Timestamp::from_millis(5_000));
    a.reserve(limit).await.unwrap();
    // A smaller reservation takes nothing back.
    a.reserve(Timestamp::from_millis(10)).await.unwrap();
    world.crash().await;
    drop((a, b, registry));
    world.hold_all_but(number).await;
    let registry = world.registry();
    let lease = timeout(EVENT_TIMEOUT, async {
        loop {
            match registry.lease_node().await {
                Ok(node) => break node,
                // The number stays held until its lease expires.
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    });
    let node = lease
        .await
        .expect("a number given up by a crash is leased again");
    assert_eq!(node.number(), number);
    assert!(node.not_before() >= limit, "its past is remembered");
}

async fn a_number_that_was_lost_is_fenced(world: impl World) {
    let registry = world.registry();
    let node = registry.lease_node().await.unwrap();
    node.reserve(Timestamp::from_millis(5_000)).await.unwrap();
    world.revoke_node(node.number()).await;
    let outcome = node.reserve(Timestamp::from_millis(6_000)).await;
    assert_eq!(outcome.unwrap_err().kind, Kind::Conflict);
    let smaller = node.reserve(Timestamp::from_millis(1)).await;
    assert_eq!(smaller.unwrap_err().kind, Kind::Conflict, "also a smaller");
    // The old holder is dropped late and must not affect the current holder of the number.
    let next = registry.lease_node().await.unwrap();
    drop(node);
    next.reserve(Timestamp::from_millis(7_000)).await.unwrap();
}

async fn loads_go_with_their_lease(world: impl World) {
    let load = |connections| BoatLoad {
        state: BoatState::Open,
        connections,
        seats: 100,
        accepts_per_second: 5000,
        leaving: 1,
        zone: Some("a".to_owned()),
        url: Some("wss://b.example".to_owned()),
    };
    let registry = world.registry();
    let register = |name| registry.register(Role::Boat, name, "http://b");
    let (b, a) = (register("b").await.unwrap(), register("a").await.unwrap());
    let _silent = register("c").await.unwrap();
    let loads = || async { registry.loads().await.unwrap() };
    assert_eq!(loads().await, []);
    b.lease.publish(&load(1)).await.unwrap();
    a.lease.publish(&load(2)).await.unwrap();
    b.lease.publish(&load(3)).await.unwrap();
    let expected_load = |registration: &Registration, connections| Load {
        life: registration.instance.life.clone(),
        load: load(connections),
    };
    assert_eq!(loads().await, [expected_load(&a, 2), expected_load(&b, 3)]);
    let only_b = [expected_load(&b, 3)];
    drop(a);
    loads_become(&*registry, &only_b).await;
    world.revoke(&b.instance).await;
    loads_become(&*registry, &[]).await;
    let error = b.lease.publish(&load(4)).await.unwrap_err();
    assert_eq!(error.kind, Kind::Conflict, "its lease is over");
    // The load of a later life is independent.
    let successor = register("b").await.unwrap();
    successor.lease.publish(&load(5)).await.unwrap();
    let error = b.lease.publish(&load(6)).await.unwrap_err();
    assert_eq!(error.kind, Kind::Conflict);
    drop(b);
    assert_eq!(loads().await, [expected_load(&successor, 5)]);
}

async fn loads_become(registry: &dyn Registry, expected: &[Load]) {
    let wait = async {
        while registry.loads().await.unwrap() != expected {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(EVENT_TIMEOUT, wait)
        .await
        .expect("a load goes with its lease");
}

async fn many_at_once_get_different_numbers(world: impl World) {
    const COUNT: usize = 20;
    let registry = world.registry();
    let leases = join_all((0..COUNT).map(|_| registry.lease_node())).await;
    let nodes: Vec<_> = leases.into_iter().map(|node| node.unwrap()).collect();
    let numbers: BTreeSet<_> = nodes.iter().map(|node| node.number()).collect();
    assert_eq!(numbers.len(), COUNT);
}

async fn a_cluster_has_one_number(mut world: impl World) {
    let registry = world.registry();
    assert_eq!(registry.cluster().await.unwrap(), None, "nobody makes it");
    assert_eq!(registry.claim_cluster(7).await.unwrap(), 7);
    assert_eq!(registry.claim_cluster(8).await.unwrap(), 7);
    assert_eq!(registry.cluster().await.unwrap(), Some(7));
    world.crash().await;
    let registry = world.registry();
    assert_eq!(registry.cluster().await.unwrap(), Some(7));
    assert_eq!(registry.claim_cluster(9).await.unwrap(), 7);
}

async fn only_a_number_without_a_past_is_taken_again(world: impl World) {
    let registry = world.registry();
    let node = registry.lease_node().await.unwrap();
    node.reserve(Timestamp::from_millis(5_000)).await.unwrap();
    let second_lease = registry.lease_node_again(node.number()).await.unwrap();
    assert!(second_lease.is_none(), "somebody holds it");
    world.revoke_node(node.number()).await;
    let second_lease = registry.lease_node_again(node.number()).await.unwrap();
    assert!(second_lease.is_none(), "its past is recorded");
    let other = (node.number() + 1) % 1024;
    let second_lease = registry.lease_node_again(other).await.unwrap();
    let second_lease = second_lease.expect("nobody knows of it");
    assert_eq!(second_lease.number(), other);
    assert_eq!(second_lease.not_before(), Timestamp::ZERO);
    second_lease
        .reserve(Timestamp::from_millis(6_000))
        .await
        .unwrap();
    assert!(registry.lease_node_again(other).await.unwrap().is_none());
}
