//! Provers of operators' assertions, as stations prove tokens.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use backend::clock::{Clock, Entropy};
use operator::port::{AssertionConfig, Prover, Provers};
use protocol::settings::Problems;
use protocol::{Refusal, Timestamp};
use serde_json::{Map, Value};
use station::auth::{Assertions, Issuer};

/// Proves assertions with the keys of an issuer, as a station does.
pub struct StationProvers;

impl Provers for StationProvers {
    fn problems(&self, config: &AssertionConfig) -> Problems {
        issuer(config).problems()
    }

    fn open(&self, config: &AssertionConfig, bytes_max: usize) -> Result<Arc<dyn Prover>> {
        let assertions = Assertions::open(&issuer(config), bytes_max)?;
        Ok(Arc::new(KeptAssertions(Arc::new(assertions))))
    }
}

fn issuer(config: &AssertionConfig) -> Issuer {
    Issuer {
        issuer: config.issuer.clone(),
        audience: config.audience.clone(),
        algorithms: config.algorithms.clone(),
        jwks_file: config.jwks_file.clone(),
        jwks_url: config.jwks_url.clone(),
        secrets: Vec::new(),
        lifetime_max: config.lifetime_max,
    }
}

struct KeptAssertions(Arc<Assertions>);

#[async_trait]
impl Prover for KeptAssertions {
    async fn keep(&self, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) {
        self.0.clone().keep(clock, entropy).await;
    }

    async fn prove(&self, assertion: &str, now: Timestamp) -> Result<Map<String, Value>, Refusal> {
        self.0.prove(assertion, now).await
    }
}
