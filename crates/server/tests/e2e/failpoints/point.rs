//! Failpoints: a moment between two durable effects, right after one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use backend::discovery::Registry;
use backend::hook::{Hook, Hooked, Op};
use backend::ledger::LedgerStore;
use backend::queue::Queue;
use backend::{Backends, Result};
use server::compose::Around;

/// Variable with the failpoint at which a process dies.
pub const VARIABLE: &str = "FAILPOINT";

/// Ends the process once an effect of this name has become durable this many times.
#[derive(Clone)]
pub struct Failpoint(Arc<dyn Hook>);

struct ArmedPoint {
    /// Name of the effect: `seam.call`, or `seam.call.kind`.
    name: String,
    remaining: AtomicU32,
}

impl Failpoint {
    /// Reads `name:count` from the environment.
    pub fn armed() -> Failpoint {
        let text = std::env::var(VARIABLE).expect("the failpoint");
        let (name, count) = text.split_once(':').expect("name:count");
        Failpoint(Arc::new(ArmedPoint {
            name: name.to_owned(),
            remaining: AtomicU32::new(count.parse().expect("a count")),
        }))
    }
}

#[async_trait]
impl Hook for ArmedPoint {
    /// Dies like `kill -9`: nothing is unwound, flushed or reported. Each effect of a call counts:
    /// under load a call has several.
    async fn after(&self, op: &Op, effect_count: usize) -> Result<()> {
        let mut name = format!("{}.{}", op.seam, op.name);
        if !op.kind.is_empty() {
            name = format!("{name}.{}", op.kind);
        }
        if op.has_effect && name == self.name {
            for _ in 0..effect_count {
                if self.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
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
