//! Settings of discovery on etcd.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::settings::{Problems, is_address};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::credentials::{CredentialSnapshot, Credentials};
use crate::tls::ClientTlsConfig;
use crate::{Error, Result};

const PASSWORD: &str = "password_file";

/// Minimum of `lease_ttl`: below it, a slow etcd disk would end leases of healthy services.
const LEASE_TTL_MIN: Duration = Duration::from_secs(5);

/// Section `etcd`: live services, leases, node numbers.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdConfig {
    /// Members of the cluster, each `http://host:port`, or `https://host:port` with `etcd.tls`. An
    /// unreachable member costs a repeated call.
    pub endpoints: Vec<String>,
    /// Prefix of all keys. Installations that share an etcd each need their own.
    pub prefix: String,
    /// User name for etcd. Unset: no authentication.
    #[schemars(extend("examples" = ["packetboat"]))]
    pub username: Option<String>,
    /// File that holds only the password of `username`; a line end after it is ignored. Read again
    /// when it changes.
    #[schemars(extend("examples" = ["/etc/packetboat/etcd/password"]))]
    pub password_file: Option<PathBuf>,
    /// Section `etcd.tls`: TLS. Changed files are read again; unusable ones change nothing.
    pub tls: ClientTlsConfig,
    /// Silence of a service after which its registration and its node number expire, in whole
    /// seconds. Services renew both after a quarter of that time. More than `call_deadline`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMinimum" = "5s", "spanMaximum" = "1h"))]
    pub lease_ttl: Duration,
    /// Mean interval between complete listings, which make up for events that the watch misses.
    /// Each interval varies by a third.
    #[serde(skip)]
    pub list_every: Duration,
    /// Timeout of a call, including repetitions; then it fails as `unavailable`. One member has a
    /// third of it to answer; then the call is repeated, possibly with another member.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub call_deadline: Duration,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        EtcdConfig {
            endpoints: vec!["http://127.0.0.1:2379".into()],
            prefix: "/packetboat".into(),
            username: None,
            password_file: None,
            tls: ClientTlsConfig::default(),
            lease_ttl: Duration::from_secs(10),
            list_every: Duration::from_secs(45),
            call_deadline: Duration::from_secs(3),
        }
    }
}

impl EtcdConfig {
    /// Lists the settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.endpoints.is_empty() {
            let remedy = "Set at least one member of the cluster: http://host:2379";
            problems.refuse("endpoints", "empty", "no endpoint given", remedy);
        }
        for endpoint in (self.endpoints.iter()).filter(|endpoint| !is_endpoint(endpoint)) {
            let reason = "not an etcd address";
            let value = if endpoint.contains('@') { "" } else { endpoint };
            problems.refuse("endpoints", value, reason, "Use http://host:2379");
        }
        self.check_schemes(&mut problems);
        problems.section("tls", self.tls.problems());
        let spans = |time| humantime_serde::re::humantime::format_duration(time);
        if self.lease_ttl < LEASE_TTL_MIN || self.lease_ttl.subsec_nanos() > 0 {
            let reason = "a slow etcd disk would expire the leases of healthy services";
            let remedy = "Whole seconds, at least 5: 10s";
            problems.refuse("lease_ttl", spans(self.lease_ttl), reason, remedy);
        }
        if self.call_deadline >= self.lease_ttl {
            let reason = "a lease could expire while a call renews it";
            let remedy = "Shorter than etcd.lease_ttl: 3s";
            problems.refuse("call_deadline", spans(self.call_deadline), reason, remedy);
        }
        if self.username.is_some() != self.password_file.is_some() {
            let remedy = "Set both or none";
            problems.refuse(
                "username",
                "",
                "etcd.username and etcd.password_file must be set together",
                remedy,
            );
        }
        problems
    }

    /// Fails with `Conflict` and the list of all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
    }

    /// Checks that TLS settings and the schemes of endpoints agree.
    fn check_schemes(&self, problems: &mut Problems) {
        let is_on = self.tls.is_on();
        for endpoint in self
            .endpoints
            .iter()
            .filter(|endpoint| is_endpoint(endpoint))
        {
            if is_on && endpoint.starts_with("http://") {
                let reason = "etcd.tls.ca_file is set, but this address is without TLS";
                problems.refuse("endpoints", endpoint, reason, "Use https://");
            }
            if !is_on && endpoint.starts_with("https://") {
                let reason = "no root certificates configured";
                let remedy = "Set etcd.tls.ca_file to the root certificates of the members";
                problems.refuse("endpoints", endpoint, reason, remedy);
            }
        }
    }

    /// Timeout of one member's answer.
    pub(super) fn attempt_deadline(&self) -> Duration {
        self.call_deadline / 3
    }

    /// Loads the files as they are now. Blocks while it reads a few small files.
    pub(super) fn credentials(&self) -> Result<Arc<Credentials>> {
        let password = self.password_file.as_deref();
        let password = password.map(|file| (PASSWORD, file));
        Credentials::load(SEAM, "etcd", &self.tls, password)
    }

    /// Name and password, if sign-in is configured.
    pub(super) fn user(&self, snapshot: &CredentialSnapshot) -> Option<(String, SecretString)> {
        let name = self.username.clone()?;
        Some((name, snapshot.secret(PASSWORD)?.clone()))
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
    fn defaults_are_valid() {
        EtcdConfig::default().check().unwrap();
    }

    #[test]
    fn each_unworkable_setting_is_one_problem() {
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

    #[test]
    fn endpoint_scheme_must_match_the_tls_section() {
        let problem_text = |endpoint: &str, is_on: bool| {
            let mut config = EtcdConfig {
                endpoints: vec![endpoint.into()],
                ..EtcdConfig::default()
            };
            config.tls.ca_file = is_on.then(|| "/ca".into());
            config.problems().to_string()
        };
        assert!(problem_text("http://etcd:2379", true).contains("Use https://"));
        assert!(problem_text("https://etcd:2379", false).contains("etcd.tls.ca_file"));
        for (endpoint, is_on) in [
            ("http://etcd:2379", false),
            ("https://etcd:2379", true),
            ("etcd:2379", false),
            ("etcd:2379", true),
        ] {
            assert_eq!(problem_text(endpoint, is_on), "");
        }
    }

    #[test]
    fn a_password_comes_from_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\n").unwrap();
        let mut config = EtcdConfig {
            username: Some("root".into()),
            password_file: Some(file.path().into()),
            ..EtcdConfig::default()
        };
        let snapshot = config.credentials().unwrap().current();
        let (name, password) = config.user(&snapshot).unwrap();
        assert_eq!(
            (name.as_str(), password.expose_secret()),
            ("root", "secret")
        );
        config.password_file = Some("/no/such/file".into());
        let error = config.credentials().unwrap_err();
        assert!(error.source.to_string().contains("/no/such/file"));
    }
}
