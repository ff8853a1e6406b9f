//! The lease of a boat: kept, lost, and regained under the same name.
//!
//! A boat that lost its lease goes on serving its clients and only turns new ones away. Once
//! registered again, it asserts all its sessions anew. Only a boat that no station answers either,
//! for longer than the fence, sends its clients away.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backend::discovery::{Registration, Registry, Role};
use backend::{Error, Result};
use protocol::drain::{PUBLISH_INTERVAL, ROOM_INTERVAL};
use protocol::pause::Backoff;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::reregister::{REASSERT_PERIOD, Reregistration, jittered};
use crate::leaving::Leaving;
use crate::status::{BoatStatus, Phase};

/// Pause between attempts to regain a lost lease, each with a probe of the stations; doubled each
/// time, up to `RETRY_PAUSE_MAX`.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Shortest pause between two publications of the load.
const MIN_PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct BoatLease {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) registration: Registration,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) registry_timeout: Duration,
    /// Time without an answer of any station after which a boat without a lease is cut off.
    pub(crate) fence: Duration,
    pub(crate) status: Arc<BoatStatus>,
    pub(crate) leaving: Arc<Leaving>,
    pub(crate) reregistration: Arc<Reregistration>,
}

impl BoatLease {
    /// Keeps the boat registered until dropped, and gives up the lease then.
    pub(crate) async fn keep(mut self) {
        self.publish().await;
        loop {
            warn!(life = ?self.registration.instance.life, "discovery lease lost; current clients stay, new \
                                                            ones are sent to other boats");
            self.reregistration.metrics.leases_lost.increment(1);
            self.status.lose_lease();
            self.status.refresh_ready();
            self.registration = self.regain().await;
            self.status
                .begin_life(self.registration.instance.life.clone());
            self.status.refresh_ready();
            info!(life = ?self.registration.instance.life, "registered again");
            // A lease lost meanwhile is regained before these finish.
            let lost_token = &self.registration.lost_token;
            let spread_clients = lost_token.run_until_cancelled(self.leaving.send_share_away());
            let assert_sessions =
                (self.reregistration).pass(REASSERT_PERIOD, || lost_token.is_cancelled());
            tokio::join!(spread_clients, assert_sessions, self.publish());
        }
    }

    /// Publishes the boat's load until the lease is lost: periodically, and soon after a change of
    /// state.
    async fn publish(&self) {
        let publish_loop = async {
            let (mut ready, mut phases) = (self.status.ready(), self.status.phases());
            loop {
                ready.mark_unchanged();
                let phase = *phases.borrow_and_update();
                let load = self.leaving.load();
                let publication = self.registration.lease.publish(&load);
                if let Err(error) = call_registry(self.registry_timeout, publication).await {
                    debug!(%error, source = %error.source, "cannot publish the load; retrying");
                }
                // A flapping state must not load discovery.
                sleep(MIN_PUBLISH_INTERVAL).await;
                let pause = match phase {
                    Phase::Serving => {
                        jittered(&*self.reregistration.entropy, PUBLISH_INTERVAL * 2 / 3)
                    }
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
        let lost_token = &self.registration.lost_token;
        lost_token.run_until_cancelled(publish_loop).await;
    }

    async fn regain(&self) -> Registration {
        let stations = &self.reregistration.uplink.stations;
        let mut backoff = Backoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
        loop {
            let pause = backoff.failed();
            let request = (self.registry).register(Role::Boat, &self.name, &self.address);
            match call_registry(self.registry_timeout, request).await {
                Ok(registration) => return registration,
                Err(error) => {
                    let pause_ms = pause.as_millis() as u64;
                    warn!(%error, source = %error.source, pause_ms, "cannot register with discovery; retrying");
                }
            }
            let _ = stations.probe().await;
            if stations.silence() > self.fence {
                self.leaving.close_all();
            }
            sleep(jittered(&*self.reregistration.entropy, pause)).await;
        }
    }
}

/// Bounds a call to the registry. After a timeout the outcome is unknown: a lease that nobody holds
/// expires by itself, and the next one has a later incarnation.
pub(crate) async fn call_registry<T>(
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    (timeout(limit, call).await).unwrap_or_else(|_| {
        Err(Error::unavailable(
            "registry",
            format!("no answer within {limit:?}"),
        ))
    })
}
