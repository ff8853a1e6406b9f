//! What stands between the services and the parts outside: nothing, in the program.

use std::sync::Arc;

use backend::Backends;
use backend::discovery::Registry;
use backend::ledger::LedgerStore;
use backend::queue::Queue;

/// Puts something around parts before the services get them. A test ends a process between two effects so, or sets
/// its clock.
pub trait Around: Sync {
    /// All parts, of a process that has them.
    fn backends(&self, inner: Backends) -> Backends {
        inner
    }

    /// A boat's.
    fn registry(&self, inner: Arc<dyn Registry>) -> Arc<dyn Registry> {
        inner
    }

    /// A horn's.
    fn queue(&self, inner: Arc<dyn Queue>) -> Arc<dyn Queue> {
        inner
    }

    /// A horn's.
    fn ledger(&self, inner: Arc<dyn LedgerStore>) -> Arc<dyn LedgerStore> {
        inner
    }
}

/// The parts as they are.
pub struct Bare;

impl Around for Bare {}
