//! The lease of a boat: kept, lost, and taken again under the same name.
//!
//! A boat that lost its lease goes on serving whom it has: only new clients are kept away. When it is
//! registered again, everything is said anew. Only a boat that no station answers either, for longer than
//! the fence, sends its clients away.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backend::discovery::{Registration, Role};
use backend::{Error, Result};
use protocol::drain::{PUBLISH_EVERY, ROOM_EVERY};
use protocol::{Code, Refusal};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::Config;
use crate::boat::{Boat, Phase};
use crate::drain::send_away;
use crate::sweep::{jittered, pass};

/// When a lost lease is asked for again, and the stations whether they answer; doubled each time, up to
/// the second.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(4);
/// Shortest pause between two publications of the load.
const PUBLISH_REST: Duration = Duration::from_secs(1);
/// Everything is said anew within about this time after a lost lease.
pub(crate) const REASSERT_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Lease {
    pub(crate) address: String,
    pub(crate) held: Registration,
}

/// Keeps the boat registered until dropped; the lease is given up then.
pub(crate) async fn keep(boat: Arc<Boat>, mut lease: Lease) {
    publish(&boat, &lease.held).await;
    loop {
        warn!(life = ?lease.held.instance.life, "the lease is lost; clients stay, new ones go elsewhere");
        boat.metrics.leases_lost.increment(1);
        boat.lose_lease();
        boat.refresh_ready();
        lease.held = regain(&boat, &lease).await;
        boat.begin_life(lease.held.instance.life.clone());
        boat.refresh_ready();
        info!(life = ?lease.held.instance.life, "registered again");
        // One that is lost meanwhile is taken again first.
        let lost = &lease.held.lost;
        let spreading = lost.run_until_cancelled(spread(&boat));
        let asserting = pass(&boat, REASSERT_WITHIN, || lost.is_cancelled());
        tokio::join!(spreading, asserting, publish(&boat, &lease.held));
    }
}

/// Publishes the boat's load until the lease is lost: now and then, and soon after its state changed.
async fn publish(boat: &Boat, held: &Registration) {
    let publishing = async {
        let (mut ready, mut phases) = (boat.ready(), boat.phases());
        loop {
            ready.mark_unchanged();
            let phase = *phases.borrow_and_update();
            let load = boat.load();
            if let Err(error) = within(&boat.config, held.lease.publish(&load)).await {
                debug!(%error, source = %error.source, "the load is not published; it is tried again");
            }
            // One that flaps is no load for discovery.
            sleep(PUBLISH_REST).await;
            let pause = match phase {
                Phase::Serving => jittered(&*boat.entropy, PUBLISH_EVERY * 2 / 3),
                Phase::Notice | Phase::Draining => ROOM_EVERY,
            };
            tokio::select! {
                () = sleep(pause.saturating_sub(PUBLISH_REST)) => {}
                _ = ready.changed() => {}
                _ = phases.changed() => {}
            }
        }
    };
    held.lost.run_until_cancelled(publishing).await;
}

/// A call to the registry, for no longer than it may take. Whether it was done is unknown then; a lease
/// that nobody holds ends by itself, and the next one is of a later incarnation.
pub(crate) async fn within<T>(config: &Config, call: impl Future<Output = Result<T>>) -> Result<T> {
    let most = config.registry_timeout;
    (timeout(most, call).await).unwrap_or_else(|_| {
        Err(Error::unavailable(
            "registry",
            format!("no answer within {most:?}"),
        ))
    })
}

async fn regain(boat: &Boat, lease: &Lease) -> Registration {
    let mut pause = ASK_AGAIN;
    loop {
        let registering = (boat.registry).register(Role::Boat, &boat.config.name, &lease.address);
        match within(&boat.config, registering).await {
            Ok(registration) => return registration,
            Err(error) => {
                let pause_ms = pause.as_millis() as u64;
                warn!(%error, source = %error.source, pause_ms, "not registered yet; it is tried again");
            }
        }
        let _ = boat.stations.probe().await;
        if boat.stations.silence() > boat.config.fence {
            close_all(boat);
        }
        sleep(jittered(&*boat.entropy, pause)).await;
        pause = (pause * 2).min(ASK_AGAIN_MAX);
    }
}

/// Cut off from everybody: elsewhere the clients may be served.
fn close_all(boat: &Boat) {
    for connection in boat.connections.all() {
        let text = "this boat is cut off; reconnect to reach another";
        connection.update(|session| session.close(refusal(boat, text), boat.now()));
    }
}

/// A share of the clients goes as far as others have room, so that a boat that was away for others is not the fullest one.
pub(crate) async fn spread(boat: &Boat) {
    let share = u64::from(boat.config.reconnect_percent);
    let mut connections = boat.connections.all();
    connections.retain(|_| boat.entropy.next() % 100 < share);
    let text = "this boat was cut off for a while; reconnect and sync";
    let refusal = refusal(boat, text);
    let pace = boat.config.drain_pace;
    let sending = send_away(boat, connections, &refusal, pace, None);
    let _ = timeout(boat.config.drain_deadline, sending).await;
}

fn refusal(boat: &Boat, text: &str) -> Refusal {
    Refusal::new(Code::Reconnect, text).retry_after(boat.config.drain_spread)
}
