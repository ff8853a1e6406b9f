//! Settings: command line over environment over file over default. Unknown keys are errors.

mod bounds;
mod check;
pub mod environment;
mod files;
mod schema;
mod secret;
mod span;
mod text;

use std::path::Path;

#[cfg(feature = "cluster")]
use backend::discovery::Role;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use schema::schema;
pub use text::{page, template};

use crate::{admin, compose, telemetry};

/// `PACKETBOAT_BOAT__WEBSOCKET=127.0.0.1:9100` sets `websocket` in section `boat`.
const PREFIX: &str = "PACKETBOAT_";

/// All settings of the program, a section a part.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
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
    /// Section `timeline`: the newest messages of groups, in Redis.
    #[cfg(feature = "cluster")]
    pub timeline: backend::timeline::TimelineConfig,
    /// Section `cache`: copies of what history has, in Redis.
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

    /// All problems at once, so that they are mended in one go.
    fn check(&self) -> Result<(), SettingsError> {
        refuse(&self.problems())
    }

    /// The files, too, that settings name: for `config check`, which all of them concern.
    pub fn check_files(&self) -> Result<(), SettingsError> {
        refuse(&self.file_problems())
    }

    /// Once more after the command line, with what only a process of its own needs: an address that others can
    /// reach.
    #[cfg(feature = "cluster")]
    pub fn check_member(&self, role: Role) -> Result<(), SettingsError> {
        self.check()?;
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
        secret::redact(&mut value);
        Ok(toml::to_string_pretty(&value)?)
    }
}

fn refuse(problems: &Problems) -> Result<(), SettingsError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(SettingsError::Contradiction(problems.to_string())),
    }
}
