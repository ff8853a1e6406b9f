//! Boats with real sockets in front and a small peer in place of the stations behind.

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

/// Waits until `holds` is true, for at most five seconds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}
