//! Wrappers between the services and the parts outside: none, in the program.

use std::sync::Arc;

use backend::Backends;
use backend::discovery::Registry;
use backend::ledger::LedgerStore;
use backend::queue::Queue;

/// Wraps parts before the services get them. A test uses it to end a process between two effects,
/// or to set its clock.
pub trait Around: Sync {
    /// Wraps all parts of a process that has them all.
    fn backends(&self, inner: Backends) -> Backends {
        inner
    }

    /// Wraps the registry of a boat.
    fn registry(&self, inner: Arc<dyn Registry>) -> Arc<dyn Registry> {
        inner
    }

    /// Wraps the log of a horn.
    fn queue(&self, inner: Arc<dyn Queue>) -> Arc<dyn Queue> {
        inner
    }

    /// Wraps the ledger of a horn.
    fn ledger(&self, inner: Arc<dyn LedgerStore>) -> Arc<dyn LedgerStore> {
        inner
    }
}

/// No wrappers: the parts as they are.
pub struct Bare;

impl Around for Bare {}
