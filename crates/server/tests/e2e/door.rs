//! Addresses of a running Packetboat, and the actions of users and operators there.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::process::{POLL_INTERVAL, Process, WAIT_TIMEOUT, packetboat, run, within};

/// Polls before a test gives up: a minute at least, as real parts need it after a failure.
const MAX_POLLS: u32 = 1500;

/// Status and body of an answer.
pub fn get(url: &str, path: &str) -> (u16, String) {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(WAIT_TIMEOUT))
        .expect("a socket");
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
    /// WebSocket address of a boat.
    pub websocket: String,
    /// Admin port with a desk.
    pub admin: String,
    /// Folder of the devices' state.
    pub state: PathBuf,
}

impl Door {
    /// A user's command, directed at this installation.
    pub fn user(&self, arguments: &[&str]) -> Command {
        let mut command = packetboat(arguments);
        command
            .env("PACKETBOAT_URL", &self.websocket)
            .env("PACKETBOAT_STATE", &self.state);
        command
    }

    /// An operator's command, directed at this installation.
    pub fn operator(&self, arguments: &[&str]) -> Command {
        let mut command = packetboat(arguments);
        command.env("PACKETBOAT_ADMIN", &self.admin);
        command
    }

    /// Sends one message, and returns its id.
    pub fn send(&self, from: &str, to: &str, text: &str) -> String {
        let sent = run(&mut self.user(&["send", "--user", from, "--to", to, text])).ok();
        let line = &sent.json_lines()[0];
        assert_eq!(line["status"], "accepted");
        line["msg_id"].as_str().expect("an id").to_owned()
    }

    /// Creates a group, and returns its number.
    pub fn group(&self, owner: &str, members: &[&str]) -> String {
        let mut create = self.user(&["group", "create", "--user", owner]);
        let made = run(create.args(members)).ok();
        made.json_lines()[0]["group"].to_string()
    }

    /// Receives `count` messages.
    pub fn listen(&self, user: &str, count: usize) -> Vec<Value> {
        let count = count.to_string();
        let listen = [
            "listen",
            "--user",
            user,
            "--count",
            &count,
            "--timeout",
            "120",
        ];
        run(&mut self.user(&listen)).ok().json_lines()
    }

    /// Makes a user known: signs in, and leaves.
    pub fn becomes_known(&self, user: &str) {
        let mut visit = Process::start(&mut self.user(&["listen", "--user", user]));
        within(WAIT_TIMEOUT, || {
            let told = run(&mut self.operator(&["doctor", "user", user])).stdout;
            told.contains(": 1 sessions")
        });
        visit.signal("INT");
        visit.ended(WAIT_TIMEOUT);
    }

    /// Asserts that no (further) message comes for this user.
    pub fn nothing_for(&self, user: &str) {
        let listen = ["listen", "--user", user, "--timeout", "0.7"];
        assert_eq!(run(&mut self.user(&listen)).ok().stdout, "");
    }

    /// Waits until the audit is even, with nothing in flight.
    pub fn at_rest(&self) {
        let mut report = String::new();
        for _ in 0..MAX_POLLS {
            report = run(&mut self.operator(&["audit", "--deep", "--output", "json"])).stdout;
            let told: Value = serde_json::from_str(&report).unwrap_or_default();
            if told["balanced"] == true && told["in_flight"] == 0 && told["truncated"] == 0 {
                return;
            }
            thread::sleep(POLL_INTERVAL * 2);
        }
        panic!("it does not come to rest: {report}");
    }

    /// Oldest dead letter of this reason.
    pub fn letter(&self, reason: &str) -> String {
        let list = ["dlq", "list", "--reason", reason, "--output", "json"];
        let list = run(&mut self.operator(&list)).ok().stdout;
        let page: Value = serde_json::from_str(&list).expect("JSON");
        let letter = page["items"][0]["id"].as_str();
        letter.expect("a letter").to_owned()
    }

    /// Waits until the trace of a message contains all of these: names of events or of causes, or
    /// pieces of JSON.
    pub fn traced(&self, id: &str, events: &[&str]) {
        let mut told = String::new();
        for _ in 0..MAX_POLLS {
            told = run(&mut self.operator(&["trace", id, "--output", "json"])).stdout;
            let contains = |event: &&str| {
                if event.contains('"') {
                    told.contains(*event)
                } else {
                    told.contains(&format!("\"{event}\""))
                }
            };
            if events.iter().all(contains) {
                return;
            }
            thread::sleep(POLL_INTERVAL * 2);
        }
        panic!("{events:?} are not all in {told}");
    }
}
