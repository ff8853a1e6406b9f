//! The parts that a process has: a boat has fewer than a station.

use std::sync::Arc;

use backend::Backends;
use backend::discovery::Registry;
use backend::ledger::LedgerStore;
use backend::queue::Queue;

/// What of the outside a process can see.
#[derive(Clone, Default)]
pub struct Access {
    pub queue: Option<Arc<dyn Queue>>,
    pub ledger: Option<Arc<dyn LedgerStore>>,
    pub registry: Option<Arc<dyn Registry>>,
    /// All of it, where there is a desk.
    pub whole: Option<Backends>,
}

impl From<&Backends> for Access {
    fn from(backends: &Backends) -> Access {
        Access {
            queue: Some(backends.queue.clone()),
            ledger: Some(backends.ledger.clone()),
            registry: Some(backends.registry.clone()),
            whole: Some(backends.clone()),
        }
    }
}
