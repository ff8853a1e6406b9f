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

use super::config::{Algorithm, Config, Issuer};
use super::keys::{KeySet, NoKey, replace};
use super::provider::{Https, Providers};
use super::published::{Published, reloads};
use super::signing::Secret;
use super::{AUDIENCE, Authenticator, Client, Identity, KeyError, unauthenticated};

/// Proves tokens with keys that the settings name. Signatures are compared in constant time by the library. What a
/// token says of itself only chooses among the issuers and their keys; the key says how it is signed.
#[derive(Debug)]
pub struct SignedTokens {
    issuers: Vec<Trusted>,
    leeway: Duration,
    token_bytes_max: usize,
}

/// An issuer, and its keys of now.
pub(super) struct Trusted {
    pub(super) issuer: String,
    /// Set where a token says when it was issued.
    lifetime_max: Option<Duration>,
    /// One for each algorithm, since a list of them would let a token choose.
    validations: Vec<Validation>,
    origin: Origin,
    keys: Arc<ArcSwap<KeySet>>,
}

/// Origin of an issuer's keys.
enum Origin {
    Files(Source),
    Url(Box<Published>),
}

/// Files with an issuer's keys.
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
        let keys = Arc::new(ArcSwap::from_pointee(source.read()?));
        Ok(Trusted {
            issuer: config.issuer.clone(),
            lifetime_max: None,
            validations: validations(&config.issuer, AUDIENCE, &[Algorithm::HS256]),
            origin: Origin::Files(source),
            keys,
        })
    }

    pub(super) fn of(
        issuer: &Issuer,
        config: &Config,
        providers: Providers<'_>,
    ) -> Result<Trusted, KeyError> {
        let (origin, keys) = match &issuer.jwks_url {
            None => Origin::of_files(issuer)?,
            Some(url) => {
                let provider = providers(issuer, url)?;
                let published = Published::new(issuer, url, config, provider)?;
                let keys = Arc::clone(&published.keys);
                (Origin::Url(Box::new(published)), keys)
            }
        };
        Ok(Trusted {
            issuer: issuer.issuer.clone(),
            lifetime_max: Some(issuer.lifetime_max),
            validations: validations(&issuer.issuer, &issuer.audience, &issuer.algorithms),
            origin,
            keys,
        })
    }

    /// Waits where the token's key may be on its way. What is wrong with the token is said where it is proved.
    pub(super) async fn await_key(&self, token: &str) -> Result<(), Refusal> {
        let Origin::Url(published) = &self.origin else {
            return Ok(());
        };
        let Ok(header) = jsonwebtoken::decode_header(token) else {
            return Ok(());
        };
        if self.validation_of(header.alg).is_none() {
            return Ok(());
        }
        published.await_key(header.kid.as_deref(), header.alg).await
    }

    fn validation_of(&self, algorithm: jsonwebtoken::Algorithm) -> Option<&Validation> {
        let mut validations = self.validations.iter();
        validations.find(|validation| validation.algorithms == [algorithm])
    }

    /// Keys that are too old prove nothing, and their owner cannot be asked.
    fn present_keys(&self) -> Result<Guard<Arc<KeySet>>, Refusal> {
        match &self.origin {
            Origin::Url(published) if !published.is_fit() => Err(published.away()),
            _ => Ok(self.keys.load()),
        }
    }

    /// Proves the signature, the issuer and the audience.
    pub(super) fn open_token<T: DeserializeOwned>(&self, token: &str) -> Result<T, Refusal> {
        let read =
            |error: jsonwebtoken::errors::Error| unauthenticated(what_is_wrong(error.kind()));
        let header = jsonwebtoken::decode_header(token).map_err(read)?;
        let names_keys = header.jku.is_some() || header.x5u.is_some() || header.jwk.is_some();
        if names_keys || header.crit.is_some() {
            return Err(unauthenticated(
                "the token's header has one of crit, jku, jwk, x5u, which are not accepted here",
            ));
        }
        let validation = self.validation_of(header.alg);
        let validation = validation.ok_or_else(|| read(ErrorKind::InvalidAlgorithm.into()))?;
        let keys = self.present_keys()?;
        let key = keys
            .find(header.kid.as_deref(), header.alg)
            .map_err(|why| match why {
                NoKey::Unknown => unauthenticated("the token's key is unknown here"),
                NoKey::Ambiguous => unauthenticated("the token does not say which key signed it"),
            })?;
        let token = jsonwebtoken::decode::<T>(token, key, validation).map_err(read)?;
        Ok(token.claims)
    }

    /// A token of now, and one that does not live too long where the issuer has a bound.
    pub(super) fn check_times(
        &self,
        times: &Times,
        leeway: Duration,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if let Some(lifetime_max) = self.lifetime_max {
            times.check_lifetime(lifetime_max, leeway, now)?;
        }
        if now >= from_seconds(times.exp) + leeway {
            return Err(Refusal::new(Code::TokenExpired, "the token has expired"));
        }
        if times
            .nbf
            .is_some_and(|begin| now + leeway < from_seconds(begin))
        {
            return Err(unauthenticated("the token is not yet valid"));
        }
        Ok(())
    }

    /// Looks at the files again; where one of them cannot be used, all keys stay as they were.
    fn reload(issuer: &str, source: &Source, keys: &ArcSwap<KeySet>) -> Result<Reload, KeyError> {
        Ok(replace(issuer, keys, source.read()?))
    }

    /// Reads keys again that change, until dropped.
    pub(super) async fn keep(&self, clock: &dyn Clock, entropy: &dyn Entropy) {
        let source = match &self.origin {
            Origin::Url(published) => return published.keep(clock, entropy).await,
            Origin::Files(source) => source.clone(),
        };
        let (issuer, keys) = (self.issuer.clone(), Arc::clone(&self.keys));
        let look = move || Trusted::reload(&issuer, &source, &keys);
        let files = format!("token keys of {}", self.issuer);
        reread(&files, |result| reloads(&self.issuer, result), look).await;
    }
}

impl Origin {
    fn of_files(issuer: &Issuer) -> Result<(Origin, Arc<ArcSwap<KeySet>>), KeyError> {
        let source = Source::Issuer(Box::new(issuer.clone()));
        let keys = source.read()?;
        if keys.is_empty() {
            return Err(KeyError::Empty {
                issuer: issuer.issuer.clone(),
                algorithms: issuer.algorithms.clone(),
            });
        }
        Ok((Origin::Files(source), Arc::new(ArcSwap::from_pointee(keys))))
    }
}

/// One for each algorithm of an issuer.
fn validations(issuer: &str, audience: &str, algorithms: &[Algorithm]) -> Vec<Validation> {
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
    algorithms.iter().map(validation).collect()
}

impl SignedTokens {
    /// Reads all keys that the settings name in files. Those at URLs come later: see [`SignedTokens::keep`].
    ///
    /// # Errors
    /// A setting or a file that cannot be.
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
        let issuers = match config.issuers.is_empty() {
            true if config.remote.is_on() => Vec::new(),
            true => vec![Trusted::of_key_file(config)?],
            false => {
                let issuers = config.issuers.iter();
                let issuers = issuers.map(|issuer| Trusted::of(issuer, config, providers));
                issuers.collect::<Result<_, _>>()?
            }
        };
        Ok(SignedTokens {
            issuers,
            leeway: config.leeway,
            token_bytes_max: config.token_bytes_max,
        })
    }

    /// Takes the copies in `cache_dir` of sets that came from URLs, as far as they are young enough at `now`, the time
    /// of day.
    pub fn restore(&self, now: Timestamp) {
        for trusted in &self.issuers {
            if let Origin::Url(published) = &trusted.origin {
                published.restore(now);
            }
        }
    }

    /// Reads keys again that change in their files, and asks URLs for theirs, those of each issuer by themselves, until
    /// dropped.
    pub async fn keep(self: Arc<Self>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) {
        let issuers = self.issuers.iter();
        join_all(issuers.map(|trusted| trusted.keep(&*clock, &*entropy))).await;
    }

    /// Looks at all files once, as [`SignedTokens::keep`] does.
    #[cfg(test)]
    pub(super) fn reload(&self) -> Vec<Result<Reload, KeyError>> {
        let reload = |it: &Trusted| match &it.origin {
            Origin::Files(source) => Trusted::reload(&it.issuer, source, &it.keys),
            Origin::Url(_) => Ok(Reload::Unchanged),
        };
        self.issuers.iter().map(reload).collect()
    }

    /// As [`Authenticator::authenticate`] does, with the keys that are here.
    #[cfg(test)]
    pub(super) fn prove(&self, token: &str, now: Timestamp) -> Result<Identity, Refusal> {
        self.prove_by(self.issuer_of(token)?, token, now)
    }

    fn prove_by(
        &self,
        trusted: &Trusted,
        token: &str,
        now: Timestamp,
    ) -> Result<Identity, Refusal> {
        let proven: Proven = trusted.open_token(token)?;
        let user = proven
            .sub
            .parse()
            .map_err(|_| unauthenticated("the token's sub is no user"))?;
        trusted.check_times(&proven.times, self.leeway, now)?;
        Ok(Identity {
            user,
            platform: restriction(proven.platform)?,
            device: restriction(proven.device)?,
            issued_at: issue(proven.times.iat),
            expires_at: from_seconds(proven.times.exp),
        })
    }

    /// True for a token that says it is of one of these issuers.
    pub(super) fn knows(&self, token: &str) -> bool {
        let claimed = insecure_decode_claims::<Claimed>(token).ok();
        let issuer = claimed.and_then(|claimed| claimed.iss);
        issuer.is_some_and(|issuer| self.issuers.iter().any(|known| known.issuer == issuer))
    }

    /// By what the token says before anything is proved: it chooses among those that are trusted anyway.
    fn issuer_of(&self, token: &str) -> Result<&Trusted, Refusal> {
        let issuer = claimed_issuer(token, self.token_bytes_max)?;
        let mut issuers = self.issuers.iter();
        let trusted = issuers.find(|trusted| trusted.issuer == issuer);
        trusted.ok_or_else(not_of_the_issuer)
    }
}

#[async_trait]
impl Authenticator for SignedTokens {
    async fn authenticate(
        &self,
        token: &str,
        _: &Client<'_>,
        now: Timestamp,
    ) -> Result<Identity, Refusal> {
        let trusted = self.issuer_of(token)?;
        trusted.await_key(token).await?;
        self.prove_by(trusted, token, now)
    }
}

/// The claim that chooses an issuer.
#[derive(Deserialize)]
struct Claimed {
    iss: Option<String>,
}

/// Refuses a token that nobody need be asked about.
pub(super) fn check_size(token: &str, bytes_max: usize) -> Result<(), Refusal> {
    if token.is_empty() {
        return Err(unauthenticated("the token is missing"));
    }
    if token.len() > bytes_max {
        return Err(unauthenticated("the token is too long"));
    }
    Ok(())
}

/// By what a token says before anything is proved.
pub(super) fn claimed_issuer(token: &str, bytes_max: usize) -> Result<String, Refusal> {
    check_size(token, bytes_max)?;
    let claimed: Claimed = insecure_decode_claims(token)
        .map_err(|error| unauthenticated(what_is_wrong(error.kind())))?;
    claimed.iss.ok_or_else(|| unauthenticated(LACKS_A_CLAIM))
}

pub(super) fn not_of_the_issuer() -> Refusal {
    unauthenticated(what_is_wrong(&ErrorKind::InvalidIssuer))
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
    /// A bound on the life of a token: so long has it whoever steals it.
    fn check_lifetime(
        &self,
        lifetime_max: Duration,
        leeway: Duration,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let issued = self
            .iat
            .ok_or_else(|| unauthenticated("the token does not say when it was issued (iat)"))?;
        if now + leeway < from_seconds(issued) {
            return Err(unauthenticated("the token is not yet valid"));
        }
        if from_seconds(self.exp) > from_seconds(issued) + lifetime_max {
            return Err(unauthenticated(
                "the token lives longer than is accepted here",
            ));
        }
        Ok(())
    }
}

/// Claims of a proven token. The audience and the issuer were checked with the signature.
#[derive(Deserialize)]
struct Proven {
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
