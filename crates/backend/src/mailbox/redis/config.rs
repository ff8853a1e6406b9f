//! Settings of the mailbox on Redis.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use protocol::mailbox::Policies;
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::mailbox::{MailboxConfig, PlatformConfig};
use crate::tls::ClientTlsConfig;
use crate::{Error, Result};

/// Topology of the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RedisMode {
    /// One server, at the first address.
    #[default]
    Single,
    /// One master, found through the sentinels at the addresses.
    Sentinel,
    /// Redis Cluster; the addresses are some of its servers.
    Cluster,
}

/// Section `redis`: waiting messages, sessions, copies of data in history. Redis 7.0 or later with
/// `maxmemory-policy noeviction`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// Topology of the servers.
    pub mode: RedisMode,
    /// `host:port` of the server, of sentinels, or of some servers of the cluster.
    pub addresses: Vec<String>,
    /// Name of the master, as the sentinels know it.
    pub master: String,
    /// User name for the servers. Unset: their default user.
    #[schemars(extend("examples" = ["packetboat"]))]
    pub username: Option<String>,
    /// File that holds only the password; a line end after it is ignored. Read again when it
    /// changes. Unset: no password.
    #[schemars(extend("examples" = ["/etc/packetboat/redis/password"]))]
    pub password_file: Option<PathBuf>,
    /// Like `username`, for the sentinels themselves.
    #[schemars(extend("examples" = ["packetboat"]))]
    pub sentinel_username: Option<String>,
    /// Like `password_file`, for the sentinels themselves.
    #[schemars(extend("examples" = ["/etc/packetboat/redis/sentinel-password"]))]
    pub sentinel_password_file: Option<PathBuf>,
    /// Section `redis.tls`: TLS, also to the sentinels. Changed files are read again; unusable ones
    /// change nothing.
    pub tls: ClientTlsConfig,
    /// Prefix of every key. Braces are not allowed: they decide a key's slot.
    pub key_prefix: String,
    /// Timeout of a call, including retries. The call then fails as `unavailable`, and the caller
    /// tries again later. A healthy Redis answers within a few ms; senders wait up to this long.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub deadline: Duration,
    /// Timeout for connecting and signing in to one server. May outlast a call that waits for the
    /// connection.
    #[serde(skip)]
    pub connect_wait: Duration,
    /// Maximum number of pipelines in flight to one server. Further ones wait, within their
    /// deadline.
    #[serde(skip)]
    pub in_flight_max: usize,
    /// Maximum time that a message waits for a device, counted from its acceptance. Afterwards only
    /// sync delivers it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub expire: Duration,
    /// Maximum number of messages that wait for one user on one platform. Beyond it the oldest are
    /// dropped, and only sync delivers them. Negative: no maximum.
    pub count_max: i32,
    /// Limits for single platforms, by name: `ios`, `web` …
    pub platforms: BTreeMap<String, PlatformConfig>,
    /// Maximum size of the bodies in one page, in bytes (a page holds at least one message). The
    /// rest follows in the next page.
    #[serde(skip)]
    pub page_bytes_max: usize,
}

impl Default for RedisConfig {
    fn default() -> Self {
        let mailbox = MailboxConfig::default();
        RedisConfig {
            mode: RedisMode::Single,
            addresses: vec!["127.0.0.1:6379".to_owned()],
            master: "packetboat".to_owned(),
            username: None,
            password_file: None,
            sentinel_username: None,
            sentinel_password_file: None,
            tls: ClientTlsConfig::default(),
            key_prefix: "msg".to_owned(),
            deadline: Duration::from_millis(200),
            connect_wait: Duration::from_secs(1),
            in_flight_max: 64,
            expire: mailbox.expire,
            count_max: mailbox.count_max,
            platforms: mailbox.platforms,
            page_bytes_max: mailbox.page_bytes_max,
        }
    }
}

impl RedisConfig {
    /// Mailbox policies from these settings. `Conflict` if a platform's name is unknown.
    pub fn policies(&self) -> Result<Policies> {
        self.mailbox_config().policies()
    }

    /// Lists the settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.addresses("addresses", &self.addresses);
        if self.mode == RedisMode::Single && self.addresses.len() > 1 {
            let reason = "mode \"single\" uses one address";
            let remedy = "Set one, or set redis.mode to \"sentinel\" or \"cluster\"";
            let count = format_args!("{} addresses", self.addresses.len());
            problems.refuse("addresses", count, reason, remedy);
        }
        if self.key_prefix.is_empty() || !self.key_prefix.chars().all(is_plain) {
            let value = format!("{:?}", self.key_prefix);
            let reason = "key prefixes consist of letters, digits, and . _ - : only";
            problems.refuse("key_prefix", value, reason, "Such as msg");
        }
        for (key, name, file) in [
            ("username", &self.username, &self.password_file),
            (
                "sentinel_username",
                &self.sentinel_username,
                &self.sentinel_password_file,
            ),
        ] {
            if name.is_some() && file.is_none() {
                let reason = "a user name needs a password";
                problems.refuse(key, "", reason, "Set the password file, too");
            }
        }
        problems.section("tls", self.tls.problems());
        if self.deadline.is_zero() {
            let reason = "no server answers within 0s";
            problems.refuse("deadline", "0s", reason, "At least 1ms");
        }
        problems.extend(self.mailbox_config().problems());
        problems
    }

    /// Fails with `Conflict` and the list of all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
    }

    fn mailbox_config(&self) -> MailboxConfig {
        MailboxConfig {
            expire: self.expire,
            count_max: self.count_max,
            platforms: self.platforms.clone(),
            ..MailboxConfig::default()
        }
    }
}

fn is_plain(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || "._-:".contains(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_cannot_say_where_keys_lie() {
        for (prefix, is_good) in [
            ("msg", true),
            ("a-b.c_d:9", true),
            ("m{1}", false),
            ("", false),
        ] {
            let config = RedisConfig {
                key_prefix: prefix.to_owned(),
                ..RedisConfig::default()
            };
            assert_eq!(config.check().is_ok(), is_good, "{prefix:?}");
        }
    }

    #[test]
    fn one_server_has_one_address() {
        let mut config = RedisConfig::default();
        config.addresses.push("127.0.0.1:6380".to_owned());
        assert!(config.check().is_err());
        config.mode = RedisMode::Cluster;
        assert!(config.check().is_ok());
        config.addresses.clear();
        assert!(config.check().is_err());
    }
}
