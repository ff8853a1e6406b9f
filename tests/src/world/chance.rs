//! Random waits and failures of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

/// Share of slow calls; most are quick.
const SLOW: f64 = 0.2;
/// Longest quick call.
const QUICK: Duration = Duration::from_millis(2);

/// Factor by which failures are rarer while a host starts: a start is many calls, and one failure
/// ends it.
const WHILE_STARTING: f64 = 20.0;

/// Upper bound of the effects in a life that ends at a call.
const LAST_EFFECT: u64 = 150;

/// Chances of a life, and the length of its calls.
#[derive(Clone, Copy, Debug)]
pub struct Risks {
    /// Share of lives that end at a call with an effect.
    pub deaths: f64,
    /// Share of calls that fail without an effect.
    pub failed: f64,
    /// Share of calls whose answer is lost.
    pub lost: f64,
    /// Share of calls that are never answered.
    pub hung: f64,
    /// Longest way, to a part and back from it; most ways are short.
    pub wait_max: Duration,
}

impl Risks {
    /// Nothing fails: calls take their time, and no more.
    pub const fn none(wait_max: Duration) -> Risks {
        Risks {
            deaths: 0.0,
            failed: 0.0,
            lost: 0.0,
            hung: 0.0,
            wait_max,
        }
    }
}

/// Dice of one life of a host. After the world has healed, calls still wait, but none fails.
#[derive(Debug)]
pub struct Chance {
    rng: Mutex<StdRng>,
    healed: Arc<AtomicBool>,
    shares: [f64; 3],
    wait_max: Duration,
    /// True until the host has started.
    starts: AtomicBool,
    /// Calls with an effect until the life ends; zero: it does not end by itself.
    left: AtomicU64,
}

/// Fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// Not done.
    Fail,
    /// Done, with the answer lost.
    Lose,
    /// Never answered.
    Hang,
}

impl Chance {
    /// Dice of this seed. `healed` is set once nothing fails any more.
    pub fn new(risks: &Risks, seed: u64, healed: &Arc<AtomicBool>) -> Chance {
        let mut rng = StdRng::seed_from_u64(seed);
        let left = match rng.random_bool(risks.deaths) {
            true => rng.random_range(1..=LAST_EFFECT),
            false => 0,
        };
        Chance {
            left: AtomicU64::new(left),
            rng: Mutex::new(rng),
            healed: Arc::clone(healed),
            shares: [risks.failed, risks.lost, risks.hung],
            wait_max: risks.wait_max,
            starts: AtomicBool::new(true),
        }
    }

    /// Lets calls fail as often as the plan says from now on.
    pub fn started(&self) {
        self.starts.store(false, Ordering::Relaxed);
    }

    /// Throws the dice for one call.
    pub fn fate(&self) -> Fate {
        if self.healed.load(Ordering::Relaxed) {
            return Fate::Pass;
        }
        let dice: f64 = self.rng.lock().random();
        let dice = match self.starts.load(Ordering::Relaxed) {
            true => dice * WHILE_STARTING,
            false => dice,
        };
        let [failed, lost, hung] = self.shares;
        match dice {
            _ if dice < failed => Fate::Fail,
            _ if dice < failed + lost => Fate::Lose,
            _ if dice < failed + lost + hung => Fate::Hang,
            _ => Fate::Pass,
        }
    }

    /// True if the host dies at this call, which has an effect.
    pub fn is_last(&self) -> bool {
        let is_healed = self.healed.load(Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        !is_healed && left == 1
    }

    /// Random time, in whole milliseconds.
    pub fn up_to(&self, most: Duration) -> Duration {
        let most = most.as_millis() as u64;
        Duration::from_millis(self.rng.lock().random_range(0..=most))
    }

    /// Random number, for a seed.
    pub fn number(&self) -> u64 {
        self.rng.lock().random()
    }

    /// Waits for the time of one way.
    pub async fn wait(&self) {
        let is_slow = self.rng.lock().random_bool(SLOW);
        let most = match is_slow {
            true => self.wait_max,
            false => self.wait_max.min(QUICK),
        };
        let wait = self.up_to(most);
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}
