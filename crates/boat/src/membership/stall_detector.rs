//! Notices that this process stood still: stopped, swapped out, or starved of CPU.
//!
//! Meanwhile peers waited, and stored what the boat did not take; their hints may have been lost.
//! So on waking it asserts all sessions anew and tells every client to sync.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::reregister::{REASSERT_PERIOD, Reregistration};
use crate::leaving::Leaving;

/// Clients told to sync at once, and the pause before the next ones.
const RESYNC_BATCH: usize = 256;
const RESYNC_PAUSE: Duration = Duration::from_millis(20);

/// Watches the clock until dropped, also while a recovery runs.
pub(crate) async fn watch_pauses(
    reregistration: Arc<Reregistration>,
    leaving: Arc<Leaving>,
    limit: Duration,
) {
    let step = limit / 4;
    let mut recoveries = FuturesUnordered::new();
    loop {
        let sleep_start = Instant::now();
        let wake = sleep_until(sleep_start + step);
        tokio::pin!(wake);
        loop {
            tokio::select! {
                biased;
                () = &mut wake => break,
                Some(()) = recoveries.next() => {}
            }
        }
        let stall = sleep_start.elapsed().saturating_sub(step);
        if stall > limit {
            warn!(stood = ?stall, "this process was stalled; telling clients to sync");
            reregistration.metrics.pauses.increment(1);
            recoveries.push(recover(&reregistration, &leaving));
        }
    }
}

async fn recover(reregistration: &Reregistration, leaving: &Leaving) {
    let reassertion = async {
        resync_all(reregistration).await;
        reregistration.pass(REASSERT_PERIOD, || false).await;
    };
    tokio::join!(leaving.send_share_away(), reassertion);
}

async fn resync_all(reregistration: &Reregistration) {
    for (index, connection) in reregistration.connections.all().iter().enumerate() {
        if index > 0 && index % RESYNC_BATCH == 0 {
            sleep(RESYNC_PAUSE).await;
        }
        connection.update(|session| session.resync(reregistration.connections.now()));
    }
}
