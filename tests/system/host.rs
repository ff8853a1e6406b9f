//! Hosts: a service as it ships, on hooked parts, restarted whenever it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use api::codec::EventFrames;
use backend::Backends;
use backend::clock::{Clock, TimerClock};
use backend::discovery::Role;
use backend::hook::Hook;
use operator::dead_letters::DeadLetters;
use protocol::Timestamp;
use protocol::access::{self, Caller};
use protocol::event::Encode;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use server::settings::Settings;
use tests::actions::START;
use tests::world::{Chance, HostGate, Life};
use tokio::runtime::Handle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::machine::Machine;
use crate::plan::Service;
use crate::world::World;

/// Time within which brokers and discovery notice a death.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Clocks of hosts are ahead by up to this: of the look-back of lists (200 ms), half is for a write
/// and half for clocks.
const CLOCK_LEAD_MAX: Duration = Duration::from_millis(80);
/// Longest pause before a dead host restarts.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);

enum ServiceHandle {
    Boat(boat::BoatHandle),
    Station(station::StationHandle),
    Carrier(carrier::CarrierHandle),
    Horn(horn::HornHandle),
    Operator(TaskTracker),
}

impl ServiceHandle {
    /// Waits until the service has left, asked or not.
    async fn left(&self) {
        match self {
            ServiceHandle::Boat(boat) => boat.left().await,
            ServiceHandle::Station(station) => station.drained().await,
            ServiceHandle::Carrier(carrier) => carrier.drained().await,
            ServiceHandle::Horn(horn) => horn.drained().await,
            ServiceHandle::Operator(tasks) => tasks.wait().await,
        }
    }
}

/// Boat that clients may connect to.
#[derive(Clone)]
pub(crate) struct Harbour {
    pub(crate) pipes: boat::PipeListener,
    pub(crate) dead: CancellationToken,
}

/// Clock of a host, which may step; its timers go on.
pub(crate) struct HostClock {
    timer: TimerClock,
    offset_ms: AtomicI64,
}

impl HostClock {
    /// Sets it so many milliseconds off.
    pub(crate) fn step(&self, offset_ms: i64) {
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }
}

impl Clock for HostClock {
    fn now(&self) -> Timestamp {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        Timestamp::from_millis(self.timer.now().millis() + offset_ms)
    }
}

/// Host of a world, by its number.
pub(crate) struct Host {
    pub(crate) number: usize,
    pub(crate) service: Service,
    name: String,
    world: Arc<World>,
    settings: Settings,
    clock: Arc<HostClock>,
}

impl Host {
    pub(crate) fn new(number: usize, service: Service, world: Arc<World>) -> Host {
        let name = name(service, number);
        let mut rng = StdRng::seed_from_u64(world.plan.seed ^ ((number as u64 + 1) << 40));
        let clock_lead = match service {
            // A redrive that seems to be later than its settlement would never end: the ledger has
            // no better order.
            Service::Operator => Duration::ZERO,
            _ => CLOCK_LEAD_MAX.mul_f64(rng.random_range(0.0..1.0)),
        };
        let clock = Arc::new(HostClock {
            timer: TimerClock::starting_at(START + clock_lead),
            offset_ms: AtomicI64::new(0),
        });
        world.clocks.lock().insert(number, Arc::clone(&clock));
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
            clock,
        }
    }

    /// Keeps the service running forever.
    pub(crate) async fn supervise(self) {
        let seed = self.world.plan.seed;
        for start in 0_u64.. {
            let seed = seed ^ ((self.number as u64 + 1) << 32) ^ (start << 48);
            let machine = self.world.machine();
            let chance = Chance::new(&self.world.plan.risks(), seed, &self.world.is_healed);
            let life = Arc::new(Life::new(
                format!("{}/{start}", self.name),
                Arc::clone(&self.world.trace),
                chance,
                Arc::clone(&self.world.outages),
            ));
            self.world
                .lives
                .lock()
                .insert(self.number, Arc::clone(&life));
            self.live(&life, &machine).await;
            self.bury(&life, machine);
            sleep(life.chance.up_to(RESTART_PAUSE_MAX)).await;
        }
    }

    /// Runs one life, which may end in any way.
    async fn live(&self, life: &Arc<Life>, machine: &Machine) {
        let restart = &self.world.restarts[self.number];
        let stop = CancellationToken::new();
        let startup = async {
            match self.start(life, machine, stop.clone()).await {
                Ok(handle) => Some(handle),
                Err(error) => {
                    life.note(format_args!("does not start: {error}"));
                    None
                }
            }
        };
        let handle = tokio::select! {
            biased;
            () = life.dead().cancelled() => None,
            handle = startup => handle,
        };
        let Some(handle) = handle else {
            return;
        };
        life.note(format_args!("runs"));
        life.chance.started();
        if let ServiceHandle::Boat(boat) = &handle {
            let harbour = Harbour {
                pipes: boat.pipes(),
                dead: life.dead().clone(),
            };
            self.world.harbours.lock().insert(self.number, harbour);
        }
        tokio::select! {
            biased;
            () = life.dead().cancelled() => {}
            () = handle.left() => life.note(format_args!("left by itself")),
            () = restart.notified() => {
                life.note(format_args!("is to leave"));
                self.world.harbours.lock().remove(&self.number);
                stop.cancel();
                tokio::select! {
                    biased;
                    () = life.dead().cancelled() => {}
                    () = handle.left() => life.note(format_args!("left")),
                }
            }
        }
        self.world.harbours.lock().remove(&self.number);
        // Tasks of a dead host end bit by bit, without an effect.
        life.dead().cancel();
        stop.cancel();
    }

    /// Lets brokers and discovery notice that the host is gone.
    fn bury(&self, life: &Arc<Life>, machine: Arc<Machine>) {
        life.note(format_args!("is dead"));
        life.dead().cancel();
        let life = Arc::clone(life);
        let (name, service) = (self.name.clone(), self.service);
        let incarnation = machine.incarnation(service, &name);
        tokio::spawn(async move {
            sleep(life.chance.up_to(SESSION_TIMEOUT)).await;
            life.expire();
            // A host restarted under this name has a later incarnation.
            if machine.incarnation(service, &name) == incarnation
                && let Some(role) = role(service)
            {
                machine.registry.revoke(role, &name);
            }
            if let Some(node) = life.node() {
                machine.registry.revoke_node(node);
            }
        });
    }

    async fn start(
        &self,
        life: &Arc<Life>,
        machine: &Machine,
        stop: CancellationToken,
    ) -> Result<ServiceHandle, Box<dyn std::error::Error>> {
        let (world, settings) = (&self.world, &self.settings);
        let hook: Arc<dyn Hook> = life.clone();
        let backends = machine.backends.clone();
        let backends = match &world.troubles {
            Some(troubles) => troubles.around(backends),
            None => backends,
        };
        let mut backends: Backends = backends.hooked(&hook);
        backends.clock = self.clock.clone();
        backends.entropy = Arc::new(backend::clock::SeededEntropy::new(life.chance.number()));
        let gate = HostGate {
            life: Arc::clone(life),
            names: Arc::clone(&world.names),
        };
        let connector = world.connector.clone().with_gate(Arc::new(gate));
        let connector_as = |role| connector.clone().with_caller(Caller::new(role, &self.name));
        let register_name = |name| world.names.lock().insert(name, Arc::clone(life));
        Ok(match self.service {
            Service::Boat => {
                register_name(format!("boat/{}", self.name));
                let parts = boat::BoatParts {
                    registry: backends.registry,
                    connector: connector_as(access::Role::Boat),
                    clock: backends.clock,
                    entropy: backends.entropy,
                    connections: Handle::current(),
                };
                let boat = boat::start(settings.boat.clone(), parts, stop).await?;
                ServiceHandle::Boat(boat)
            }
            Service::Station => {
                register_name(self.name.clone());
                let connector = connector_as(access::Role::Station);
                let config = settings.station.clone();
                ServiceHandle::Station(station::start(config, backends, connector, stop).await?)
            }
            Service::Carrier => {
                let connector = connector_as(access::Role::Carrier);
                let config = settings.carrier.clone();
                let encode: Arc<dyn Encode> = match &world.troubles {
                    Some(troubles) => troubles.frames(),
                    None => Arc::new(EventFrames),
                };
                let carrier = carrier::start_with(config, backends, connector, encode, stop);
                ServiceHandle::Carrier(carrier.await?)
            }
            Service::Horn => {
                let parts = horn::Parts {
                    queue: backends.queue,
                    ledger: backends.ledger,
                    conversations: backends.conversations,
                    clock: backends.clock,
                    entropy: backends.entropy,
                };
                ServiceHandle::Horn(horn::start(settings.horn.clone(), parts, stop).await?)
            }
            Service::Operator => {
                let letters = DeadLetters::new(backends, settings.station.bounds());
                let tasks = TaskTracker::new();
                tasks.spawn(letters.work(self.name.clone(), stop));
                tasks.close();
                ServiceHandle::Operator(tasks)
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
        Service::Operator => "desk",
    };
    format!("{service}-{number}")
}

/// Role in discovery; carriers, horns and desks are not listed there.
pub(crate) const fn role(service: Service) -> Option<Role> {
    match service {
        Service::Boat => Some(Role::Boat),
        Service::Station => Some(Role::Station),
        Service::Carrier | Service::Horn | Service::Operator => None,
    }
}
