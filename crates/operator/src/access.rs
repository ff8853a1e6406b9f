//! Parts that a process can reach: a boat has fewer than a station.

use std::sync::Arc;

use backend::Backends;
use backend::discovery::Registry;
use backend::ledger::LedgerStore;
use backend::queue::Queue;

/// Parts outside a process, as far as it can reach them.
#[derive(Clone, Default)]
pub struct Access {
    pub queue: Option<Arc<dyn Queue>>,
    pub ledger: Option<Arc<dyn LedgerStore>>,
    pub registry: Option<Arc<dyn Registry>>,
    /// All parts, if the process has a desk.
    pub backends: Option<Backends>,
}

impl From<&Backends> for Access {
    fn from(backends: &Backends) -> Access {
        Access {
            queue: Some(backends.queue.clone()),
            ledger: Some(backends.ledger.clone()),
            registry: Some(backends.registry.clone()),
            backends: Some(backends.clone()),
        }
    }
}
