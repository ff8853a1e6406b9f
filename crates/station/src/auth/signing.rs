//! Signing: for development, for the commands of this program, and for tests.

use std::path::Path;
use std::time::Duration;

use jsonwebtoken::{EncodingKey, Header};
use protocol::{Timestamp, UserId};
use secrecy::{ExposeSecret, SecretSlice};

use super::config::{Algorithm, Config, to_jwt_algorithm};
use super::keys::read_file;
use super::{AUDIENCE, Claims, KeyError};

/// Key that signs development tokens unless the settings name another one. Everybody knows it: a
/// server that uses it believes anybody.
pub const UNSAFE_DEVELOPMENT_SECRET: &str =
    "packetboat development key: unsafe, known to everybody, not for production";

/// Bytes of a secret's file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Shorter secrets can be guessed (RFC 7518, 3.2 asks for the hash's length).
const SECRET_BYTES_MIN: usize = 32;

/// A secret that signs and proves tokens (HS256). Debug output hides it.
#[derive(Clone)]
pub struct Secret(SecretSlice<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Default for Secret {
    /// The secret that everybody knows.
    fn default() -> Self {
        Secret(UNSAFE_DEVELOPMENT_SECRET.as_bytes().to_vec().into())
    }
}

impl Secret {
    pub(super) fn read(path: &Path) -> Result<Secret, KeyError> {
        let content = read_file(path, FILE_BYTES_MAX)?;
        let secret = content.trim_ascii_end();
        let unusable = |reason: String| KeyError::File {
            path: path.into(),
            reason,
        };
        if secret == UNSAFE_DEVELOPMENT_SECRET.as_bytes() {
            return Err(unusable("everybody knows the development key".into()));
        }
        Secret::new(secret).map_err(|error| unusable(error.to_string()))
    }

    pub fn new(secret: &[u8]) -> Result<Secret, KeyError> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(KeyError::TooShort {
                bytes: secret.len(),
                bytes_min: SECRET_BYTES_MIN,
            });
        }
        Ok(Secret(secret.to_vec().into()))
    }

    pub(super) fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

/// Signs tokens as an issuer of the settings.
#[derive(Clone, Debug)]
pub struct Signer {
    issuer: String,
    audience: String,
    kid: Option<String>,
    lifetime_max: Option<Duration>,
    secret: Secret,
}

impl Default for Signer {
    /// Signs with the key that everybody knows, as the default settings ask.
    fn default() -> Self {
        Signer::new(Secret::default())
    }
}

impl Signer {
    /// Signs as the default settings ask.
    pub fn new(secret: Secret) -> Signer {
        Signer {
            issuer: Config::default().issuer,
            audience: AUDIENCE.into(),
            kid: None,
            lifetime_max: None,
            secret,
        }
    }

    /// Signs as the first issuer that has secrets, with the first of them; else with `key_file`.
    pub fn open(config: &Config) -> Result<Signer, KeyError> {
        if config.issuers.is_empty() && !config.remote.is_on() {
            let secret = config.key_file.as_deref().map(Secret::read).transpose()?;
            return Ok(Signer {
                issuer: config.issuer.clone(),
                ..Signer::new(secret.unwrap_or_default())
            });
        }
        let has_secrets = |issuer: &super::Issuer| issuer.algorithms.contains(&Algorithm::HS256);
        let issuer = config.issuers.iter().find(|issuer| has_secrets(issuer));
        let (issuer, secret) = issuer
            .and_then(|issuer| Some((issuer, issuer.secrets.first()?)))
            .ok_or(KeyError::NoSecret)?;
        Ok(Signer {
            issuer: issuer.issuer.clone(),
            audience: issuer.audience.clone(),
            kid: Some(secret.kid.clone()),
            lifetime_max: Some(issuer.lifetime_max),
            secret: Secret::read(&secret.file)?,
        })
    }

    /// Longest life of a token that the issuer's stations believe, if there is a limit.
    pub fn lifetime_max(&self) -> Option<Duration> {
        self.lifetime_max
    }

    /// Claims for `user` on any device, from `now` on.
    pub fn claims(&self, user: UserId, now: Timestamp, lifetime: Duration) -> Claims {
        Claims {
            iss: self.issuer.clone(),
            aud: self.audience.clone(),
            ..Claims::new(user, now, lifetime)
        }
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let key = EncodingKey::from_secret(self.secret.expose());
        let mut header = Header::new(to_jwt_algorithm(Algorithm::HS256));
        header.kid.clone_from(&self.kid);
        jsonwebtoken::encode(&header, claims, &key).map_err(KeyError::Unsigned)
    }
}
