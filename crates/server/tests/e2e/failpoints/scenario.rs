//! A scenario with a little of everything that services do, by users and operators who retry until
//! they get an answer.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::door::Door;
use crate::process::{CommandOutput, Process, WAIT_TIMEOUT, run};
use crate::webhook::Webhook;

/// Time limit of any step, a restart included, on the slowest machine.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two tries.
const REST: Duration = Duration::from_millis(200);

pub struct Scenario<'a> {
    door: &'a Door,
    /// Users of this scenario have numbers above this one.
    base: i64,
    /// Start of the scenario. Letters of earlier ones stay where they are: each redrive would
    /// double them.
    began: Instant,
    /// User 2, online from beginning to end.
    present: Process,
    /// User 4, who acknowledges nothing.
    deaf: Process,
}

impl Scenario<'_> {
    /// Signs in users 2 and 4; user 3 becomes known and leaves.
    pub fn begin(door: &Door, base: i64) -> Scenario<'_> {
        let began = Instant::now();
        let user = |number: i64| (base + number).to_string();
        until_done(|| door.operator(&["dlq", "stats"]));
        door.becomes_known(&user(3));
        let listen = ["listen", "--user", &user(2)];
        let present = Process::start(&mut door.user(&listen));
        let listen = ["listen", "--device", "deaf", "--no-ack", "--user", &user(4)];
        let deaf = Process::start(&mut door.user(&listen));
        let scenario = Scenario {
            door,
            base,
            began,
            present,
            deaf,
        };
        scenario.sends(4, ["are you there?".to_owned()]);
        scenario
            .deaf
            .line_within(SCENARIO_TIMEOUT)
            .expect("it is shown");
        scenario
    }

    fn user(&self, number: i64) -> String {
        (self.base + number).to_string()
    }

    /// Age of this scenario, for filters of its letters.
    fn letters(&self) -> String {
        format!("{}s", self.began.elapsed().as_secs() + 1)
    }

    pub fn run(mut self, webhook: &Webhook) {
        let door = self.door;
        let present = self.sends(2, (0..12).map(|n| n.to_string()));
        let dead = self.sends(2, ["x".repeat(700)]);
        let offline_ids = self.sends(3, (0..5).map(|n| n.to_string()));
        let deaf = self.sends(4, (0..2).map(|n| n.to_string()));
        let in_group = self.talks_in_a_group();
        self.reads();
        self.changes();
        self.is_shown(&present.union(&in_group).cloned().collect());
        self.hears(
            3,
            "terminal",
            &offline_ids.union(&in_group).cloned().collect(),
        );
        door.at_rest();
        self.deaf.kill();
        self.hears(4, "deaf", &deaf);

        webhook.accept();
        for topic in ["notification", "message"] {
            // Letters that die again are refused: that counts as an answer.
            until(
                || {
                    let last = self.letters();
                    let redrive = ["dlq", "redrive", "--all", "--last", &last, "--topic", topic];
                    run(&mut door.operator(&redrive))
                },
                |output| !output.stdout.is_empty() && !output.stderr.contains("packetboat:"),
            );
        }
        door.at_rest();
        let letters = until_done(|| {
            let last = self.letters();
            let list = ["dlq", "list", "--last", &last, "--limit", "1000"];
            let mut list = door.operator(&list);
            list.args(["--output", "json"]);
            list
        });
        let letters = letters.stdout;
        let is_dead = |id: &String| letters.contains(id);
        assert!(dead.iter().all(is_dead), "{dead:?} in {letters}");
        for (number, device) in [(3, "terminal"), (4, "deaf")] {
            let more = self.visit(number, device, &["--timeout", "1"]).ok();
            assert_eq!(more.stdout, "", "user {number}");
        }
        let audit = until_done(|| door.operator(&["audit", "--deep"])).stdout;
        assert!(audit.starts_with("the books balance"), "{audit}");
        self.ends_without_repeats(&present);
    }

    /// Adds users 2 and 3 to a group, and has user 1 write to it.
    fn talks_in_a_group(&self) -> BTreeSet<String> {
        let [one, two, three] = [1, 2, 3].map(|number| self.user(number));
        let create = ["group", "create", "--user", &one, &two, &three];
        // A group whose creation was not answered may exist, too: it stays silent.
        let output = until_done(|| self.door.user(&create));
        let group = output.json_lines()[0]["group"].to_string();
        self.sends_to(&[&group, "--group"], (0..3).map(|n| format!("all {n}")))
    }

    /// User 1 recalls a message that user 6 has, and edits the next one; user 6 hides it.
    fn changes(&self) {
        let (one, six) = (self.user(1), self.user(6));
        let chat = |user, to| {
            let chat = ["chat", "--user", user, "--to", to];
            Process::start(&mut self.door.user(&chat))
        };
        let (mut says, mut hears) = (chat(&one, &six), chat(&six, &one));
        persist(&mut says, None, "forget this", "[read] forget this");
        persist(&mut says, Some(&hears), "/recall", ": (recalled)");
        persist(&mut says, None, "ninety", "[read] ninety");
        let edited_line = format!("{one}: a hundred (edited)");
        persist(&mut says, Some(&hears), "/edit a hundred", &edited_line);
        persist(&mut hears, None, "/hide", ": (hidden)");
        for chat in [&mut says, &mut hears] {
            chat.feed(String::new());
            chat.ended(SCENARIO_TIMEOUT);
        }
    }

    /// Sends messages from user 1, and returns their ids: each is accepted, whatever happens
    /// meanwhile.
    fn sends(&self, to: i64, texts: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        self.sends_to(&[&self.user(to)], texts)
    }

    fn sends_to(&self, to: &[&str], texts: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        let texts: Vec<String> = texts.into_iter().collect();
        let from = self.user(1);
        let mut send = self
            .door
            .user(&["send", "--user", &from, "--stdin", "--to"]);
        let mut send = Process::start(send.args(to));
        send.feed(texts.iter().map(|text| format!("{text}\n")).collect());
        let lines: Vec<String> =
            std::iter::from_fn(|| send.line_within(SCENARIO_TIMEOUT)).collect();
        let accepted_lines = lines.iter().filter(|line| line.contains("\"accepted\""));
        assert_eq!(accepted_lines.count(), texts.len(), "{lines:?}");
        lines.iter().map(|line| id_of(line)).collect()
    }

    /// User 5 reads a message.
    fn reads(&self) {
        let (reader, from) = (self.user(5), self.user(1));
        let chat = ["chat", "--user", &reader, "--to", &from];
        let mut chat = Process::start(&mut self.door.user(&chat));
        self.sends(5, ["read me".to_owned()]);
        chat.line_is(&format!("{from}: read me"));
        thread::sleep(REST);
        chat.feed(String::new());
        chat.ended(SCENARIO_TIMEOUT);
    }

    /// Waits until user 2 is shown all of these, each once, and nothing else.
    fn is_shown(&self, ids: &BTreeSet<String>) {
        let mut shown_ids = BTreeSet::new();
        while shown_ids.len() < ids.len() {
            let line = self
                .present
                .line_within(SCENARIO_TIMEOUT)
                .expect("it goes on");
            let id = id_of(&line);
            assert!(ids.contains(&id), "{line} was not sent");
            assert!(shown_ids.insert(id), "{line} is shown twice");
        }
    }

    /// Ends user 2's session, and asserts that none of these was shown again.
    fn ends_without_repeats(self, ids: &BTreeSet<String>) {
        thread::sleep(REST);
        self.present.signal("TERM");
        let rest: Vec<String> = std::iter::from_fn(|| self.present.line()).collect();
        assert!(
            rest.iter().all(|line| !ids.contains(&id_of(line))),
            "{rest:?}"
        );
    }

    /// Signs a user in, again and again, until these were shown, each once; a device remembers what
    /// it has shown.
    fn hears(&self, number: i64, device: &str, ids: &BTreeSet<String>) {
        let began = Instant::now();
        let mut shown_ids = BTreeSet::new();
        while !ids.is_subset(&shown_ids) {
            let missing_count = ids.difference(&shown_ids).count().to_string();
            // Ends at the last of them.
            let options = ["--timeout", "30", "--count", &missing_count];
            for id in shown_by(&self.visit(number, device, &options)) {
                assert!(shown_ids.insert(id.clone()), "{id} is shown twice");
            }
            assert!(
                began.elapsed() < SCENARIO_TIMEOUT,
                "{ids:?} are not in {shown_ids:?}"
            );
        }
    }

    /// Signs a user in for a while.
    fn visit(&self, number: i64, device: &str, options: &[&str]) -> CommandOutput {
        let user = self.user(number);
        let listen = ["listen", "--user", &user, "--device", device];
        run(self.door.user(&listen).args(options))
    }
}

/// Messages that a visit showed.
fn shown_by(visit: &CommandOutput) -> Vec<String> {
    visit.stdout.lines().map(id_of).collect()
}

fn id_of(line: &str) -> String {
    let line: Value = serde_json::from_str(line).expect("a JSON line");
    line["msg_id"].as_str().expect("an id").to_owned()
}

/// Runs a command until it succeeds.
fn until_done(command: impl Fn() -> Command) -> CommandOutput {
    until(|| run(&mut command()), |output| output.code == Some(0))
}

fn until(
    command: impl Fn() -> CommandOutput,
    is_done: impl Fn(&CommandOutput) -> bool,
) -> CommandOutput {
    let began = Instant::now();
    loop {
        let output = command();
        if is_done(&output) {
            return output;
        }
        let text = format!("{}{}", output.stdout, output.stderr);
        assert!(began.elapsed() < SCENARIO_TIMEOUT, "{text}");
        thread::sleep(REST);
    }
}

/// Types a line until the result is read, by `reader` if given, otherwise in the chat itself: a
/// send whose services died under each of its tries has failed, and its user tries again.
fn persist(chat: &mut Process, reader: Option<&Process>, line: &str, expected: &str) {
    let mut seen_lines = Vec::new();
    for _ in 0..3 {
        chat.type_line(line);
        let is_it = |line: &str| line.ends_with(expected);
        match reader.unwrap_or(chat).look_for(WAIT_TIMEOUT, is_it) {
            Ok(()) => return,
            Err(lines) => seen_lines.extend(lines),
        }
    }
    panic!("{line:?} brings no {expected:?} but {seen_lines:#?}");
}
