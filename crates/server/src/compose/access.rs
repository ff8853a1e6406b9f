//! The seams that a process has: a boat has fewer than a station.

use std::sync::Arc;

use backend::discovery::Registry;
use backend::ledger::LedgerStore;
use backend::queue::Queue;

use super::seams::Seams;

/// What of the outside a process can see.
#[derive(Clone, Default)]
pub struct Access {
    pub queue: Option<Arc<dyn Queue>>,
    pub ledger: Option<Arc<dyn LedgerStore>>,
    pub registry: Option<Arc<dyn Registry>>,
    /// All of it, where there is a desk.
    pub whole: Option<Seams>,
}

impl From<&Seams> for Access {
    fn from(seams: &Seams) -> Access {
        Access {
            queue: Some(seams.queue.clone()),
            ledger: Some(seams.ledger.clone()),
            registry: Some(seams.registry.clone()),
            whole: Some(seams.clone()),
        }
    }
}
