//! Clients that get the list of boats from a station.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::all::{All, Dir};
use crate::door::get;
use crate::ports::free_ports;
use crate::process::{Process, WAIT_TIMEOUT, run};

/// Waits until the list names exactly these addresses, each with room.
fn becomes(edges: &str, expected: &[&str]) {
    let (station, path) = edges.split_at(edges.len() - "/v1/edges".len());
    let began = Instant::now();
    loop {
        let (status, text) = get(station, path);
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        let edges = list.as_array().cloned().unwrap_or_default();
        let is_open = |edge: &Value| edge["zone"] == "west" && edge["weight"].as_u64() > Some(0);
        let urls: Vec<_> = (edges.iter().filter_map(|edge| edge["url"].as_str())).collect();
        if status == 200 && urls == expected && edges.iter().all(is_open) {
            return;
        }
        assert!(began.elapsed() < WAIT_TIMEOUT, "{status} {text}");
        sleep(Duration::from_millis(300));
    }
}

#[test]
fn a_boat_that_is_emptied_is_named_to_nobody() {
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let url = format!("ws://{address}");
    let more = format!(
        "boat.public_url = \"{url}\"\nboat.zone = \"west\"\nstation.http.listen = \"127.0.0.1:0\""
    );
    let free = "127.0.0.1:0";
    let all = All::over(Dir::new(), [&address, free, free], &more);
    let edges = all.edges().expect("a port").to_owned();
    becomes(&edges, &[&url]);

    // Neither client is given the address of a boat.
    let user_command = |arguments: &[&str]| {
        let mut command = all.user(arguments);
        command.args(["--edges", &edges, "--zone", "west"]);
        command.env_remove("PACKETBOAT_URL");
        command
    };
    let listen = ["listen", "--user", "2", "--count", "1"];
    let listen = Process::start(&mut user_command(&listen));
    run(&mut user_command(&[
        "send", "--user", "1", "--to", "2", "hello",
    ]))
    .ok();
    let line = listen.line_within(WAIT_TIMEOUT).expect("a message");
    assert!(line.contains("hello"), "{line}");

    let boats = run(&mut all.operator(&["drain", "--output", "json"])).ok();
    let boat = boats.json_lines().remove(0)["items"][0]["name"].clone();
    let boat = boat.as_str().expect("a name");
    run(&mut all.operator(&["drain", boat, "--force", "--wait"])).ok();
    becomes(&edges, &[]);
    run(&mut all.operator(&["drain", boat, "--cancel"])).ok();
    becomes(&edges, &[&url]);
}
