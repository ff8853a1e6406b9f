//! The environment of services: parts outside the process, real or embedded, and calls between
//! services.

use api::transport::Connector;
use backend::Backends;
use tokio_util::sync::CancellationToken;

use super::around::Around;
use super::upkeep::Upkeep;

/// Parts and calls that a system runs on. Tests may wrap a part before the system starts.
#[derive(Clone)]
pub struct Environment {
    pub backends: Backends,
    /// Calls between services, some of which are in this process.
    pub connector: Connector,
    /// Cleaning of the embedded parts; the real ones do it themselves.
    pub(super) upkeep: Option<Upkeep>,
}

impl Environment {
    /// Cleans embedded parts until `stop`.
    pub fn clean(&self, stop: CancellationToken) {
        if let Some(upkeep) = self.upkeep.clone() {
            tokio::spawn(upkeep.run(stop));
        }
    }

    /// Wraps the parts in `around`.
    pub(crate) fn with(mut self, around: &dyn Around) -> Environment {
        self.backends = around.backends(self.backends);
        self
    }
}
