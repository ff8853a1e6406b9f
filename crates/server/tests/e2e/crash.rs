//! `kill -9` in the middle loses nothing that was accepted, nor does a disk that takes no more.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::all::{All, Dir, all, through};
use crate::process::{Process, WAIT_TIMEOUT, run};

const MESSAGES: usize = 1000;

#[test]
fn messages_accepted_before_a_kill_arrive_once_and_in_order() {
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
    let all = all.restart("");
    while let Some(answer) = next() {
        answers.push(answer);
    }
    assert!(send.ended(WAIT_TIMEOUT).success());

    let id = |line: &Value| line["msg_id"].as_str().expect("an id").to_owned();
    assert!(answers.iter().all(|answer| answer["status"] == "accepted"));
    let accepted_ids: Vec<String> = answers.iter().map(id).collect();
    let distinct: BTreeSet<&String> = accepted_ids.iter().collect();
    assert_eq!((accepted_ids.len(), distinct.len()), (MESSAGES, MESSAGES));

    // Until then, messages in flight could find the listener signed in.
    all.at_rest();
    let messages = all.listen("2", MESSAGES);
    assert_eq!(messages.iter().map(id).collect::<Vec<_>>(), accepted_ids);
    let texts: Vec<&str> = messages
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
    for id in [&accepted_ids[0], &accepted_ids[MESSAGES - 1]] {
        all.traced(id, &["stored_offline", "fetched"]);
    }
    let trace = run(&mut all.operator(&["trace", &accepted_ids[7]]))
        .ok()
        .stdout;
    assert!(
        trace.contains("offline") && trace.contains("fetched"),
        "{trace}"
    );
}

// A limit of the size of files is as a full disk: each write to one fails, and the process learns of it.
#[test]
fn full_disk_ends_the_process_and_a_restart_heals_it() {
    let dir = Dir::new();
    let file = dir.settings(["127.0.0.1:0"; 3], "");
    let (log, stderr) = std::io::pipe().expect("a pipe");
    let mut command = Command::new("env");
    command.stderr(stderr).arg("--ignore-signal=XFSZ");
    let mut command = through(command, &all(&file, &dir.path("data")));
    let mut full = All::from_process(Process::start(&mut command), dir);
    drop(command);
    let first_id = full.send("1", "2", "before");

    let process = full.process.pid().to_string();
    run(Command::new("prlimit").args(["--fsize=0:0", "--pid", &process])).ok();
    let refused_send = ["send", "--user", "1", "--to", "2", "after"];
    let mut refused_send = Process::start(&mut full.user(&refused_send));
    assert_eq!(full.process.ended(WAIT_TIMEOUT).code(), Some(1));
    refused_send.kill();
    let log = std::io::read_to_string(log).expect("its log");
    let is_told = |line: &&str| line.contains("ERROR") && line.contains("a write to the embedded");
    assert_eq!(log.lines().filter(is_told).count(), 1, "{log}");
    let last = log.lines().last().expect("a last line");
    assert!(
        last.contains("the embedded store stopped unexpectedly"),
        "{last}"
    );

    let full = full.restart("");
    assert_eq!(full.listen("2", 1)[0]["msg_id"], first_id.as_str());
    full.send("1", "2", "there is room again");
}
