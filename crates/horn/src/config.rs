//! Settings of horn, each with what happens at its bound.

use std::path::PathBuf;
use std::time::Duration;

use protocol::notify::Limits;
use serde::{Deserialize, Serialize};

/// Section `horn` of the settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who tells users: `record` tells nobody and keeps the newest in memory (a line each at log level
    /// debug), `webhook` calls `url`.
    pub provider: ProviderKind,
    /// Where the webhook lives, `http://` or `https://`. Required by `webhook`.
    pub url: Option<String>,
    /// A file with the secret that signs webhook calls (Standard Webhooks: `whsec_` and base64, or any
    /// text). Unset: calls are not signed.
    pub secret_file: Option<PathBuf>,
    /// How long a provider may take to answer; then the attempt has failed and is made again.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Attempts of one notification; after the last it is a dead letter on `notification-dead`.
    pub attempts_max: u32,
    /// Between the first attempt and the second; doubles with each further one.
    #[serde(with = "humantime_serde")]
    pub retry_delay: Duration,
    /// The longest delay between attempts, unless the provider asks for a longer one.
    #[serde(with = "humantime_serde")]
    pub retry_delay_max: Duration,
    /// Messages older than this are no news: their notifications are dead letters.
    #[serde(with = "humantime_serde")]
    pub age_max: Duration,
    /// Calls to the provider at once.
    pub concurrency: usize,
    /// Notifications held in memory: under way, or waiting for their next attempt. At the bound no more
    /// are read; they wait in the log.
    pub pending_max: usize,
    /// Bytes of these notifications, in the same way.
    pub pending_bytes_max: usize,
    /// Newest (message, user, platform) that are remembered so as to be told once; what is forgotten may
    /// be told twice.
    pub collapse_max: usize,
    /// Newest notifications that `record` keeps.
    pub recorded_max: usize,
}

/// See [`Config::provider`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    #[default]
    Record,
    Webhook,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            provider: ProviderKind::Record,
            url: None,
            secret_file: None,
            timeout: Duration::from_secs(10),
            attempts_max: 8,
            retry_delay: Duration::from_secs(1),
            retry_delay_max: Duration::from_secs(60),
            age_max: Duration::from_secs(24 * 3600),
            concurrency: 32,
            pending_max: 4096,
            pending_bytes_max: 16 << 20,
            collapse_max: 65_536,
            recorded_max: 1024,
        }
    }
}

impl Config {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            attempts_max: self.attempts_max,
            delay: self.retry_delay,
            delay_max: self.retry_delay_max,
            age_max: self.age_max,
        }
    }
}
