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
    leave_token: CancellationToken,
}

impl PartSpawner {
    /// Creates a spawner for a station that leaves once `token` is cancelled.
    pub(crate) fn new(token: CancellationToken) -> PartSpawner {
        PartSpawner {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            leave_token: token,
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

    /// Spawns a part that ends by itself once `stop` is cancelled.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        stop: CancellationToken,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        let guard = PartGuard {
            name,
            stop_token: stop,
            leave_token: self.leave_token.clone(),
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
    stop_token: CancellationToken,
    leave_token: CancellationToken,
}

impl Drop for PartGuard {
    fn drop(&mut self) {
        if !self.stop_token.is_cancelled() {
            tracing::error!(
                part = self.name,
                "a part of the station stopped unexpectedly: the station shuts down; let a supervisor restart it"
            );
            self.leave_token.cancel();
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
        panics.leave_token.cancelled().await;
        ends.spawn_endless("test", ready(()));
        ends.leave_token.cancelled().await;
    }

    #[tokio::test]
    async fn a_part_that_is_stopped_leaves_the_station_alone() {
        let parts = spawner();
        parts.spawn_endless("endless", pending());
        let token = parts.stop.child_token();
        let door_token = token.clone();
        parts.spawn("door", token.clone(), async move {
            door_token.cancelled().await;
        });
        token.cancel();
        parts.stop.cancel();
        parts.tasks.close();
        parts.tasks.wait().await;
        assert!(!parts.leave_token.is_cancelled());
    }
}
