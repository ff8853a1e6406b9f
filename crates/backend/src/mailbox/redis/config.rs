//! Settings of the mailbox on Redis.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use protocol::mailbox::Policies;
use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::mailbox::{MailboxConfig, PlatformConfig};
use crate::{Error, Result};

/// How the servers are arranged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RedisMode {
    /// One server, at the first address.
    #[default]
    Single,
    /// One master, which the sentinels at the addresses name.
    Sentinel,
    /// Redis Cluster; the addresses are some of its servers.
    Cluster,
}

/// Where Redis (7.0 or later, `maxmemory-policy noeviction`) is, how long it may take, and what the mailbox
/// keeps there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// "single", "sentinel" or "cluster".
    pub mode: RedisMode,
    /// `host:port` of the server, of sentinels, or of some servers of the cluster.
    pub addresses: Vec<String>,
    /// What the sentinels call the master.
    pub master: String,
    /// The user to sign in as; none: the server's default user.
    pub username: Option<String>,
    /// The file that holds the password; none: no password.
    pub password_file: Option<PathBuf>,
    /// As `username`, for the sentinels themselves.
    pub sentinel_username: Option<String>,
    /// As `password_file`, for the sentinels themselves.
    pub sentinel_password_file: Option<PathBuf>,
    /// What every key begins with. No braces: they say where a key lies.
    pub key_prefix: String,
    /// How long a call may take, its retries included; then it is *unavailable*, and whoever asked tries
    /// again later. A healthy Redis answers within a few ms, and senders wait for this one.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// How long connecting and signing in to one server may take. It may outlast a call that waits for it.
    #[serde(with = "humantime_serde")]
    pub connect_wait: Duration,
    /// How often each connection is checked: that the server answers, and that it is the same master still.
    #[serde(with = "humantime_serde")]
    pub watch_interval: Duration,
    /// How many pipelines may be on their way to one server; more wait, within their deadline.
    pub in_flight_max: usize,
    /// How many requests one pipeline holds.
    pub pipeline_max: usize,
    /// How long a message waits for a device, counted from its acceptance. After that it is reached by
    /// sync only.
    #[serde(with = "humantime_serde")]
    pub expire: Duration,
    /// How many messages wait for one user on one platform; the oldest beyond it are dropped and reached
    /// by sync only. Below zero: no maximum.
    pub count_max: i32,
    /// Platforms (by name: "ios", "web" …) that keep something else.
    pub platforms: BTreeMap<String, PlatformConfig>,
    /// How long a send_id is remembered.
    #[serde(with = "humantime_serde")]
    pub dedupe_keep: Duration,
    /// Bytes of bodies in one page (at least one message); the rest comes with the next page.
    pub page_bytes_max: usize,
}

impl Default for RedisConfig {
    fn default() -> Self {
        let kept = MailboxConfig::default();
        RedisConfig {
            mode: RedisMode::Single,
            addresses: vec!["127.0.0.1:6379".to_owned()],
            master: "packetboat".to_owned(),
            username: None,
            password_file: None,
            sentinel_username: None,
            sentinel_password_file: None,
            key_prefix: "msg".to_owned(),
            deadline: Duration::from_millis(200),
            connect_wait: Duration::from_secs(1),
            watch_interval: Duration::from_secs(1),
            in_flight_max: 64,
            pipeline_max: 128,
            expire: kept.expire,
            count_max: kept.count_max,
            platforms: kept.platforms,
            dedupe_keep: kept.dedupe_keep,
            page_bytes_max: kept.page_bytes_max,
        }
    }
}

impl RedisConfig {
    /// What the rules need of it. `Conflict` where a platform has no known name.
    pub fn policies(&self) -> Result<Policies> {
        MailboxConfig {
            expire: self.expire,
            count_max: self.count_max,
            platforms: self.platforms.clone(),
            ..MailboxConfig::default()
        }
        .policies()
    }

    /// `Conflict` on what cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = if self.addresses.is_empty() {
            "addresses is empty: name at least one host:port"
        } else if self.mode == RedisMode::Single && self.addresses.len() > 1 {
            "mode \"single\" has one address: for several, say \"sentinel\" or \"cluster\""
        } else if self.key_prefix.is_empty() || !self.key_prefix.chars().all(is_plain) {
            "key_prefix has letters, digits, and . _ - : only, and at least one"
        } else if self.in_flight_max == 0 || self.pipeline_max == 0 {
            "in_flight_max and pipeline_max are at least 1"
        } else if self.deadline.is_zero() || self.connect_wait.is_zero() {
            "deadline and connect_wait are longer than nothing"
        } else if self.watch_interval.is_zero() || self.dedupe_keep.is_zero() {
            "watch_interval and dedupe_keep are longer than nothing"
        } else {
            return Ok(());
        };
        Err(Error::conflict(SEAM, wrong))
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
