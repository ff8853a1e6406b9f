//! Settings of discovery on etcd.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::{Error, Result};

/// Below it, a slow disk of etcd would end leases of services that are well.
const LEASE_TTL_MIN: Duration = Duration::from_secs(5);

/// Where etcd is, and how patient a service is with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdConfig {
    /// The members of the cluster, `http://host:port` each. One that is away costs a repeated call.
    pub endpoints: Vec<String>,
    /// All keys begin with it. Installations that share an etcd need one each.
    pub prefix: String,
    /// Who signs in to etcd. Unset: nobody has to.
    pub username: Option<String>,
    /// A file with the password of `username`; white space around it does not count.
    pub password_file: Option<PathBuf>,
    /// How long a service that says nothing stays registered, and keeps its node number: at least 5 s,
    /// whole seconds. It is renewed three times as often.
    #[serde(with = "humantime_serde")]
    pub lease_ttl: Duration,
    /// How often, on average, everybody is listed anew beside the watch, which may miss something: each
    /// time a third more or less.
    #[serde(with = "humantime_serde")]
    pub list_every: Duration,
    /// How long a call may take with all its repetitions; then it is `unavailable`.
    #[serde(with = "humantime_serde")]
    pub call_deadline: Duration,
    /// How long one member may take to answer; then the call is repeated, perhaps with another.
    #[serde(with = "humantime_serde")]
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
    /// `Conflict` where a setting cannot be, with what would be right.
    pub fn check(&self) -> Result<()> {
        let wrong = if self.endpoints.is_empty() {
            "etcd.endpoints names no member of the cluster: http://host:2379"
        } else if self.lease_ttl < LEASE_TTL_MIN || self.lease_ttl.subsec_nanos() > 0 {
            "etcd.lease_ttl must be whole seconds, 5 at least: 10s"
        } else if self.list_every.is_zero() {
            "etcd.list_every must be longer than nothing: 45s"
        } else if self.attempt_deadline.is_zero() || self.attempt_deadline > self.call_deadline {
            "etcd.attempt_deadline must be longer than nothing, and no longer than etcd.call_deadline"
        } else if self.call_deadline >= self.lease_ttl {
            "etcd.call_deadline must be shorter than etcd.lease_ttl: 3s"
        } else if self.username.is_some() != self.password_file.is_some() {
            "etcd.username and etcd.password_file need each other"
        } else {
            return Ok(());
        };
        Err(Error::conflict(SEAM, wrong))
    }

    /// Name and password, where somebody signs in.
    pub(super) async fn user(&self) -> Result<Option<(String, String)>> {
        let (Some(name), Some(file)) = (&self.username, &self.password_file) else {
            return Ok(None);
        };
        let password = tokio::fs::read_to_string(file).await.map_err(|error| {
            let file = file.display();
            Error::conflict(SEAM, format!("etcd.password_file {file}: {error}"))
        })?;
        Ok(Some((name.clone(), password.trim().to_owned())))
    }
}

#[cfg(test)]
mod tests {
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
            let error = config.check().unwrap_err();
            assert!(error.source.to_string().starts_with("etcd."), "{error}");
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
        let user = config.user().await.unwrap();
        assert_eq!(user, Some(("root".into(), "secret".into())));
        config.password_file = Some("/no/such/file".into());
        let error = config.user().await.unwrap_err();
        assert!(error.source.to_string().contains("/no/such/file"));
    }
}
