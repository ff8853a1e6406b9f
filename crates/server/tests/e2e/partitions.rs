//! Network failures between clients and boat: nobody hangs for ever, and nothing is lost.

use std::thread;
use std::time::Duration;

use crate::all::All;
use crate::neighbours::{Chat, PAIRS};
use crate::process::{WAIT_TIMEOUT, within};
use crate::relay::Relay;

const HEARTBEAT: &str = "boat.session.heartbeat = \"1s\"";

/// Runs a chat over a network that stalls for a while, in these directions.
fn survives(clients: bool, boat: bool) {
    let all = All::with(HEARTBEAT);
    let neighbours = Chat::beside(&all);
    let sessions = all.metric("boat_sessions");
    let relay = Relay::to(&all.websocket);
    let chat = Chat::over(&[&relay.url], 2_000_000);
    within(WAIT_TIMEOUT, || {
        all.metric("boat_sessions") == sessions + 2 * u64::from(PAIRS)
    });
    thread::sleep(Duration::from_secs(1));
    let old_disconnects = all.metric("boat_disconnects_total");
    relay.stall(clients, boat);
    neighbours.goes_on(&all);
    // All of the chat's clients, whichever side notices.
    within(WAIT_TIMEOUT, || {
        all.metric("boat_disconnects_total") >= old_disconnects + 2 * u64::from(PAIRS)
    });
    relay.stall(false, false);
    thread::sleep(Duration::from_secs(1));
    let _clean = chat.end();
    neighbours.end().undisturbed();
    within(WAIT_TIMEOUT, || all.metric("boat_sessions") == 0);
    all.at_rest();
}

// T-P1, on the clients' side.
#[test]
fn a_network_that_is_gone_is_noticed_and_nothing_is_lost() {
    survives(true, true);
}

// T-P2: neither side holds a half-open connection for ever.
#[test]
fn a_network_that_carries_no_word_of_clients_is_noticed() {
    survives(true, false);
}

// T-P2
#[test]
fn a_network_that_carries_no_word_of_the_boat_is_noticed() {
    survives(false, true);
}

// T-P3
#[test]
fn a_network_that_delays_and_cuts_loses_nothing() {
    let all = All::start();
    let neighbours = Chat::beside(&all);
    let relay = Relay::to(&all.websocket);
    relay.worsen();
    let chat = Chat::over(&[&relay.url], 2_000_000);
    let old_count = all.metric("boat_connections_accepted_total");
    within(WAIT_TIMEOUT, || {
        all.metric("boat_connections_accepted_total") > old_count + 3 * u64::from(PAIRS)
    });
    neighbours.goes_on(&all);
    let _clean = chat.end();
    neighbours.end().undisturbed();
    all.at_rest();
}
