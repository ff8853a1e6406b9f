//! Operators signed in by a proxy in front of the desk, which sets a signed assertion in a header
//! of each request.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use axum::http::header::{AUTHORIZATION, HeaderName};
use backend::clock::{Clock, Entropy, SystemClock, SystemEntropy};
use protocol::settings::{Link, Problems};
use protocol::signature::Algorithm;
use protocol::{Refusal, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::operators::{Operator, Role};

/// Limit of an assertion in bytes: one with hundreds of groups fits.
const BYTES_MAX: usize = 12 * 1024;
/// Limit of an operator's name in bytes, which is in each line of the log of operations.
const NAME_BYTES_MAX: usize = 256;
/// Limit of values of a claim that a refusal names.
const NAMED_MAX: usize = 5;

/// Section `admin.assertion`: single sign-on by a proxy in front of the desk.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AssertionConfig {
    /// Header that carries the assertion, a signed JWT; in `authorization` it follows `Bearer`.
    /// Unset: no single sign-on. A header with an unsigned name is not trusted.
    #[schemars(extend("examples" = ["x-goog-iap-jwt-assertion"]))]
    pub header: Option<String>,
    /// Expected `iss` of assertions.
    pub issuer: String,
    /// Expected `aud` of assertions for this desk.
    pub audience: String,
    /// Accepted algorithms of assertions: any of `EdDSA`, `ES256`, `RS256`.
    pub algorithms: Vec<Algorithm>,
    /// Address of the proxy's public keys, like `jwks_url` of `station.auth.issuers`.
    #[schemars(extend("examples" = ["https://www.gstatic.com/iap/verify/public_key-jwk"]))]
    pub jwks_url: Option<Link>,
    /// File with the proxy's public keys, in place of `jwks_url`. Read again when it changes.
    #[schemars(extend("examples" = ["/etc/packetboat/desk/proxy.jwks"]))]
    pub jwks_file: Option<PathBuf>,
    /// Maximum time from an assertion's `iat` to its `exp`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMaximum" = "90days"))]
    pub lifetime_max: Duration,
    /// Claim with the operator's name for logs. Choose one that people cannot set themselves.
    pub name_claim: String,
    /// Claim, a text or a list of texts, whose values `roles` maps to roles. Given by its name, or
    /// by the names on the path to it, with dots between them.
    pub roles_claim: String,
    /// Roles for each value of `roles_claim`. The roles of several values add up.
    pub roles: BTreeMap<String, Vec<Role>>,
}

impl Default for AssertionConfig {
    fn default() -> Self {
        AssertionConfig {
            header: None,
            issuer: String::new(),
            audience: String::new(),
            algorithms: vec![Algorithm::ES256, Algorithm::RS256],
            jwks_url: None,
            jwks_file: None,
            lifetime_max: Duration::from_secs(24 * 3600),
            name_claim: "sub".to_owned(),
            roles_claim: "groups".to_owned(),
            roles: BTreeMap::new(),
        }
    }
}

impl AssertionConfig {
    pub fn is_on(&self) -> bool {
        self.header.is_some()
    }

    /// Settings that cannot work, by names of this section. Reads no file.
    pub(super) fn problems(&self, provers: &dyn Provers) -> Problems {
        let mut problems = Problems::default();
        let Some(header) = &self.header else {
            if !self.issuer.is_empty() || !self.roles.is_empty() {
                let reason = "the header with the assertions is not set";
                let remedy = "Set it to the header that the proxy sets";
                problems.refuse("header", "", reason, remedy);
            }
            return problems;
        };
        if header.parse::<HeaderName>().is_err() {
            let value = format!("{header:?}");
            problems.refuse(
                "header",
                value,
                "not a valid header name",
                "Such as x-pomerium-jwt-assertion",
            );
        }
        if self.algorithms.contains(&Algorithm::HS256) {
            let reason = "with a shared secret, this process could forge assertions";
            let remedy = "Use any of EdDSA, ES256, RS256";
            problems.refuse("algorithms", "HS256", reason, remedy);
        } else {
            problems.extend(provers.problems(self));
        }
        for (key, claim) in [
            ("name_claim", &self.name_claim),
            ("roles_claim", &self.roles_claim),
        ] {
            if claim.is_empty() {
                problems.refuse(
                    key,
                    "empty",
                    "claim names are not empty",
                    "Such as sub, email, groups",
                );
            }
        }
        if self.roles.values().all(Vec::is_empty) {
            let reason = "users of the proxy would have no rights";
            let remedy =
                "Map values of roles_claim to roles, such as { oncall = [\"view\", \"redrive\"] }";
            problems.refuse("roles", "empty", reason, remedy);
        }
        problems
    }
}

/// Makes provers of assertions, out of the settings of their issuer.
pub trait Provers {
    /// Settings of the issuer that cannot work, by names of its section.
    fn problems(&self, config: &AssertionConfig) -> Problems;

    /// Reads keys that are in a file; makes no call. Assertions of more than `bytes_max` are
    /// refused unread.
    ///
    /// # Errors
    /// An invalid file or URL.
    fn open(&self, config: &AssertionConfig, bytes_max: usize) -> Result<Arc<dyn Prover>>;
}

/// Proves assertions of one issuer.
#[async_trait]
pub trait Prover: Send + Sync {
    /// Keeps the keys current until dropped.
    async fn keep(&self, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>);

    /// Proves an assertion, and returns all its claims. A refusal is `Unavailable` if there are no
    /// keys to check with yet.
    async fn prove(&self, assertion: &str, now: Timestamp) -> Result<Map<String, Value>, Refusal>;
}

/// Outcome of a request with an assertion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AssertionOutcome {
    Operator(Operator),
    /// Somebody who may do nothing here, in words.
    Nobody(String),
    Refused(Refusal),
}

/// Proof of assertions, and what they allow.
pub(super) struct Assertion {
    header: HeaderName,
    prover: Arc<dyn Prover>,
    clock: Arc<dyn Clock>,
    config: AssertionConfig,
}

impl Assertion {
    /// Reads keys from a file, if set; makes no call.
    pub(super) fn open(
        config: &AssertionConfig,
        provers: &dyn Provers,
    ) -> Result<Option<Assertion>> {
        let Some(header) = config.header.as_ref().and_then(|name| name.parse().ok()) else {
            return Ok(None);
        };
        Ok(Some(Assertion {
            header,
            prover: provers.open(config, BYTES_MAX)?,
            clock: Arc::new(SystemClock),
            config: config.clone(),
        }))
    }

    /// Keeps the keys current until `stop`.
    pub(super) fn keep(&self, stop: CancellationToken) {
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let (prover, clock) = (self.prover.clone(), self.clock.clone());
        let keep = async move { prover.keep(clock, entropy).await };
        tokio::spawn(stop.run_until_cancelled_owned(keep));
    }

    pub(super) fn header(&self) -> &HeaderName {
        &self.header
    }

    /// Assertion in a value of the header, if it can be one.
    pub(super) fn of<'a>(&self, value: &'a [u8]) -> Option<&'a str> {
        let value = if self.header == AUTHORIZATION {
            value.strip_prefix(b"Bearer ")?
        } else {
            value
        };
        std::str::from_utf8(value).ok()
    }

    pub(super) async fn ask(&self, assertion: &str) -> AssertionOutcome {
        let now: Timestamp = self.clock.now();
        match self.prover.prove(assertion, now).await {
            Ok(claims) => judge(&self.config, &claims),
            Err(refusal) => AssertionOutcome::Refused(refusal),
        }
    }
}

/// Operator with the roles of these claims, which are proved.
fn judge(config: &AssertionConfig, claims: &Map<String, Value>) -> AssertionOutcome {
    let claim = &config.name_claim;
    let Some(name) = find(claims, claim)
        .and_then(Value::as_str)
        .filter(|name| is_name(name))
    else {
        let text = format!(
            "the proxy's assertion has no usable name in {claim:?}: add one, or set \
             admin.assertion.name_claim to another claim"
        );
        return AssertionOutcome::Nobody(text);
    };
    if claim == "email" && claims.get("email_verified") == Some(&Value::Bool(false)) {
        let text = format!(
            "the email address {name} is not verified by {}",
            config.issuer
        );
        return AssertionOutcome::Nobody(text);
    }
    let values = texts(find(claims, &config.roles_claim));
    let role_lists = values.iter().filter_map(|value| config.roles.get(*value));
    let granted_roles: Vec<Role> = role_lists.flatten().copied().collect();
    let mut roles = Role::ALL.to_vec();
    roles.retain(|role| granted_roles.contains(role));
    if roles.is_empty() {
        return AssertionOutcome::Nobody(without_roles(config, name, &values));
    }
    AssertionOutcome::Operator(Operator {
        name: name.to_owned(),
        roles,
        signed_in: true,
    })
}

fn without_roles(config: &AssertionConfig, name: &str, values: &[&str]) -> String {
    let AssertionConfig {
        issuer,
        roles_claim,
        ..
    } = config;
    let first_values: Vec<_> = values.iter().take(NAMED_MAX).collect();
    let description = match (values.len(), values.len().saturating_sub(NAMED_MAX)) {
        (0, _) => format!("has nothing in {roles_claim:?}"),
        (_, 0) => format!("has {first_values:?} in {roles_claim:?}"),
        (_, more) => format!("has {first_values:?} and {more} more in {roles_claim:?}"),
    };
    format!(
        "{name} is signed in by {issuer}, {description}, but admin.assertion.roles maps none of it to a \
         role: ask an administrator of Packetboat or of the groups"
    )
}

fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
}

/// Finds a claim by its name, or else by the names on the path to it.
fn find<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        find(claims.get(first)?.as_object()?, rest)
    })
}

fn texts(claim: Option<&Value>) -> Vec<&str> {
    match claim {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}
