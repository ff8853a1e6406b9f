//! Reloads settings while a process runs: on SIGHUP, and operators periodically.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use operator::port::Operators;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::settings::Settings;
use crate::telemetry;

/// Interval of checks for changed operators and tokens.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Settings that may change without a restart.
const LIVE: [&str; 2] = ["log.level", "admin.operators"];

/// State of a process's settings file.
pub(super) struct Reload {
    file: Option<PathBuf>,
    /// The settings last read, without the command line.
    settings: Settings,
    operators: Operators,
    /// Reason why operators could not be read; logged once.
    trouble: Option<String>,
}

impl Reload {
    pub(super) fn new(file: Option<&Path>, settings: Settings, operators: Operators) -> Reload {
        Reload {
            file: file.map(Path::to_owned),
            settings,
            operators,
            trouble: None,
        }
    }

    pub(super) fn operators(&self) -> Operators {
        self.operators.clone()
    }

    /// Starts the reloads; from here on SIGHUP no longer ends the process.
    pub(super) fn start(self) -> Result<()> {
        let hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
        tokio::spawn(self.run(hangup));
        Ok(())
    }

    async fn run(mut self, mut hangup: Signal) {
        let mut look = interval(POLL_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let everything = tokio::select! {
                biased;
                Some(()) = hangup.recv() => true,
                _ = look.tick() => false,
            };
            // Files may be on a disk that hangs.
            let round = tokio::task::spawn_blocking(move || {
                self.round(everything);
                self
            });
            match round.await {
                Ok(reload) => self = reload,
                Err(error) => {
                    tracing::error!(%error, "settings reload has stopped; restart to pick up changes");
                    return;
                }
            }
        }
    }

    fn round(&mut self, everything: bool) {
        let read = Settings::load(self.file.as_deref()).map_err(anyhow::Error::from);
        let outcome = read.and_then(|settings| {
            let renewal = self.operators.renew(&settings.admin.operators);
            // Unreadable operators hold back no other settings.
            let settings_result = if everything {
                self.take(settings)
            } else {
                Ok(())
            };
            renewal.and(settings_result)
        });
        let trouble = outcome.err().map(|error| format!("{error:#}"));
        if let Some(error) = &trouble
            && (everything || self.trouble.as_ref() != Some(error))
        {
            tracing::warn!(error, "reload failed; keeping the current settings");
        }
        self.trouble = trouble;
    }

    fn take(&mut self, settings: Settings) -> Result<()> {
        telemetry::set_level(&settings.log.level)?;
        let restart = changed(&self.settings, &settings)?;
        tracing::info!("settings reloaded");
        if !restart.is_empty() {
            let keys = restart.join(", ");
            tracing::warn!(keys, "these changed settings need a restart");
        }
        // Settings that need a restart are logged again at each signal, until the restart.
        self.settings.log.level = settings.log.level;
        Ok(())
    }
}

/// Keys that differ and are not live.
fn changed(old_settings: &Settings, new_settings: &Settings) -> Result<Vec<String>> {
    let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
    flatten("", toml::Value::try_from(old_settings)?, &mut old);
    flatten("", toml::Value::try_from(new_settings)?, &mut new);
    let mut keys: Vec<String> = old
        .iter()
        .filter(|(key, value)| new.get(*key) != Some(value))
        .map(|(key, _)| key.clone())
        .collect();
    keys.extend(new.into_keys().filter(|key| !old.contains_key(key)));
    keys.retain(|key| !LIVE.contains(&key.as_str()));
    keys.sort();
    Ok(keys)
}

fn flatten(prefix: &str, value: toml::Value, into: &mut BTreeMap<String, toml::Value>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{key}"), value, into);
            }
        }
        value => {
            into.insert(prefix.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let old_settings = Settings::default();
        let mut new_settings = old_settings.clone();
        new_settings.log.level = "debug".into();
        assert_eq!(
            changed(&old_settings, &new_settings).expect("TOML"),
            [""; 0]
        );
        new_settings.boat.connections_max = 7;
        new_settings.boat.advertise = Some("http://10.0.0.7:9110".into());
        let keys = changed(&old_settings, &new_settings).expect("TOML");
        assert_eq!(keys, ["boat.advertise", "boat.connections_max"]);
    }
}
