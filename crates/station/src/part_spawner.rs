//! Background parts of a station, which live as long as it does.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns parts of a station. One that ends by itself, by a panic, takes the station with it: without
/// it the station would refuse, drop or let in what it should not, and look well.
#[derive(Clone, Debug)]
pub(crate) struct PartSpawner {
    pub(crate) tasks: TaskTracker,
    /// Ends the parts, at the end of the station.
    pub(crate) stop: CancellationToken,
    /// Makes the station leave.
    leaving: CancellationToken,
}

impl PartSpawner {
    /// For a station that leaves once `leaving` is cancelled.
    pub(crate) fn new(leaving: CancellationToken) -> PartSpawner {
        PartSpawner {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            leaving,
        }
    }

    /// Spawns a part that goes on for ever; `stop` ends it wherever it is.
    pub(crate) fn spawn_endless(
        &self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        let part = self.stop.clone().run_until_cancelled_owned(part);
        self.spawn(name, self.stop.clone(), async move { _ = part.await });
    }

    /// Spawns a part that ends by itself after `until`.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        until: CancellationToken,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        let guard = PartGuard {
            name,
            until,
            leaving: self.leaving.clone(),
        };
        self.tasks.spawn(async move {
            let _guard = guard;
            part.await;
        });
    }
}

/// Makes the station leave when its part has ended, unless the part was to end.
struct PartGuard {
    name: &'static str,
    until: CancellationToken,
    leaving: CancellationToken,
}

impl Drop for PartGuard {
    fn drop(&mut self) {
        if !self.until.is_cancelled() {
            tracing::error!(
                part = self.name,
                "a part of the station ended by itself: the station leaves, let a supervisor start it again"
            );
            self.leaving.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn spawner() -> PartSpawner {
        PartSpawner::new(CancellationToken::new())
    }

    #[tokio::test]
    async fn a_part_that_ends_by_itself_makes_the_station_leave() {
        let (panics, ends) = (spawner(), spawner());
        panics.spawn_endless("test", async { panic!("on purpose") });
        panics.leaving.cancelled().await;
        ends.spawn_endless("test", ready(()));
        ends.leaving.cancelled().await;
    }

    #[tokio::test]
    async fn a_part_that_is_stopped_leaves_the_station_alone() {
        let parts = spawner();
        parts.spawn_endless("endless", pending());
        let closing = parts.stop.child_token();
        let closed = closing.clone();
        parts.spawn("door", closing.clone(), async move {
            closed.cancelled().await;
        });
        closing.cancel();
        parts.stop.cancel();
        parts.tasks.close();
        parts.tasks.wait().await;
        assert!(!parts.leaving.is_cancelled());
    }
}
