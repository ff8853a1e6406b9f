//! Section `station.auth`: whose tokens are believed.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use protocol::settings::{Link, Problems};
pub use protocol::signature::Algorithm;
use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AUDIENCE, RemoteConfig};

/// Section `station.auth`: verification of tokens.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// File with the secret that signs tokens (HS256, 32 bytes or more; white space at its end does
    /// not count). Read again when it changes. Unset, and without `issuers`: the well-known
    /// development key, which protects nothing.
    #[schemars(extend("examples" = ["/etc/packetboat/token-key/key"]))]
    pub key_file: Option<PathBuf>,
    /// Issuer that a token must name if `issuers` is empty.
    pub issuer: String,
    /// Trusted issuers of tokens, in place of `key_file` and `issuer`. A token's `iss` selects one
    /// of them, its `kid` one of that issuer's keys, and the key determines the algorithm.
    pub issuers: Vec<Issuer>,
    /// Section `station.auth.remote`: your own service that identifies the user of a token.
    pub remote: RemoteConfig,
    /// Directory with the last good key set of each `jwks_url`, for a station that starts while a
    /// provider is away. Anyone who can write there decides whose tokens are trusted. Unset: no
    /// copies.
    #[schemars(extend("examples" = ["/var/lib/packetboat/keys"]))]
    pub cache_dir: Option<PathBuf>,
    /// Age of the last good key set of a `jwks_url` from which on sign-ins of its issuer are
    /// refused as `unavailable`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMinimum" = "2h", "spanMaximum" = "30days"))]
    pub stale_max: Duration,
    /// Maximum size of a token in bytes; longer ones are refused unread.
    #[schemars(range(min = 256, max = 8192))]
    pub token_bytes_max: usize,
    /// Refuses all sign-ins as `unavailable` while revocations have not been read for a minute.
    /// Off: sign-ins go on, and the alarm warns that a revoked token may be among them.
    pub strict: bool,
}

/// See [`Config::issuers`].
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    /// `iss` of its tokens.
    #[schemars(length(min = 1, max = 256))]
    pub issuer: String,
    /// `aud` of tokens for this service.
    #[serde(default = "audience")]
    pub audience: String,
    /// Algorithms of its tokens; keys of other algorithms are skipped. `HS256` stands alone, and
    /// with `secrets`.
    pub algorithms: Vec<Algorithm>,
    /// File with its public keys, a JWK set (RFC 7517) of at most 64 keys and 256 KiB, read again
    /// when it changes. RSA keys have 2,048 to 4,096 bits.
    #[serde(default)]
    pub jwks_file: Option<PathBuf>,
    /// Address of its public keys, a JWK set as in `jwks_file`: https, or http on loopback. Fetched
    /// every ten minutes or as its `Cache-Control` says, from a minute to an hour, and when a token
    /// names an unknown key; redirects are not followed.
    #[serde(default)]
    pub jwks_url: Option<Link>,
    /// Secrets by `kid`, for `HS256`, read again when they change. The first one signs the tokens
    /// of `packetboat token`.
    #[serde(default)]
    pub secrets: Vec<SecretFile>,
    /// Maximum time from a token's `iat` to its `exp`, 90 days at most; a token that lives longer
    /// is refused.
    #[serde(with = "humantime_serde", default = "lifetime_max")]
    #[schemars(with = "protocol::settings::Span")]
    pub lifetime_max: Duration,
}

/// See [`Issuer::secrets`].
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretFile {
    /// `kid` of the tokens that it signs.
    #[schemars(length(min = 1, max = 256))]
    pub kid: String,
    /// File with the secret, 32 bytes or more; white space at its end does not count.
    pub file: PathBuf,
}

/// Names an algorithm as `jsonwebtoken` does.
pub(super) fn to_jwt_algorithm(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::EdDSA => jsonwebtoken::Algorithm::EdDSA,
        Algorithm::ES256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::RS256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::HS256 => jsonwebtoken::Algorithm::HS256,
    }
}

fn audience() -> String {
    AUDIENCE.into()
}

const fn lifetime_max() -> Duration {
    Duration::from_secs(24 * 3600)
}

impl Default for Config {
    fn default() -> Self {
        Config {
            key_file: None,
            issuer: "packetboat".into(),
            issuers: Vec::new(),
            remote: RemoteConfig::default(),
            cache_dir: None,
            stale_max: Duration::from_secs(24 * 3600),
            token_bytes_max: 4096,
            strict: false,
        }
    }
}

/// Tolerance for clocks that differ.
pub(super) const LEEWAY: Duration = Duration::from_secs(30);

/// Life of the tokens that `packetboat token` signs with `key_file`.
const KEY_FILE_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Upper bound of `lifetime_max`: revocations are kept for as long, and a station reads them all at
/// its start.
pub(super) const LIFETIME_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

impl Config {
    /// Whether tokens are proved by the key that everybody knows.
    #[must_use]
    pub fn is_well_known(&self) -> bool {
        self.key_file.is_none() && self.issuers.is_empty() && !self.remote.is_on()
    }

    /// Life of the longest token, which its revocation outlives. A token of `key_file` may live
    /// longer: then its revocation ends before it does.
    #[must_use]
    pub fn lifetime_max(&self) -> Duration {
        let lifetimes = self.issuers.iter().map(|issuer| issuer.lifetime_max);
        let remote = self.remote.is_on().then_some(self.remote.lifetime_max);
        lifetimes.chain(remote).max().unwrap_or(KEY_FILE_LIFETIME)
    }

    /// Settings that cannot work, by names of this section.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let (Some(file), false) = (&self.key_file, self.issuers.is_empty()) {
            let reason = "issuers are set, too; only one of the two can define trust";
            let remedy = "Make the file one of an issuer's secrets, or remove issuers";
            problems.refuse("key_file", file.display(), reason, remedy);
        }
        if let (Some(file), true) = (&self.key_file, self.remote.is_on()) {
            let reason = "remote is set, too; only one of the two can define trust";
            let remedy = "Make the file one of an issuer's secrets, or remove remote";
            problems.refuse("key_file", file.display(), reason, remedy);
        }
        problems.section("remote", self.remote.problems());
        for (index, issuer) in self.issuers.iter().enumerate() {
            let mut refuse = |key: &str, value: &str, reason: &str, remedy: &str| {
                problems.refuse(&format!("issuers[{index}].{key}"), value, reason, remedy);
            };
            issuer.check(&mut refuse);
            let mut earlier_issuers = self.issuers.iter().take(index);
            if earlier_issuers.any(|other| other.issuer == issuer.issuer) {
                let reason = "duplicate issuer";
                refuse("issuer", &issuer.issuer, reason, "Merge the two entries");
            }
        }
        problems
    }
}

impl Issuer {
    /// Settings that cannot work, by names of this section.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        self.check(&mut |key, value, reason, remedy| problems.refuse(key, value, reason, remedy));
        problems
    }

    fn check(&self, refuse: &mut impl FnMut(&str, &str, &str, &str)) {
        if self.issuer.is_empty() {
            refuse(
                "issuer",
                "",
                "tokens must have an issuer",
                "Set the iss of the tokens",
            );
        }
        if self.audience.is_empty() {
            let remedy = "Set the aud of the tokens";
            refuse("audience", "", "tokens must be for this service", remedy);
        }
        if self.lifetime_max.is_zero() {
            refuse(
                "lifetime_max",
                "0s",
                "every token would be rejected",
                "Use 24h",
            );
        }
        if self.lifetime_max > LIFETIME_MAX {
            let value = format!("{}s", self.lifetime_max.as_secs());
            let reason =
                "revocations are kept this long, and a station reads them all when it starts";
            refuse("lifetime_max", &value, reason, "At most 90days");
        }
        let has_secret = self.algorithms.contains(&Algorithm::HS256);
        if self.algorithms.is_empty() || (has_secret && self.algorithms.len() > 1) {
            let reason = "public keys and secrets must not be mixed";
            let remedy = "Use any of EdDSA, ES256, RS256, or HS256 alone";
            refuse(
                "algorithms",
                &format!("{:?}", self.algorithms),
                reason,
                remedy,
            );
        }
        self.check_source(has_secret, refuse);
        for (index, secret) in self.secrets.iter().enumerate() {
            let mut earlier_secrets = self.secrets.iter().take(index);
            if secret.kid.is_empty() || earlier_secrets.any(|other| other.kid == secret.kid) {
                let reason = "kid is empty or used twice";
                refuse("secrets", &secret.kid, reason, "Use a unique kid");
            }
        }
    }

    /// Checks the source of keys (`jwks_url`, `jwks_file` or `secrets`) against the algorithms.
    fn check_source(&self, has_secret: bool, refuse: &mut impl FnMut(&str, &str, &str, &str)) {
        let file = self.jwks_file.as_ref();
        let file = file.map(|file| ("jwks_file", file.display().to_string()));
        let url = self.jwks_url.as_ref();
        let url = url.map(|url| ("jwks_url", url.to_string()));
        match (file.or(url), self.secrets.is_empty()) {
            (Some((key, value)), _) if has_secret => {
                let reason = "a set of public keys has no secret for HS256";
                refuse(key, &value, reason, "Use secrets with HS256");
            }
            (_, false) if !has_secret => {
                let reason = "only HS256 uses secrets";
                refuse("secrets", "", reason, "Use algorithms = [\"HS256\"]");
            }
            (None, true) => {
                let reason = "no keys to verify its tokens";
                let remedy = "Set jwks_url, jwks_file, or secrets with HS256";
                refuse("jwks_file", "", reason, remedy);
            }
            _ => {}
        }
        let Some(url) = &self.jwks_url else {
            return;
        };
        if self.jwks_file.is_some() {
            let reason = "jwks_file is set, too; the keys can come from only one of the two";
            refuse("jwks_url", &url.to_string(), reason, "Remove one");
        }
        if let Err(reason) = address(url) {
            let remedy = "Such as https://host/path";
            refuse("jwks_url", &url.to_string(), reason, remedy);
        }
    }
}

/// Reads an address of keys. Between here and a provider without TLS anybody could inject keys of
/// their own.
pub(super) fn address(link: &Link) -> Result<Url, &'static str> {
    let url = Url::parse(link.expose()).map_err(|_| "not a URL")?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&url) => Ok(url),
        "http" => Err("http is for loopback only"),
        _ => Err("not an https:// URL"),
    }
}

/// Whether the host is this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}
