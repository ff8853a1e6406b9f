//! A process with few files: it warns, serves its clients, and recovers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use protocol::Code;

use crate::all::All;
use crate::neighbours::Chat;
use crate::process::{WAIT_TIMEOUT, run, within};
use crate::raw::{RawClient, connect};

const FILES: u32 = 600;
const CROWD: usize = 700;

/// Status of a probe; `None`: no answer.
fn probed(all: &All, path: &str) -> Option<u16> {
    let address = all.health.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(WAIT_TIMEOUT))
        .expect("a socket");
    let head = format!("GET {path} HTTP/1.1\r\nhost: boat\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    String::from_utf8_lossy(&answer[9..]).parse().ok()
}

fn ready(all: &All) -> Option<u16> {
    probed(all, "/readyz")
}

// T-B4: more connections than files. Probes always get an answer: their files never go to clients.
#[test]
fn without_files_it_waits_and_recovers() {
    // The whole crowd may be silent, though it comes from one address.
    let mut all = All::with(&format!("boat.arriving_max = {}", 16 * CROWD));
    let chat = Chat::beside(&all);
    let limit = Command::new("prlimit")
        .args(["--pid", &all.process.pid().to_string()])
        .arg(format!("--nofile={FILES}:{FILES}"))
        .status();
    assert!(limit.expect("prlimit runs").success());
    let crowd: Vec<TcpStream> = (0..CROWD).map(|_| connect(all.tcp())).collect();
    within(WAIT_TIMEOUT, || ready(&all) == Some(503));
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(200));
        let answer = probed(&all, "/livez");
        assert!(answer.is_some());
        // A process that the machine has stalled says so for a while.
        within(WAIT_TIMEOUT, || probed(&all, "/livez") == Some(200));
    }
    assert!(all.process.is_running());
    within(WAIT_TIMEOUT, || ready(&all) == Some(503));
    chat.goes_on(&all);
    assert!(all.metric("boat_accept_pauses_total") > 0);
    drop(crowd);
    within(WAIT_TIMEOUT, || ready(&all) == Some(200));
    for client in [
        RawClient::tcp(all.tcp()),
        RawClient::websocket(&all.websocket),
    ] {
        drop(client.signed_in(50));
    }
    chat.end().undisturbed();
    all.at_rest();
}

// proves S1-05 in part: half of few files is for clients, and the next one is told.
#[test]
fn started_with_few_files_it_serves_few_and_says_so() {
    let all = All::with_files(FILES, "");
    let mut neighbour = RawClient::tcp(all.tcp()).signed_in(1);
    let seats = FILES as usize / 2 - 1;
    let seated: Vec<TcpStream> = (0..seats).map(|_| connect(all.tcp())).collect();
    let mut next = RawClient::tcp(all.tcp());
    assert_eq!(next.closing(), Some(Code::Full));
    assert_eq!(all.metric("boat_accept_pauses_total"), 0);
    within(WAIT_TIMEOUT, || ready(&all) == Some(200));
    neighbour.ping();
    let told = run(&mut all.operator(&["doctor"])).stdout;
    assert!(told.contains("open file limit is 600"), "{told}");
    let log = std::fs::read_to_string(all.dir.path("log")).expect("a log");
    let warning = log
        .lines()
        .find(|line| line.contains("open file limit is 600"));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {log}"));
    for words in ["WARN", "holds 300 connections", "`full`", "ulimit -n"] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
    drop(seated);
    within(WAIT_TIMEOUT, || all.metric("boat_connections") == 1);
    drop(RawClient::websocket(&all.websocket).signed_in(2));
    neighbour.ping();
}
