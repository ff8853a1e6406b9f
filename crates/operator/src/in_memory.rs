//! Parts in memory, for tests.

use std::sync::Arc;

use api::transport::Connector;
use backend::clock::{Clock, Entropy, SystemClock, SystemEntropy};
use backend::embedded::Engine;
use backend::{Backends, Embedded, EmbeddedConfig, Result};

/// All parts, gone with the test, and calls between services.
pub(crate) struct Environment {
    pub(crate) backends: Backends,
    pub(crate) connector: Connector,
}

impl Environment {
    pub(crate) fn in_memory() -> Result<Environment> {
        Environment::over(
            Engine::memory(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    pub(crate) fn over(
        engine: Engine,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Environment> {
        let parts = Embedded::open(&engine, EmbeddedConfig::default(), clock, entropy)?;
        Ok(Environment {
            backends: parts.backends,
            connector: Connector::default(),
        })
    }
}
