//! Paused time of a system on embedded parts: calls of the parts take as long as the seed says, and
//! nothing else takes any time.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use backend::clock::{Clock, SeededEntropy, TimerClock};
use backend::embedded::Engine;
use backend::hook::Hook;
use protocol::SendId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use server::compose::Environment;
use server::settings::Settings;
use uuid::Uuid;

use crate::actions::START;
use crate::world::{Chance, Life, Outages, Panics, Risks, Trace};

/// Seed of every test, unless `PACKETBOAT_SEED` or the test names another.
const SEED: u64 = 1;

/// Longest way to a part, or back from it.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(10);

thread_local! {
    /// Chance of the test on this thread.
    static RNG: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// Paused time on this thread, until dropped.
pub(crate) struct PausedWorld {
    seed: u64,
    clock: Arc<TimerClock>,
    life: Arc<Life>,
    trace: Arc<Trace>,
    panics: Option<Panics>,
    /// Number of clients so far.
    clients: AtomicU64,
}

impl PausedWorld {
    /// Pauses time, which needs a runtime of one thread.
    pub(crate) fn begin(seed: Option<u64>) -> PausedWorld {
        tokio::time::pause();
        let seed = seed.unwrap_or_else(default_seed);
        RNG.set(Some(StdRng::seed_from_u64(!seed)));
        let trace = Arc::new(Trace::begin());
        let is_healed = Arc::new(AtomicBool::new(true));
        let chance = Chance::new(&Risks::none(WAIT_MAX), seed, &is_healed);
        let outages = Arc::<Outages>::default();
        let life = Life::new("parts".to_owned(), Arc::clone(&trace), chance, outages);
        PausedWorld {
            seed,
            clock: Arc::new(TimerClock::starting_at(START)),
            life: Arc::new(life),
            trace,
            panics: Some(Panics::collect(true)),
            clients: AtomicU64::new(0),
        }
    }

    /// Environment over this store, whose calls wait.
    pub(crate) fn environment(&self, settings: &Settings, engine: Engine) -> Environment {
        let entropy = Arc::new(SeededEntropy::new(self.seed));
        let (config, sessions) = (&settings.embedded, settings.station.sessions.capacity());
        let clock: Arc<dyn Clock> = self.clock.clone();
        let environment = Environment::over(engine, config, sessions, clock, entropy);
        let mut environment = environment.expect("stores in memory");
        let hook: Arc<dyn Hook> = self.life.clone();
        environment.backends = environment.backends.hooked(&hook);
        environment
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// Seed of one more client.
    pub(crate) fn client_seed(&self) -> u64 {
        let number = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        self.seed ^ (number << 32)
    }

    /// Calls of the parts so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// Panics that tasks of the system ended with; collects no more.
    pub(crate) fn panics(&mut self) -> Vec<String> {
        self.panics.take().map_or_else(Vec::new, Panics::take)
    }
}

impl Drop for PausedWorld {
    fn drop(&mut self) {
        RNG.set(None);
        if std::thread::panicking() {
            eprintln!(
                "seed {0}: PACKETBOAT_SEED={0} repeats it, PACKETBOAT_SIM_TRACE=1 shows its calls",
                self.seed
            );
        } else {
            // The next system of this test may have a clock of its own.
            tokio::time::resume();
        }
    }
}

fn default_seed() -> u64 {
    let seed_text = std::env::var("PACKETBOAT_SEED");
    seed_text.map_or(SEED, |seed| seed.parse().expect("a number"))
}

/// New id of a send: on paused time by its seed.
pub(crate) fn send_id() -> SendId {
    let random_id = RNG.with_borrow_mut(|rng| Some(rng.as_mut()?.random::<u128>()));
    match random_id {
        Some(random_id) => SendId::from_bytes(random_id.to_be_bytes()),
        None => SendId::from_uuid(Uuid::new_v4()),
    }
}
