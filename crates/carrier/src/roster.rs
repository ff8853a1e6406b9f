//! Which boats there are, how to reach them, and which are believed to be over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::transport::Connector;
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use backend::clock::Clock;
use backend::discovery;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::access::Role;
use protocol::presence::{BoatLife, Denied, Obituary};
use tokio::sync::{mpsc, watch};

use crate::Config;

/// Boats at one moment.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Of lives with a lease, and of those whose lease is away and whose end nobody has seen.
    /// A denied life is reached by nobody, though its address is kept to ask it again.
    pub(crate) addresses: BTreeMap<BoatLife, Arc<str>>,
    pub(crate) denied: Denied,
}

/// What the shards know of the boats. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Roster {
    view: watch::Receiver<Arc<View>>,
    met: mpsc::Sender<BoatLife>,
}

/// Lives that were met, and are not yet looked into; more than so many at once say nothing new.
const MET: usize = 256;
/// How often it is looked whether a life is to be asked.
const LOOK: Duration = Duration::from_millis(500);
/// Lives that are asked at the same time.
const PROBES: usize = 32;

impl Roster {
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    pub(crate) fn denied(&self) -> Denied {
        self.view.borrow().denied.clone()
    }

    /// Where this life is reached; a life that only its name is known of is looked for under the newest
    /// address of that name, where a later life will say that it is over.
    pub(crate) fn address(&self, life: &BoatLife) -> Option<Arc<str>> {
        let view = self.view.borrow();
        let known = view.addresses.get(life);
        let namesake = || {
            let mut others = view.addresses.iter().rev();
            others
                .find(|(other, _)| other.boat == life.boat)
                .map(|(_, address)| address)
        };
        known.or_else(namesake).cloned()
    }

    /// The mailbox named this life, and nobody knows how to reach it.
    pub(crate) fn met(&self, life: &BoatLife) {
        // Where there is no room, it will be met again.
        let _ = self.met.try_send(life.clone());
    }

    pub(crate) async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Keeps a [`Roster`] current.
pub(crate) struct Lookout {
    leases: watch::Receiver<discovery::Roster>,
    met: mpsc::Receiver<BoatLife>,
    view: watch::Sender<Arc<View>>,
    addresses: BTreeMap<BoatLife, Arc<str>>,
    obituary: Obituary,
    connector: Connector,
    clock: Arc<dyn Clock>,
    probe_timeout: Duration,
}

pub(crate) fn roster(
    leases: watch::Receiver<discovery::Roster>,
    connector: Connector,
    clock: Arc<dyn Clock>,
    config: &Config,
) -> (Roster, Lookout) {
    let (met, met_out) = mpsc::channel(MET);
    let (view, view_out) = watch::channel(Arc::default());
    let mut lookout = Lookout {
        leases,
        met: met_out,
        view,
        addresses: BTreeMap::new(),
        obituary: Obituary::new(
            config.lease_patience,
            config.probe_interval,
            config.denied_max,
        ),
        connector,
        clock,
        probe_timeout: config.probe_timeout,
    };
    lookout.read_leases();
    let roster = Roster {
        view: view_out,
        met,
    };
    (roster, lookout)
}

impl Lookout {
    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        let mut probes = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                changed = self.leases.changed() => match changed {
                    Ok(()) => self.read_leases(),
                    // The registry is closing; what was known last stands.
                    Err(_) => return,
                },
                Some((life, answer)) = probes.next(), if !probes.is_empty() => {
                    self.answered(&life, answer);
                }
                Some(life) = self.met.recv() => {
                    self.obituary.handle_unknown(self.clock.now(), &life);
                }
                _ = look.tick() => {
                    let room = PROBES.saturating_sub(probes.len());
                    for life in self.obituary.due(self.clock.now(), room) {
                        let address = self.addresses.get(&life).cloned();
                        probes.push(probe(
                            self.connector.clone(),
                            address,
                            life,
                            self.probe_timeout,
                        ));
                    }
                }
            }
        }
    }

    fn read_leases(&mut self) {
        let leased = self.leases.borrow_and_update().clone();
        for instance in leased.iter() {
            self.addresses
                .insert(instance.life.clone(), instance.address.as_str().into());
        }
        let lives = leased.iter().map(|instance| &instance.life);
        self.obituary.handle_roster(self.clock.now(), lives);
        self.publish();
    }

    fn answered(&mut self, life: &BoatLife, answer: Answer) {
        let now = self.clock.now();
        let is_over = match answer {
            Answer::Alive => {
                tracing::info!(boat = %life.boat, incarnation = life.incarnation.0, "a boat lives without a lease");
                self.obituary.handle_heard(now, life);
                false
            }
            Answer::Replaced => self.obituary.handle_replaced(now, life),
            Answer::Silence => self.obituary.handle_silent(now, life),
        };
        if is_over {
            tracing::info!(boat = %life.boat, incarnation = life.incarnation.0, "a boat is over");
            metrics::counter!("carrier_boats_denied_total").increment(1);
            let obituary = &self.obituary;
            self.addresses.retain(|life, _| obituary.remembers(life));
        }
        self.publish();
    }

    fn publish(&self) {
        let denied = self.obituary.denied();
        let addresses = (self.addresses.iter())
            .filter(|(life, _)| !denied.contains(life))
            .map(|(life, address)| (life.clone(), address.clone()))
            .collect();
        self.view.send_replace(Arc::new(View { addresses, denied }));
    }
}

/// What a life says when it is asked whether it lives.
enum Answer {
    Alive,
    /// Another life answers at its address.
    Replaced,
    Silence,
}

/// Asks a life whether it lives. One without an address cannot be reached.
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
