//! Random waits and failures of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

/// Share of slow calls; most are quick.
const SLOW_SHARE: f64 = 0.2;
/// Longest quick call.
const QUICK_WAIT_MAX: Duration = Duration::from_millis(2);

/// Factor by which failures are rarer while a host starts: a start is many calls, and one failure
/// ends it.
const START_FACTOR: f64 = 20.0;

/// Upper bound of the effects in a life that ends at a call.
const LAST_EFFECT_MAX: u64 = 150;

/// Chances of a life, and the length of its calls.
#[derive(Clone, Copy, Debug)]
pub struct Risks {
    /// Share of lives that end at a call with an effect.
    pub death_share: f64,
    /// Share of calls that fail without an effect.
    pub failure_share: f64,
    /// Share of calls whose answer is lost.
    pub lost_share: f64,
    /// Share of calls that are never answered.
    pub hang_share: f64,
    /// Longest way, to a part and back from it; most ways are short.
    pub wait_max: Duration,
}

impl Risks {
    /// Nothing fails: calls take their time, and no more.
    pub const fn none(wait_max: Duration) -> Risks {
        Risks {
            death_share: 0.0,
            failure_share: 0.0,
            lost_share: 0.0,
            hang_share: 0.0,
            wait_max,
        }
    }
}

/// Dice of one life of a host. After the world has healed, calls still wait, but none fails.
#[derive(Debug)]
pub struct Chance {
    rng: Mutex<StdRng>,
    is_healed: Arc<AtomicBool>,
    shares: [f64; 3],
    wait_max: Duration,
    /// True until the host has started.
    is_starting: AtomicBool,
    /// Calls with an effect until the life ends; zero: it does not end by itself.
    effects_left: AtomicU64,
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
    /// Dice of this seed. `is_healed` is set once nothing fails any more.
    pub fn new(risks: &Risks, seed: u64, is_healed: &Arc<AtomicBool>) -> Chance {
        let mut rng = StdRng::seed_from_u64(seed);
        let effects_left = if rng.random_bool(risks.death_share) {
            rng.random_range(1..=LAST_EFFECT_MAX)
        } else {
            0
        };
        Chance {
            effects_left: AtomicU64::new(effects_left),
            rng: Mutex::new(rng),
            is_healed: Arc::clone(is_healed),
            shares: [risks.failure_share, risks.lost_share, risks.hang_share],
            wait_max: risks.wait_max,
            is_starting: AtomicBool::new(true),
        }
    }

    /// Lets calls fail as often as the plan says from now on.
    pub fn started(&self) {
        self.is_starting.store(false, Ordering::Relaxed);
    }

    /// Throws the dice for one call.
    pub fn fate(&self) -> Fate {
        if self.is_healed.load(Ordering::Relaxed) {
            return Fate::Pass;
        }
        let dice: f64 = self.rng.lock().random();
        let dice = if self.is_starting.load(Ordering::Relaxed) {
            dice * START_FACTOR
        } else {
            dice
        };
        let [failure_share, lost_share, hang_share] = self.shares;
        match dice {
            _ if dice < failure_share => Fate::Fail,
            _ if dice < failure_share + lost_share => Fate::Lose,
            _ if dice < failure_share + lost_share + hang_share => Fate::Hang,
            _ => Fate::Pass,
        }
    }

    /// Whether the host dies at this call, which has an effect.
    pub fn is_last(&self) -> bool {
        let is_healed = self.is_healed.load(Ordering::Relaxed);
        let effects_left = self.effects_left.load(Ordering::Relaxed);
        self.effects_left
            .store(effects_left.saturating_sub(1), Ordering::Relaxed);
        !is_healed && effects_left == 1
    }

    /// Random time, in whole milliseconds.
    pub fn up_to(&self, max: Duration) -> Duration {
        let max = max.as_millis() as u64;
        Duration::from_millis(self.rng.lock().random_range(0..=max))
    }

    /// Random number, for a seed.
    pub fn number(&self) -> u64 {
        self.rng.lock().random()
    }

    /// Waits for the time of one way.
    pub async fn wait(&self) {
        let is_slow = self.rng.lock().random_bool(SLOW_SHARE);
        let max = if is_slow {
            self.wait_max
        } else {
            self.wait_max.min(QUICK_WAIT_MAX)
        };
        let wait = self.up_to(max);
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}
