//! Leaving in order: not ready, no new clients, those aboard are told in paced batches and may finish,
//! then everything is signed off.

use std::sync::Arc;
use std::time::Duration;

use protocol::{Code, Refusal};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::boat::Boat;

/// How often the lanes are looked at while they empty.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A client more, and the others' return is spread over so much more time.
const SPREAD_EACH: Duration = Duration::from_millis(2);

/// Empties the boat, within its deadline. Nobody comes aboard any more when this is called.
pub(crate) async fn empty(boat: &Arc<Boat>) {
    let clients = boat.connections.len();
    info!(clients, "leaving");
    let finished = timeout(boat.config.drain_deadline, async {
        tell_all(boat).await;
        boat.tasks.close();
        boat.tasks.wait().await;
        while !boat.lanes.are_idle() {
            sleep(LOOK_AGAIN).await;
        }
    });
    if finished.await.is_err() {
        warn!(
            left = boat.connections.len(),
            "what is left is dropped: the time to leave is over"
        );
        boat.abandon();
    }
}

async fn tell_all(boat: &Boat) {
    let connections = boat.connections.all();
    let clients = u32::try_from(connections.len()).unwrap_or(u32::MAX);
    // Each client takes a moment within it, at random.
    let spread = boat
        .config
        .drain_spread
        .min(SPREAD_EACH.saturating_mul(clients));
    for (index, connection) in connections.iter().enumerate() {
        if index > 0 && index % boat.config.drain_batch.max(1) == 0 {
            sleep(boat.config.drain_pause).await;
        }
        let refusal = Refusal::new(
            Code::Draining,
            "this boat leaves; reconnect to reach another",
        )
        .retry_after(spread);
        connection.update(|session| session.drain(refusal, boat.now()));
    }
}
