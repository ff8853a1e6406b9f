//! The lease of a boat: kept, lost, and regained under the same name.
//!
//! A boat that lost its lease goes on serving its clients and only turns new ones away. Once
//! registered again, it asserts all its sessions anew. Only a boat that no station answers either,
//! for longer than the fence, sends its clients away.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backend::discovery::{Registration, Role};
use backend::{Error, Result};
use protocol::drain::{PUBLISH_INTERVAL, ROOM_INTERVAL};
use protocol::pause::Backoff;
use protocol::{Code, Refusal};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::Config;
use crate::boat::{Boat, Phase};
use crate::leaving::drain::send_away;
use crate::membership::reregister::{jittered, pass};

/// Pause between attempts to regain a lost lease, each with a probe of the stations; doubled each
/// time, up to `RETRY_PAUSE_MAX`.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Shortest pause between two publications of the load.
const MIN_PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which all sessions are asserted after a lost lease, approximately.
pub(crate) const REASSERT_PERIOD: Duration = Duration::from_secs(2);

pub(crate) struct BoatLease {
    pub(crate) address: String,
    pub(crate) registration: Registration,
}

/// Keeps the boat registered until dropped, and gives up the lease then.
pub(crate) async fn keep(boat: Arc<Boat>, mut lease: BoatLease) {
    publish(&boat, &lease.registration).await;
    loop {
        warn!(life = ?lease.registration.instance.life, "discovery lease lost; current clients stay, new \
                                                 ones are sent to other boats");
        boat.metrics.leases_lost.increment(1);
        boat.lose_lease();
        boat.refresh_ready();
        lease.registration = regain(&boat, &lease).await;
        boat.begin_life(lease.registration.instance.life.clone());
        boat.refresh_ready();
        info!(life = ?lease.registration.instance.life, "registered again");
        // A lease lost meanwhile is regained before these finish.
        let lost_token = &lease.registration.lost_token;
        let spread_clients = lost_token.run_until_cancelled(spread(&boat));
        let assert_sessions = pass(&boat, REASSERT_PERIOD, || lost_token.is_cancelled());
        tokio::join!(
            spread_clients,
            assert_sessions,
            publish(&boat, &lease.registration)
        );
    }
}

/// Publishes the boat's load until the lease is lost: periodically, and soon after a change of
/// state.
async fn publish(boat: &Boat, registration: &Registration) {
    let publish_loop = async {
        let (mut ready, mut phases) = (boat.ready(), boat.phases());
        loop {
            ready.mark_unchanged();
            let phase = *phases.borrow_and_update();
            let load = boat.load();
            if let Err(error) = call_registry(&boat.config, registration.lease.publish(&load)).await
            {
                debug!(%error, source = %error.source, "cannot publish the load; retrying");
            }
            // A flapping state must not load discovery.
            sleep(MIN_PUBLISH_INTERVAL).await;
            let pause = match phase {
                Phase::Serving => jittered(&*boat.entropy, PUBLISH_INTERVAL * 2 / 3),
                Phase::Notice { .. } | Phase::Draining => ROOM_INTERVAL,
            };
            tokio::select! {
                biased;
                () = sleep(pause.saturating_sub(MIN_PUBLISH_INTERVAL)) => {}
                _ = phases.changed() => {}
                _ = ready.changed() => {}
            }
        }
    };
    registration
        .lost_token
        .run_until_cancelled(publish_loop)
        .await;
}

/// Bounds a call to the registry by its timeout. After a timeout the outcome is unknown: a lease
/// that nobody holds expires by itself, and the next one has a later incarnation.
pub(crate) async fn call_registry<T>(
    config: &Config,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = config.registry_timeout;
    (timeout(limit, call).await).unwrap_or_else(|_| {
        Err(Error::unavailable(
            "registry",
            format!("no answer within {limit:?}"),
        ))
    })
}

async fn regain(boat: &Boat, lease: &BoatLease) -> Registration {
    let mut backoff = Backoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
    loop {
        let pause = backoff.failed();
        let request = (boat.registry).register(Role::Boat, &boat.config.name, &lease.address);
        match call_registry(&boat.config, request).await {
            Ok(registration) => return registration,
            Err(error) => {
                let pause_ms = pause.as_millis() as u64;
                warn!(%error, source = %error.source, pause_ms, "cannot register with discovery; retrying");
            }
        }
        let _ = boat.stations.probe().await;
        if boat.stations.silence() > boat.config.fence {
            close_all(boat);
        }
        sleep(jittered(&*boat.entropy, pause)).await;
    }
}

/// Closes all connections of a boat that is cut off: its clients may be served elsewhere.
fn close_all(boat: &Boat) {
    for connection in boat.connections.all() {
        let text = "this boat is cut off; reconnect to reach another";
        connection.update(|session| session.close(refusal(boat, text), boat.now()));
    }
}

/// Sends a share of the clients away, as far as other boats have room, so that a boat that others
/// had lost sight of is not left the fullest one.
pub(crate) async fn spread(boat: &Boat) {
    if boat.phase() != Phase::Serving {
        // All clients are leaving already.
        return;
    }
    let share = u64::from(boat.config.reconnect_percent);
    let mut connections = boat.connections.all();
    connections.retain(|_| boat.entropy.next() % 100 < share);
    let text = "this boat was cut off for a while; reconnect and sync";
    let refusal = refusal(boat, text);
    let pace = boat.config.drain_pace;
    let departure = send_away(boat, connections, &refusal, pace, None);
    let _ = timeout(boat.config.drain_deadline, departure).await;
}

fn refusal(boat: &Boat, text: &str) -> Refusal {
    Refusal::new(Code::Reconnect, text).retry_after(boat.config.drain_spread)
}
