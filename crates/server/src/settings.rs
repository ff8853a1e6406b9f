//! Settings: command line over environment over file over variables of OpenTelemetry over default.
//! Unknown keys are errors.

mod bounds;
mod check;
mod doctor;
pub mod environment;
mod files;
mod limits;
pub mod load_limits;
mod removed;
mod schema;
mod secret;
mod span;
mod text;
pub(crate) mod variables;

use std::path::Path;

#[cfg(feature = "cluster")]
use backend::discovery::Role;
use figment::Figment;
use figment::error::{Actual, Kind};
use figment::providers::{Env, Format, Serialized, Toml};
use operator::audit::auditor;
#[cfg(feature = "cluster")]
use operator::doctor::rules::Link;
use operator::port;
#[cfg(feature = "cluster")]
use protocol::settings::is_far;
use protocol::settings::{Problems, strike};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use limits::limits_page;
pub use schema::schema;
pub use text::{page, template};

use crate::{compose, telemetry};

/// `PACKETBOAT_BOAT__WEBSOCKET=127.0.0.1:9100` sets `websocket` in section `boat`.
const PREFIX: &str = "PACKETBOAT_";

/// All settings of the program, one section for each part.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Refuses links without TLS to parts and to a collector on other machines; otherwise the
    /// doctor warns. It checks nothing else.
    pub production: bool,
    pub log: telemetry::Config,
    pub health: port::HealthConfig,
    pub admin: port::Config,
    pub audit: auditor::Config,
    pub embedded: compose::embedded::Config,
    pub identity: backend::tls::IdentityConfig,
    #[cfg(feature = "cluster")]
    pub kafka: backend::queue::KafkaConfig,
    #[cfg(feature = "cluster")]
    pub redis: backend::mailbox::RedisConfig,
    /// Section `timeline`: the newest messages of groups, in Redis.
    #[cfg(feature = "cluster")]
    pub timeline: backend::timeline::TimelineConfig,
    #[cfg(feature = "cluster")]
    pub etcd: backend::discovery::EtcdConfig,
    #[cfg(feature = "cluster")]
    pub scylla: backend::scylla::ScyllaConfig,
    pub boat: boat::Config,
    pub station: station::Config,
    pub carrier: carrier::Config,
    pub horn: horn::Config,
}

/// Error in the settings: the key, its source, and the expected value.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("invalid settings: {0}")]
    Unusable(Box<figment::Error>),
    #[error("the settings file {0} cannot be read")]
    NoFile(String),
    /// A syntax error, without the line itself, which may hold a secret.
    #[error("the settings file {file} is not TOML: line {line}: {reason}")]
    Syntax {
        file: String,
        line: usize,
        reason: String,
    },
    #[error("{0}")]
    Contradiction(String),
}

impl Settings {
    /// Reads file and environment; runs the checks that need nothing started.
    pub fn load(file: Option<&Path>) -> Result<Settings, SettingsError> {
        if let Some(file) = file {
            check_syntax(file)?;
        }
        removed::check(&overlay(Figment::new(), file))?;
        let defaults = Figment::from(Serialized::defaults(Settings::default()));
        let mut settings: Settings = overlay(defaults, file)
            .extract()
            .map_err(|e| SettingsError::Unusable(Box::new(without_secrets(e))))?;
        variables::apply(&mut settings.log.otlp, |name| std::env::var(name).ok())
            .map_err(|problems| SettingsError::Contradiction(problems.to_string()))?;
        settings.boat.derive();
        settings.station.derive();
        settings.station.group_push_max = settings.carrier.group_push_max;
        settings.audit.derive();
        let identity = &settings.identity;
        let (cert_file, key_file) = (identity.cert_file.as_ref(), identity.key_file.as_ref());
        settings.station.auth.remote.identify(cert_file, key_file);
        settings.check()?;
        Ok(settings)
    }

    /// Links from this process to each part, and to the collector.
    #[cfg(feature = "cluster")]
    pub fn links(&self) -> [Link; 5] {
        let link = |part, section, is_tls, addresses: &[String]| Link {
            part,
            section,
            is_tls,
            far: addresses.iter().find(|address| is_far(address)).cloned(),
        };
        let (kafka, redis) = (&self.kafka, &self.redis);
        let (etcd, scylla) = (&self.etcd, &self.scylla);
        [
            link("Kafka", "kafka", kafka.tls.is_on(), &kafka.brokers),
            link("Redis", "redis", redis.tls.is_on(), &redis.addresses),
            link("etcd", "etcd", etcd.tls.is_on(), &etcd.endpoints),
            link(
                "ScyllaDB",
                "scylla",
                scylla.tls.files().is_on(),
                &scylla.contact_points,
            ),
            link(
                "the collector",
                "log.otlp",
                self.log.otlp.tls.is_on(),
                &self.log.otlp.collectors(),
            ),
        ]
    }

    /// Reports all problems at once, so that they are mended in one go.
    fn check(&self) -> Result<(), SettingsError> {
        refuse(&self.problems())
    }

    /// Checks all files that settings name: for `config check`, which is about every service.
    pub fn check_files(&self) -> Result<(), SettingsError> {
        refuse(&self.file_problems())
    }

    /// Checks settings of all services in one process, which show no certificates: nobody else may
    /// reach their addresses, unless a mesh protects them.
    pub fn check_all(&self) -> Result<(), SettingsError> {
        if !self.identity.required {
            return Ok(());
        }
        let listens = [
            ("boat.listen", self.boat.listen),
            ("station.listen", self.station.listen),
        ];
        let far = |address: &std::net::SocketAddr| !address.ip().is_loopback();
        match listens
            .iter()
            .find(|(_, listen)| listen.as_ref().is_some_and(far))
        {
            Some((key, _)) => Err(SettingsError::Contradiction(format!(
                "{key} is reachable from other machines, but services in one process have no \
                 certificates: leave it unset"
            ))),
            None => Ok(()),
        }
    }

    /// Checks once more after the command line, and for what only a process of its own needs: an
    /// address that others can reach.
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
                    "{section}.listen is {listen}, which others cannot call: set \
                     {section}.advertise to a reachable address, such as http://10.0.0.7:{}",
                    listen.port()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Prints all settings as TOML, secrets struck out.
    pub fn print(&self) -> anyhow::Result<String> {
        let mut value = toml::Value::try_from(self)?;
        secret::redact(&mut value);
        Ok(toml::to_string_pretty(&value)?)
    }
}

/// Lays the settings of a file and of the environment over `below`.
fn overlay(below: Figment, file: Option<&Path>) -> Figment {
    let figment = match file {
        Some(file) => below.merge(Toml::file_exact(file)),
        None => below,
    };
    // Other names without "__" belong to the command line (PACKETBOAT_TOKEN …).
    let environment = Env::prefixed(PREFIX)
        .filter(|key| key.as_str().contains("__") || key == "production")
        .split("__");
    figment.merge(environment)
}

/// Parses the file once by itself: the error of figment would quote the line that it cannot read.
fn check_syntax(path: &Path) -> Result<(), SettingsError> {
    let file = path.display().to_string();
    let Ok(text) = std::fs::read_to_string(path) else {
        return Err(SettingsError::NoFile(file));
    };
    let Err(error) = text.parse::<toml::Table>() else {
        return Ok(());
    };
    let start = error.span().map_or(0, |span| span.start);
    let head = text.get(..start).unwrap_or_default();
    Err(SettingsError::Syntax {
        file,
        line: head.matches('\n').count() + 1,
        reason: error.message().to_owned(),
    })
}

/// Strikes secrets from an error, which names a value of a wrong type: a URL loses its user info
/// and query.
fn without_secrets(mut error: figment::Error) -> figment::Error {
    let redacted = |actual| match actual {
        Actual::Str(text) => Actual::Str(strike(&text)),
        other => other,
    };
    error.kind = match error.kind {
        Kind::InvalidType(actual, expected) => Kind::InvalidType(redacted(actual), expected),
        Kind::InvalidValue(actual, expected) => Kind::InvalidValue(redacted(actual), expected),
        // Figment reads an older TOML than `check_syntax`, and quotes the line below its first
        // words.
        Kind::Message(text) if text.starts_with("TOML parse error") => {
            Kind::Message(text.lines().next().unwrap_or_default().to_owned())
        }
        kind => kind,
    };
    error
}

fn refuse(problems: &Problems) -> Result<(), SettingsError> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(SettingsError::Contradiction(problems.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("packetboat.toml");
        std::fs::write(&file, text).expect("written");
        let error = Settings::load(Some(&file)).expect_err(text);
        format!("{:#}", anyhow::Error::from(error))
    }

    #[test]
    fn in_one_process_no_service_is_reached_from_elsewhere() {
        let with = |address: &str, required| {
            let mut settings = Settings {
                identity: backend::tls::IdentityConfig::within(Path::new("/a"), "station"),
                ..Settings::default()
            };
            settings.identity.required = required;
            settings.station.listen = Some(address.parse().expect("an address"));
            settings.check_all().is_ok()
        };
        assert!(!with("0.0.0.0:9100", true));
        assert!(with("127.0.0.1:9100", true));
        assert!(with("0.0.0.0:9100", false));
    }

    #[test]
    fn an_error_names_the_place_and_quotes_no_secret() {
        let open =
            error_of("[log]\nlevel = \"info\"\n[redis]\naddresses = [\"redis://a:hunter2@h:1]\n");
        assert!(
            open.contains("packetboat.toml is not TOML: line 4"),
            "{open}"
        );
        let kind = error_of("[redis]\naddresses = \"redis://a:hunter2@h:1?token=hunter2\"\n");
        assert!(kind.contains("addresses") && kind.contains("h:1"), "{kind}");
        // A comma that only the newer TOML allows.
        let comma = error_of(
            "[redis]\naddresses = [\"redis://a:hunter2@h:1\"]\ntls = { password = \"hunter2\", }\n",
        );
        for text in [open, kind, comma] {
            assert!(!text.contains("hunter2"), "{text}");
        }
        let missing_file = Settings::load(Some(Path::new("/no/such/file"))).expect_err("no file");
        assert!(
            missing_file.to_string().contains("/no/such/file"),
            "{missing_file}"
        );
    }
}
