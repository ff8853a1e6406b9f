//! Limits of a boat (docs/operations/limits.md), each hit once: its code, its counter, and a
//! neighbour at another address that is not affected.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use protocol::Code;
use protocol::frame::{ClientFrame, ServerFrame};
use serde_json::Value;
use tokio::time::Instant;

use crate::all::{self, All, Dir};
use crate::door::get;
use crate::process::{Process, WAIT_TIMEOUT, run, within};
use crate::raw::{RawClient, connect_from, hello_with, message};

fn neighbour(all: &All) -> RawClient {
    RawClient::tcp_over(connect_from(all.tcp(), 2, None)).signed_in(1)
}

fn counted(all: &All, limit: &str) -> u64 {
    all.metric(&format!("limits_total{{limit=\"{limit}\"}}"))
}

fn closed(all: &All, code: &str) -> u64 {
    all.metric(&format!("boat_disconnects_total{{code=\"{code}\"}}"))
}

fn send(number: u8, bytes: usize) -> ClientFrame {
    message(1, [number; 16], bytes)
}

/// Whether the boat has closed this connection, on which it never said anything.
fn has_ended(client: &RawClient) -> bool {
    let socket = client.socket();
    socket.set_nonblocking(true).expect("a socket");
    let read = socket.peek(&mut [0]);
    !matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Labels of the page, in order.
fn page_labels() -> BTreeSet<String> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operations/limits.md"
    );
    let page = std::fs::read_to_string(page).expect("a page");
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(2);
    let label = |row: &str| {
        let row = row.trim_end_matches(" |");
        row.rsplit('`').nth(1).expect("a label").to_owned()
    };
    rows.map(label).collect()
}

#[test]
fn each_limit_of_the_page_is_counted_and_no_other_one() {
    let more = "boat.memory_max = 1000000000000\nstation.http.listen = \"127.0.0.1:0\"";
    let all = All::with(more);
    let labels_of_a_scrape = || {
        let (_, scrape) = get(&all.health, "/metrics");
        let labels = scrape.lines().filter_map(|line| {
            let rest = line.strip_prefix("limits_total{limit=\"")?;
            Some(rest.split_once('"')?.0.to_owned())
        });
        labels.collect::<BTreeSet<_>>()
    };
    let page = page_labels();
    // The memory watch starts in a task, perhaps after the first scrape.
    let until = Instant::now() + WAIT_TIMEOUT;
    while labels_of_a_scrape() != page && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(labels_of_a_scrape(), page);
}

#[test]
fn one_address_has_so_many_connections() {
    let dir = Dir::new();
    let file = dir.settings(["127.0.0.1:0"; 3], "");
    let log = File::create(dir.path("log")).expect("a file");
    let mut command = all::all(&file, &dir.path("data"));
    command
        .env("PACKETBOAT_BOAT__CONNECTIONS_PER_ADDRESS_MAX", "3")
        .stderr(log);
    let all = All::from_process(Process::start(&mut command), dir);
    let mut neighbour = neighbour(&all);
    let _held = [2, 3, 4].map(|user| RawClient::tcp(all.tcp()).signed_in(user));
    for mut next in [
        RawClient::tcp(all.tcp()),
        RawClient::websocket(&all.websocket),
    ] {
        assert_eq!(next.closing(), Some(Code::RateLimited));
    }
    within(WAIT_TIMEOUT, || closed(&all, "rate_limited") == 2);
    assert_eq!(counted(&all, "connections_per_address"), 2);
    neighbour.ping();

    // An operator learns which address it is: once in the log, and from the doctor.
    let examined = run(&mut all.operator(&["doctor", "--output", "json"]));
    let report: Value = serde_json::from_str(&examined.stdout).expect("JSON");
    let findings = report["processes"][0]["findings"].as_array();
    let finding = (findings.expect("findings").iter())
        .find(|finding| finding["check"] == "client_addresses")
        .expect("a check of each boat");
    assert_eq!(finding["verdict"], "warning", "{finding}");
    let observation = finding["observation"].as_str().expect("text");
    assert!(observation.contains("127.0.0.1 with 3"), "{observation}");
    let log = std::fs::read_to_string(all.dir.path("log")).expect("a log");
    let warnings = log.matches("the limit boat.connections_per_address_max");
    assert_eq!(warnings.count(), 1, "{log}");
}

#[test]
fn one_address_arrives_so_often() {
    // A burst of ten.
    let all = All::with_environment(&[("BOAT__ARRIVALS_PER_ADDRESS", "1")], "");
    let mut neighbour = neighbour(&all);
    let begun = Instant::now();
    let mut arrivals: Vec<RawClient> = (0..60).map(|_| RawClient::tcp(all.tcp())).collect();
    // As many more as the machine took seconds.
    let allowed = || 10 + begun.elapsed().as_secs() + 1;
    within(WAIT_TIMEOUT, || {
        counted(&all, "arrivals_per_address") + allowed() >= 60
    });
    // Refused ones are dropped before any frame: the others wait for a hello.
    let mut dropped = 0;
    within(WAIT_TIMEOUT, || {
        let before = arrivals.len();
        arrivals.retain(|next| !has_ended(next));
        dropped += before - arrivals.len();
        dropped as u64 == counted(&all, "arrivals_per_address")
    });
    assert!(dropped > 0);
    neighbour.ping();
}

#[test]
fn sign_ins_of_one_address_fail_so_often() {
    // A burst of three.
    let all = All::with_environment(&[("BOAT__SIGN_IN_FAILURES_PER_ADDRESS", "1")], "");
    let mut neighbour = neighbour(&all);
    let codes = [0; 5].map(|_| {
        let mut client = RawClient::tcp(all.tcp());
        client.send(&hello_with("forged".into()));
        client.closing()
    });
    let (wrong, often) = (Some(Code::Unauthenticated), Some(Code::RateLimited));
    assert_eq!(codes, [wrong, wrong, wrong, often, often]);
    assert_eq!(counted(&all, "sign_in_failures_per_address"), 2);
    neighbour.ping();
}

#[test]
fn a_session_sends_so_many_bytes_and_frames_and_bodies() {
    const SENDS: u8 = 6;
    // A burst of 64 KiB, as much as one read. A body has 4 KiB less than a frame.
    let settings = [("BOAT__READ_BYTES_PER_SECOND", "16384")];
    let more = "boat.session.frame_bytes_max = 32768\nstation.body_bytes_max = 28672";
    let all = All::with_environment(&settings, more);
    let mut neighbour = neighbour(&all);
    let mut client = RawClient::tcp(all.tcp()).signed_in(2);
    client.send(&send(1, 28_673));
    match client.next() {
        Some(ServerFrame::Refused { refusal, .. }) => assert_eq!(refusal.code, Code::TooLarge),
        other => panic!("{other:?}"),
    }
    let begun = Instant::now();
    for number in 2..2 + SENDS {
        client.send(&send(number, 28_000));
    }
    // Meanwhile others are read.
    neighbour.ping();
    let mut open = SENDS;
    while open > 0 {
        open -= u8::from(matches!(client.next(), Some(ServerFrame::Accepted(_))));
    }
    // All bytes but a burst and one read pass at the rate.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(1), "{took:?}");
    assert!(counted(&all, "session_bytes") > 0);
    // More than 2,000 in a second; at once, lest they fall into several seconds.
    client.send_together((0..6_000).map(|_| ClientFrame::Ping { nonce: 1 }));
    assert_eq!(client.closing(), Some(Code::RateLimited));
    within(WAIT_TIMEOUT, || closed(&all, "rate_limited") == 1);
    assert_eq!(counted(&all, "session_frames"), 1);
    assert_eq!(counted(&all, "body_bytes"), 1);
    drop(neighbour);
    assert_eq!(all.listen("1", SENDS.into()).len(), usize::from(SENDS));
    all.at_rest();
}
