//! Settings: command line over environment over file over default. Unknown keys are errors.

use std::path::Path;
use std::time::Duration;

#[cfg(feature = "cluster")]
use backend::discovery::Role;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{admin, compose, telemetry};

/// `PACKETBOAT_BOAT__WEBSOCKET=127.0.0.1:9100` sets `websocket` in section `boat`.
const PREFIX: &str = "PACKETBOAT_";

/// The least that `audit.settle` may be: ids run ahead of a clock by a second, and clocks differ.
const SETTLE_MIN: Duration = Duration::from_secs(5);

/// All settings of the program, a section a part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub log: telemetry::Config,
    pub health: admin::HealthConfig,
    pub admin: admin::Config,
    pub audit: admin::auditor::Config,
    pub embedded: compose::embedded::Config,
    #[cfg(feature = "cluster")]
    pub kafka: backend::queue::KafkaConfig,
    #[cfg(feature = "cluster")]
    pub redis: backend::mailbox::RedisConfig,
    #[cfg(feature = "cluster")]
    pub timeline: backend::timeline::TimelineConfig,
    #[cfg(feature = "cluster")]
    pub cache: backend::cache::CacheConfig,
    #[cfg(feature = "cluster")]
    pub etcd: backend::discovery::EtcdConfig,
    #[cfg(feature = "cluster")]
    pub scylla: backend::scylla::ScyllaConfig,
    pub boat: boat::Config,
    pub station: station::Config,
    pub carrier: carrier::Config,
    pub horn: horn::Config,
}

/// What is wrong with the settings: the key, the place it came from, and what was expected.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("the settings cannot be used: {0}")]
    Unusable(Box<figment::Error>),
    #[error("the settings file {0} cannot be read")]
    NoFile(String),
    #[error("{0}")]
    Contradiction(String),
}

impl Settings {
    /// Reads file and environment; checks what can be checked without starting anything.
    pub fn load(file: Option<&Path>) -> Result<Settings, SettingsError> {
        let mut figment = Figment::from(Serialized::defaults(Settings::default()));
        if let Some(file) = file {
            if !file.is_file() {
                return Err(SettingsError::NoFile(file.display().to_string()));
            }
            figment = figment.merge(Toml::file_exact(file));
        }
        // Names without "__" belong to the command line (PACKETBOAT_TOKEN …).
        let environment = Env::prefixed(PREFIX)
            .filter(|key| key.as_str().contains("__"))
            .split("__");
        let settings: Settings = figment
            .merge(environment)
            .extract()
            .map_err(|e| SettingsError::Unusable(Box::new(e)))?;
        settings.check()?;
        Ok(settings)
    }

    /// Settings that are each fine and together are not.
    fn check(&self) -> Result<(), SettingsError> {
        let open: Vec<_> = [self.boat.websocket, self.boat.tcp]
            .into_iter()
            .filter(|address| !address.ip().is_loopback())
            .collect();
        if let (Some(address), true) = (open.first(), self.station.auth.key_file.is_none()) {
            return Err(SettingsError::Contradiction(format!(
                "boat listens on {address}, which others can reach, while station.auth still has the \
                 well-known development key: anybody could sign in as anybody. Let station.auth.key_file name \
                 a file with a secret of your own, or listen on 127.0.0.1."
            )));
        }
        if let Some(contradiction) = self.log.otlp.contradiction() {
            return Err(SettingsError::Contradiction(contradiction));
        }
        self.check_desk()?;
        let audit = &self.audit;
        if audit.settle < SETTLE_MIN || audit.takeover < audit.interval * 3 {
            return Err(SettingsError::Contradiction(format!(
                "audit.settle is {}, and at least {} are needed for clocks that differ; audit.takeover is {}, and \
                 at least three audit.interval of {} are needed, or two processes take turns at every minute.",
                humantime::format_duration(audit.settle),
                humantime::format_duration(SETTLE_MIN),
                humantime::format_duration(audit.takeover),
                humantime::format_duration(audit.interval),
            )));
        }
        let embedded = &self.embedded;
        let in_log = (embedded.queue.retention_unread).saturating_add(embedded.queue.retention);
        if embedded.ledger_retention < in_log {
            return Err(SettingsError::Contradiction(format!(
                "embedded.ledger_retention is {}, but a message may be in the log for {} (a dead letter for \
                 embedded.queue.retention_unread, and for embedded.queue.retention after it was sent on its way \
                 again): the audit would report it missing. Let the ledger keep as long at least.",
                humantime::format_duration(embedded.ledger_retention),
                humantime::format_duration(in_log),
            )));
        }
        Ok(())
    }

    /// Who reaches the desk; again where the command line says where it listens.
    pub fn check_desk(&self) -> Result<(), SettingsError> {
        match self.admin.contradiction() {
            Some(contradiction) => Err(SettingsError::Contradiction(contradiction)),
            None => Ok(()),
        }
    }

    /// What only a process of its own needs: an address that others can reach.
    #[cfg(feature = "cluster")]
    pub fn check_member(&self, role: Role) -> Result<(), SettingsError> {
        self.check_desk()?;
        let (section, listen, advertise) = match role {
            Role::Boat => ("boat", self.boat.listen, &self.boat.advertise),
            Role::Station => ("station", self.station.listen, &self.station.advertise),
            Role::Carrier | Role::Horn => return Ok(()),
        };
        match listen {
            Some(listen) if listen.ip().is_unspecified() && advertise.is_none() => {
                Err(SettingsError::Contradiction(format!(
                    "{section}.listen is {listen}, which is no address to call: let {section}.advertise say how \
                     others reach it, such as http://10.0.0.7:{}",
                    listen.port()
                )))
            }
            _ => Ok(()),
        }
    }

    /// All settings as TOML, secrets struck out.
    pub fn print(&self) -> anyhow::Result<String> {
        let mut value = toml::Value::try_from(self)?;
        redact(&mut value);
        Ok(toml::to_string_pretty(&value)?)
    }
}

/// Strikes out every value whose key names a secret itself (not a file that holds one).
fn redact(value: &mut toml::Value) {
    let toml::Value::Table(table) = value else {
        return;
    };
    for (key, value) in table.iter_mut() {
        let secret = ["key", "secret", "password"].contains(&key.as_str());
        match value {
            toml::Value::String(text) if secret && !text.is_empty() => *text = "(redacted)".into(),
            _ => redact(value),
        }
    }
}
