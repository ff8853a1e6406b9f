//! Machine under a world: its disk, the parts on it, and power cuts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::{SeededEntropy, TimerClock};
use backend::discovery::{Directory, EmbeddedRegistry, Registry};
use backend::embedded::Engine;
use operator::Access;
use operator::doctor::{self, Doctor, Stores};
use operator::lifecycle::Phases;
use operator::port::Operators;
use protocol::Incarnation;
use server::compose::Environment;
use server::settings::Settings;
use tests::actions::START;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::host::role;
use crate::plan::{PowerCut, Service};

/// Parts as they are, without a hook, from one start of the machine to its end.
pub(crate) struct Machine {
    engine: Engine,
    pub(crate) backends: Backends,
    pub(crate) registry: EmbeddedRegistry,
    directories: BTreeMap<Service, watch::Receiver<Directory>>,
    pub(crate) doctor: Doctor,
    _upkeep: DropGuard,
}

impl Machine {
    /// Starts a machine with an empty disk.
    pub(crate) async fn new(settings: &Settings, seed: u64) -> Machine {
        let clock = Arc::new(TimerClock::starting_at(START));
        Machine::over(Engine::memory(), clock, settings, seed).await
    }

    async fn over(
        engine: Engine,
        clock: Arc<dyn backend::clock::Clock>,
        settings: &Settings,
        seed: u64,
    ) -> Machine {
        let registry = EmbeddedRegistry::new(engine.clone());
        let entropy = Arc::new(SeededEntropy::new(seed));
        let sessions = settings.station.sessions.capacity();
        let environment =
            Environment::over(engine.clone(), &settings.embedded, sessions, clock, entropy);
        let environment = environment.expect("stores in memory");
        let upkeep = CancellationToken::new();
        environment.clean(upkeep.clone());
        let mut backends = environment.backends;
        backends.registry = Arc::new(registry.clone());
        let mut directories = BTreeMap::new();
        for service in [Service::Boat, Service::Station] {
            let role = role(service).expect("listed");
            let directory = registry.watch(role).await.expect("a roster");
            directories.insert(service, directory);
        }
        let doctor = Doctor::new(doctor::Parts {
            settings: settings.for_doctor(),
            role: None,
            stores: Stores::Memory,
            access: Access::from(&backends),
            phases: Phases::default(),
            operators: Operators::default(),
            desk: None,
            certificates: None,
        });
        Machine {
            engine,
            backends,
            registry,
            directories,
            doctor,
            _upkeep: upkeep.drop_guard(),
        }
    }

    pub(crate) fn incarnation(&self, service: Service, name: &str) -> Option<Incarnation> {
        let directory = self.directories.get(&service)?.borrow().clone();
        let instance = directory
            .iter()
            .find(|instance| instance.life.boat.as_str() == name)?;
        Some(instance.life.incarnation)
    }

    /// Lets the disk answer no fsync from now on, and waits for this time.
    pub(crate) async fn stall_disk(&self, duration: Duration) {
        self.engine.hold_syncs();
        sleep(duration).await;
    }

    /// Cuts the power. Returns the machine as it starts again, the number of writes that no fsync
    /// covered, and the number of those on the disk.
    pub(crate) async fn restart(
        &self,
        cut: PowerCut,
        settings: &Settings,
        seed: u64,
    ) -> (Machine, usize, usize) {
        let undurable_count = self.engine.undurable();
        let written_count = (undurable_count as f64 * cut.written_share).round() as usize;
        let engine = self.engine.crash(written_count).expect("in memory");
        let clock = Arc::clone(&self.backends.clock);
        let machine = Machine::over(engine, clock, settings, seed).await;
        (machine, undurable_count, written_count)
    }
}
