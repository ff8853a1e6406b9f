//! Where services run: the parts outside the process, whichever they are, and the calls between services.

use api::transport::Connector;
use backend::Backends;

use super::around::Around;
use super::upkeep::Upkeep;

/// What a system stands on. Tests may put something around a part before it is started.
#[derive(Clone)]
pub struct Environment {
    pub backends: Backends,
    /// Calls between services, of which some are in this process.
    pub connector: Connector,
    /// What nobody else cleans up: the real parts do it themselves.
    pub(super) upkeep: Option<Upkeep>,
}

impl Environment {
    /// With that around each part.
    pub(crate) fn with(mut self, around: &dyn Around) -> Environment {
        self.backends = around.backends(self.backends);
        self
    }
}
