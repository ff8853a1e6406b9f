//! Many clients at once: they leave together, come together, and survive the end and the sleep of
//! their boat.

use std::time::Duration;

use crate::all::All;
use crate::neighbours::Chat;
use crate::process::{WAIT_TIMEOUT, within};
use crate::raw::RawClient;

const CLIENTS: i64 = 300;

/// Signs in the whole crowd, concurrently on both links.
fn crowd(all: &All) -> Vec<RawClient> {
    let (tcp, websocket) = (all.tcp(), &all.websocket);
    std::thread::scope(|scope| {
        let come = |first: i64| {
            let users = first..first + CLIENTS / 4;
            users.map(move |user| match user % 2 {
                0 => RawClient::tcp(tcp).signed_in(user),
                _ => RawClient::websocket(websocket).signed_in(user),
            })
        };
        let parts = (0..4).map(|part| 5_000 + part * CLIENTS / 4);
        let parts: Vec<_> = { parts }
            .map(|first| scope.spawn(move || come(first).collect::<Vec<_>>()))
            .collect();
        let come = parts
            .into_iter()
            .map(|part| part.join().expect("signed in"));
        come.flatten().collect()
    })
}

// T-B5, T-B6: gone at once, back at once.
#[test]
fn all_go_at_once_and_come_back_at_once() {
    let all = All::start();
    let first = crowd(&all);
    let chat = Chat::beside(&all);
    let sessions = all.metric("boat_sessions");
    assert!(sessions >= CLIENTS as u64, "{sessions}");
    drop(first);
    within(WAIT_TIMEOUT, || {
        all.metric("boat_sessions") == sessions - CLIENTS as u64
    });
    chat.goes_on(&all);
    let second_crowd = crowd(&all);
    within(WAIT_TIMEOUT, || all.metric("boat_sessions") == sessions);
    chat.goes_on(&all);
    chat.end().undisturbed();
    drop(second_crowd);
    // The store keeps no session either: every client that left has signed off.
    within(WAIT_TIMEOUT, || all.metric("boat_sessions") == 0);
    all.at_rest();
}

// T-B1: killed with all of them aboard, under a chat.
#[test]
fn kill_under_a_crowd_loses_nothing_and_all_reconnect() {
    let mut all = All::start();
    let aboard = crowd(&all);
    let chat = Chat::beside(&all);
    all.process.kill();
    let all = all.restart("");
    drop(aboard);
    let second_crowd = crowd(&all);
    within(WAIT_TIMEOUT, || all.metric("boat_sends_total") > 10);
    let _clean = chat.end();
    drop(second_crowd);
    all.at_rest();
}

// T-B2: the boat sleeps, wakes, and asserts everything anew.
#[test]
fn stopped_for_a_while_it_notices_and_loses_nothing() {
    let all = All::with("boat.session.heartbeat = \"1s\"");
    let chat = Chat::beside(&all);
    all.process.signal("STOP");
    // Longer than a standstill that counts, ten seconds, and the interval of its checks.
    std::thread::sleep(Duration::from_secs(15));
    all.process.signal("CONT");
    within(WAIT_TIMEOUT, || all.metric("boat_pauses_total") > 0);
    let old_count = all.metric("boat_sends_total");
    within(WAIT_TIMEOUT, || {
        all.metric("boat_sends_total") > old_count + 10
    });
    let _clean = chat.end();
    all.at_rest();
}
