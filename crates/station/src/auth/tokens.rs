//! Proof of signed tokens (JWT, RFC 7519; RFC 8725 says what goes wrong with them).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use async_trait::async_trait;
use backend::clock::{Clock, Entropy};
use backend::files::{Reload, reread};
use futures_util::future::join_all;
use jsonwebtoken::Validation;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::ErrorKind;
use protocol::revocation::UNDATED;
use protocol::{Code, Refusal, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::config::{Algorithm, Config, Issuer, LEEWAY, to_jwt_algorithm};
use super::keys::{KeySet, NoKey, replace};
use super::provider::{Https, Providers};
use super::published::{PublishedKeys, reloads};
use super::signing::Secret;
use super::{AUDIENCE, Authenticator, Client, KeyError, Principal, unauthenticated};

/// Proves tokens with keys that the settings name. The library compares signatures in constant
/// time. A token's own claims only choose among the issuers and their keys; the key decides on the
/// algorithm.
#[derive(Debug)]
pub struct SignedTokens {
    issuers: Vec<TrustedIssuer>,
    token_bytes_max: usize,
}

/// An issuer, and its current keys.
pub(super) struct TrustedIssuer {
    pub(super) issuer: String,
    /// Set if tokens say when they were issued.
    lifetime_max: Option<Duration>,
    /// One for each algorithm, since a list of them would let a token choose.
    validations: Vec<Validation>,
    origin: TokenOrigin,
    keys: Arc<ArcSwap<KeySet>>,
}

/// Origin of an issuer's keys.
enum TokenOrigin {
    Files(KeySource),
    Url(Box<PublishedKeys>),
}

/// Files with an issuer's keys.
#[derive(Clone, Debug)]
enum KeySource {
    WellKnown,
    KeyFile(PathBuf),
    Issuer(Box<Issuer>),
}

impl KeySource {
    fn read(&self) -> Result<KeySet, KeyError> {
        match self {
            KeySource::WellKnown => Ok(KeySet::new(&Secret::default())),
            KeySource::KeyFile(path) => Ok(KeySet::new(&Secret::read(path)?)),
            KeySource::Issuer(issuer) => KeySet::read(issuer),
        }
    }
}

impl std::fmt::Debug for TrustedIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TrustedIssuer").field(&self.issuer).finish()
    }
}

impl TrustedIssuer {
    fn from_key_file(config: &Config) -> Result<TrustedIssuer, KeyError> {
        let source = config.key_file.clone();
        let source = source.map_or(KeySource::WellKnown, KeySource::KeyFile);
        let keys = Arc::new(ArcSwap::from_pointee(source.read()?));
        Ok(TrustedIssuer {
            issuer: config.issuer.clone(),
            lifetime_max: None,
            validations: validations(&config.issuer, AUDIENCE, &[Algorithm::HS256]),
            origin: TokenOrigin::Files(source),
            keys,
        })
    }

    pub(super) fn new(
        issuer: &Issuer,
        config: &Config,
        providers: Providers<'_>,
    ) -> Result<TrustedIssuer, KeyError> {
        let (origin, keys) = match &issuer.jwks_url {
            None => TokenOrigin::from_files(issuer)?,
            Some(url) => {
                let provider = providers(issuer, url)?;
                let published_keys = PublishedKeys::new(issuer, url, config, provider)?;
                let keys = Arc::clone(&published_keys.keys);
                (TokenOrigin::Url(Box::new(published_keys)), keys)
            }
        };
        Ok(TrustedIssuer {
            issuer: issuer.issuer.clone(),
            lifetime_max: Some(issuer.lifetime_max),
            validations: validations(&issuer.issuer, &issuer.audience, &issuer.algorithms),
            origin,
            keys,
        })
    }

    /// Waits if the token's key may be on its way. Faults of the token are reported where it is
    /// proved.
    pub(super) async fn await_key(&self, token: &str) -> Result<(), Refusal> {
        let TokenOrigin::Url(published_keys) = &self.origin else {
            return Ok(());
        };
        let Ok(header) = jsonwebtoken::decode_header(token) else {
            return Ok(());
        };
        if self.find_validation(header.alg).is_none() {
            return Ok(());
        }
        published_keys
            .await_key(header.kid.as_deref(), header.alg)
            .await
    }

    fn find_validation(&self, algorithm: jsonwebtoken::Algorithm) -> Option<&Validation> {
        let mut validations = self.validations.iter();
        validations.find(|validation| validation.algorithms == [algorithm])
    }

    /// Refuses if keys are too old to prove anything and their owner cannot be asked.
    fn present_keys(&self) -> Result<Guard<Arc<KeySet>>, Refusal> {
        match &self.origin {
            TokenOrigin::Url(published_keys) if !published_keys.is_fit() => {
                Err(published_keys.unavailable())
            }
            _ => Ok(self.keys.load()),
        }
    }

    /// Proves the signature, the issuer and the audience.
    pub(super) fn open_token<T: DeserializeOwned>(&self, token: &str) -> Result<T, Refusal> {
        let to_refusal =
            |error: jsonwebtoken::errors::Error| unauthenticated(describe_error(error.kind()));
        let header = jsonwebtoken::decode_header(token).map_err(to_refusal)?;
        let has_key_header = header.jku.is_some() || header.x5u.is_some() || header.jwk.is_some();
        if has_key_header || header.crit.is_some() {
            return Err(unauthenticated(
                "the token's header has one of crit, jku, jwk, x5u, which are not accepted here",
            ));
        }
        let validation = self.find_validation(header.alg);
        let validation =
            validation.ok_or_else(|| to_refusal(ErrorKind::InvalidAlgorithm.into()))?;
        let keys = self.present_keys()?;
        let key = keys
            .find(header.kid.as_deref(), header.alg)
            .map_err(|no_key| match no_key {
                NoKey::Unknown => unauthenticated("the token's key is unknown here"),
                NoKey::Ambiguous => unauthenticated("the token does not name its key (kid)"),
            })?;
        let token = jsonwebtoken::decode::<T>(token, key, validation).map_err(to_refusal)?;
        Ok(token.claims)
    }

    /// Checks that a token is valid now, and does not live too long if the issuer has a limit.
    pub(super) fn check_times(&self, times: &Times, now: Timestamp) -> Result<(), Refusal> {
        if let Some(lifetime_max) = self.lifetime_max {
            times.check_lifetime(lifetime_max, now)?;
        }
        if now >= from_seconds(times.exp) + LEEWAY {
            return Err(Refusal::new(Code::TokenExpired, "the token has expired"));
        }
        if times
            .nbf
            .is_some_and(|begin| now + LEEWAY < from_seconds(begin))
        {
            return Err(unauthenticated("the token is not yet valid"));
        }
        Ok(())
    }

    /// Reads the files again; if one of them cannot be used, all keys stay as they were.
    fn reload(
        issuer: &str,
        source: &KeySource,
        keys: &ArcSwap<KeySet>,
    ) -> Result<Reload, KeyError> {
        Ok(replace(issuer, keys, source.read()?))
    }

    /// Reads changed keys again, until dropped.
    pub(super) async fn keep(&self, clock: &dyn Clock, entropy: &dyn Entropy) {
        let source = match &self.origin {
            TokenOrigin::Url(published_keys) => return published_keys.keep(clock, entropy).await,
            TokenOrigin::Files(source) => source.clone(),
        };
        let (issuer, keys) = (self.issuer.clone(), Arc::clone(&self.keys));
        let reload = move || TrustedIssuer::reload(&issuer, &source, &keys);
        let files = format!("token keys of {}", self.issuer);
        reread(&files, |result| reloads(&self.issuer, result), reload).await;
    }
}

impl TokenOrigin {
    fn from_files(issuer: &Issuer) -> Result<(TokenOrigin, Arc<ArcSwap<KeySet>>), KeyError> {
        let source = KeySource::Issuer(Box::new(issuer.clone()));
        let keys = source.read()?;
        if keys.is_empty() {
            return Err(KeyError::Empty {
                issuer: issuer.issuer.clone(),
                algorithms: issuer.algorithms.clone(),
            });
        }
        Ok((
            TokenOrigin::Files(source),
            Arc::new(ArcSwap::from_pointee(keys)),
        ))
    }
}

/// Makes one validation for each algorithm of an issuer.
fn validations(issuer: &str, audience: &str, algorithms: &[Algorithm]) -> Vec<Validation> {
    let validation = |&algorithm: &Algorithm| {
        let mut validation = Validation::new(to_jwt_algorithm(algorithm));
        validation.set_audience(&[audience]);
        validation.set_issuer(&[issuer]);
        validation.set_required_spec_claims(&["aud", "exp", "iss", "sub"]);
        // Times are checked elsewhere, by the clock of the whole station.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation
    };
    algorithms.iter().map(validation).collect()
}

impl SignedTokens {
    /// Reads all keys that the settings name in files. Those at URLs come later: see
    /// [`SignedTokens::keep`].
    ///
    /// # Errors
    /// An invalid setting or file.
    pub fn open(config: &Config) -> Result<SignedTokens, KeyError> {
        SignedTokens::open_with(config, &|issuer, url| {
            let https = Https::open(&issuer.issuer, url)?;
            Ok(Box::new(https))
        })
    }

    pub(super) fn open_with(
        config: &Config,
        providers: Providers<'_>,
    ) -> Result<SignedTokens, KeyError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(KeyError::Settings(problems.to_string()));
        }
        let issuers = if !config.issuers.is_empty() {
            let issuers = config.issuers.iter();
            let issuers = issuers.map(|issuer| TrustedIssuer::new(issuer, config, providers));
            issuers.collect::<Result<_, _>>()?
        } else if config.remote.is_on() {
            Vec::new()
        } else {
            vec![TrustedIssuer::from_key_file(config)?]
        };
        Ok(SignedTokens {
            issuers,
            token_bytes_max: config.token_bytes_max,
        })
    }

    /// Restores the copies in `cache_dir` of sets that came from URLs, as far as they are young
    /// enough at `now`, the time of day.
    pub fn restore(&self, now: Timestamp) {
        for issuer in &self.issuers {
            if let TokenOrigin::Url(published_keys) = &issuer.origin {
                published_keys.restore(now);
            }
        }
    }

    /// Reads changed keys again from files, and fetches those at URLs, each issuer's by themselves,
    /// until dropped.
    pub async fn keep(self: Arc<Self>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) {
        let issuers = self.issuers.iter();
        join_all(issuers.map(|issuer| issuer.keep(&*clock, &*entropy))).await;
    }

    /// Reads all files once, as [`SignedTokens::keep`] does.
    #[cfg(test)]
    pub(super) fn reload(&self) -> Vec<Result<Reload, KeyError>> {
        let reload = |issuer: &TrustedIssuer| match &issuer.origin {
            TokenOrigin::Files(source) => {
                TrustedIssuer::reload(&issuer.issuer, source, &issuer.keys)
            }
            TokenOrigin::Url(_) => Ok(Reload::Unchanged),
        };
        self.issuers.iter().map(reload).collect()
    }

    /// As [`Authenticator::authenticate`], with the keys at hand.
    #[cfg(test)]
    pub(super) fn prove(&self, token: &str, now: Timestamp) -> Result<Principal, Refusal> {
        self.prove_by(self.find_issuer(token)?, token, now)
    }

    fn prove_by(
        &self,
        issuer: &TrustedIssuer,
        token: &str,
        now: Timestamp,
    ) -> Result<Principal, Refusal> {
        let claims: TokenClaims = issuer.open_token(token)?;
        let user = claims
            .sub
            .parse()
            .map_err(|_| unauthenticated("the token's sub is not a user id"))?;
        issuer.check_times(&claims.times, now)?;
        Ok(Principal {
            user,
            platform: restriction(claims.platform)?,
            device: restriction(claims.device)?,
            issued_at: issue_time(claims.times.iat),
            expires_at: from_seconds(claims.times.exp),
        })
    }

    /// True for a token that claims to be of one of these issuers.
    pub(super) fn knows(&self, token: &str) -> bool {
        let claim = insecure_decode_claims::<IssuerClaim>(token).ok();
        let issuer = claim.and_then(|claim| claim.iss);
        issuer.is_some_and(|issuer| {
            self.issuers
                .iter()
                .any(|candidate| candidate.issuer == issuer)
        })
    }

    /// Finds the issuer by an unproved claim, which only chooses among those that are trusted
    /// anyway.
    fn find_issuer(&self, token: &str) -> Result<&TrustedIssuer, Refusal> {
        let issuer = claimed_issuer(token, self.token_bytes_max)?;
        let mut issuers = self.issuers.iter();
        let candidate = issuers.find(|candidate| candidate.issuer == issuer);
        candidate.ok_or_else(wrong_issuer)
    }
}

#[async_trait]
impl Authenticator for SignedTokens {
    async fn authenticate(
        &self,
        token: &str,
        _: &Client<'_>,
        now: Timestamp,
    ) -> Result<Principal, Refusal> {
        let issuer = self.find_issuer(token)?;
        issuer.await_key(token).await?;
        self.prove_by(issuer, token, now)
    }
}

/// The claim that chooses an issuer.
#[derive(Deserialize)]
struct IssuerClaim {
    iss: Option<String>,
}

/// Refuses a token that cannot be good, without asking anybody.
pub(super) fn check_size(token: &str, bytes_max: usize) -> Result<(), Refusal> {
    if token.is_empty() {
        return Err(unauthenticated("the token is missing"));
    }
    if token.len() > bytes_max {
        return Err(unauthenticated("the token is too long"));
    }
    Ok(())
}

/// Issuer by an unproved claim.
pub(super) fn claimed_issuer(token: &str, bytes_max: usize) -> Result<String, Refusal> {
    check_size(token, bytes_max)?;
    let claim: IssuerClaim = insecure_decode_claims(token)
        .map_err(|error| unauthenticated(describe_error(error.kind())))?;
    claim.iss.ok_or_else(|| unauthenticated(MISSING_CLAIM_TEXT))
}

pub(super) fn wrong_issuer() -> Refusal {
    unauthenticated(describe_error(&ErrorKind::InvalidIssuer))
}

/// Times of a proven token.
#[derive(Deserialize)]
pub(super) struct Times {
    #[serde(deserialize_with = "seconds")]
    exp: i64,
    #[serde(default, deserialize_with = "some_seconds")]
    iat: Option<i64>,
    #[serde(default, deserialize_with = "some_seconds")]
    nbf: Option<i64>,
}

impl Times {
    /// Limits the life of a token: a thief has it for as long.
    fn check_lifetime(&self, lifetime_max: Duration, now: Timestamp) -> Result<(), Refusal> {
        let issued_at = self
            .iat
            .ok_or_else(|| unauthenticated("the token does not say when it was issued (iat)"))?;
        if now + LEEWAY < from_seconds(issued_at) {
            return Err(unauthenticated("the token is not yet valid"));
        }
        if from_seconds(self.exp) > from_seconds(issued_at) + lifetime_max {
            return Err(unauthenticated(
                "the token lives longer than is accepted here",
            ));
        }
        Ok(())
    }
}

/// Claims of a proven token. The audience and the issuer were checked with the signature.
#[derive(Deserialize)]
struct TokenClaims {
    sub: String,
    #[serde(flatten)]
    times: Times,
    #[serde(default)]
    platform: Option<String>,
    #[serde(default)]
    device: Option<String>,
}

/// A NumericDate, which may have a fraction (RFC 7519, 2).
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    floor_seconds(&number).ok_or_else(no_date)
}

fn no_date<E: serde::de::Error>() -> E {
    E::custom("no date")
}

fn floor_seconds(number: &serde_json::Number) -> Option<i64> {
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
        .map(|number| floor_seconds(&number).ok_or_else(no_date))
        .transpose()
}

fn issue_time(iat: Option<i64>) -> Timestamp {
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
        .map_err(|_| unauthenticated("the token is for an invalid platform or device"))
}

const MISSING_CLAIM_TEXT: &str = "the token lacks one of aud, exp, iss, sub";

/// A sentence that helps an honest client and tells a forger nothing of use.
fn describe_error(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidAudience => "the token is for another service",
        ErrorKind::InvalidIssuer => "the token comes from somebody else",
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => {
            "the token's signature algorithm is not accepted here"
        }
        ErrorKind::InvalidSignature => "the token's signature is wrong",
        ErrorKind::MissingRequiredClaim(_) => MISSING_CLAIM_TEXT,
        _ => "the token cannot be read",
    }
}
