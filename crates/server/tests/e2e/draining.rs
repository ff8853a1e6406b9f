//! An operator empties a boat and lets it take clients again.

use protocol::Code;
use protocol::frame::ServerFrame;
use serde_json::Value;

use crate::all::All;
use crate::process::run;
use crate::raw::{RawClient, hello};
use crate::real::eventually;

const CLIENTS: i64 = 30;

fn boat_row(all: &All) -> Value {
    let output = run(&mut all.operator(&["drain", "--output", "json"])).ok();
    output.json_lines().remove(0)["items"][0].clone()
}

/// Answer to a hello: `None` for a welcome, or the code of the refusal.
fn sign_in(all: &All, user: i64) -> Option<Code> {
    let mut client = RawClient::tcp(all.tcp());
    client.send(&hello(user));
    match client.next() {
        Some(ServerFrame::Welcome(_)) => None,
        Some(ServerFrame::Closing { refusal, .. }) => Some(refusal.code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_boat_is_emptied_and_takes_clients_again() {
    let all = All::start();
    let mut clients: Vec<RawClient> = (1..=CLIENTS)
        .map(|user| RawClient::tcp(all.tcp()).signed_in(user))
        .collect();
    let boat = eventually("a boat that is open", || {
        Some(boat_row(&all)).filter(|boat| boat["state"] == "open")
    });
    let name = boat["name"].as_str().expect("a name");

    // Nobody can be asked here, and the clients would have no other boat.
    let refusal = run(&mut all.operator(&["drain", name]));
    assert_eq!(refusal.code, Some(1), "{}", refusal.stdout);
    for words in ["the only boat", "--force"] {
        assert!(refusal.stderr.contains(words), "{}", refusal.stderr);
    }
    assert_eq!(boat_row(&all)["state"], "open");

    let drain = ["drain", name, "--force", "--wait", "--output", "json"];
    let drain_output = run(&mut all.operator(&drain)).ok();
    let progress = drain_output.json_lines().remove(0);
    assert_eq!(progress["state"], "draining", "{progress}");
    assert_eq!(progress["connections"], 0, "{progress}");
    for client in &mut clients {
        assert_eq!(client.closing(), Some(Code::Draining));
    }
    assert_eq!(sign_in(&all, 1), Some(Code::Draining));

    let cancel_output = run(&mut all.operator(&["drain", name, "--cancel"])).ok();
    assert!(
        cancel_output.stdout.contains("is open"),
        "{}",
        cancel_output.stdout
    );
    assert_eq!(sign_in(&all, 1), None);

    let unknown = run(&mut all.operator(&["drain", "boat-x"]));
    assert_ne!(unknown.code, Some(0));
    assert!(unknown.stderr.contains(name), "{}", unknown.stderr);
    let log = run(&mut all.operator(&["dlq", "log", "--decisions"])).ok();
    for line in ["requested a drain of", "requested to cancel the drain of"] {
        assert!(
            log.stdout.contains(&format!("{line} {name}")),
            "{}",
            log.stdout
        );
    }
}
