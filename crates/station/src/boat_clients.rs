//! Boats as a station sees them: the living, the ended, and a client for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::boat::{Notice, NoticeBatch};
use api::transport::{Channel, Connector};
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use backend::Backends;
use backend::clock::{Clock, TimerClock};
use backend::discovery::{Directory, Instance};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use protocol::Incarnation;
use protocol::access::Role;
use protocol::presence::{BoatLife, BoatLiveness, DeniedBoats, LEASE_GRACE};
use tokio::sync::{Semaphore, watch};
use tokio::time::{interval, timeout};

type Client = BoatServiceClient<Channel>;

/// Notices to a boat under way at once: a boat that hangs delays only its own.
const CALLS_MAX: usize = 16;

/// Interval of checking for absent boats that are due for a probe.
const PROBE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of probing a boat that lives on without a lease.
const REPROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Time for a boat to answer a probe, and lives probed at the same time.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
const MAX_CONCURRENT_PROBES: usize = 32;

/// Ended lives that are remembered. A forgotten one is unknown, and unknown means alive.
const DENIED_MAX: usize = 1024;

/// Directory of boats, followed as it changes.
pub(crate) struct BoatClients {
    connector: Connector,
    /// A monotonic clock: lives are probed again in seconds, even if the time of day is set.
    clock: TimerClock,
    table: Mutex<BoatTable>,
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
        backends: &Backends,
        connector: Connector,
        deadline: Duration,
    ) -> BoatClients {
        BoatClients {
            connector,
            clock: TimerClock::starting_at(backends.clock.now()),
            table: Mutex::new(BoatTable {
                clients: BTreeMap::new(),
                obituary: BoatLiveness::new(LEASE_GRACE, REPROBE_INTERVAL, DENIED_MAX),
            }),
            deadline,
        }
    }

    /// Lives that have ended, as far as this station could find out.
    pub(crate) fn denied(&self) -> DeniedBoats {
        self.table.lock().obituary.denied()
    }

    /// Whether this life has ended. A boat that began anew under its name ended all its earlier
    /// lives.
    pub(crate) fn is_over(&self, life: &BoatLife) -> bool {
        let table = self.table.lock();
        let next_life = BoatLife {
            boat: life.boat.clone(),
            incarnation: Incarnation(life.incarnation.0.saturating_add(1)),
        };
        let newer_entry = table.clients.range(next_life..).next();
        newer_entry.is_some_and(|(other, _)| other.boat == life.boat)
            || table.obituary.denied().contains(life)
    }

    /// Notes that a life has called: it is alive, even if it counted as over.
    pub(crate) fn note_contact(&self, life: &BoatLife) {
        let mut table = self.table.lock();
        if table.obituary.denied().contains(life) {
            tracing::info!(boat = %life.boat, incarnation = %life.incarnation, "a boat that was \
                                                                                considered ended \
                                                                                is calling");
            table.obituary.handle_heard(self.clock.now(), life);
        }
    }

    /// Follows the directory until it ends. A silent boat delays no other one.
    pub(crate) async fn follow(&self, mut directory: watch::Receiver<Directory>) {
        let mut ticker = interval(PROBE_CHECK_INTERVAL);
        let mut probes = FuturesUnordered::new();
        let present = directory.borrow_and_update().clone();
        self.adopt(&present);
        loop {
            tokio::select! {
                biased;
                change = directory.changed() => {
                    if change.is_err() {
                        return;
                    }
                    let present = directory.borrow_and_update().clone();
                    self.adopt(&present);
                }
                Some(()) = probes.next(), if !probes.is_empty() => {}
                _ = ticker.tick() => {
                    let room = MAX_CONCURRENT_PROBES.saturating_sub(probes.len());
                    let due_lives = self.table.lock().obituary.due(self.clock.now(), room);
                    probes.extend(due_lives.into_iter().map(|life| self.probe_life(life)));
                }
            }
        }
    }

    /// Adopts the present directory.
    pub(crate) fn adopt(&self, present: &[Instance]) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        for instance in present {
            if !table.clients.contains_key(&instance.life) {
                let transport = self.connector.channel(Role::Boat, &instance.address);
                let channel = BoatChannel {
                    client: BoatServiceClient::new(transport),
                    calls: Arc::new(Semaphore::new(CALLS_MAX)),
                };
                table.clients.insert(instance.life.clone(), channel);
            }
        }
        let lives = present.iter().map(|instance| &instance.life);
        table.obituary.handle_roster(now, lives);
    }

    async fn probe_life(&self, life: BoatLife) {
        let channel = self.table.lock().clients.get(&life).cloned();
        let alive = match channel {
            Some(channel) => self.is_alive(channel.client, &life).await,
            None => None,
        };
        let now = self.clock.now();
        let mut table = self.table.lock();
        let is_over = match alive {
            Some(true) => {
                table.obituary.handle_heard(now, &life);
                false
            }
            Some(false) => table.obituary.handle_replaced(now, &life),
            None => table.obituary.handle_silent(now, &life),
        };
        if is_over {
            let BoatTable { clients, obituary } = &mut *table;
            clients.retain(|life, _| obituary.remembers(life));
            tracing::info!(boat = %life.boat, incarnation = %life.incarnation, "a boat has ended");
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
        let channel = self.table.lock().clients.get(&life).cloned()?;
        let _permit = channel.calls.try_acquire().ok()?;
        let request = v1::NoticeRequest::from(&NoticeBatch { life, notices });
        let mut client = channel.client.clone();
        let answer = timeout(self.deadline, client.notice(request)).await;
        let answer = answer.ok()?.ok()?;
        Some(answer.into_inner().missing.len())
    }
}
