//! Settings of the embedded mailbox.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::Platform;
use protocol::mailbox::{MailboxPolicy, Policies};
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SEAM;
use crate::{Error, Result};

/// Age at which a send_id is forgotten.
pub(in crate::mailbox) const DEDUPE_KEEP: Duration = Duration::from_secs(86_400);

/// Messages waiting for devices.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MailboxConfig {
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

/// Limits of one platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlatformConfig {
    /// Like `expire` for all platforms.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub expire: Duration,
    /// Like `count_max` for all platforms.
    pub count_max: i32,
}

impl Default for MailboxConfig {
    fn default() -> Self {
        MailboxConfig {
            expire: Duration::from_secs(7 * 86_400),
            count_max: 1_000,
            platforms: BTreeMap::new(),
            page_bytes_max: 1 << 20,
        }
    }
}

impl MailboxConfig {
    /// Lists the settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        for name in self.platforms.keys() {
            if let Err(error) = name.parse::<Platform>() {
                let key = format!("platforms.{name}");
                problems.refuse(&key, "", &error.to_string(), "Such as ios, android or web");
            }
        }
        problems
    }

    /// Mailbox policies from these settings. `Conflict` if a platform's name is unknown.
    pub fn policies(&self) -> Result<Policies> {
        let mut policies = Policies::uniform(policy(self.expire, self.count_max));
        for (name, own) in &self.platforms {
            let platform: Platform = name.parse().map_err(|e| Error::conflict(SEAM, e))?;
            policies
                .own
                .insert(platform, policy(own.expire, own.count_max));
        }
        Ok(policies)
    }
}

fn policy(expire: Duration, count_max: i32) -> MailboxPolicy {
    MailboxPolicy {
        expire,
        count_max: u32::try_from(count_max).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_maximum_is_none() {
        // proves S1-53
        let config = MailboxConfig {
            count_max: -1,
            ..MailboxConfig::default()
        };
        let policies = config.policies().expect("no platforms");
        assert_eq!(policies.of(Platform::Ios).count_max, None);
    }

    #[test]
    fn platforms_are_named_as_people_name_them() {
        let web = PlatformConfig {
            expire: Duration::from_secs(60),
            count_max: 10,
        };
        let mut config = MailboxConfig::default();
        config.platforms.insert("web".into(), web);
        let policies = config.policies().expect("web is a platform");
        assert_eq!(policies.of(Platform::Web).count_max, Some(10));
        assert_eq!(policies.of(Platform::Ios).count_max, Some(1_000));
        config.platforms.insert("phone".into(), web);
        assert!(config.policies().is_err());
    }
}
