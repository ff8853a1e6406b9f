//! Drains of a fleet's boats, limited by the room on the others.

use std::thread::sleep;
use std::time::Duration;

use protocol::Code;
use protocol::frame::{ClientFrame, ServerFrame};
use serde_json::Value;
use tokio::time::Instant;

use crate::fleet::Fleet;
use crate::process::{WAIT_TIMEOUT, run};
use crate::raw::RawClient;

const SEATS: usize = 20;

fn drain(fleet: &Fleet, arguments: &[&str]) -> Value {
    let mut drain = fleet.operator(&["drain"]);
    drain.args(arguments).args(["--output", "json"]);
    run(&mut drain).ok().json_lines().remove(0)
}

/// Clients aboard each boat, as published.
fn aboard(fleet: &Fleet) -> Vec<u64> {
    let boats = drain(fleet, &[]);
    let boats = boats["items"].as_array().expect("boats");
    let count = |boat: &Value| boat["connections"].as_u64();
    boats.iter().filter_map(count).collect()
}

fn until_aboard(fleet: &Fleet, expected: [u64; 2]) {
    let began = Instant::now();
    while aboard(fleet) != expected {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{:?}", aboard(fleet));
        sleep(Duration::from_millis(200));
    }
}

fn is_aboard(client: &mut RawClient) -> bool {
    client.send(&ClientFrame::Ping { nonce: 1 });
    match client.next() {
        Some(ServerFrame::Closing { refusal, .. }) => {
            assert_eq!(refusal.code, Code::Draining);
            false
        }
        Some(ServerFrame::Pong { .. }) => true,
        other => panic!("{other:?}"),
    }
}

// R18: no client is sent to a full boat.
#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_boat_sends_away_as_many_as_the_other_has_seats_for() {
    // Clients that are silent meanwhile keep their seats.
    let more = format!("boat.connections_max = {SEATS}\nboat.session.heartbeat = \"5m\"\n");
    let fleet = Fleet::with("single", &more);
    let (first, second) = (fleet.boat("boat-1"), fleet.boat("boat-2"));
    let sign_in = |url: &str, user| RawClient::websocket(url).signed_in(user);
    let mut theirs: Vec<RawClient> = (1..=17).map(|user| sign_in(&second, user)).collect();
    let mut clients: Vec<RawClient> = (101..=110).map(|user| sign_in(&first, user)).collect();
    until_aboard(&fleet, [10, 17]);
    assert_eq!(drain(&fleet, &["boat-1"])["state"], "draining");
    let began = Instant::now();
    while theirs.len() < SEATS {
        assert!(
            began.elapsed() < WAIT_TIMEOUT * 2,
            "{} found a seat",
            theirs.len()
        );
        sleep(Duration::from_millis(100));
        let client_count = clients.len();
        clients.retain_mut(is_aboard);
        for _ in clients.len()..client_count {
            theirs.push(sign_in(&second, 200 + theirs.len() as i64));
        }
    }
    // All seats are taken, and clients without one stay.
    sleep(Duration::from_secs(5));
    assert!(clients.iter_mut().all(is_aboard));
    assert_eq!((clients.len(), theirs.len()), (7, SEATS));
    until_aboard(&fleet, [7, 20]);
    drop(theirs);
    // Seats are free now.
    let progress = drain(&fleet, &["boat-1", "--wait"]);
    assert_eq!(progress["connections"], 0, "{progress}");
    for client in &mut clients {
        assert_eq!(client.closing(), Some(Code::Draining));
    }
    assert_eq!(drain(&fleet, &["boat-1", "--cancel"])["state"], "open");
    sign_in(&first, 101).ping();
}
