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
const SOON: Duration = Duration::from_secs(60);

pub(crate) async fn all<W, F>(make: F)
where
    W: World,
    F: Fn(u64) -> Pin<Box<dyn Future<Output = W> + Send>>,
{
    watchers_see_who_comes_and_goes(make(1).await).await;
    a_lost_lease_is_told_to_both_sides(make(2).await).await;
    the_later_of_two_lives_counts(make(3).await).await;
    incarnations_are_never_used_again(make(4).await).await;
    node_numbers_are_never_reused_in_their_own_past(make(5).await).await;
    a_cluster_has_one_number(make(6).await).await;
    only_a_number_without_a_past_is_taken_again(make(7).await).await;
    who_crashed_is_seen_to_go(make(8).await).await;
    a_number_that_was_lost_is_fenced(make(9).await).await;
    many_at_once_get_different_numbers(make(10).await).await;
    loads_go_with_their_lease(make(11).await).await;
}

async fn until(
    watch: &mut tokio::sync::watch::Receiver<Directory>,
    what: &str,
    seen: impl Fn(&[Instance]) -> bool,
) {
    timeout(SOON, watch.wait_for(|roster| seen(roster)))
        .await
        .unwrap_or_else(|_| panic!("watcher was not told: {what}"))
        .expect("the registry lives");
}

async fn watchers_see_who_comes_and_goes(world: impl World) {
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
    until(&mut boats, "both boats, by name", |roster| {
        roster == [in_a.clone(), in_b.clone()]
    })
    .await;
    until(&mut stations, "the station", |roster| {
        roster == [station.instance.clone()]
    })
    .await;
    let late = registry.watch(Role::Boat).await.unwrap();
    assert_eq!(
        late.borrow().len(),
        2,
        "a new watcher gets the present list"
    );
    drop(b);
    until(&mut boats, "b gave up", |roster| roster == [in_a.clone()]).await;
    assert!(!a.lost.is_cancelled());
    drop(a);
    until(&mut boats, "a gave up", <[Instance]>::is_empty).await;
    assert_eq!(stations.borrow().len(), 1);
}

async fn a_lost_lease_is_told_to_both_sides(world: impl World) {
    let registry = world.registry();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    let boat = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    until(&mut boats, "came", |roster| roster.len() == 1).await;
    world.revoke(&boat.instance).await;
    timeout(SOON, boat.lost.cancelled())
        .await
        .expect("the holder is told");
    until(&mut boats, "lost", <[Instance]>::is_empty).await;
    let again = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    assert!(again.instance.life.incarnation > boat.instance.life.incarnation);
    // The old guard is dropped late and must not take the new registration with it.
    drop(boat);
    let present = again.instance.clone();
    until(&mut boats, "back", |roster| roster == [present.clone()]).await;
    assert!(!again.lost.is_cancelled());
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
    timeout(SOON, first.lost.cancelled())
        .await
        .expect("the earlier life is told");
    let present = second.instance.clone();
    until(&mut boats, "the second", |roster| {
        roster == [present.clone()]
    })
    .await;
    assert!(!second.lost.is_cancelled());
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

async fn who_crashed_is_seen_to_go(mut world: impl World) {
    let registry = world.registry();
    let boat = registry
        .register(Role::Boat, "b", "http://b")
        .await
        .unwrap();
    world.crash().await;
    drop((boat, registry));
    let registry = world.registry();
    let mut boats = registry.watch(Role::Boat).await.unwrap();
    until(&mut boats, "crashed", <[Instance]>::is_empty).await;
}

// proves S0 Pitfall D in part
async fn node_numbers_are_never_reused_in_their_own_past(mut world: impl World) {
    let registry = world.registry();
    let a = registry.lease_node().await.unwrap();
    let b = registry.lease_node().await.unwrap();
    assert_ne!(a.number(), b.number(), "each is one holder's");
    assert!(a.number() < 1024 && b.number() < 1024);
    let (number, until) = (a.number(), Timestamp::from_millis(5_000));
    a.reserve(until).await.unwrap();
    // A smaller reservation takes nothing back.
    a.reserve(Timestamp::from_millis(10)).await.unwrap();
    world.crash().await;
    drop((a, b, registry));
    world.hold_all_but(number).await;
    let registry = world.registry();
    let leased_again = timeout(SOON, async {
        loop {
            match registry.lease_node().await {
                Ok(node) => break node,
                // The number stays held until its lease expires.
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    });
    let node = leased_again
        .await
        .expect("a number given up by a crash is leased again");
    assert_eq!(node.number(), number);
    assert!(node.not_before() >= until, "its past is remembered");
}

async fn a_number_that_was_lost_is_fenced(world: impl World) {
    let registry = world.registry();
    let lost = registry.lease_node().await.unwrap();
    lost.reserve(Timestamp::from_millis(5_000)).await.unwrap();
    world.revoke_node(lost.number()).await;
    let refused = lost.reserve(Timestamp::from_millis(6_000)).await;
    assert_eq!(refused.unwrap_err().kind, Kind::Conflict);
    let smaller = lost.reserve(Timestamp::from_millis(1)).await;
    assert_eq!(smaller.unwrap_err().kind, Kind::Conflict, "also a smaller");
    // The old holder is dropped late and must not affect the current holder of the number.
    let next = registry.lease_node().await.unwrap();
    drop(lost);
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
    let of = |registration: &Registration, connections| Load {
        life: registration.instance.life.clone(),
        load: load(connections),
    };
    assert_eq!(loads().await, [of(&a, 2), of(&b, 3)]);
    let only_b = [of(&b, 3)];
    drop(a);
    loads_become(&*registry, &only_b).await;
    world.revoke(&b.instance).await;
    loads_become(&*registry, &[]).await;
    let refused = b.lease.publish(&load(4)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict, "its lease is over");
    // The load of a later life is independent.
    let later = register("b").await.unwrap();
    later.lease.publish(&load(5)).await.unwrap();
    let refused = b.lease.publish(&load(6)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict);
    drop(b);
    assert_eq!(loads().await, [of(&later, 5)]);
}

async fn loads_become(registry: &dyn Registry, expected: &[Load]) {
    let become_so = async {
        while registry.loads().await.unwrap() != expected {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, become_so)
        .await
        .expect("a load goes with its lease");
}

async fn many_at_once_get_different_numbers(world: impl World) {
    const MANY: usize = 20;
    let registry = world.registry();
    let leased = join_all((0..MANY).map(|_| registry.lease_node())).await;
    let nodes: Vec<_> = leased.into_iter().map(|node| node.unwrap()).collect();
    let numbers: BTreeSet<_> = nodes.iter().map(|node| node.number()).collect();
    assert_eq!(numbers.len(), MANY);
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
    let held = registry.lease_node().await.unwrap();
    held.reserve(Timestamp::from_millis(5_000)).await.unwrap();
    let again = registry.lease_node_again(held.number()).await.unwrap();
    assert!(again.is_none(), "somebody holds it");
    world.revoke_node(held.number()).await;
    let again = registry.lease_node_again(held.number()).await.unwrap();
    assert!(again.is_none(), "its past is recorded");
    let other = (held.number() + 1) % 1024;
    let again = registry.lease_node_again(other).await.unwrap();
    let again = again.expect("nobody knows of it");
    assert_eq!(again.number(), other);
    assert_eq!(again.not_before(), Timestamp::ZERO);
    again.reserve(Timestamp::from_millis(6_000)).await.unwrap();
    assert!(registry.lease_node_again(other).await.unwrap().is_none());
}
