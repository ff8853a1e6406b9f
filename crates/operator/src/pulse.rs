//! Liveness of the runtimes of a process: each leaves a mark a few times a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

/// Pause between two marks.
const BEAT: Duration = Duration::from_millis(250);
/// Age of a mark from which on every thread of the runtime counts as blocked.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct Pulse {
    start: Instant,
    runtimes: Vec<(&'static str, Arc<AtomicU64>)>,
}

impl Pulse {
    /// Watches these runtimes as long as a clone of the result exists.
    pub fn of(runtimes: &[(&'static str, &Handle)]) -> Pulse {
        let start = Instant::now();
        let marks = runtimes.iter().map(|(name, runtime)| {
            let mark = Arc::new(AtomicU64::new(0));
            runtime.spawn(beat(start, Arc::downgrade(&mark)));
            (*name, mark)
        });
        Pulse {
            start,
            runtimes: marks.collect(),
        }
    }

    /// Runtimes that do no work now.
    pub fn list_stalled(&self) -> Vec<&'static str> {
        let now = self.start.elapsed();
        let is_late = |mark: &AtomicU64| {
            let last = Duration::from_millis(mark.load(Ordering::Relaxed));
            now.saturating_sub(last) > STALL_TIMEOUT
        };
        let late = self.runtimes.iter().filter(|(_, mark)| is_late(mark));
        late.map(|(name, _)| *name).collect()
    }
}

async fn beat(start: Instant, mark: Weak<AtomicU64>) {
    while let Some(mark) = mark.upgrade() {
        let now = start.elapsed().as_millis() as u64;
        mark.store(now, Ordering::Relaxed);
        drop(mark);
        sleep(BEAT).await;
    }
}
