//! Proof of signed tokens (JWT, RFC 7519; RFC 8725 says what goes wrong with them).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use backend::files::{Reload, reread};
use futures_util::future::join_all;
use jsonwebtoken::Validation;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::ErrorKind;
use metrics::counter;
use protocol::revocation::UNDATED;
use protocol::{Code, Refusal, Timestamp};
use serde::{Deserialize, Deserializer};

use super::config::{Algorithm, Config, Issuer};
use super::keys::{KeySet, NoKey};
use super::signing::Secret;
use super::{AUDIENCE, Authenticator, Identity, KeyError, unauthenticated};

/// Proves tokens with keys that the settings name. Signatures are compared in constant time by the library. What a
/// token says of itself only chooses among the issuers and their keys; the key says how it is signed.
#[derive(Debug)]
pub struct SignedTokens {
    issuers: Vec<Trusted>,
    leeway: Duration,
    token_bytes_max: usize,
}

/// An issuer, and its keys of now.
struct Trusted {
    issuer: String,
    /// Set where a token says when it was issued.
    lifetime_max: Option<Duration>,
    /// One for each algorithm, since a list of them would let a token choose.
    validations: Vec<Validation>,
    source: Source,
    keys: Arc<ArcSwap<KeySet>>,
}

/// Origin of an issuer's keys.
#[derive(Clone, Debug)]
enum Source {
    WellKnown,
    KeyFile(PathBuf),
    Issuer(Box<Issuer>),
}

impl Source {
    fn read(&self) -> Result<KeySet, KeyError> {
        match self {
            Source::WellKnown => Ok(KeySet::of(&Secret::default())),
            Source::KeyFile(path) => Ok(KeySet::of(&Secret::read(path)?)),
            Source::Issuer(issuer) => KeySet::read(issuer),
        }
    }
}

impl std::fmt::Debug for Trusted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Trusted").field(&self.issuer).finish()
    }
}

impl Trusted {
    fn of_key_file(config: &Config) -> Result<Trusted, KeyError> {
        let source = config.key_file.clone();
        let source = source.map_or(Source::WellKnown, Source::KeyFile);
        let algorithms = [Algorithm::HS256];
        Trusted::open(&config.issuer, AUDIENCE, &algorithms, None, source)
    }

    fn of(issuer: &Issuer) -> Result<Trusted, KeyError> {
        let Issuer {
            issuer: name,
            audience,
            algorithms,
            lifetime_max,
            ..
        } = issuer;
        let source = Source::Issuer(Box::new(issuer.clone()));
        Trusted::open(name, audience, algorithms, Some(*lifetime_max), source)
    }

    fn open(
        issuer: &str,
        audience: &str,
        algorithms: &[Algorithm],
        lifetime_max: Option<Duration>,
        source: Source,
    ) -> Result<Trusted, KeyError> {
        let validation = |&algorithm: &Algorithm| {
            let mut validation = Validation::new(algorithm.into());
            validation.set_audience(&[audience]);
            validation.set_issuer(&[issuer]);
            validation.set_required_spec_claims(&["aud", "exp", "iss", "sub"]);
            // Times are checked below, by the clock that the whole station goes by.
            validation.validate_exp = false;
            validation.validate_nbf = false;
            validation
        };
        let keys = source.read()?;
        if keys.is_empty() {
            return Err(KeyError::Empty {
                issuer: issuer.into(),
                algorithms: algorithms.to_vec(),
            });
        }
        Ok(Trusted {
            issuer: issuer.into(),
            lifetime_max,
            validations: algorithms.iter().map(validation).collect(),
            keys: Arc::new(ArcSwap::from_pointee(keys)),
            source,
        })
    }

    /// Proves the signature, the issuer and the audience.
    fn open_token(&self, token: &str) -> Result<Proven, Refusal> {
        let read =
            |error: jsonwebtoken::errors::Error| unauthenticated(what_is_wrong(error.kind()));
        let header = jsonwebtoken::decode_header(token).map_err(read)?;
        let names_keys = header.jku.is_some() || header.x5u.is_some() || header.jwk.is_some();
        if names_keys || header.crit.is_some() {
            return Err(unauthenticated(
                "the token's header has one of crit, jku, jwk, x5u, which are not accepted here",
            ));
        }
        let mut validations = self.validations.iter();
        let validation = validations
            .find(|validation| validation.algorithms == [header.alg])
            .ok_or_else(|| read(ErrorKind::InvalidAlgorithm.into()))?;
        let keys = self.keys.load();
        let key = keys
            .find(header.kid.as_deref(), header.alg)
            .map_err(|why| match why {
                NoKey::Unknown => unauthenticated("the token's key is unknown here"),
                NoKey::Ambiguous => unauthenticated("the token does not say which key signed it"),
            })?;
        let token = jsonwebtoken::decode::<Proven>(token, key, validation).map_err(read)?;
        Ok(token.claims)
    }

    /// Looks at the files again; where one of them cannot be used, all keys stay as they were. A set without keys is
    /// taken: its owner wants no token believed.
    fn reload(issuer: &str, source: &Source, keys: &ArcSwap<KeySet>) -> Result<Reload, KeyError> {
        let read = source.read()?;
        if keys.load().is_like(&read) {
            return Ok(Reload::Unchanged);
        }
        if read.is_empty() {
            tracing::warn!(
                issuer,
                "no key is left: no token of this issuer is believed"
            );
        }
        keys.store(Arc::new(read));
        Ok(Reload::Reloaded)
    }
}

impl SignedTokens {
    /// Reads all keys that the settings name.
    ///
    /// # Errors
    /// A setting or a file that cannot be.
    pub fn open(config: &Config) -> Result<SignedTokens, KeyError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(KeyError::Settings(problems.to_string()));
        }
        let issuers = match config.issuers.is_empty() {
            true => vec![Trusted::of_key_file(config)?],
            false => {
                let issuers = config.issuers.iter().map(Trusted::of);
                issuers.collect::<Result<_, _>>()?
            }
        };
        Ok(SignedTokens {
            issuers,
            leeway: config.leeway,
            token_bytes_max: config.token_bytes_max,
        })
    }

    /// Reads keys again that change in their files, those of each issuer by themselves, until dropped.
    pub async fn keep(self: Arc<Self>) {
        let keep = self.issuers.iter().map(|trusted| {
            let (source, keys) = (trusted.source.clone(), Arc::clone(&trusted.keys));
            let issuer = trusted.issuer.clone();
            let look = move || Trusted::reload(&issuer, &source, &keys);
            let reloads = |result: &'static str| {
                let issuer = trusted.issuer.clone();
                counter!("station_token_key_reloads_total", "issuer" => issuer, "result" => result)
            };
            let files = format!("token keys of {}", trusted.issuer);
            async move { reread(&files, reloads, look).await }
        });
        join_all(keep).await;
    }

    /// Looks at all files once, as [`SignedTokens::keep`] does.
    #[cfg(test)]
    pub(super) fn reload(&self) -> Vec<Result<Reload, KeyError>> {
        let reload = |it: &Trusted| Trusted::reload(&it.issuer, &it.source, &it.keys);
        self.issuers.iter().map(reload).collect()
    }

    pub(super) fn prove(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal> {
        if token.is_empty() {
            return Err(unauthenticated("the token is missing"));
        }
        if token.len() > self.token_bytes_max {
            return Err(unauthenticated("the token is too long"));
        }
        let trusted = self.issuer_of(token)?;
        let proven = trusted.open_token(token)?;
        let user = proven
            .sub
            .parse()
            .map_err(|_| unauthenticated("the token's sub is no user"))?;
        if let Some(lifetime_max) = trusted.lifetime_max {
            self.check_lifetime(&proven, lifetime_max, now)?;
        }
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
            issued_at: issue(proven.iat),
            expires_at,
        })
    }

    /// By what the token says before anything is proved: it chooses among those that are trusted anyway.
    fn issuer_of(&self, token: &str) -> Result<&Trusted, Refusal> {
        let claimed: Claimed = insecure_decode_claims(token)
            .map_err(|error| unauthenticated(what_is_wrong(error.kind())))?;
        let Some(issuer) = claimed.iss else {
            return Err(unauthenticated(LACKS_A_CLAIM));
        };
        let mut issuers = self.issuers.iter();
        let trusted = issuers.find(|trusted| trusted.issuer == issuer);
        trusted.ok_or_else(|| unauthenticated(what_is_wrong(&ErrorKind::InvalidIssuer)))
    }

    /// A bound on the life of a token: so long has it whoever steals it.
    fn check_lifetime(
        &self,
        proven: &Proven,
        lifetime_max: Duration,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let issued = proven
            .iat
            .ok_or_else(|| unauthenticated("the token does not say when it was issued (iat)"))?;
        if now + self.leeway < from_seconds(issued) {
            return Err(unauthenticated("the token is not yet valid"));
        }
        if from_seconds(proven.exp) > from_seconds(issued) + lifetime_max {
            return Err(unauthenticated(
                "the token lives longer than is accepted here",
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl Authenticator for SignedTokens {
    async fn authenticate(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal> {
        self.prove(token, now)
    }
}

/// The claim that chooses an issuer.
#[derive(Deserialize)]
struct Claimed {
    iss: Option<String>,
}

/// Claims of a proven token. The audience and the issuer were checked with the signature.
#[derive(Deserialize)]
struct Proven {
    sub: String,
    #[serde(deserialize_with = "seconds")]
    exp: i64,
    #[serde(default, deserialize_with = "some_seconds")]
    iat: Option<i64>,
    #[serde(default, deserialize_with = "some_seconds")]
    nbf: Option<i64>,
    #[serde(default)]
    platform: Option<String>,
    #[serde(default)]
    device: Option<String>,
}

/// A NumericDate, which may have a fraction (RFC 7519, 2).
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    whole(&number).ok_or_else(no_date)
}

fn no_date<E: serde::de::Error>() -> E {
    E::custom("no date")
}

fn whole(number: &serde_json::Number) -> Option<i64> {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "far beyond any date it ends at the last one"
    )]
    let floor = |number: f64| number.floor() as i64;
    number.as_i64().or_else(|| number.as_f64().map(floor))
}

fn some_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let number = Option::<serde_json::Number>::deserialize(deserializer)?;
    number
        .map(|number| whole(&number).ok_or_else(no_date))
        .transpose()
}

fn issue(iat: Option<i64>) -> Timestamp {
    iat.map_or(UNDATED, from_seconds).max(UNDATED)
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

const LACKS_A_CLAIM: &str = "the token lacks one of aud, exp, iss, sub";

/// A sentence that helps an honest client and tells a forger nothing of use.
fn what_is_wrong(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidAudience => "the token is for another service",
        ErrorKind::InvalidIssuer => "the token comes from somebody else",
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => {
            "the token is signed in a way that is not accepted here"
        }
        ErrorKind::InvalidSignature => "the token's signature is wrong",
        ErrorKind::MissingRequiredClaim(_) => LACKS_A_CLAIM,
        _ => "the token cannot be read",
    }
}
