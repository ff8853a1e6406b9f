//! A private chat of other users beside a test, which must not notice it.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::all::All;
use crate::door::Door;
use crate::process::{Process, SOON, within};

pub const PAIRS: u32 = 4;
/// Messages per second over all pairs.
const RATE: u32 = 20;

/// A running `bench steady`.
pub struct Chat {
    process: Process,
    since: Instant,
}

/// Findings of the chat's clients: nothing was missing, repeated or out of order.
pub struct ChatFindings(Value);

impl Chat {
    /// Starts a chat over both links; messages are flowing when this returns.
    pub fn beside(all: &All) -> Chat {
        let before = all.metric("boat_sends_total");
        let chat = Chat::over(all, &[&all.websocket, all.tcp()], 1_000_000);
        within(SOON, || all.metric("boat_sends_total") > before + 4);
        Chat {
            since: Instant::now(),
            ..chat
        }
    }

    /// Starts a chat of users from `first_user` on.
    pub fn over(door: &Door, urls: &[&str], first_user: u32) -> Chat {
        let (pairs, rate) = (PAIRS.to_string(), RATE.to_string());
        let mut command = door.user(&["bench", "steady", "--pairs", &pairs, "--rate", &rate]);
        for url in urls {
            command.args(["--url", url]);
        }
        command.args(["--first-user", &first_user.to_string()]);
        command.args(["--away", "0", "--seconds", "100000"]);
        command.args(["--settle", "30", "--output", "json"]);
        Chat {
            process: Process::start(&mut command),
            since: Instant::now(),
        }
    }

    pub fn end(mut self) -> ChatFindings {
        // A shorter chat proves nothing.
        thread::sleep(Duration::from_secs(2).saturating_sub(self.since.elapsed()));
        assert!(self.process.is_running(), "the chat ended by itself");
        let lasted = self.since.elapsed().as_secs();
        self.process.signal("TERM");
        let found = self.process.line_within(Duration::from_secs(60));
        let found = found.expect("it says what it found");
        let mut found: Value = serde_json::from_str(&found).expect("JSON");
        println!("the chat found {found}");
        for fault in ["twice", "out_of_order", "open", "resets"] {
            assert_eq!(found[fault], 0, "{fault} in {found}");
        }
        assert_eq!(found["missing"], Value::Array(Vec::new()), "{found}");
        found["lasted"] = lasted.into();
        ChatFindings(found)
    }
}

impl ChatFindings {
    /// Asserts that the chat went on without long waits.
    pub fn undisturbed(self) {
        self.went_on();
        assert!(self.number("p99_ms") < 2_000, "{}", self.0);
    }

    /// Asserts that at least half of the undisturbed number of sends was accepted.
    pub fn went_on(&self) {
        let wanted = self.number("lasted") * u64::from(RATE) / 2;
        assert!(self.number("accepted") >= wanted, "{wanted}: {}", self.0);
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().expect("a number")
    }
}
