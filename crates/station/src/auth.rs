//! Authentication: a token names a user, and the station believes it only after proof.

mod assertions;
mod config;
mod copy;
mod key_refresh;
mod keys;
mod provider;
mod published;
mod remote;
mod signing;
#[cfg(test)]
mod tests;
mod token_door;
mod tokens;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use protocol::{Code, DeviceId, Platform, Refusal, Timestamp, UserId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use assertions::Assertions;
pub use config::{Algorithm, Config, Issuer, SecretFile};
pub use remote::RemoteConfig;
pub use signing::{Secret, Signer, UNSAFE_DEVELOPMENT_SECRET};
pub use token_door::TokenDoor;
pub use tokens::SignedTokens;

/// Audience of tokens unless the settings name another one.
pub const AUDIENCE: &str = "packetboat";

/// Identity that a token proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub user: UserId,
    /// Set if the token is for one platform only.
    pub platform: Option<Platform>,
    /// Set if the token is for one device only.
    pub device: Option<DeviceId>,
    /// Before every revocation if the token does not say.
    pub issued_at: Timestamp,
    /// End of the token, and with it of the session.
    pub expires_at: Timestamp,
}

impl Principal {
    /// Refuses a device or platform that the token was not made for.
    pub fn permits(&self, platform: Platform, device: &DeviceId) -> Result<(), Refusal> {
        if self.platform.is_some_and(|only| only != platform) {
            return Err(unauthenticated("the token is for another platform"));
        }
        if self.device.as_ref().is_some_and(|only| only != device) {
            return Err(unauthenticated("the token is for another device"));
        }
        Ok(())
    }
}

/// Finds out whose a token is. A refusal is `TokenExpired` if a new token helps, `Unauthenticated`
/// if this one will never do, and `Unavailable` if nobody could be asked.
#[async_trait]
pub trait Authenticator: Send + Sync {
    async fn authenticate(
        &self,
        token: &str,
        client: &Client<'_>,
        now: Timestamp,
    ) -> Result<Principal, Refusal>;
}

/// A client that signs in: its own description, and its address.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    pub platform: Platform,
    pub device: &'a DeviceId,
    pub address: &'a str,
}

/// Claims of a token; times in seconds since 1970, as RFC 7519 has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The user's number, as text.
    pub sub: String,
    pub aud: String,
    pub iss: String,
    pub iat: i64,
    pub nbf: i64,
    pub exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl Claims {
    /// Claims for `user` on any device, from `now` on, as the default settings ask.
    pub fn new(user: UserId, now: Timestamp, lifetime: Duration) -> Claims {
        let begin = now.millis() / 1000;
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        Claims {
            sub: user.to_string(),
            aud: AUDIENCE.into(),
            iss: Config::default().issuer,
            iat: begin,
            nbf: begin,
            exp: begin.saturating_add(seconds),
            platform: None,
            device: None,
        }
    }

    /// Restricts the token to this platform.
    pub fn for_platform(mut self, platform: Platform) -> Claims {
        self.platform = Some(platform.name().into());
        self
    }

    /// Restricts the token to this device.
    pub fn for_device(mut self, device: &DeviceId) -> Claims {
        self.device = Some(device.as_str().into());
        self
    }
}

/// Errors of loading keys.
#[derive(Debug, Error)]
pub enum KeyError {
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the token key has {bytes} bytes, at least {bytes_min} are needed")]
    TooShort { bytes: usize, bytes_min: usize },
    #[error("cannot use {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("issuer {issuer} has no keys for {algorithms:?}")]
    Empty {
        issuer: String,
        algorithms: Vec<Algorithm>,
    },
    #[error("issuer {issuer}: cannot create an HTTP client: {reason}")]
    Client { issuer: String, reason: String },
    #[error("station.auth.remote: {0}")]
    Certificates(#[from] backend::tls::CertificateError),
    #[error("station.auth.remote: cannot call the address {0}")]
    Address(String),
    #[error("the settings have public keys only: there is no secret to sign a token with")]
    NoSecret,
    #[error("station.auth.{0}")]
    Settings(String),
    #[error("cannot sign the token: {0}")]
    Unsigned(#[source] jsonwebtoken::errors::Error),
}

fn unauthenticated(text: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, text)
}
