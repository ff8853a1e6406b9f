//! The seam to publishers of keys, and its implementation over HTTP.

use std::time::Duration;

use async_trait::async_trait;
use protocol::settings::Link;
use reqwest::header::{ACCEPT, CACHE_CONTROL, HeaderMap};
use reqwest::{Client, ClientBuilder, StatusCode, Url, redirect};
use thiserror::Error;

use super::KeyError;
use super::config::{Issuer, address, is_loopback};
use super::key_refresh::fresh_for;
use super::keys::SET_BYTES_MAX;

/// Time from the first packet to the last byte.
const DEADLINE: Duration = Duration::from_secs(5);

/// A set that was published.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) content: Vec<u8>,
    /// Lifetime that the provider gave, if it gave one.
    pub(super) fresh_for: Option<Duration>,
}

/// Errors of a provider that gave no set. A URL may hold a token, so none is repeated.
#[derive(Debug, Error)]
pub(super) enum ProviderError {
    #[error("{0}")]
    Unanswered(&'static str),
    #[error("{0}")]
    Refused(String),
}

/// A publisher of keys.
#[async_trait]
pub(super) trait Provider: Send + Sync {
    /// Fetches a set of at most 256 KiB, within a bounded time. May be dropped at any time.
    async fn fetch(&self) -> Result<Answer, ProviderError>;
}

/// Makes the provider of an issuer's URL.
pub(super) type Providers<'a> = &'a dyn Fn(&Issuer, &Link) -> Result<Box<dyn Provider>, KeyError>;

/// A provider at one URL.
pub(super) struct Https {
    client: Client,
    url: Url,
}

impl Https {
    /// Builds a client, without dialling.
    ///
    /// # Errors
    /// An invalid address, or unreadable certificates of authorities.
    pub(super) fn open(issuer: &str, link: &Link) -> Result<Https, KeyError> {
        let unusable = |reason: String| KeyError::Client {
            issuer: issuer.into(),
            reason,
        };
        let url = address(link).map_err(|reason| unusable(reason.into()))?;
        let client = builder(&url).build();
        let client = client.map_err(|error| unusable(error.to_string()))?;
        Ok(Https { client, url })
    }

    #[cfg(test)]
    pub(super) fn trusting(url: Url, authority: reqwest::Certificate) -> Https {
        let builder = builder(&url).tls_certs_only([authority]);
        let client = builder.build().expect("a client");
        Https { client, url }
    }
}

fn builder(url: &Url) -> ClientBuilder {
    // The first call chooses for the process; all of ours choose the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let builder = Client::builder()
        .user_agent(concat!("packetboat/", env!("CARGO_PKG_VERSION")))
        .timeout(DEADLINE)
        .redirect(redirect::Policy::none())
        // Minutes pass between two calls.
        .pool_max_idle_per_host(0);
    if is_loopback(url) {
        // A proxy's loopback is another one.
        builder.no_proxy()
    } else {
        builder
    }
}

#[async_trait]
impl Provider for Https {
    async fn fetch(&self) -> Result<Answer, ProviderError> {
        let request = self.client.get(self.url.clone());
        let request = request.header(ACCEPT, "application/jwk-set+json, application/json");
        let mut response = request.send().await.map_err(|error| unanswered(&error))?;
        let status = response.status();
        if status.is_server_error() {
            return Err(ProviderError::Unanswered("the provider reported an error"));
        }
        if status != StatusCode::OK {
            let text = format!("the provider answered {status}");
            return Err(ProviderError::Refused(text));
        }
        let fresh_for = cache_lifetime(response.headers());
        let mut content = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| unanswered(&error))? {
            if (content.len() + chunk.len()) as u64 > SET_BYTES_MAX {
                let text = format!("the set has more than {} KiB", SET_BYTES_MAX / 1024);
                return Err(ProviderError::Refused(text));
            }
            content.extend_from_slice(&chunk);
        }
        Ok(Answer { content, fresh_for })
    }
}

/// Reads the lifetime in Cache-Control. Several lines of a header are one list (RFC 9110, 5.3).
fn cache_lifetime(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(CACHE_CONTROL).iter();
    let lines: Vec<_> = lines.filter_map(|line| line.to_str().ok()).collect();
    fresh_for(&lines.join(","))
}

fn unanswered(error: &reqwest::Error) -> ProviderError {
    ProviderError::Unanswered(if error.is_timeout() {
        "the provider did not answer in time"
    } else if error.is_connect() {
        "the provider cannot be reached"
    } else {
        "the connection to the provider broke"
    })
}
