//! The environment of services: parts outside the process, whichever they are, and calls between services.

use api::transport::Connector;
use backend::Backends;

use super::around::Around;
use super::upkeep::Upkeep;

/// Everything that a system stands on. Tests may put something around a part before the system is started.
#[derive(Clone)]
pub struct Environment {
    pub backends: Backends,
    /// Calls between services, of which some are in this process.
    pub connector: Connector,
    /// Cleaning of the embedded parts; the real ones do it themselves.
    pub(super) upkeep: Option<Upkeep>,
}

impl Environment {
    /// With that around each part.
    pub(crate) fn with(mut self, around: &dyn Around) -> Environment {
        self.backends = around.backends(self.backends);
        self
    }
}
