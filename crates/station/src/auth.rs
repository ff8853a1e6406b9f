//! Who is it? A token answers, and the station believes it only after proof.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use protocol::{Code, DeviceId, Platform, Refusal, Timestamp, UserId};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretSlice};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The audience that every token must name.
pub const AUDIENCE: &str = "packetboat";

/// The key with which development tokens are signed where no `key_file` is set. Everybody knows it:
/// whoever reaches a server that uses it may be anybody.
pub const UNSAFE_DEVELOPMENT_SECRET: &str =
    "packetboat development key: unsafe, known to everybody, not for production";

/// Shorter secrets can be guessed (RFC 7518, 3.2 asks for the hash's length).
const SECRET_BYTES_MIN: usize = 32;

/// Section `station.auth`: proof of tokens.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// File with the secret that signs tokens (HS256, 32 bytes or more; white space at its end does
    /// not count). Unset: the well-known development key, which protects nothing.
    #[schemars(extend("examples" = ["/etc/packetboat/token-key/key"]))]
    pub key_file: Option<PathBuf>,
    /// Issuer that a token must name.
    pub issuer: String,
    /// Difference of clocks that is forgiven when a token begins and ends.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMaximum" = "1m", "zero" = true))]
    pub leeway: Duration,
    /// Bytes of the longest token; longer ones are refused unread.
    #[schemars(range(min = 256, max = 65_536))]
    pub token_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            key_file: None,
            issuer: "packetboat".into(),
            leeway: Duration::from_secs(30),
            token_bytes_max: 4096,
        }
    }
}

/// The most that `leeway` may be.
pub const LEEWAY_MAX: Duration = Duration::from_secs(60);

/// What a token proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: UserId,
    /// Set where the token is for one platform only.
    pub platform: Option<Platform>,
    /// Set where the token is for one device only.
    pub device: Option<DeviceId>,
    /// When the token ends; the session ends with it.
    pub expires_at: Timestamp,
}

impl Identity {
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

/// Says whose a token is. A refusal is `TokenExpired` where a new token helps, `Unauthenticated` where
/// this one will never do, `Unavailable` where nobody could be asked.
#[async_trait]
pub trait Authenticator: Send + Sync {
    async fn authenticate(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal>;
}

/// What a token says; times in seconds since 1970, as RFC 7519 has them.
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
    /// For `user` on any device, from `now` on, issued as the default settings ask.
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

    /// Only for this platform.
    pub fn for_platform(mut self, platform: Platform) -> Claims {
        self.platform = Some(platform.name().into());
        self
    }

    /// Only for this device.
    pub fn for_device(mut self, device: &DeviceId) -> Claims {
        self.device = Some(device.as_str().into());
        self
    }
}

/// What is read of a proven token. The audience and the issuer were checked with the signature.
#[derive(Deserialize)]
struct Proven {
    sub: String,
    exp: i64,
    #[serde(default)]
    nbf: Option<i64>,
    #[serde(default)]
    platform: Option<String>,
    #[serde(default)]
    device: Option<String>,
}

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    #[error("the token key {path} cannot be read")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the token key has {0} bytes, at least {SECRET_BYTES_MIN} are needed")]
    TooShort(usize),
    #[error("the leeway of tokens is {0:?}, at most 60 s are allowed")]
    Leeway(Duration),
    #[error("the token could not be signed: {0}")]
    Unsigned(#[source] jsonwebtoken::errors::Error),
}

/// A secret that signs and proves tokens (HS256). It never shows itself.
#[derive(Clone)]
pub struct DevelopmentKey {
    secret: SecretSlice<u8>,
}

impl std::fmt::Debug for DevelopmentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DevelopmentKey(…)")
    }
}

impl Default for DevelopmentKey {
    /// The key that everybody knows.
    fn default() -> Self {
        DevelopmentKey {
            secret: UNSAFE_DEVELOPMENT_SECRET.as_bytes().to_vec().into(),
        }
    }
}

impl DevelopmentKey {
    /// Reads the key that the settings name.
    pub fn open(config: &Config) -> Result<DevelopmentKey, KeyError> {
        let Some(path) = &config.key_file else {
            return Ok(DevelopmentKey::default());
        };
        let secret = std::fs::read(path).map_err(|source| KeyError::Unreadable {
            path: path.clone(),
            source,
        })?;
        DevelopmentKey::new(secret.trim_ascii_end())
    }

    pub fn new(secret: &[u8]) -> Result<DevelopmentKey, KeyError> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(KeyError::TooShort(secret.len()));
        }
        Ok(DevelopmentKey {
            secret: secret.to_vec().into(),
        })
    }

    /// Is this the key that protects nothing?
    pub fn is_well_known(&self) -> bool {
        self.secret.expose_secret() == UNSAFE_DEVELOPMENT_SECRET.as_bytes()
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let key = EncodingKey::from_secret(self.secret.expose_secret());
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key)
            .map_err(KeyError::Unsigned)
    }
}

/// Proves tokens with a key of its own. Signatures are compared in constant time by the library; the
/// list of algorithms is ours, never the token's.
pub struct SignedTokens {
    key: DecodingKey,
    validation: Validation,
    leeway: Duration,
    token_bytes_max: usize,
}

impl SignedTokens {
    pub fn new(config: &Config, key: &DevelopmentKey) -> Result<SignedTokens, KeyError> {
        if config.leeway > LEEWAY_MAX {
            return Err(KeyError::Leeway(config.leeway));
        }
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[&config.issuer]);
        validation.set_required_spec_claims(&["aud", "exp", "iss", "sub"]);
        // Times are checked below, by the clock that the whole station goes by.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        Ok(SignedTokens {
            key: DecodingKey::from_secret(key.secret.expose_secret()),
            validation,
            leeway: config.leeway,
            token_bytes_max: config.token_bytes_max,
        })
    }

    fn prove(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal> {
        if token.is_empty() {
            return Err(unauthenticated("the token is missing"));
        }
        if token.len() > self.token_bytes_max {
            return Err(unauthenticated("the token is too long"));
        }
        let proven = jsonwebtoken::decode::<Proven>(token, &self.key, &self.validation)
            .map_err(|error| unauthenticated(what_is_wrong(error.kind())))?
            .claims;
        let user = proven
            .sub
            .parse()
            .map_err(|_| unauthenticated("the token's sub is no user"))?;
        let expires_at = from_seconds(proven.exp);
        if now >= expires_at + self.leeway {
            return Err(Refusal::new(Code::TokenExpired, "the token has expired"));
        }
        if proven
            .nbf
            .is_some_and(|begin| now + self.leeway < from_seconds(begin))
        {
            return Err(unauthenticated("the token is not yet valid"));
        }
        Ok(Identity {
            user,
            platform: restriction(proven.platform)?,
            device: restriction(proven.device)?,
            expires_at,
        })
    }
}

#[async_trait]
impl Authenticator for SignedTokens {
    async fn authenticate(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal> {
        self.prove(token, now)
    }
}

fn unauthenticated(text: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, text)
}

fn from_seconds(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds.saturating_mul(1000))
}

/// A restriction that cannot be read must not be taken for none.
fn restriction<T: std::str::FromStr>(claim: Option<String>) -> Result<Option<T>, Refusal> {
    claim
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| unauthenticated("the token is for a platform or device that cannot be"))
}

/// A sentence that helps an honest client and tells a forger nothing of use.
fn what_is_wrong(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidAudience => "the token is for another service",
        ErrorKind::InvalidIssuer => "the token comes from somebody else",
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => {
            "the token is signed in a way that is not accepted here"
        }
        ErrorKind::InvalidSignature => "the token's signature is wrong",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks one of aud, exp, iss, sub",
        _ => "the token cannot be read",
    }
}

#[cfg(test)]
mod tests;
