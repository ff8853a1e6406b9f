//! Settings of horn, each with what happens at its bound.

use std::path::PathBuf;
use std::time::Duration;

use protocol::notify::NotifyLimits;
use protocol::settings::{Link, Problems};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Section `horn`: notifications of absent users.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Provider of notifications.
    pub provider: ProviderKind,
    /// Address of the webhook, `http://` or `https://`. Required by `webhook`.
    #[schemars(extend("examples" = ["https://push.example.com/packetboat"]))]
    pub url: Option<Link>,
    /// File with the secret that signs webhook calls (Standard Webhooks: `whsec_` and base64, or
    /// any text). Unset: calls are not signed.
    #[schemars(extend("examples" = ["/etc/packetboat/webhook/secret"]))]
    pub secret_file: Option<PathBuf>,
    /// Timeout of one attempt; it then counts as failed and is repeated.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub timeout: Duration,
    /// Maximum number of attempts for one notification; after the last it becomes a dead letter on
    /// `notification-dead`.
    #[serde(skip)]
    pub attempts_max: u32,
    /// Delay between the first and the second attempt; doubled for each further one.
    #[serde(skip)]
    pub retry_delay: Duration,
    /// Maximum delay between attempts, unless the provider asks for a longer one.
    #[serde(skip)]
    pub retry_delay_max: Duration,
    /// Age of a message from which its notification becomes a dead letter: it is no longer news. In
    /// a cluster at most 2days: Kafka keeps records of topic `notification` for three.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub age_max: Duration,
    /// Maximum number of concurrent calls to the provider.
    pub concurrency: usize,
    /// Maximum number of notifications in memory, in flight or waiting for their next attempt.
    /// Further ones wait in the log.
    pub pending_max: usize,
    /// Maximum size of these notifications in bytes. Further ones wait in the log.
    #[serde(skip)]
    pub pending_bytes_max: usize,
}

/// See [`Config::provider`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// No calls: the newest notifications in memory, and one log line each at level debug.
    #[default]
    Record,
    /// Calls to `url`.
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
        }
    }
}

impl Config {
    /// Settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let is_webhook = self.provider == ProviderKind::Webhook;
        match self.url.as_ref().map(Link::expose) {
            None if is_webhook => {
                let remedy = "Set the webhook's URL: https://host/path";
                problems.refuse("url", "unset", "horn.provider is webhook", remedy);
            }
            // The URL may hold a token, and is not repeated.
            Some(url) if !is_url(url) => {
                let remedy = "Such as https://host/path";
                problems.refuse("url", "", "not an http:// or https:// URL", remedy);
            }
            _ => {}
        }
        problems
    }

    pub(crate) fn limits(&self) -> NotifyLimits {
        NotifyLimits {
            attempts_max: self.attempts_max,
            delay: self.retry_delay,
            delay_max: self.retry_delay_max,
            age_max: self.age_max,
        }
    }
}

fn is_url(text: &str) -> bool {
    let url = reqwest::Url::parse(text).ok();
    url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_needs_an_address_that_is_not_repeated() {
        let mut config = Config::default();
        assert!(config.problems().is_empty());
        config.provider = ProviderKind::Webhook;
        assert!(config.problems().to_string().starts_with("url is unset"));
        config.url = Some("ftp://user:hunter2@host".into());
        let refusal = config.problems().to_string();
        assert!(refusal.contains("https://"), "{refusal}");
        assert!(!refusal.contains("hunter2"), "{refusal}");
        config.url = Some("https://user:hunter2@host/call?token=1".into());
        assert!(config.problems().is_empty());
    }
}
