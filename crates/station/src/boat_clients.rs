//! Boats as a station sees them: the living, the ended, and a client for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::boat::{Notice, NoticeBatch};
use api::transport::{Channel, Connector};
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use backend::clock::Clock;
use backend::discovery::{Directory, Instance};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use protocol::Incarnation;
use protocol::access::Role;
use protocol::presence::{BoatLife, BoatLiveness, DeniedBoats, LEASE_PATIENCE};
use tokio::sync::{Semaphore, watch};
use tokio::time::{interval, timeout};

type Client = BoatServiceClient<Channel>;

/// Notices to a boat under way at once: a boat that hangs delays only its own.
const CALLS_MAX: usize = 16;

/// Interval of checking for absent boats that are due for a probe.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of probing a boat that lives on without a lease.
const AGAIN: Duration = Duration::from_secs(30);

/// Time for a boat to answer a probe, and lives probed at the same time.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
const PROBES: usize = 32;

/// Ended lives that are remembered. A forgotten one is unknown, and unknown means alive.
const DENIED_MAX: usize = 1024;

/// Directory of boats, followed as it changes.
pub(crate) struct BoatClients {
    connector: Connector,
    clock: Arc<dyn Clock>,
    known: Mutex<BoatTable>,
    deadline: Duration,
}

struct BoatTable {
    /// Lives with a lease, and those without one that may still live, or are probed again.
    clients: BTreeMap<BoatLife, BoatChannel>,
    obituary: BoatLiveness,
}

/// Client of a boat.
#[derive(Clone)]
struct BoatChannel {
    client: Client,
    calls: Arc<Semaphore>,
}

impl BoatClients {
    pub(crate) fn new(
        connector: Connector,
        clock: Arc<dyn Clock>,
        deadline: Duration,
    ) -> BoatClients {
        BoatClients {
            connector,
            clock,
            known: Mutex::new(BoatTable {
                clients: BTreeMap::new(),
                obituary: BoatLiveness::new(LEASE_PATIENCE, AGAIN, DENIED_MAX),
            }),
            deadline,
        }
    }

    /// Lives that have ended, as far as this station could find out.
    pub(crate) fn denied(&self) -> DeniedBoats {
        self.known.lock().obituary.denied()
    }

    /// True if this life has ended. A boat that began anew under its name ended all its earlier
    /// lives.
    pub(crate) fn is_over(&self, life: &BoatLife) -> bool {
        let known = self.known.lock();
        let later = BoatLife {
            boat: life.boat.clone(),
            incarnation: Incarnation(life.incarnation.0.saturating_add(1)),
        };
        let superseded = known.clients.range(later..).next();
        superseded.is_some_and(|(other, _)| other.boat == life.boat)
            || known.obituary.denied().contains(life)
    }

    /// Notes a call of a life, which is as alive as its call.
    pub(crate) fn hear(&self, life: &BoatLife) {
        let mut known = self.known.lock();
        if known.obituary.denied().contains(life) {
            tracing::info!(boat = %life.boat, incarnation = %life.incarnation, "a boat that counted as over calls");
            known.obituary.handle_heard(self.clock.now(), life);
        }
    }

    /// Follows the directory until it ends. A silent boat delays no other one.
    pub(crate) async fn follow(&self, mut roster: watch::Receiver<Directory>) {
        let mut look = interval(LOOK_EVERY);
        let mut probes = FuturesUnordered::new();
        let present = roster.borrow_and_update().clone();
        self.adopt(&present);
        loop {
            tokio::select! {
                biased;
                changed = roster.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let present = roster.borrow_and_update().clone();
                    self.adopt(&present);
                }
                Some(()) = probes.next(), if !probes.is_empty() => {}
                _ = look.tick() => {
                    let room = PROBES.saturating_sub(probes.len());
                    let due = self.known.lock().obituary.due(self.clock.now(), room);
                    probes.extend(due.into_iter().map(|life| self.ask(life)));
                }
            }
        }
    }

    /// Adopts the present directory.
    pub(crate) fn adopt(&self, present: &[Instance]) {
        let now = self.clock.now();
        let mut known = self.known.lock();
        for instance in present {
            if !known.clients.contains_key(&instance.life) {
                let channel = self.connector.channel(Role::Boat, &instance.address);
                let line = BoatChannel {
                    client: BoatServiceClient::new(channel),
                    calls: Arc::new(Semaphore::new(CALLS_MAX)),
                };
                known.clients.insert(instance.life.clone(), line);
            }
        }
        let lives = present.iter().map(|instance| &instance.life);
        known.obituary.handle_roster(now, lives);
    }

    async fn ask(&self, life: BoatLife) {
        let line = self.known.lock().clients.get(&life).cloned();
        let alive = match line {
            Some(line) => self.is_alive(line.client, &life).await,
            None => None,
        };
        let now = self.clock.now();
        let mut known = self.known.lock();
        let is_over = match alive {
            Some(true) => {
                known.obituary.handle_heard(now, &life);
                false
            }
            Some(false) => known.obituary.handle_replaced(now, &life),
            None => known.obituary.handle_silent(now, &life),
        };
        if is_over {
            let BoatTable { clients, obituary } = &mut *known;
            clients.retain(|life, _| obituary.remembers(life));
            tracing::info!(boat = %life.boat, incarnation = %life.incarnation, "a boat's life is over");
        }
    }

    /// `None` if no answer came.
    async fn is_alive(&self, mut client: Client, life: &BoatLife) -> Option<bool> {
        let request = v1::ProbeRequest {
            life: Some(life.into()),
        };
        let answer = timeout(PROBE_DEADLINE, client.probe(request)).await;
        answer.ok()?.ok().map(|answer| answer.into_inner().alive)
    }

    /// Sends notices to a boat in one call. Returns the number of their sessions that are missing;
    /// `None` if no answer came in time, or too many calls wait for this boat already.
    pub(crate) async fn notify(&self, life: BoatLife, notices: Vec<Notice>) -> Option<usize> {
        let line = self.known.lock().clients.get(&life).cloned()?;
        let _room = line.calls.try_acquire().ok()?;
        let request = v1::NoticeRequest::from(&NoticeBatch { life, notices });
        let mut client = line.client.clone();
        let answer = timeout(self.deadline, client.notice(request)).await;
        let answer = answer.ok()?.ok()?;
        Some(answer.into_inner().missing.len())
    }
}
