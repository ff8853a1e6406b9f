//! Settings of the connection to ScyllaDB or Cassandra.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::settings::Problems;
use schemars::JsonSchema;
use scylla::statement::Consistency;
use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::credentials::Credentials;
use crate::tls::{ClientTlsConfig, ServerNames};
use crate::{Error, Result};

pub(super) const PASSWORD: &str = "password_file";

/// Longest retention: servers take a time to live in seconds, of at most twenty years.
const RETENTION_MAX: Duration = Duration::from_secs(20 * 365 * 86_400);

/// Section `scylla`: history and related data, in ScyllaDB or Cassandra.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScyllaConfig {
    /// `host:port` of some nodes, through which the others are found.
    pub contact_points: Vec<String>,
    /// Keyspace of all tables: lower-case letters, digits and `_`, at most 48 characters.
    pub keyspace: String,
    /// User name for the cluster. Empty: no authentication.
    pub username: String,
    /// File that holds only the password; a line end after it is ignored. Read again when it
    /// changes.
    #[schemars(extend("examples" = ["/etc/packetboat/scylla/password"]))]
    pub password_file: Option<PathBuf>,
    /// Section `scylla.tls`: TLS. Changed files are read again; unusable ones change nothing.
    pub tls: ScyllaTlsConfig,
    /// Datacenter to connect to, whose quorum counts. Empty: all nodes form one datacenter.
    pub datacenter: String,
    /// Section `scylla.replication`: replication of a keyspace that `packetboat schema apply`
    /// creates.
    pub replication: Replication,
    /// Replicas that must answer a write or a read.
    pub consistency: ConsistencyLevel,
    /// Timeout of connecting, including the check of the tables.
    #[serde(skip)]
    pub connect_timeout: Duration,
    /// Timeout of one request, including the wait for its turn and retries. Its outcome is then
    /// unknown, and the caller repeats it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub request_timeout: Duration,
    /// Timeout of one schema change, until all nodes agree.
    #[serde(skip)]
    pub schema_timeout: Duration,
    /// Maximum number of requests in flight. Further ones wait for their turn, within their
    /// `request_timeout`.
    #[serde(skip)]
    pub in_flight_max: usize,
    /// Maximum number of requests in flight for one call (a call may carry many rows).
    #[serde(skip)]
    pub call_in_flight_max: usize,
    /// Age at which ledger entries, and groups' records of former members, are removed. At least
    /// two days more than `kafka.retention.message`, at most twenty years.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub ledger_retention: Duration,
}

/// TLS with the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScyllaTlsConfig {
    /// PEM file with the roots that sign the nodes' certificates; while roots change, the old and
    /// the new one. Unset: no TLS.
    #[schemars(extend("examples" = ["/etc/packetboat/parts/ca.crt"]))]
    pub ca_file: Option<PathBuf>,
    /// PEM file with this process's certificate, followed by its intermediates. Unset: none, which
    /// nodes may refuse.
    #[schemars(extend("examples" = ["/etc/packetboat/parts/tls.crt"]))]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of `cert_file`, without a passphrase.
    #[schemars(extend("examples" = ["/etc/packetboat/parts/tls.key"]))]
    pub key_file: Option<PathBuf>,
    /// Names that a node's certificate must carry. Nodes are dialed by IP, so `address` requires
    /// certificates with an IP among their alternative names.
    pub names: ServerNames,
}

impl ScyllaTlsConfig {
    /// Files alone, without the settings for nodes of ScyllaDB.
    #[must_use]
    pub fn files(&self) -> ClientTlsConfig {
        ClientTlsConfig {
            ca_file: self.ca_file.clone(),
            cert_file: self.cert_file.clone(),
            key_file: self.key_file.clone(),
        }
    }
}

/// Copies (the strategy is `NetworkTopologyStrategy`).
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Replication {
    /// Number of copies in each datacenter. 1 is for a single node: the loss of that node loses
    /// messages. Three survive the loss of any one node.
    pub factor: u8,
    /// Number of copies by datacenter, in place of `factor` in each.
    pub datacenters: BTreeMap<String, u8>,
}

/// Replicas that must answer. Reads and writes share the level, so that they meet in at least one
/// replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsistencyLevel {
    /// More than half of the replicas in the own datacenter.
    #[default]
    LocalQuorum,
    /// More than half of all replicas, for services that run in several datacenters at once.
    Quorum,
}

impl Default for ScyllaConfig {
    fn default() -> Self {
        ScyllaConfig {
            contact_points: vec!["127.0.0.1:9042".to_owned()],
            keyspace: "packetboat".to_owned(),
            username: String::new(),
            password_file: None,
            tls: ScyllaTlsConfig::default(),
            datacenter: String::new(),
            replication: Replication::default(),
            consistency: ConsistencyLevel::default(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(2),
            schema_timeout: Duration::from_secs(30),
            in_flight_max: 2_048,
            call_in_flight_max: 128,
            ledger_retention: Duration::from_secs(14 * 86_400),
        }
    }
}

impl Default for Replication {
    fn default() -> Self {
        Replication {
            factor: 1,
            datacenters: BTreeMap::new(),
        }
    }
}

impl From<ConsistencyLevel> for Consistency {
    fn from(level: ConsistencyLevel) -> Consistency {
        match level {
            ConsistencyLevel::LocalQuorum => Consistency::LocalQuorum,
            ConsistencyLevel::Quorum => Consistency::Quorum,
        }
    }
}

impl ScyllaConfig {
    /// Settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.addresses("contact_points", &self.contact_points);
        if !is_keyspace(&self.keyspace) {
            let value = format!("{:?}", self.keyspace);
            let remedy = "Use a letter, then lower-case letters, digits and _, at most 48 in all";
            problems.refuse("keyspace", value, "not a valid CQL name", remedy);
        }
        if !self.username.is_empty() && self.password_file.is_none() {
            let remedy = "Set both or none";
            problems.refuse("username", "", "scylla.password_file is not set", remedy);
        }
        if self.request_timeout.is_zero() {
            let reason = "every request would time out";
            problems.refuse("request_timeout", "0s", reason, "More than 0s");
        }
        if self.ledger_retention < Duration::from_secs(1) || self.ledger_retention > RETENTION_MAX {
            let value = humantime_serde::re::humantime::format_duration(self.ledger_retention);
            let reason = "a TTL is in whole seconds, at most 20 years";
            problems.refuse("ledger_retention", value, reason, "Such as 14days");
        }
        problems.section("tls", self.tls.files().problems());
        problems.section("replication", self.replication.problems());
        problems
    }

    /// `Conflict` with all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
    }

    /// Reads the files as they are now. Blocks, but files are few and small.
    pub(super) fn credentials(&self) -> Result<Arc<Credentials>> {
        let password = self.password_file.as_deref();
        let password = password.map(|file| (PASSWORD, file));
        Credentials::load(SEAM, "scylla", &self.tls.files(), password)
    }
}

impl Replication {
    fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.factor == 0 {
            problems.refuse("factor", 0, "nothing would be kept", "Say 3");
        }
        for (name, factor) in &self.datacenters {
            let key = format!("datacenters.{name:?}");
            if *factor == 0 {
                problems.refuse(&key, 0, "nothing would be kept", "Use 3, or remove it");
            }
            if name.is_empty() || name.contains(['\'', '{', '}']) {
                let reason = "not a valid datacenter name";
                problems.refuse(&key, factor, reason, "Use a name without quotes and braces");
            }
        }
        problems
    }

    /// Copies in this datacenter.
    pub(super) fn in_datacenter(&self, name: &str) -> u8 {
        if self.datacenters.is_empty() {
            self.factor
        } else {
            self.datacenters.get(name).copied().unwrap_or(0)
        }
    }

    /// Renders the replication as CQL.
    pub(super) fn to_cql(&self) -> String {
        let factors = if self.datacenters.is_empty() {
            format!(", 'replication_factor': {}", self.factor)
        } else {
            self.datacenters
                .iter()
                .map(|(name, factor)| format!(", '{name}': {factor}"))
                .collect()
        };
        format!("{{'class': 'NetworkTopologyStrategy'{factors}}}")
    }
}

fn is_keyspace(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= 48
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_one_node_on_this_machine() {
        let config = ScyllaConfig::default();
        config.check().expect("fits");
        assert_eq!(
            config.replication.to_cql(),
            "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
        );
    }

    #[test]
    fn unworkable_settings_are_refused_by_name() {
        let refusal_text = |change: fn(&mut ScyllaConfig)| {
            let mut config = ScyllaConfig::default();
            change(&mut config);
            config.check().expect_err("refused").source.to_string()
        };
        assert!(refusal_text(|c| c.contact_points.clear()).contains("contact_points"));
        for name in ["", "Packet", "1st", "a;drop", "a b", &"x".repeat(49)] {
            assert!(!is_keyspace(name), "{name}");
        }
        assert!(refusal_text(|c| c.keyspace = "a-b".into()).contains("keyspace"));
        assert!(refusal_text(|c| c.request_timeout = Duration::ZERO).contains("request_timeout"));
        assert!(refusal_text(|c| c.ledger_retention = Duration::ZERO).contains("ledger_retention"));
        assert!(refusal_text(|c| c.replication.factor = 0).contains("replication"));
        assert!(
            refusal_text(|c| _ = c.replication.datacenters.insert("a'".into(), 3))
                .contains("not a valid datacenter name")
        );
    }

    #[test]
    fn a_factor_by_datacenter_replaces_the_one_for_all() {
        let mut replication = Replication::default();
        replication.datacenters.insert("paris".into(), 3);
        assert_eq!(
            replication.to_cql(),
            "{'class': 'NetworkTopologyStrategy', 'paris': 3}"
        );
        assert_eq!(replication.in_datacenter("paris"), 3);
        assert_eq!(replication.in_datacenter("rome"), 0);
    }
}
