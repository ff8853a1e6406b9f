//! `kill -9` in the middle loses nothing that was accepted.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::all::All;
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
