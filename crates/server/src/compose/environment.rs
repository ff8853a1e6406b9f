//! The environment of services: parts outside the process, real or embedded, and calls between
//! services.

use api::transport::Connector;
use backend::Backends;
use tokio::sync::watch;
use tokio::task::JoinHandle;
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
    /// False once the embedded store takes no more writes; `None` on real parts.
    pub(super) takes_writes: Option<watch::Receiver<bool>>,
}

impl Environment {
    /// Cleans embedded parts until `stop`; `None` if there are none.
    pub fn clean(&self, stop: CancellationToken) -> Option<JoinHandle<()>> {
        let upkeep = self.upkeep.clone()?;
        Some(tokio::spawn(upkeep.run(stop)))
    }

    /// Wraps the parts in `around`.
    pub(crate) fn with(mut self, around: &dyn Around) -> Environment {
        self.backends = around.backends(self.backends);
        self
    }
}
