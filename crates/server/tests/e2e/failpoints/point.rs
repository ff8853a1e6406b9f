//! A moment between two durable effects: after one of them, and before anything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where a process dies.
pub const VARIABLE: &str = "FAILPOINT";

/// Ends this process when an effect of that name has been made durable so often.
#[derive(Clone)]
pub struct Failpoint(Arc<Armed>);

struct Armed {
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

    /// An effect of this name is durable. Like `kill -9`: nothing is unwound, flushed or told.
    pub fn passed(&self, name: &str) {
        if name == self.0.name && self.0.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::process::abort();
        }
    }
}
