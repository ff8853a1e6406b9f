//! What every discovery must do. A backend runs [`all`] over its [`World`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use protocol::{Incarnation, Timestamp};
use tokio::time::timeout;

use super::{Instance, Registry, Role, Roster};

/// One installation that can crash. What it forgets by that is its own affair, within the promise.
#[async_trait]
pub(crate) trait World: Send {
    fn registry(&self) -> Arc<dyn Registry>;

    /// All processes end at once; `registry` answers a new one on the same installation.
    async fn crash(&mut self);

    /// The lease of a service that lives is taken away.
    async fn revoke(&self, instance: &Instance);
}

/// How soon watchers must know: generous, because real ones wait for a lease to run out.
const SOON: Duration = Duration::from_secs(30);

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
    a_cluster_has_one_number(make(6).await, make(7).await).await;
}

async fn until(
    watch: &mut tokio::sync::watch::Receiver<Roster>,
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
    // The old guard goes late and must not take the new registration with it.
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
        drop(boat);
        world.crash().await;
    }
}

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
    drop((a, b, registry));
    world.crash().await;
    let registry = world.registry();
    let mut held = Vec::new();
    loop {
        let node = registry.lease_node().await.unwrap();
        if node.number() == number {
            assert!(node.not_before() >= until, "its past is remembered");
            break;
        }
        held.push(node);
        assert!(
            held.len() < 1024,
            "a number given up by a crash is leased again"
        );
    }
}

async fn a_cluster_has_one_number(mut world: impl World, other: impl World) {
    let cluster = world.registry().cluster().await.unwrap();
    assert_eq!(world.registry().cluster().await.unwrap(), cluster);
    assert_ne!(other.registry().cluster().await.unwrap(), cluster);
    world.crash().await;
    assert_eq!(world.registry().cluster().await.unwrap(), cluster);
}
