//! Refresh of the public keys that an issuer publishes at a URL: time of the next fetch, the answer
//! to a token with an unknown key, and the age at which keys prove nothing any more. Strangers
//! choose the `kid` of a token, so `kid`s alone never cause more than one fetch in half a minute.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use protocol::Timestamp;
use protocol::pause::{between, doubled};

/// Interval between fetches, unless the provider names one.
const PERIOD: Duration = Duration::from_secs(600);
const PERIOD_MIN: Duration = Duration::from_secs(60);
const PERIOD_MAX: Duration = Duration::from_secs(3600);

/// Pauses after failed fetches double from the first to the second, each less by up to a half.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time from any fetch to one that an unknown `kid` causes.
const UNKNOWN_KID_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum wait of a sign-in for a fetch.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Sign-ins of one issuer that wait for a fetch; further ones must retry. A boat has 256 calls for
/// sign-ins, which other issuers share.
pub(super) const WAITERS_MAX: usize = 64;
/// Bounds of the retry delay of a sign-in that found no key.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = PAUSE_MAX;
/// Time for which a `kid` that a fetch did not bring causes no further one.
const UNKNOWN_KID_TTL: Duration = Duration::from_secs(60);
const UNKNOWN_MAX: usize = 1024;
/// Maximum bytes of a `kid` that causes a fetch; a longer one is never remembered either.
const KID_BYTES_MAX: usize = 256;

/// Age of keys at which operators get a warning, if a fetch failed or did not come: a provider may
/// name an hour.
const AGE_WARN: Duration = Duration::from_secs(30 * 60);
/// Time after which a due fetch counts as missed.
const OVERDUE: Duration = Duration::from_secs(60);
const WARN_INTERVAL: Duration = Duration::from_secs(600);

/// Maximum time by which a copy's date may be ahead of this clock, since clocks differ. The age of
/// a copy with a later date is unknown.
const COPY_AHEAD_MAX: Duration = Duration::from_secs(60);

/// Answer to a token without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingKey {
    /// A fetch is under way or begins now, and may bring the key.
    Wait,
    /// No wait: the issuer has no such key.
    Refuse,
    /// Unknown: the last fetch failed, and it is too early for another.
    Away,
}

/// Fetches of one issuer's keys so far. Times are monotonic.
#[derive(Debug)]
pub(super) struct KeyRefresh {
    stale_max: Duration,
    start: Timestamp,
    /// Arrival of the present set.
    set_at: Option<Timestamp>,
    due_at: Timestamp,
    begun_at: Option<Timestamp>,
    is_fetching: bool,
    failures: u32,
    /// Unknown `kid`s, in order of expiry.
    unknown: VecDeque<(Timestamp, String)>,
    names: BTreeSet<String>,
    warned_at: Option<Timestamp>,
}

impl KeyRefresh {
    /// Starts without keys: the first fetch is due at once. Keys older than `stale_max` prove
    /// nothing.
    pub(super) fn new(stale_max: Duration, now: Timestamp) -> KeyRefresh {
        KeyRefresh {
            stale_max,
            start: now,
            set_at: None,
            due_at: now,
            begun_at: None,
            is_fetching: false,
            failures: 0,
            unknown: VecDeque::new(),
            names: BTreeSet::new(),
            warned_at: None,
        }
    }

    /// Takes over earlier saved keys of this age. The first fetch stays due.
    pub(super) fn restore(&mut self, age: Duration, now: Timestamp) {
        self.set_at = Some(now - age);
    }

    /// Time of the next fetch.
    pub(super) fn due(&self) -> Timestamp {
        self.due_at
    }

    /// Whether a fetch is due; it has then begun, and no other begins before its end.
    pub(super) fn begin(&mut self, now: Timestamp) -> bool {
        let is_due = !self.is_fetching && now >= self.due_at;
        if is_due {
            self.is_fetching = true;
            self.begun_at = Some(now);
        }
        is_due
    }

    /// The fetch brought a set, which replaces the one before. `fresh_for` is the provider's
    /// freshness, see [`fresh_for`].
    pub(super) fn arrived(&mut self, fresh_for: Option<Duration>, now: Timestamp, random: u64) {
        self.is_fetching = false;
        self.failures = 0;
        self.set_at = Some(now);
        self.warned_at = None;
        self.due_at = now + period(fresh_for, random);
    }

    /// The fetch brought nothing usable: the previous set stays.
    pub(super) fn failed(&mut self, now: Timestamp, random: u64) {
        self.is_fetching = false;
        self.due_at = now + pause(self.failures, random);
        self.failures = self.failures.saturating_add(1);
    }

    /// Answers a token that names this `kid`, or none, and has no key. If keys are too old, or none
    /// ever came, every token may cause a fetch.
    pub(super) fn missing(&mut self, kid: Option<&str>, now: Timestamp) -> MissingKey {
        let is_new_kid =
            kid.is_some_and(|kid| kid.len() <= KID_BYTES_MAX && !self.is_unknown(kid, now));
        if self.is_fit(now) && !is_new_kid {
            return MissingKey::Refuse;
        }
        if self.is_fetching || now >= self.due_at {
            return MissingKey::Wait;
        }
        let is_early = |begun_at: Timestamp| now.since(begun_at) < UNKNOWN_KID_INTERVAL;
        if self.begun_at.is_some_and(is_early) {
            return match self.failures {
                0 => MissingKey::Refuse,
                _ => MissingKey::Away,
            };
        }
        self.due_at = now;
        MissingKey::Wait
    }

    /// Retry delay of a sign-in: until after the next fetch.
    pub(super) fn again_after(&self, now: Timestamp) -> Duration {
        self.due_at.since(now).clamp(RETRY_MIN, RETRY_MAX)
    }

    /// Remembers that a fetched set has no key of this name. A failed fetch tells nothing about
    /// keys.
    pub(super) fn remember_unknown(&mut self, kid: &str, now: Timestamp) {
        self.forget(now);
        if kid.len() > KID_BYTES_MAX || !self.names.insert(kid.into()) {
            return;
        }
        self.unknown.push_back((now + UNKNOWN_KID_TTL, kid.into()));
        if self.unknown.len() > UNKNOWN_MAX {
            self.forget_first();
        }
    }

    /// Whether the present keys may prove a token.
    pub(super) fn is_fit(&self, now: Timestamp) -> bool {
        self.set_at
            .is_some_and(|at| now.since(at) <= self.stale_max)
    }

    /// Age of the present set; if none ever came, time since the start.
    pub(super) fn age(&self, now: Timestamp) -> Duration {
        now.since(self.set_at.unwrap_or(self.start))
    }

    /// Whether a warning about the age is due.
    pub(super) fn warns(&mut self, now: Timestamp) -> bool {
        let is_calm = self
            .warned_at
            .is_none_or(|at| now.since(at) >= WARN_INTERVAL);
        let is_late = self.failures > 0 || now.since(self.due_at) >= OVERDUE;
        let should_warn = is_calm && is_late && self.age(now) >= AGE_WARN;
        if should_warn {
            self.warned_at = Some(now);
        }
        should_warn
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

/// Period within ten percent of the mean, and within the bounds.
fn period(fresh_for: Option<Duration>, random: u64) -> Duration {
    let mean = fresh_for.unwrap_or(PERIOD).clamp(PERIOD_MIN, PERIOD_MAX);
    let tenth = mean / 10;
    between(mean - tenth, mean + tenth, random).clamp(PERIOD_MIN, PERIOD_MAX)
}

fn pause(failures: u32, random: u64) -> Duration {
    let max_pause = doubled(PAUSE_MIN, failures, PAUSE_MAX);
    max_pause - between(Duration::ZERO, max_pause / 2, random)
}

/// Age of a copy by the time of day; `None` if its date is too far ahead.
pub(super) fn copy_age(written_at: Timestamp, now: Timestamp) -> Option<Duration> {
    (written_at.since(now) <= COPY_AHEAD_MAX).then(|| now.since(written_at))
}

/// Freshness in a provider's `Cache-Control` (RFC 9111, 5.2.2); `None` if it names no time.
/// `no-store` and `no-cache` win over `max-age`.
pub(super) fn fresh_for(cache_control: &str) -> Option<Duration> {
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

/// Parses seconds of any number of digits; a number beyond every bound becomes the largest.
fn seconds(digits: &str) -> Option<Duration> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(digits.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
