//! A moment between two durable effects: after one of them, and before anything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use backend::discovery::Registry;
use backend::hook::{Hook, Hooked, Op};
use backend::ledger::LedgerStore;
use backend::queue::Queue;
use backend::{Backends, Result};
use server::compose::Around;

/// Where a process dies.
pub const VARIABLE: &str = "FAILPOINT";

/// Ends this process when an effect of that name has been made durable so often.
#[derive(Clone)]
pub struct Failpoint(Arc<dyn Hook>);

struct Armed {
    /// `seam.call`, or `seam.call.kind`.
    name: String,
    left: AtomicU32,
}

impl Failpoint {
    /// `name:count`, as the environment has it.
    pub fn armed() -> Failpoint {
        let text = std::env::var(VARIABLE).expect("the failpoint");
        let (name, count) = text.split_once(':').expect("name:count");
        Failpoint(Arc::new(Armed {
            name: name.to_owned(),
            left: AtomicU32::new(count.parse().expect("a count")),
        }))
    }
}

#[async_trait]
impl Hook for Armed {
    /// Like `kill -9`: nothing is unwound, flushed or told. Effects of one call count each by itself: under load several
    /// are in one call.
    async fn after(&self, op: &Op, done: usize) -> Result<()> {
        let mut name = format!("{}.{}", op.seam, op.name);
        if !op.kind.is_empty() {
            name = format!("{name}.{}", op.kind);
        }
        if op.has_effect && name == self.name {
            for _ in 0..done {
                if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    std::process::abort();
                }
            }
        }
        Ok(())
    }
}

impl Around for Failpoint {
    fn backends(&self, inner: Backends) -> Backends {
        inner.hooked(&self.0)
    }

    fn registry(&self, inner: Arc<dyn Registry>) -> Arc<dyn Registry> {
        Hooked::new(inner, &self.0)
    }

    fn queue(&self, inner: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Hooked::new(inner, &self.0)
    }

    fn ledger(&self, inner: Arc<dyn LedgerStore>) -> Arc<dyn LedgerStore> {
        Hooked::new(inner, &self.0)
    }
}
