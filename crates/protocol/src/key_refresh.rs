//! Public keys that an issuer publishes at a URL: the next look at them, the answer to a token whose key is unknown, and
//! the age at which they prove nothing any more. Strangers choose the `kid` of a token, so that a `kid` alone never makes
//! more than one look in half a minute.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::Timestamp;

/// Between two looks, where the provider does not say.
const PERIOD: Duration = Duration::from_secs(600);
const PERIOD_MIN: Duration = Duration::from_secs(60);
const PERIOD_MAX: Duration = Duration::from_secs(3600);

/// Pauses after looks that failed double from the first to the second, each less by up to a half.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// From any look to one that an unknown `kid` causes.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The longest that a sign-in waits for a look.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Sign-ins of one issuer that wait for a look; further ones are to come again. A boat has 256 calls for sign-ins, and
/// they are for other issuers, too.
pub const WAITERS_MAX: usize = 64;
/// Bounds of the time after which a sign-in is to come again that found no key.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = PAUSE_MAX;
/// A `kid` that a look did not find causes none for so long.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
const UNKNOWN_MAX: usize = 1024;
/// Bytes of a `kid` that causes a look; a longer one is never remembered either.
const KID_BYTES_MAX: usize = 256;

/// Keys of this age are for operators to know, where a look failed or did not come: a provider may say an hour.
const AGE_WARN: Duration = Duration::from_secs(30 * 60);
/// A look that is due for so long did not come.
const OVERDUE: Duration = Duration::from_secs(60);
const WARN_EVERY: Duration = Duration::from_secs(600);

/// A copy may be dated so much after now: two clocks differ. One of a later date has no age.
const COPY_AHEAD_MAX: Duration = Duration::from_secs(60);

/// The answer to a token for which there is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A look is under way or begins now, and may bring the key.
    Wait,
    /// Nothing is to be waited for: the issuer has no such key.
    Refuse,
    /// Nobody knows: the last look failed, and it is too early for another.
    Away,
}

/// The looks at one issuer's keys so far. Times are of a timer that never steps.
#[derive(Debug)]
pub struct KeyRefresh {
    stale_max: Duration,
    start: Timestamp,
    /// Arrival of the present set.
    set_at: Option<Timestamp>,
    due: Timestamp,
    begun_at: Option<Timestamp>,
    is_looking: bool,
    failures: u32,
    /// In the order in which their time ends.
    unknown: VecDeque<(Timestamp, String)>,
    names: BTreeSet<String>,
    warned_at: Option<Timestamp>,
}

impl KeyRefresh {
    /// Without keys: the first look is due at once. Keys older than `stale_max` prove nothing.
    pub fn new(stale_max: Duration, now: Timestamp) -> KeyRefresh {
        KeyRefresh {
            stale_max,
            start: now,
            set_at: None,
            due: now,
            begun_at: None,
            is_looking: false,
            failures: 0,
            unknown: VecDeque::new(),
            names: BTreeSet::new(),
            warned_at: None,
        }
    }

    /// Keys of this age were put by earlier. The first look stays due.
    pub fn restore(&mut self, age: Duration, now: Timestamp) {
        self.set_at = Some(now - age);
    }

    /// The time of the next look.
    pub fn due(&self) -> Timestamp {
        self.due
    }

    /// True where a look is due; it has begun then, and no other begins before its end.
    pub fn begin(&mut self, now: Timestamp) -> bool {
        let begins = !self.is_looking && now >= self.due;
        if begins {
            self.is_looking = true;
            self.begun_at = Some(now);
        }
        begins
    }

    /// The look brought a set, which replaces the one before. `fresh_for` is the provider's word, see [`fresh_for`].
    pub fn arrived(&mut self, fresh_for: Option<Duration>, now: Timestamp, random: u64) {
        self.is_looking = false;
        self.failures = 0;
        self.set_at = Some(now);
        self.warned_at = None;
        self.due = now + period(fresh_for, random);
    }

    /// The look brought nothing that can be used: the set of before stays.
    pub fn failed(&mut self, now: Timestamp, random: u64) {
        self.is_looking = false;
        self.due = now + pause(self.failures, random);
        self.failures = self.failures.saturating_add(1);
    }

    /// No key for a token that names this `kid`, or none. Where keys are too old, or none ever came, every token asks.
    pub fn missing(&mut self, kid: Option<&str>, now: Timestamp) -> Missing {
        let asks = kid.is_some_and(|kid| kid.len() <= KID_BYTES_MAX && !self.is_unknown(kid, now));
        if self.is_fit(now) && !asks {
            return Missing::Refuse;
        }
        if self.is_looking || now >= self.due {
            return Missing::Wait;
        }
        let is_early = |begun: Timestamp| now.since(begun) < ASK_EVERY;
        if self.begun_at.is_some_and(is_early) {
            return match self.failures {
                0 => Missing::Refuse,
                _ => Missing::Away,
            };
        }
        self.due = now;
        Missing::Wait
    }

    /// Time after which a sign-in may come again: after the next look.
    pub fn again_after(&self, now: Timestamp) -> Duration {
        self.due.since(now).clamp(AGAIN_MIN, AGAIN_MAX)
    }

    /// A look brought a set without a key of this name. One that failed says nothing of keys.
    pub fn remember_unknown(&mut self, kid: &str, now: Timestamp) {
        self.forget(now);
        if kid.len() > KID_BYTES_MAX || !self.names.insert(kid.into()) {
            return;
        }
        self.unknown.push_back((now + UNKNOWN_FOR, kid.into()));
        if self.unknown.len() > UNKNOWN_MAX {
            self.forget_first();
        }
    }

    /// True where the present keys may prove a token.
    pub fn is_fit(&self, now: Timestamp) -> bool {
        self.set_at
            .is_some_and(|at| now.since(at) <= self.stale_max)
    }

    /// The age of the present set; where none ever came, the time since the start.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.set_at.unwrap_or(self.start))
    }

    /// True where the age is to be said now.
    pub fn warns(&mut self, now: Timestamp) -> bool {
        let is_calm = self.warned_at.is_none_or(|at| now.since(at) >= WARN_EVERY);
        let is_late = self.failures > 0 || now.since(self.due) >= OVERDUE;
        let warns = is_calm && is_late && self.age(now) >= AGE_WARN;
        if warns {
            self.warned_at = Some(now);
        }
        warns
    }

    fn is_unknown(&mut self, kid: &str, now: Timestamp) -> bool {
        self.forget(now);
        self.names.contains(kid)
    }

    fn forget(&mut self, now: Timestamp) {
        while self.unknown.front().is_some_and(|(end, _)| *end <= now) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, kid)) = self.unknown.pop_front() {
            self.names.remove(&kid);
        }
    }
}

/// Ten percent less to ten percent more, within the bounds.
fn period(fresh_for: Option<Duration>, random: u64) -> Duration {
    let mean = fresh_for.unwrap_or(PERIOD).clamp(PERIOD_MIN, PERIOD_MAX);
    let least = mean - mean / 10;
    (least + below(mean / 5, random)).clamp(PERIOD_MIN, PERIOD_MAX)
}

fn pause(failures: u32, random: u64) -> Duration {
    let doubled = PAUSE_MIN.saturating_mul(2_u32.saturating_pow(failures));
    let most = doubled.min(PAUSE_MAX);
    most - below(most / 2, random)
}

/// Up to `end`.
fn below(end: Duration, random: u64) -> Duration {
    let millis = u64::try_from(end.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(random % millis.saturating_add(1))
}

/// The age of a copy by the time of day, where it has one.
pub fn age_of_copy(written: Timestamp, now: Timestamp) -> Option<Duration> {
    (written.since(now) <= COPY_AHEAD_MAX).then(|| now.since(written))
}

/// A provider's word on its answer (`Cache-Control`, RFC 9111, 5.2.2), none where it says nothing about time.
/// `no-store` and `no-cache` win over `max-age`.
pub fn fresh_for(cache_control: &str) -> Option<Duration> {
    let mut max_age = None;
    for directive in cache_control.split(',') {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-store" | "no-cache" => return Some(Duration::ZERO),
            "max-age" if max_age.is_none() => max_age = seconds(value.trim().trim_matches('"')),
            _ => {}
        }
    }
    max_age
}

/// Seconds of any number of digits: those beyond every bound are the last one.
fn seconds(digits: &str) -> Option<Duration> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(digits.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
