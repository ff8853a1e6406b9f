//! Where users and operators reach a running Packetboat, and what they do there.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::process::{PAUSE, SOON, packetboat, run};

/// Looks before something counts as not happening: a minute, for what real parts need after a failure.
const LOOKS: u32 = 1500;

/// The status and the body of an answer.
pub fn get(url: &str, path: &str) -> (u16, String) {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a socket");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

#[derive(Clone)]
pub struct Door {
    /// A boat.
    pub websocket: String,
    /// An admin port with a desk.
    pub admin: String,
    /// Where devices keep their state.
    pub state: PathBuf,
}

impl Door {
    /// A command of a user, towards this one.
    pub fn user(&self, arguments: &[&str]) -> Command {
        let mut command = packetboat(arguments);
        command
            .env("PACKETBOAT_URL", &self.websocket)
            .env("PACKETBOAT_STATE", &self.state);
        command
    }

    /// A command of an operator, towards this one.
    pub fn operator(&self, arguments: &[&str]) -> Command {
        let mut command = packetboat(arguments);
        command.env("PACKETBOAT_ADMIN", &self.admin);
        command
    }

    /// Sends one message, and answers its id.
    pub fn send(&self, from: &str, to: &str, text: &str) -> String {
        let sent = run(&mut self.user(&["send", "--user", from, "--to", to, text])).ok();
        let line = &sent.json_lines()[0];
        assert_eq!(line["status"], "accepted");
        line["msg_id"].as_str().expect("an id").to_owned()
    }

    /// Makes a group, and answers its number.
    pub fn group(&self, owner: &str, members: &[&str]) -> String {
        let mut create = self.user(&["group", "create", "--user", owner]);
        let made = run(create.args(members)).ok();
        made.json_lines()[0]["group"].to_string()
    }

    /// Receives so many messages.
    pub fn listen(&self, user: &str, count: usize) -> Vec<Value> {
        let count = count.to_string();
        let listen = [
            "listen",
            "--user",
            user,
            "--count",
            &count,
            "--timeout",
            "30",
        ];
        run(&mut self.user(&listen)).ok().json_lines()
    }

    /// Asserts that nothing (more) comes for this user.
    pub fn nothing_for(&self, user: &str) {
        let listen = ["listen", "--user", user, "--timeout", "0.7"];
        assert_eq!(run(&mut self.user(&listen)).ok().stdout, "");
    }

    /// Waits until the audit is even, with nothing in flight.
    pub fn at_rest(&self) {
        let mut report = String::new();
        for _ in 0..LOOKS {
            report = run(&mut self.operator(&["audit", "--deep", "--output", "json"])).stdout;
            let told: Value = serde_json::from_str(&report).unwrap_or_default();
            if told["even"] == true && told["in_flight"] == 0 && told["left_off"] == 0 {
                return;
            }
            thread::sleep(PAUSE * 2);
        }
        panic!("it does not come to rest: {report}");
    }

    /// The oldest dead letter of this reason.
    pub fn letter(&self, reason: &str) -> String {
        let list = ["dlq", "list", "--reason", reason, "--output", "json"];
        let list = run(&mut self.operator(&list)).ok().stdout;
        let page: Value = serde_json::from_str(&list).expect("JSON");
        let letter = page["letters"][0]["id"].as_str();
        letter.expect("a letter").to_owned()
    }

    /// Waits until the trace of a message tells all of these events.
    pub fn traced(&self, id: &str, events: &[&str]) {
        let mut told = String::new();
        for _ in 0..LOOKS {
            told = run(&mut self.operator(&["trace", id, "--output", "json"])).stdout;
            if events.iter().all(|event| told.contains(event)) {
                return;
            }
            thread::sleep(PAUSE * 2);
        }
        panic!("{events:?} are not all in {told}");
    }
}
