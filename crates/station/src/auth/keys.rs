//! Keys of one issuer, as its files have them.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use backend::files::{Reload, digest};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use serde::Deserialize;

use super::KeyError;
use super::config::{Algorithm, Issuer, to_jwt_algorithm};
use super::signing::Secret;

/// Limit of keys in one set; an issuer in the middle of a rotation has two or three.
const KEYS_MAX: usize = 64;
/// Limit of bytes in one set.
pub(super) const SET_BYTES_MAX: u64 = 256 * 1024;
/// RFC 7518, 3.3 asks for 2,048 bits; longer than 4,096 is a way to make checks slow.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// All keys of an issuer at one moment. A set replaces the one before: a key that is gone proves nothing.
pub(super) struct KeySet {
    keys: Vec<Key>,
    /// True for one secret that fits whatever `kid` a token names.
    any_kid: bool,
    digest: [u8; 32],
}

/// Reasons why no key proves a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The issuer has no key of this name for the token's algorithm.
    Unknown,
    /// The token names no key, and the issuer has several of its algorithm.
    Ambiguous,
}

impl KeySet {
    /// A set of one secret, for whatever `kid` a token names.
    pub(super) fn new(secret: &Secret) -> KeySet {
        KeySet {
            keys: vec![Key {
                kid: None,
                algorithm: Algorithm::HS256,
                key: DecodingKey::from_secret(secret.expose()),
            }],
            any_kid: true,
            digest: digest([secret.expose()]),
        }
    }

    /// An empty set, which equals no set that was read.
    pub(super) fn none() -> KeySet {
        KeySet {
            keys: Vec::new(),
            any_kid: false,
            digest: digest(std::iter::empty::<&[u8]>()),
        }
    }

    /// Parses a JWK set, and keeps the keys of `algorithms`.
    ///
    /// # Errors
    /// The reason why the set cannot be used, without any of its content.
    pub(super) fn parse(content: &[u8], algorithms: &[Algorithm]) -> Result<KeySet, String> {
        Ok(KeySet {
            keys: parse(content, algorithms)?,
            any_kid: false,
            digest: digest([content]),
        })
    }

    /// Reads all files of an issuer, which must all be right.
    pub(super) fn read(issuer: &Issuer) -> Result<KeySet, KeyError> {
        if let Some(path) = &issuer.jwks_file {
            let content = read_file(path, SET_BYTES_MAX)?;
            let unusable = |reason| KeyError::File {
                path: path.clone(),
                reason,
            };
            return KeySet::parse(&content, &issuer.algorithms).map_err(unusable);
        }
        let mut keys = Vec::with_capacity(issuer.secrets.len());
        let mut secrets = Vec::with_capacity(issuer.secrets.len());
        for file in &issuer.secrets {
            let secret = Secret::read(&file.file)?;
            keys.push(Key {
                kid: Some(file.kid.clone()),
                algorithm: Algorithm::HS256,
                key: DecodingKey::from_secret(secret.expose()),
            });
            secrets.push(secret);
        }
        Ok(KeySet {
            keys,
            any_kid: false,
            digest: digest(secrets.iter().map(Secret::expose)),
        })
    }

    /// Whether no token can be proved.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether both came from the same bytes.
    pub(super) fn has_same_content(&self, other: &KeySet) -> bool {
        self.digest == other.digest
    }

    /// Finds the key for a token with this header. Without a `kid` the only key of its algorithm is
    /// meant.
    pub(super) fn find(
        &self,
        kid: Option<&str>,
        algorithm: jsonwebtoken::Algorithm,
    ) -> Result<&DecodingKey, NoKey> {
        let has_algorithm = |key: &&Key| to_jwt_algorithm(key.algorithm) == algorithm;
        let mut keys = self.keys.iter().filter(has_algorithm);
        let key = match kid.filter(|_| !self.any_kid) {
            Some(kid) => keys.find(|key| key.kid.as_deref() == Some(kid)),
            None => {
                let first = keys.next();
                if keys.next().is_some() {
                    return Err(NoKey::Ambiguous);
                }
                first
            }
        };
        key.map(|key| &key.key).ok_or(NoKey::Unknown)
    }
}

/// Installs a set that was read. A set without keys is installed too: its owner wants no token
/// believed.
pub(super) fn replace(issuer: &str, keys: &ArcSwap<KeySet>, new_set: KeySet) -> Reload {
    if keys.load().has_same_content(&new_set) {
        return Reload::Unchanged;
    }
    if new_set.is_empty() {
        tracing::warn!(
            issuer,
            "key set is empty: all tokens of this issuer are rejected"
        );
    }
    keys.store(Arc::new(new_set));
    Reload::Reloaded
}

/// Reads a whole file; one of more than `bytes_max` is refused.
pub(super) fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>, KeyError> {
    let unreadable = |source| KeyError::Unreadable {
        path: path.into(),
        source,
    };
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(bytes_max + 1)
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    if content.len() as u64 > bytes_max {
        return Err(KeyError::File {
            path: path.into(),
            reason: format!("it is larger than {} KiB", bytes_max / 1024),
        });
    }
    Ok(content)
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

/// Members of a JWK (RFC 7517, 4 and RFC 7518, 6; RFC 8037, 2 for Ed25519) that matter here.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    d: Option<serde::de::IgnoredAny>,
}

impl Jwk {
    /// True for a key of tokens, as far as the JWK says.
    fn verifies(&self) -> bool {
        let usage = self.usage.as_deref().is_none_or(|usage| usage == "sig");
        let operations = self.key_ops.as_ref();
        usage && operations.is_none_or(|all| all.iter().any(|one| one == "verify"))
    }

    fn algorithm(&self) -> Option<Algorithm> {
        let algorithm = match (self.kty.as_str(), self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => Algorithm::EdDSA,
            ("EC", Some("P-256")) => Algorithm::ES256,
            ("RSA", _) => Algorithm::RS256,
            _ => return None,
        };
        let alg = match self.alg.as_deref() {
            None => return Some(algorithm),
            // RFC 9864 names the curve.
            Some("EdDSA" | "Ed25519") => Algorithm::EdDSA,
            Some("ES256") => Algorithm::ES256,
            Some("RS256") => Algorithm::RS256,
            Some(_) => return None,
        };
        (alg == algorithm).then_some(algorithm)
    }

    fn key(&self, algorithm: Algorithm) -> Result<DecodingKey, String> {
        let member = |name: &str, value: &Option<String>| {
            let value = value.clone().ok_or_else(|| format!("lacks {name}"))?;
            let bytes = BASE64_URL_SAFE_NO_PAD
                .decode(&value)
                .map_err(|_| format!("has no base64url in {name}"))?;
            Ok::<_, String>((value, bytes))
        };
        let point = |name: &str, value: &Option<String>| {
            let (value, bytes) = member(name, value)?;
            match bytes.len() {
                32 => Ok(value),
                other => Err(format!("has {other} bytes in {name}, not 32")),
            }
        };
        let key = match algorithm {
            Algorithm::EdDSA => DecodingKey::from_ed_components(&point("x", &self.x)?),
            Algorithm::ES256 => {
                DecodingKey::from_ec_components(&point("x", &self.x)?, &point("y", &self.y)?)
            }
            Algorithm::RS256 => {
                let ((_, n), (_, e)) = (member("n", &self.n)?, member("e", &self.e)?);
                let (modulus, exponent) = (significant(&n), significant(&e));
                let bits = bits(modulus);
                if !RSA_BITS.contains(&bits) {
                    return Err(format!("has {bits} bits; RSA keys have 2048 to 4096"));
                }
                let is_odd = exponent.last().is_some_and(|byte| byte % 2 == 1);
                if !is_odd || exponent == [1] {
                    return Err("has an e that is no RSA exponent".into());
                }
                Ok(DecodingKey::from_rsa_raw_components(modulus, exponent))
            }
            Algorithm::HS256 => return Err("is a secret".into()),
        };
        key.map_err(|error| format!("cannot be used: {error}"))
    }
}

/// Strips leading zeros off an unsigned number, which some providers write.
fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// Bits of an unsigned number, most significant byte first and not zero.
fn bits(number: &[u8]) -> usize {
    let unused_bits = number
        .first()
        .map_or(0, |byte| byte.leading_zeros() as usize);
    number.len() * 8 - unused_bits
}

/// Parses keys of `algorithms`. Skips others, and those that are not for tokens: a provider may
/// publish what it likes. An incomplete or private key is an error that somebody must hear of.
fn parse(content: &[u8], algorithms: &[Algorithm]) -> Result<Vec<Key>, String> {
    let set: JwkSet = serde_json::from_slice(content).map_err(|error| {
        // The content is not for a log.
        let (line, column) = (error.line(), error.column());
        format!("not a JWK set: line {line}, column {column}")
    })?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!(
            "it has {} keys, at most 64 are allowed",
            set.keys.len()
        ));
    }
    let mut keys: Vec<Key> = Vec::new();
    for (index, value) in set.keys.into_iter().enumerate() {
        let wrong = |reason: &str| format!("key {index} {reason}");
        let jwk: Jwk = serde_json::from_value(value)
            // The content is not for a log.
            .map_err(|_| wrong("has members of the wrong type"))?;
        if jwk.d.is_some() {
            return Err(wrong(
                "is a private key, which must not be published: create a new one",
            ));
        }
        let algorithm = jwk.algorithm().filter(|it| algorithms.contains(it));
        let Some(algorithm) = algorithm.filter(|_| jwk.verifies()) else {
            continue;
        };
        let is_same = |key: &Key| key.kid == jwk.kid && key.algorithm == algorithm;
        if jwk.kid.is_some() && keys.iter().any(is_same) {
            return Err(wrong("has the kid of an earlier key"));
        }
        let key = jwk.key(algorithm).map_err(|reason| wrong(&reason))?;
        keys.push(Key {
            kid: jwk.kid,
            algorithm,
            key,
        });
    }
    Ok(keys)
}
