//! `kill -9` in the middle loses nothing that was accepted, nor does a disk that takes no more.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::all::{All, Dir, all, through};
use crate::process::{Process, SOON, run};

const MESSAGES: usize = 1000;

#[test]
fn what_was_accepted_before_a_kill_arrives_after_the_restart_once_and_in_order() {
    let mut all = All::start();
    // The user is known, then away: messages are stored offline.
    all.send("1", "2", "are you new here?");
    assert_eq!(all.listen("2", 1)[0]["text"], "are you new here?");

    let mut send = all.user(&["send", "--user", "1", "--to", "2", "--stdin"]);
    let mut send = Process::start(send.args(["--timeout", "300"]));
    send.feed((0..MESSAGES).map(|n| format!("{n}\n")).collect());
    let mut answers: Vec<Value> = Vec::new();
    let next = || {
        let line = send.line()?;
        Some(serde_json::from_str::<Value>(&line).expect("a JSON line"))
    };
    while answers.len() < MESSAGES / 4 {
        answers.extend(next());
    }
    all.process.kill();
    let all = all.again("");
    while let Some(answer) = next() {
        answers.push(answer);
    }
    assert!(send.ended(SOON).success());

    let id = |line: &Value| line["msg_id"].as_str().expect("an id").to_owned();
    assert!(answers.iter().all(|answer| answer["status"] == "accepted"));
    let accepted: Vec<String> = answers.iter().map(id).collect();
    let distinct: BTreeSet<&String> = accepted.iter().collect();
    assert_eq!((accepted.len(), distinct.len()), (MESSAGES, MESSAGES));

    // Until then, messages in flight could find the listener signed in.
    all.at_rest();
    let heard = all.listen("2", MESSAGES);
    assert_eq!(heard.iter().map(id).collect::<Vec<_>>(), accepted);
    let texts: Vec<&str> = heard
        .iter()
        .filter_map(|line| line["text"].as_str())
        .collect();
    let expected: Vec<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
    assert_eq!(texts, expected);
    all.nothing_for("2");

    let audit = run(&mut all.operator(&["audit"])).ok();
    assert!(
        audit.stdout.starts_with("the books balance: 1001 accepted"),
        "{}",
        audit.stdout
    );
    for id in [&accepted[0], &accepted[MESSAGES - 1]] {
        all.traced(id, &["stored_offline", "fetched"]);
    }
    let told = run(&mut all.operator(&["trace", &accepted[7]])).ok().stdout;
    assert!(
        told.contains("offline") && told.contains("fetched"),
        "{told}"
    );
}

// A limit of the size of files is as a full disk: each write to one fails, and the process learns of it.
#[test]
fn a_disk_that_takes_no_more_ends_the_process_and_a_restart_heals_it() {
    let dir = Dir::new();
    let file = dir.settings(["127.0.0.1:0"; 3], "");
    let (log, stderr) = std::io::pipe().expect("a pipe");
    let mut command = Command::new("env");
    command.stderr(stderr).arg("--ignore-signal=XFSZ");
    let mut command = through(command, &all(&file, &dir.path("data")));
    let mut full = All::of(Process::start(&mut command), dir);
    drop(command);
    let accepted = full.send("1", "2", "before");

    let process = full.process.pid().to_string();
    run(Command::new("prlimit").args(["--fsize=0:0", "--pid", &process])).ok();
    let refused = ["send", "--user", "1", "--to", "2", "after"];
    let mut refused = Process::start(&mut full.user(&refused));
    assert_eq!(full.process.ended(SOON).code(), Some(1));
    refused.kill();
    let log = std::io::read_to_string(log).expect("its log");
    let is_told = |line: &&str| line.contains("ERROR") && line.contains("a write to the embedded");
    assert_eq!(log.lines().filter(is_told).count(), 1, "{log}");
    let last = log.lines().last().expect("a last line");
    assert!(last.contains("the embedded store ended"), "{last}");

    let full = full.again("");
    assert_eq!(full.listen("2", 1)[0]["msg_id"], accepted.as_str());
    full.send("1", "2", "there is room again");
}
