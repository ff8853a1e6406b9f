//! A private chat of other users beside a test, which must not notice it.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::all::All;
use crate::process::{Process, WAIT_TIMEOUT, bench, within};

pub const PAIRS: u32 = 4;
/// Messages per second over all pairs.
const RATE: u32 = 20;
/// Messages that a chat goes on by, to show that nothing holds it up.
const MORE: u64 = 20;
/// Counter of messages that a device acknowledged to its boat.
pub const DELIVERED: &str = "boat_deliveries_total{outcome=\"done\"}";

/// A running `bench steady`.
pub struct Chat {
    process: Process,
    started_at: Instant,
}

/// Findings of the chat's clients: nothing was missing, repeated or out of order.
pub struct ChatFindings(Value);

impl Chat {
    /// Starts a chat over both links; all are there and messages are flowing when this returns.
    pub fn beside(all: &All) -> Chat {
        let old_sends = all.metric("boat_sends_total");
        let sessions = all.metric("boat_sessions") + 2 * u64::from(PAIRS);
        let chat = Chat::over(&[&all.websocket, all.tcp()], 1_000_000);
        within(WAIT_TIMEOUT, || {
            all.metric("boat_sends_total") > old_sends + 4
        });
        within(WAIT_TIMEOUT, || all.metric("boat_sessions") >= sessions);
        Chat {
            started_at: Instant::now(),
            ..chat
        }
    }

    /// Starts a chat of users from `first_user` on.
    pub fn over(urls: &[&str], first_user: u32) -> Chat {
        let (pairs, rate) = (PAIRS.to_string(), RATE.to_string());
        let mut command = bench(&["steady", "--pairs", &pairs, "--rate", &rate]);
        for url in urls {
            command.args(["--url", url]);
        }
        command.args(["--first-user", &first_user.to_string()]);
        command.args(["--away", "0", "--seconds", "100000"]);
        command.args(["--settle", "120", "--output", "json"]);
        Chat {
            process: Process::start(&mut command),
            started_at: Instant::now(),
        }
    }

    /// Waits until the chat has gone on by some messages: what the test holds meanwhile holds nobody
    /// else up.
    pub fn goes_on(&self, all: &All) {
        self.goes_on_by(|| all.metric(DELIVERED));
    }

    /// The same, with the number of messages delivered so far.
    pub fn goes_on_by(&self, delivered_count: impl Fn() -> u64) {
        let old_count = delivered_count();
        within(WAIT_TIMEOUT, || delivered_count() >= old_count + MORE);
    }

    pub fn end(mut self) -> ChatFindings {
        // A shorter chat proves nothing.
        thread::sleep(Duration::from_secs(2).saturating_sub(self.started_at.elapsed()));
        assert!(self.process.is_running(), "the chat ended by itself");
        self.process.signal("TERM");
        let findings = self.process.line_within(WAIT_TIMEOUT * 4);
        let findings = findings.expect("it says what it found");
        let findings: Value = serde_json::from_str(&findings).expect("JSON");
        println!("the chat found {findings}");
        for fault in ["twice", "out_of_order", "open", "resets"] {
            assert_eq!(findings[fault], 0, "{fault} in {findings}");
        }
        assert_eq!(findings["missing"], Value::Array(Vec::new()), "{findings}");
        ChatFindings(findings)
    }
}

impl ChatFindings {
    /// Asserts that the chat went on, and that no message waited as long as one that is held up.
    pub fn undisturbed(self) {
        self.went_on();
        let held_up = WAIT_TIMEOUT.as_millis() as u64;
        assert!(self.number("p99_ms") < held_up, "{}", self.0);
    }

    /// Asserts that messages were accepted, as many as a chat that goes on has.
    pub fn went_on(&self) {
        assert!(self.number("accepted") >= MORE, "{}", self.0);
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().expect("a number")
    }
}
