//! Assertions about people who are no users, such as operators: proved as tokens are, with any
//! claims.

use std::sync::Arc;

use backend::clock::{Clock, Entropy};
use protocol::{Refusal, Timestamp};
use serde_json::{Map, Value};

use super::config::{Config, Issuer};
use super::provider::Https;
use super::tokens::{Times, TrustedIssuer, claimed_issuer, wrong_issuer};
use super::{KeyError, unauthenticated};

/// One issuer whose assertions are believed, and its current keys.
#[derive(Debug)]
pub struct Assertions {
    issuer: TrustedIssuer,
    bytes_max: usize,
}

impl Assertions {
    /// Reads keys that are in files. Those at a URL come later: see [`Assertions::keep`].
    /// Assertions of more than `bytes_max` are refused unread.
    ///
    /// # Errors
    /// An invalid file or URL.
    pub fn open(issuer: &Issuer, bytes_max: usize) -> Result<Assertions, KeyError> {
        let config = Config::default();
        let trusted_issuer = TrustedIssuer::new(issuer, &config, &|issuer, url| {
            let https = Https::open(&issuer.issuer, url)?;
            Ok(Box::new(https))
        })?;
        Ok(Assertions {
            issuer: trusted_issuer,
            bytes_max,
        })
    }

    /// Reads changed keys again, or fetches them from their URL, until dropped.
    pub async fn keep(self: Arc<Self>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) {
        self.issuer.keep(&*clock, &*entropy).await;
    }

    /// Proves an assertion, and returns all its claims: of the issuer, for its audience, valid now.
    /// Refusals are those of an `Authenticator`.
    pub async fn prove(
        &self,
        assertion: &str,
        now: Timestamp,
    ) -> Result<Map<String, Value>, Refusal> {
        if claimed_issuer(assertion, self.bytes_max)? != self.issuer.issuer {
            return Err(wrong_issuer());
        }
        self.issuer.await_key(assertion).await?;
        let claims: Map<String, Value> = self.issuer.open_token(assertion)?;
        let times: Times = serde_json::from_value(Value::Object(claims.clone()))
            .map_err(|_| unauthenticated("the token contains an invalid time"))?;
        self.issuer.check_times(&times, now)?;
        Ok(claims)
    }
}
