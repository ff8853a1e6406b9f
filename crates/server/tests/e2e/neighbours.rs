//! A private chat of others beside what a test does, and what it must not notice.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::all::All;
use crate::door::Door;
use crate::process::{Process, SOON, within};

pub const PAIRS: u32 = 4;
/// Messages a second over all pairs.
const RATE: u32 = 20;

/// A running `bench steady`.
pub struct Chat {
    process: Process,
    since: Instant,
}

/// The findings of its clients: nothing is missing, and nothing came twice or out of order.
pub struct Found(Value);

impl Chat {
    /// Over both links; it is under way when this returns.
    pub fn beside(all: &All) -> Chat {
        let before = all.metric("boat_sends_total");
        let chat = Chat::over(all, &[&all.websocket, all.tcp()], 1_000_000);
        within(SOON, || all.metric("boat_sends_total") > before + 4);
        Chat {
            since: Instant::now(),
            ..chat
        }
    }

    /// Users from this one on.
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

    pub fn end(mut self) -> Found {
        // A shorter chat says nothing.
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
        Found(found)
    }
}

impl Found {
    /// The chat went on: half of what it would have sent undisturbed, and nobody waited long.
    pub fn undisturbed(self) {
        self.went_on();
        assert!(self.number("p99_ms") < 2_000, "{}", self.0);
    }

    /// Half of what it would have sent undisturbed was accepted.
    pub fn went_on(&self) {
        let wanted = self.number("lasted") * u64::from(RATE) / 2;
        assert!(self.number("accepted") >= wanted, "{wanted}: {}", self.0);
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().expect("a number")
    }
}
