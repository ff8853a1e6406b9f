//! What could not be delivered, from the operator's commands.

use crate::process::{All, Process, run};

/// Waits that a test can sit through.
const QUICK: &str = "boat.session.ack_wait = \"300ms\"\ncarrier.ack_wait = \"300ms\"\n\
    carrier.retry_delays = [\"10ms\", \"20ms\", \"30ms\", \"40ms\", \"50ms\"]";

// proves S1-15
#[test]
fn a_listener_that_never_acknowledges_is_sent_away_and_the_message_waits() {
    let all = All::with(QUICK);
    let deaf = ["listen", "--user", "2", "--device", "deaf", "--no-ack"];
    let mut deaf = Process::start(&mut all.user(&deaf));
    // Found by sync, maybe: now it is signed in.
    all.send("1", "2", "are you there?");
    assert!(deaf.line().expect("it is shown").contains("are you there?"));
    let id = all.send("1", "2", "hello?");
    assert!(deaf.line().expect("it is shown").contains(&id));
    all.traced(&id, &["NoAck", "StoredOffline"]);
    deaf.kill();
    assert_eq!(all.listen("2", 2)[1]["msg_id"], id.as_str());
    all.traced(&id, &["Fetched"]);
    all.nothing_for("2");
    run(&mut all.operator(&["audit"])).ok();
}

// proves S1-29, S1-30 in part
#[test]
fn a_dead_letter_is_listed_shown_and_redriven_when_its_cause_is_gone() {
    let mut all = All::with("carrier.record_bytes_max = 512");
    all.send("1", "2", "small");
    assert_eq!(all.listen("2", 1)[0]["text"], "small");
    let large = "x".repeat(2000);
    let id = all.send("1", "2", &large);
    all.traced(&id, &["Dead", "TooLarge"]);

    let list = ["dlq", "list", "--reason", "too-large", "--output", "json"];
    let list = run(&mut all.operator(&list)).ok().stdout;
    let page: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let letter = page["letters"][0]["id"]
        .as_str()
        .expect("a letter")
        .to_owned();
    let shown = run(&mut all.operator(&["dlq", "show", &letter, "--body"])).ok();
    assert!(
        shown.stdout.contains("too-large") && shown.stdout.contains(&id),
        "{}",
        shown.stdout
    );
    let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
    assert!(stats.contains("too-large"), "{stats}");
    run(&mut all.operator(&["audit"])).ok();

    all.process.signal("TERM");
    all.process.ended(crate::process::SOON);
    let all = all.again("");
    run(&mut all.operator(&["dlq", "redrive", &letter])).ok();
    let heard = all.listen("2", 1);
    assert_eq!(
        (heard[0]["msg_id"].as_str(), heard[0]["text"].as_str()),
        (Some(&*id), Some(&*large))
    );
    all.traced(&id, &["Redriven", "Settled"]);
    all.nothing_for("2");
    run(&mut all.operator(&["audit"])).ok();
}
