//! Settings of discovery on etcd.

use std::path::PathBuf;
use std::time::Duration;

use protocol::settings::{Problems, is_address};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::{Error, Result};

/// Below it, a slow disk of etcd would end leases of services that are well.
const LEASE_TTL_MIN: Duration = Duration::from_secs(5);

/// Section `etcd`: who is there, leases, node numbers.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdConfig {
    /// Members of the cluster, `http://host:port` each. One that is away costs a repeated call.
    pub endpoints: Vec<String>,
    /// Prefix of all keys. Installations that share an etcd need one each.
    pub prefix: String,
    /// User of etcd. Unset: no sign-in.
    #[schemars(extend("examples" = ["packetboat"]))]
    pub username: Option<String>,
    /// File with the password of `username`; white space around it does not count.
    #[schemars(extend("examples" = ["/etc/packetboat/etcd/password"]))]
    pub password_file: Option<PathBuf>,
    /// Silence of a service after which its registration and its node number end, in whole seconds.
    /// It is renewed three times as often.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMinimum" = "5s", "spanMaximum" = "1h"))]
    pub lease_ttl: Duration,
    /// Mean interval of a complete listing beside the watch, which may miss something: each time a
    /// third more or less.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub list_every: Duration,
    /// Time for a call with all its repetitions; then it is `unavailable`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub call_deadline: Duration,
    /// Time for one member to answer; then the call is repeated, perhaps with another.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub attempt_deadline: Duration,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        EtcdConfig {
            endpoints: vec!["http://127.0.0.1:2379".into()],
            prefix: "/packetboat".into(),
            username: None,
            password_file: None,
            lease_ttl: Duration::from_secs(10),
            list_every: Duration::from_secs(45),
            call_deadline: Duration::from_secs(3),
            attempt_deadline: Duration::from_secs(1),
        }
    }
}

impl EtcdConfig {
    /// What cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.endpoints.is_empty() {
            let remedy = "Name a member of the cluster: http://host:2379";
            problems.refuse("endpoints", "empty", "nobody could be asked", remedy);
        }
        for endpoint in (self.endpoints.iter()).filter(|endpoint| !is_endpoint(endpoint)) {
            let reason = "it is no address of a member";
            let value = if endpoint.contains('@') { "" } else { endpoint };
            problems.refuse("endpoints", value, reason, "Say http://host:2379");
        }
        let spans = |time| humantime_serde::re::humantime::format_duration(time);
        if self.lease_ttl < LEASE_TTL_MIN || self.lease_ttl.subsec_nanos() > 0 {
            let reason = "a slow disk of etcd would end leases of services that are well";
            let remedy = "Whole seconds, 5 at least: 10s";
            problems.refuse("lease_ttl", spans(self.lease_ttl), reason, remedy);
        }
        if self.list_every.is_zero() {
            problems.refuse(
                "list_every",
                "0s",
                "nothing else would be done",
                "Such as 45s",
            );
        }
        if self.attempt_deadline.is_zero() || self.attempt_deadline > self.call_deadline {
            let reason = "an attempt is a part of a call";
            let remedy = "Longer than nothing, and no longer than etcd.call_deadline";
            problems.refuse(
                "attempt_deadline",
                spans(self.attempt_deadline),
                reason,
                remedy,
            );
        }
        if self.call_deadline >= self.lease_ttl {
            let reason = "a lease could end while a call renews it";
            let remedy = "Shorter than etcd.lease_ttl: 3s";
            problems.refuse("call_deadline", spans(self.call_deadline), reason, remedy);
        }
        if self.username.is_some() != self.password_file.is_some() {
            let remedy = "Set both or none";
            problems.refuse(
                "username",
                "",
                "it and etcd.password_file need each other",
                remedy,
            );
        }
        problems
    }

    /// `Conflict` with all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
    }

    /// Name and password, where somebody signs in.
    pub(super) async fn user(&self) -> Result<Option<(String, SecretString)>> {
        let (Some(name), Some(file)) = (&self.username, &self.password_file) else {
            return Ok(None);
        };
        let password = tokio::fs::read_to_string(file).await.map_err(|error| {
            let file = file.display();
            Error::conflict(SEAM, format!("etcd.password_file {file}: {error}"))
        })?;
        Ok(Some((name.clone(), password.trim().into())))
    }
}

fn is_endpoint(text: &str) -> bool {
    let rest = (text.strip_prefix("http://")).or_else(|| text.strip_prefix("https://"));
    is_address(rest.unwrap_or(text).trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn the_defaults_can_be() {
        EtcdConfig::default().check().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let ok = EtcdConfig::default();
        let wrong = [
            EtcdConfig {
                endpoints: Vec::new(),
                ..ok.clone()
            },
            EtcdConfig {
                endpoints: vec!["http://".into()],
                ..ok.clone()
            },
            EtcdConfig {
                lease_ttl: Duration::from_secs(4),
                ..ok.clone()
            },
            EtcdConfig {
                lease_ttl: Duration::from_millis(5_500),
                ..ok.clone()
            },
            EtcdConfig {
                attempt_deadline: Duration::from_secs(4),
                ..ok.clone()
            },
            EtcdConfig {
                call_deadline: Duration::from_secs(10),
                ..ok.clone()
            },
            EtcdConfig {
                username: Some("root".into()),
                ..ok
            },
        ];
        for config in wrong {
            let problems = config.problems();
            assert_eq!(problems.iter().count(), 1, "{problems}");
            config.check().unwrap_err();
        }
    }

    #[tokio::test]
    async fn a_password_comes_from_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\n").unwrap();
        let mut config = EtcdConfig {
            username: Some("root".into()),
            password_file: Some(file.path().into()),
            ..EtcdConfig::default()
        };
        let (name, password) = config.user().await.unwrap().unwrap();
        assert_eq!(
            (name.as_str(), password.expose_secret()),
            ("root", "secret")
        );
        assert!(
            !format!("{password:?}").contains("secret\""),
            "{password:?}"
        );
        config.password_file = Some("/no/such/file".into());
        let error = config.user().await.unwrap_err();
        assert!(error.source.to_string().contains("/no/such/file"));
    }
}
