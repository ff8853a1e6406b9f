//! Hosts: a service as it ships, on hooked parts, restarted whenever it ends.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backend::discovery::Role;
use backend::hook::{self, Hook, Op};
use backend::queue::{Partition, Record};
use backend::{Backends, Error};
use parking_lot::Mutex;
use protocol::access::{self, Caller};
use server::settings::Settings;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::chance::{Chance, Fate, Outages};
use crate::network::HostGate;
use crate::plan::Service;
use crate::trace::Trace;
use crate::world::World;

/// Time within which brokers and discovery notice a death.
const SESSION: Duration = Duration::from_secs(10);
/// Longest pause before a dead host restarts.
const PAUSE: Duration = Duration::from_secs(5);
/// Time after which a host without a network learns that a call fails.
const REFUSAL: Duration = Duration::from_secs(1);
/// Time without an answer from a part: as long as the most patient driver waits.
const HANG: Duration = Duration::from_secs(60);

/// One life of a host, from start to end. After its death it makes no calls, and none is answered.
pub(crate) struct Life {
    name: String,
    trace: Arc<Trace>,
    pub(crate) chance: Chance,
    outages: Arc<Outages>,
    dead: CancellationToken,
    /// Cancelled once brokers have noticed the death.
    expired: CancellationToken,
    /// Node number for ids, if it is a station.
    node: Mutex<Option<u16>>,
    /// Isolation from parts and other hosts; clients still reach it.
    isolated: Mutex<Isolation>,
}

#[derive(Default)]
struct Isolation {
    until: Option<Instant>,
    /// Cancelled, and renewed, at each isolation.
    begins: CancellationToken,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Life").field(&self.name).finish()
    }
}

impl Life {
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        if !self.is_dead() {
            self.trace.add(&self.name, what);
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Kills the life: from now on it makes no calls, and none is answered.
    pub(crate) fn die(&self, how: fmt::Arguments<'_>) {
        self.note(how);
        self.dead.cancel();
    }

    pub(crate) fn dead(&self) -> &CancellationToken {
        &self.dead
    }

    pub(crate) fn isolate(&self, lasting: Duration) {
        self.note(format_args!("is isolated for {lasting:?}"));
        let mut isolated = self.isolated.lock();
        isolated.until = Some(Instant::now() + lasting);
        std::mem::take(&mut isolated.begins).cancel();
    }

    pub(crate) fn is_isolated(&self) -> bool {
        let until = self.isolated.lock().until;
        until.is_some_and(|until| until > Instant::now())
    }

    /// Waits until the connections open now break.
    pub(crate) async fn cut(&self) {
        let begins = self.isolated.lock().begins.clone();
        tokio::select! {
            biased;
            () = self.dead.cancelled() => {}
            () = begins.cancelled() => {}
        }
    }
}

#[async_trait]
impl Hook for Life {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        self.chance.wait().await;
        if self.is_dead() {
            return pending().await;
        }
        let Op {
            seam, name, kind, ..
        } = op;
        self.note(format_args!("{seam}.{name} {kind} {:?}", op.subjects));
        // Half of these hosts die before the effect, half after it.
        if op.has_effect && self.chance.is_last() {
            self.die(format_args!("dies at {seam}.{name}"));
            return pending().await;
        }
        if self.is_isolated() || self.outages.has(seam) {
            sleep(REFUSAL).await;
            return Err(Error::unavailable(op.seam, "no way there"));
        }
        match self.chance.fate() {
            Fate::Fail => {
                self.note(format_args!("{seam}.{name} fails"));
                Err(Error::unavailable(op.seam, "the part is away for a moment"))
            }
            Fate::Hang => {
                self.note(format_args!("{seam}.{name} hangs"));
                sleep(HANG).await;
                Err(Error::unavailable(op.seam, "no answer in time"))
            }
            Fate::Lose | Fate::Pass => Ok(()),
        }
    }

    fn item(&self, op: &Op, subject: u64) -> hook::Fate {
        match self.chance.fate() {
            Fate::Fail => {
                self.note(format_args!("{}.{} fails for {subject}", op.seam, op.name));
                hook::Fate::Fail(Error::unavailable(op.seam, "not for this one"))
            }
            Fate::Pass | Fate::Lose | Fate::Hang => hook::Fate::Pass,
        }
    }

    fn shows(&self, op: &Op, record: &Record) -> bool {
        let Partition { topic, number } = record.partition;
        let offset = record.offset;
        self.note(format_args!("{} shows {topic}/{number}@{offset}", op.name));
        true
    }

    async fn after(&self, op: &Op, _done: usize) -> backend::Result<()> {
        if op.name == "reserve_node" || op.name == "lease_node" {
            let number = op.subjects.first().copied();
            let mut node = self.node.lock();
            *node = number
                .and_then(|number| u16::try_from(number).ok())
                .or(*node);
        }
        if op.has_effect && self.chance.is_last() {
            self.die(format_args!("dies after {}.{}", op.seam, op.name));
        }
        self.chance.wait().await;
        if self.is_dead() {
            return pending().await;
        }
        // A failed read was not done; a lost answer matters only for an effect.
        if op.has_effect && self.chance.fate() == Fate::Lose {
            self.note(format_args!("{}.{} loses its answer", op.seam, op.name));
            return Err(Error::unavailable(op.seam, "the answer got lost"));
        }
        Ok(())
    }

    async fn ended(&self) {
        self.expired.cancelled().await;
    }
}

enum Running {
    Boat(boat::Running),
    Station(station::Running),
    Carrier(carrier::Running),
    Horn(horn::Running),
}

impl Running {
    /// Waits until the service has left, asked or not.
    async fn left(&self) {
        match self {
            Running::Boat(boat) => boat.left().await,
            Running::Station(station) => station.drained().await,
            Running::Carrier(carrier) => carrier.drained().await,
            Running::Horn(horn) => horn.drained().await,
        }
    }
}

/// Boat that clients may connect to.
#[derive(Clone)]
pub(crate) struct Harbour {
    pub(crate) pipes: boat::PipeListener,
    pub(crate) dead: CancellationToken,
}

/// Host of a world, by its number.
pub(crate) struct Host {
    pub(crate) number: usize,
    pub(crate) service: Service,
    name: String,
    world: Arc<World>,
    settings: Settings,
}

impl Host {
    pub(crate) fn new(number: usize, service: Service, world: Arc<World>) -> Host {
        let name = name(service, number);
        let mut settings = world.settings.clone();
        settings.boat.name.clone_from(&name);
        settings.station.name.clone_from(&name);
        settings.carrier.name.clone_from(&name);
        Host {
            number,
            service,
            name,
            world,
            settings,
        }
    }

    /// Keeps the service running forever.
    pub(crate) async fn supervise(self) {
        let seed = self.world.plan.seed;
        for start in 0_u64.. {
            let seed = seed ^ ((self.number as u64 + 1) << 32) ^ (start << 48);
            let life = Arc::new(Life {
                name: format!("{}/{start}", self.name),
                trace: Arc::clone(&self.world.trace),
                chance: Chance::new(&self.world.plan, seed, &self.world.healed),
                outages: Arc::clone(&self.world.outages),
                dead: CancellationToken::new(),
                expired: CancellationToken::new(),
                node: Mutex::default(),
                isolated: Mutex::default(),
            });
            self.world
                .lives
                .lock()
                .insert(self.number, Arc::clone(&life));
            self.live(&life).await;
            self.bury(&life);
            sleep(life.chance.up_to(PAUSE)).await;
        }
    }

    /// Runs one life, which may end in any way.
    async fn live(&self, life: &Arc<Life>) {
        let restart = &self.world.restarts[self.number];
        let stop = CancellationToken::new();
        let begun = async {
            match self.start(life, stop.clone()).await {
                Ok(running) => Some(running),
                Err(error) => {
                    life.note(format_args!("does not start: {error}"));
                    None
                }
            }
        };
        let running = tokio::select! {
            biased;
            () = life.dead.cancelled() => None,
            running = begun => running,
        };
        let Some(running) = running else {
            return;
        };
        life.note(format_args!("runs"));
        life.chance.started();
        if let Running::Boat(boat) = &running {
            let harbour = Harbour {
                pipes: boat.pipes(),
                dead: life.dead().clone(),
            };
            self.world.harbours.lock().insert(self.number, harbour);
        }
        tokio::select! {
            biased;
            () = life.dead.cancelled() => {}
            () = running.left() => life.note(format_args!("left by itself")),
            () = restart.notified() => {
                life.note(format_args!("is to leave"));
                self.world.harbours.lock().remove(&self.number);
                stop.cancel();
                tokio::select! {
                    biased;
                    () = life.dead.cancelled() => {}
                    () = running.left() => life.note(format_args!("left")),
                }
            }
        }
        self.world.harbours.lock().remove(&self.number);
        // Tasks of a dead host end bit by bit, without an effect.
        life.dead().cancel();
        stop.cancel();
    }

    /// Lets brokers and discovery notice that the host is gone.
    fn bury(&self, life: &Arc<Life>) {
        life.note(format_args!("is dead"));
        life.dead().cancel();
        let (world, life) = (Arc::clone(&self.world), Arc::clone(life));
        let (name, service) = (self.name.clone(), self.service);
        let incarnations = world.incarnation(service, &name);
        tokio::spawn(async move {
            sleep(life.chance.up_to(SESSION)).await;
            life.expired.cancel();
            // A host restarted under this name has a later incarnation.
            if world.incarnation(service, &name) == incarnations
                && let Some(role) = role(service)
            {
                world.registry.revoke(role, &name);
            }
            if let Some(node) = *life.node.lock() {
                world.registry.revoke_node(node);
            }
        });
    }

    async fn start(
        &self,
        life: &Arc<Life>,
        stop: CancellationToken,
    ) -> Result<Running, Box<dyn std::error::Error>> {
        let (world, settings) = (&self.world, &self.settings);
        let hook: Arc<dyn Hook> = life.clone();
        let mut backends: Backends = world.backends.clone().hooked(&hook);
        backends.entropy = Arc::new(backend::clock::SeededEntropy::new(life.chance.number()));
        let gate = HostGate {
            life: Arc::clone(life),
            names: Arc::clone(&world.names),
        };
        let connector = world.connector.clone().with_gate(Arc::new(gate));
        let calling_as = |role| connector.clone().with_caller(Caller::new(role, &self.name));
        let listed = |name| world.names.lock().insert(name, Arc::clone(life));
        Ok(match self.service {
            Service::Boat => {
                listed(format!("boat/{}", self.name));
                let parts = boat::BoatParts {
                    registry: backends.registry,
                    connector: calling_as(access::Role::Boat),
                    clock: backends.clock,
                    entropy: backends.entropy,
                    connections: Handle::current(),
                };
                let boat = boat::start(settings.boat.clone(), parts, stop).await?;
                Running::Boat(boat)
            }
            Service::Station => {
                listed(self.name.clone());
                let connector = calling_as(access::Role::Station);
                let config = settings.station.clone();
                Running::Station(station::start(config, backends, connector, stop).await?)
            }
            Service::Carrier => {
                let connector = calling_as(access::Role::Carrier);
                let config = settings.carrier.clone();
                Running::Carrier(carrier::start(config, backends, connector, stop).await?)
            }
            Service::Horn => {
                let parts = horn::Parts {
                    queue: backends.queue,
                    ledger: backends.ledger,
                    conversations: backends.conversations,
                    clock: backends.clock,
                    entropy: backends.entropy,
                };
                Running::Horn(horn::start(settings.horn.clone(), parts, stop).await?)
            }
        })
    }
}

pub(crate) fn name(service: Service, number: usize) -> String {
    let service = match service {
        Service::Boat => "boat",
        Service::Station => "station",
        Service::Carrier => "carrier",
        Service::Horn => "horn",
    };
    format!("{service}-{number}")
}

/// Role in discovery; carriers and horns are not listed there.
pub(crate) const fn role(service: Service) -> Option<Role> {
    match service {
        Service::Boat => Some(Role::Boat),
        Service::Station => Some(Role::Station),
        Service::Carrier | Service::Horn => None,
    }
}
