//! Directory of boats: the lives, their addresses, and the lives believed to be over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::transport::Connector;
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use backend::Backends;
use backend::clock::{Clock, TimerClock};
use backend::discovery;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::access::Role;
use protocol::presence::{BoatLife, BoatLiveness, DeniedBoats};
use tokio::sync::{mpsc, watch};

/// Boats at one moment.
#[derive(Debug, Default)]
pub(crate) struct DirectoryView {
    /// Addresses of lives with a lease, and of lives whose lease is gone but whose end nobody has
    /// seen. A denied life is left out, though [`BoatProbe`] keeps its address to ask it again.
    pub(crate) addresses: BTreeMap<BoatLife, Arc<str>>,
    pub(crate) denied: DeniedBoats,
}

/// Directory of boats for the shards. Clones share the view.
#[derive(Clone, Debug)]
pub(crate) struct BoatDirectory {
    view: watch::Receiver<Arc<DirectoryView>>,
    unknown_lives: mpsc::Sender<BoatLife>,
}

/// Unknown lives that wait to be looked into. More of them at once would say nothing new.
const MAX_UNKNOWN_LIVES: usize = 256;
/// Time without a boat's lease after which it is probed.
const LEASE_WAIT: Duration = Duration::from_secs(2);
/// Timeout of a probe. A boat without a lease that is silent three times counts as dead, and is
/// probed again at growing intervals.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between probes of a boat that answers without a lease.
const LIVE_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Dead lives of boats that are remembered. An entry of a forgotten one costs one more push.
const DEAD_LIVES_MAX: usize = 1024;
/// Interval of checking for lives due for a probe.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Lives probed at the same time.
const MAX_CONCURRENT_PROBES: usize = 32;

impl BoatDirectory {
    pub(crate) fn view(&self) -> Arc<DirectoryView> {
        self.view.borrow().clone()
    }

    pub(crate) fn denied(&self) -> DeniedBoats {
        self.view.borrow().denied.clone()
    }

    /// Returns the address of a life. A life without an address of its own gets the newest address
    /// of its boat's name, where a later life will answer that this one is over.
    pub(crate) fn address(&self, life: &BoatLife) -> Option<Arc<str>> {
        let view = self.view.borrow();
        let exact = view.addresses.get(life);
        let namesake = || {
            let mut lives = view.addresses.iter().rev();
            lives
                .find(|(other, _)| other.boat == life.boat)
                .map(|(_, address)| address)
        };
        exact.or_else(namesake).cloned()
    }

    /// Reports a life that the mailbox named and nobody can reach.
    pub(crate) fn report_unknown(&self, life: &BoatLife) {
        // Without room the report is dropped: the life will be met again.
        let _ = self.unknown_lives.try_send(life.clone());
    }

    pub(crate) async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Keeps a [`BoatDirectory`] current.
pub(crate) struct BoatProbe {
    leases: watch::Receiver<discovery::Directory>,
    unknown_lives: mpsc::Receiver<BoatLife>,
    view: watch::Sender<Arc<DirectoryView>>,
    addresses: BTreeMap<BoatLife, Arc<str>>,
    liveness: BoatLiveness,
    connector: Connector,
    clock: TimerClock,
}

pub(crate) fn boat_directory(
    backends: &Backends,
    connector: Connector,
    leases: watch::Receiver<discovery::Directory>,
) -> (BoatDirectory, BoatProbe) {
    let (unknown_lives, unknown_receiver) = mpsc::channel(MAX_UNKNOWN_LIVES);
    let (view, view_receiver) = watch::channel(Arc::default());
    let mut probe = BoatProbe {
        leases,
        unknown_lives: unknown_receiver,
        view,
        addresses: BTreeMap::new(),
        liveness: BoatLiveness::new(LEASE_WAIT, LIVE_PROBE_INTERVAL, DEAD_LIVES_MAX),
        connector,
        clock: TimerClock::starting_at(backends.clock.now()),
    };
    probe.read_leases();
    let directory = BoatDirectory {
        view: view_receiver,
        unknown_lives,
    };
    (directory, probe)
}

impl BoatProbe {
    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut probe_tick = tokio::time::interval(PROBE_INTERVAL);
        let mut probes = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                result = self.leases.changed() => match result {
                    Ok(()) => self.read_leases(),
                    // The registry is closing; the last known leases stand.
                    Err(_) => return,
                },
                Some((life, answer)) = probes.next(), if !probes.is_empty() => {
                    self.handle_answer(&life, answer);
                }
                // Ahead of `unknown_lives`, which may always have something.
                _ = probe_tick.tick() => {
                    let room = MAX_CONCURRENT_PROBES.saturating_sub(probes.len());
                    for life in self.liveness.due(self.clock.now(), room) {
                        let address = self.addresses.get(&life).cloned();
                        probes.push(probe(
                            self.connector.clone(),
                            address,
                            life,
                            PROBE_TIMEOUT,
                        ));
                    }
                }
                Some(life) = self.unknown_lives.recv() => {
                    self.liveness.handle_unknown(self.clock.now(), &life);
                }
            }
        }
    }

    fn read_leases(&mut self) {
        let instances = self.leases.borrow_and_update().clone();
        for instance in instances.iter() {
            self.addresses
                .insert(instance.life.clone(), instance.address.as_str().into());
        }
        let lives = instances.iter().map(|instance| &instance.life);
        self.liveness.handle_roster(self.clock.now(), lives);
        self.publish();
    }

    fn handle_answer(&mut self, life: &BoatLife, answer: Answer) {
        let now = self.clock.now();
        let is_over = match answer {
            Answer::Alive => {
                tracing::info!(boat = %life.boat, incarnation = life.incarnation.0, "a boat is \
                                                                                     alive but has \
                                                                                     no lease");
                self.liveness.handle_heard(now, life);
                false
            }
            Answer::Replaced => self.liveness.handle_replaced(now, life),
            Answer::Silence => self.liveness.handle_silent(now, life),
        };
        if is_over {
            tracing::info!(boat = %life.boat, incarnation = life.incarnation.0, "a boat has ended");
            metrics::counter!("carrier_boats_denied_total").increment(1);
            let liveness = &self.liveness;
            self.addresses.retain(|life, _| liveness.remembers(life));
        }
        self.publish();
    }

    fn publish(&self) {
        let denied_boats = self.liveness.denied();
        let addresses = (self.addresses.iter())
            .filter(|(life, _)| !denied_boats.contains(life))
            .map(|(life, address)| (life.clone(), address.clone()))
            .collect();
        self.view.send_replace(Arc::new(DirectoryView {
            addresses,
            denied: denied_boats,
        }));
    }
}

/// Answer of a life to a probe.
enum Answer {
    Alive,
    /// Another life answers at its address.
    Replaced,
    Silence,
}

/// Asks a life whether it lives. A life without an address counts as silent.
async fn probe(
    connector: Connector,
    address: Option<Arc<str>>,
    life: BoatLife,
    timeout: Duration,
) -> (BoatLife, Answer) {
    let Some(address) = address else {
        return (life, Answer::Silence);
    };
    let channel = connector
        .channel(Role::Boat, &address)
        .with_unary_timeout(timeout);
    let request = v1::ProbeRequest {
        life: Some((&life).into()),
    };
    let answer = BoatServiceClient::new(channel).probe(request).await;
    let answer = match answer.map(|response| response.into_inner().alive) {
        Ok(true) => Answer::Alive,
        Ok(false) => Answer::Replaced,
        Err(_) => Answer::Silence,
    };
    (life, answer)
}
