//! Keys that an issuer publishes at a URL. One task fetches them; sign-ins read the result, and
//! wait for it if a key may be on its way. [`KeyRefresh`] decides when to fetch, and for whom.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use backend::clock::{Clock, Entropy, TimerClock};
use backend::files::Reload;
use metrics::{Counter, Gauge, counter, gauge};
use parking_lot::Mutex;
use protocol::settings::Link;
use protocol::{Code, Refusal, Timestamp};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use super::KeyError;
use super::config::{Algorithm, Config, Issuer};
use super::copy::Copy;
use super::key_refresh::{FETCH_TIMEOUT, KeyRefresh, MissingKey, WAITERS_MAX, copy_age};
use super::keys::{KeySet, NoKey, replace};
use super::provider::{Provider, ProviderError};

/// Interval of checking the age of the keys, which nothing else notices.
const AGE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// An issuer's keys, and their provider.
pub(super) struct PublishedKeys {
    issuer: String,
    algorithms: Vec<Algorithm>,
    pub(super) keys: Arc<ArcSwap<KeySet>>,
    provider: Box<dyn Provider>,
    copy: Option<Copy>,
    refresh: Mutex<KeyRefresh>,
    /// Clock of `refresh`: a step of the time of day makes no key older.
    timer: TimerClock,
    /// Wakes the task for a fetch before its time.
    wake: Notify,
    /// Ends of fetches: true for a fetch that brought a set.
    ends: watch::Sender<bool>,
    /// Permits for waiting sign-ins.
    waiters: Semaphore,
    age: Gauge,
}

/// Counter of reads of an issuer's keys: `reloaded`, `refused` or `unanswered`.
pub(super) fn reloads(issuer: &str, result: &'static str) -> Counter {
    let issuer = issuer.to_owned();
    counter!("station_token_key_reloads_total", "issuer" => issuer, "result" => result)
}

impl PublishedKeys {
    /// Starts without keys.
    pub(super) fn new(
        issuer: &Issuer,
        url: &Link,
        config: &Config,
        provider: Box<dyn Provider>,
    ) -> Result<PublishedKeys, KeyError> {
        let name = &issuer.issuer;
        let dir = config.cache_dir.as_deref();
        let copy = dir.map(|dir| Copy::new(dir, name, url)).transpose()?;
        let timer = TimerClock::starting_at(Timestamp::ZERO);
        let refresh = KeyRefresh::new(config.stale_max, timer.now());
        Ok(PublishedKeys {
            issuer: name.clone(),
            algorithms: issuer.algorithms.clone(),
            keys: Arc::new(ArcSwap::from_pointee(KeySet::none())),
            provider,
            copy,
            refresh: Mutex::new(refresh),
            timer,
            wake: Notify::new(),
            ends: watch::Sender::new(false),
            waiters: Semaphore::new(WAITERS_MAX),
            age: gauge!("station_jwks_age_seconds", "issuer" => name.clone()),
        })
    }

    /// Restores the copy, if it is young enough. An unusable copy counts as none.
    pub(super) fn restore(&self, now: Timestamp) {
        let Some(copy) = &self.copy else {
            return;
        };
        let issuer = &self.issuer;
        match copy.read() {
            Ok(None) => {}
            Ok(Some((written_at, set))) => match copy_age(written_at, now) {
                None => warn!(
                    issuer,
                    "the saved key set has a date in the future: ignoring it"
                ),
                Some(age) => match KeySet::parse(&set, &self.algorithms) {
                    Ok(set) => self.restore_keys(set, age),
                    Err(reason) => {
                        warn!(issuer, reason, "the copy of its keys cannot be used");
                    }
                },
            },
            Err(error) => warn!(issuer, %error, "the copy of its keys cannot be used"),
        }
    }

    fn restore_keys(&self, set: KeySet, age: Duration) {
        replace(&self.issuer, &self.keys, set);
        self.refresh.lock().restore(age, self.timer.now());
    }

    /// Whether the keys may prove a token.
    pub(super) fn is_fit(&self) -> bool {
        self.refresh.lock().is_fit(self.timer.now())
    }

    /// Waits two seconds at most for a key that a fetch may bring.
    ///
    /// # Errors
    /// Nobody can say now whether the issuer has such a key.
    pub(super) async fn await_key(
        &self,
        kid: Option<&str>,
        algorithm: jsonwebtoken::Algorithm,
    ) -> Result<(), Refusal> {
        let is_missing = || {
            let keys = self.keys.load();
            matches!(keys.find(kid, algorithm), Err(NoKey::Unknown))
        };
        if self.is_fit() && !is_missing() {
            return Ok(());
        }
        let mut ends = self.ends.subscribe();
        let missing_key = self.refresh.lock().missing(kid, self.timer.now());
        match missing_key {
            MissingKey::Refuse => return Ok(()),
            MissingKey::Away => return Err(self.unavailable()),
            MissingKey::Wait => {}
        }
        self.wake.notify_one();
        let Ok(_permit) = self.waiters.try_acquire() else {
            return Err(crowded());
        };
        let change = timeout(FETCH_TIMEOUT, ends.changed()).await;
        let has_set = change.is_ok() && *ends.borrow();
        if !is_missing() {
            return Ok(());
        }
        if !has_set {
            return Err(self.unavailable());
        }
        if let Some(kid) = kid {
            let now = self.timer.now();
            self.refresh.lock().remember_unknown(kid, now);
        }
        Ok(())
    }

    /// Refusal while keys are too old, or one is missing, and their owner cannot be asked.
    pub(super) fn unavailable(&self) -> Refusal {
        let text = "the keys of the token's issuer are unavailable; try again";
        let retry_after = self.refresh.lock().again_after(self.timer.now());
        Refusal::new(Code::Unavailable, text).retry_after(retry_after)
    }

    /// Fetches the keys whenever a fetch is due, until dropped. `clock` is the time of day, for
    /// copies.
    pub(super) async fn keep(&self, clock: &dyn Clock, entropy: &dyn Entropy) {
        let mut trouble = None;
        let mut copy_task = None;
        loop {
            self.report_age();
            if self.begins() {
                let answer = self.refresh_once(entropy).await;
                self.ends.send_replace(answer.is_ok());
                match answer {
                    Ok(set) => {
                        trouble = None;
                        copy_task = self.write_copy(copy_task, set, clock.now());
                    }
                    Err(error) => trouble = self.report(&error, trouble),
                }
                continue;
            }
            let due_at = self.refresh.lock().due();
            let pause = due_at.since(self.timer.now()).min(AGE_CHECK_INTERVAL);
            // An early wake-up only checks the time again.
            let _ = timeout(pause, self.wake.notified()).await;
        }
    }

    fn begins(&self) -> bool {
        self.refresh.lock().begin(self.timer.now())
    }

    /// Fetches the keys once. A set that it returns is in use.
    async fn refresh_once(&self, entropy: &dyn Entropy) -> Result<Vec<u8>, ProviderError> {
        let answer = self.provider.fetch().await.and_then(|answer| {
            let set = KeySet::parse(&answer.content, &self.algorithms);
            Ok((set.map_err(ProviderError::Refused)?, answer))
        });
        let mut refresh = self.refresh.lock();
        let (now, random) = (self.timer.now(), entropy.next());
        match answer {
            Ok((set, answer)) => {
                if replace(&self.issuer, &self.keys, set) == Reload::Reloaded {
                    info!(issuer = self.issuer, "changed keys reloaded");
                    reloads(&self.issuer, "reloaded").increment(1);
                }
                refresh.arrived(answer.fresh_for, now, random);
                Ok(answer.content)
            }
            Err(error) => {
                refresh.failed(now, random);
                Err(error)
            }
        }
    }

    /// Counts each failure, and logs it once per reason.
    fn report(&self, error: &ProviderError, previous: Option<String>) -> Option<String> {
        let result = match error {
            ProviderError::Unanswered(_) => "unanswered",
            ProviderError::Refused(_) => "refused",
        };
        reloads(&self.issuer, result).increment(1);
        let text = error.to_string();
        if previous.as_ref() != Some(&text) {
            let issuer = &self.issuer;
            warn!(issuer, %error, "key reload failed; keeping the current keys");
        }
        Some(text)
    }

    /// Writes a copy, unless the previous one still waits for its disk.
    fn write_copy(
        &self,
        previous_task: Option<JoinHandle<()>>,
        set: Vec<u8>,
        now: Timestamp,
    ) -> Option<JoinHandle<()>> {
        let copy = self.copy.clone()?;
        if previous_task
            .as_ref()
            .is_some_and(|task| !task.is_finished())
        {
            return previous_task;
        }
        let issuer = self.issuer.clone();
        Some(spawn_blocking(move || {
            if let Err(error) = copy.write(&set, now) {
                warn!(issuer, %error, "cannot save the key set for a restart");
            }
        }))
    }

    fn report_age(&self) {
        let now = self.timer.now();
        let (age, is_stale) = {
            let mut refresh = self.refresh.lock();
            (refresh.age(now), refresh.warns(now))
        };
        self.age.set(age.as_secs_f64());
        if is_stale {
            let (issuer, seconds) = (&self.issuer, age.as_secs());
            warn!(
                issuer,
                seconds, "the key set is getting old: the provider does not answer"
            );
        }
    }
}

/// Refusal while enough others wait for the same keys.
fn crowded() -> Refusal {
    let text = "too many sign-ins are waiting for the keys of the token's issuer; try again";
    Refusal::new(Code::Unavailable, text).retry_after(FETCH_TIMEOUT)
}
