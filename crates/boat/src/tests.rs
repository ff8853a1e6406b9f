//! Boats with real sockets in front, or pipes, and a small peer in place of the stations behind.

mod arriving;
mod client;
mod counting;
mod delivering;
mod draining;
mod dual_stack;
mod failover;
mod harbour;
mod idle;
mod leaving;
mod limits;
mod listening;
mod malformed;
mod piping;
mod revoked;
mod sending;
mod shortage;
mod tickets;

use std::time::Duration;

use tokio::time::Instant;

/// Bound of what must happen, however busy the machine is. It says nothing about speed.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `holds` is true.
async fn eventually(goal: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {goal}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
