//! The four services as processes on the real parts. Needs `make real-up`; run by `make e2e`.

mod draining;
mod identity;
mod resuming;
mod revoking;

pub use self::identity::count_at;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fleet::Fleet;
use crate::process::{Process, WAIT_TIMEOUT, run};
use crate::real::eventually;

fn id(line: &Value) -> &str {
    line["msg_id"].as_str().expect("an id")
}

/// Messages cross boats, to a user who is online and to one who is away.
fn a_message_finds_its_receiver(redis: &str) {
    let fleet = Fleet::start(redis);
    fleet.send("1", "2", "are you new here?");
    assert_eq!(fleet.listen("2", 1)[0]["text"], "are you new here?");
    fleet.at_rest();

    let offline_id = fleet.send("1", "2", "while you were away");
    fleet.traced(&offline_id, &["stored_offline", "notified"]);
    let listen = ["listen", "--user", "2", "--count", "2", "--timeout", "120"];
    let mut listen = fleet.user(&listen);
    listen.env("PACKETBOAT_URL", fleet.boat("boat-2"));
    let listen = Process::start(&mut listen);
    let first: Value = serde_json::from_str(&listen.line().expect("a message")).expect("JSON");
    assert_eq!(id(&first), offline_id);
    let present = fleet.send("1", "2", "now you are here");
    let second: Value = serde_json::from_str(&listen.line().expect("a message")).expect("JSON");
    assert_eq!(id(&second), present);
    fleet.traced(&present, &["acked", "settled"]);
    drop(listen);
    fleet.at_rest();
    let audit = run(&mut fleet.operator(&["audit"])).ok();
    assert!(
        audit.stdout.starts_with("the books balance: 3 accepted"),
        "{}",
        audit.stdout
    );
}

// proves S3-01
#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_message_finds_its_receiver_with_a_single_redis() {
    a_message_finds_its_receiver("single");
}

#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_message_finds_its_receiver_with_sentinels() {
    a_message_finds_its_receiver("sentinel");
}

#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_message_finds_its_receiver_with_a_redis_cluster() {
    a_message_finds_its_receiver("cluster");
}

// proves S1-29, S1-30 in part
#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_dead_letter_is_listed_shown_and_redriven() {
    let mut fleet = Fleet::with("cluster", "station.record_bytes_max = 512");
    fleet.send("1", "2", "small");
    assert_eq!(fleet.listen("2", 1)[0]["text"], "small");
    let large = "x".repeat(2000);
    let large_id = fleet.send("1", "2", &large);
    fleet.traced(&large_id, &["dead", "too_large"]);
    let letter = fleet.letter("too-large");
    run(&mut fleet.operator(&["audit"])).ok();

    fleet.change_settings("station.record_bytes_max = 512", "");
    for desk in ["station-1", "station-2", "carrier-1", "carrier-2"] {
        fleet.process(desk).signal("TERM");
        assert!(fleet.process(desk).ended(WAIT_TIMEOUT).success());
        fleet.restart(desk);
    }
    run(&mut fleet.operator(&["dlq", "redrive", &letter])).ok();
    let messages = fleet.listen("2", 1);
    assert_eq!(
        (id(&messages[0]), messages[0]["text"].as_str()),
        (&*large_id, Some(&*large))
    );
    fleet.traced(&large_id, &["redriven", "settled"]);
    fleet.nothing_for("2");
    run(&mut fleet.operator(&["audit"])).ok();
}

#[test]
#[ignore = "needs the real parts: make e2e"]
fn each_process_is_well_and_says_so_for_itself() {
    let fleet = Fleet::start("cluster");
    fleet.send("1", "2", "hello");
    assert_eq!(fleet.listen("2", 1).len(), 1);
    fleet.at_rest();
    let mut doctor = fleet.operator(&["doctor", "--output", "json"]);
    doctor.args(["--admin", &fleet.admins().join(",")]);
    // A busy machine may need a second try.
    let report = eventually("the doctor finds nothing wrong", || {
        let output = run(&mut doctor);
        (output.code == Some(0)).then_some(output.stdout)
    });
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let processes = report["processes"].as_array().expect("processes");
    let roles: Vec<&str> = processes
        .iter()
        .filter_map(|p| p["role"].as_str())
        .collect();
    let expected = ["boat", "carrier", "horn", "station"];
    assert_eq!(roles, expected.map(|role| [role; 2]).concat());
    for process in processes {
        let findings = process["findings"].as_array().expect("findings");
        // A part that is slow on a busy machine gets a warning.
        let ok = |check: &str| {
            let mut all = findings.iter();
            all.any(|one| one["check"] == check && one["verdict"] != "failure")
        };
        let checks: &[&str] = match process["role"].as_str() {
            Some("boat") => &["discovery", "members"],
            Some("horn") => &["log", "ledger", "topics", "schema", "horns"],
            _ => &[
                "log", "mailbox", "history", "members", "topics", "schema", "carriers",
            ],
        };
        for check in checks {
            assert!(ok(check), "{check} of {process}");
        }
    }
    eventually("nothing contradicts itself", || {
        let user = run(&mut fleet.operator(&["doctor", "user", "2"])).stdout;
        user.contains("ok: no inconsistencies").then_some(())
    });
}

/// Absent members get the messages later, removed members get no more; a recall holds on every
/// boat.
#[test]
#[ignore = "needs the real parts: make e2e"]
fn a_group_talks_and_takes_back() {
    let fleet = Fleet::start("cluster");
    let group = fleet.group("1", &["2", "3"]);
    let say = |text| {
        let send = ["send", "--user", "1", "--to", &group, "--group", text];
        let output = run(&mut fleet.user(&send)).ok();
        id(&output.json_lines()[0]).to_owned()
    };
    let first = say("hello, all");
    for member in ["2", "3"] {
        let messages = fleet.listen(member, 1);
        assert_eq!(
            (id(&messages[0]), &messages[0]["text"]),
            (&*first, &"hello, all".into())
        );
    }
    let remove = ["group", "remove", "--user", "1", "--group", &group, "3"];
    run(&mut fleet.user(&remove)).ok();
    let second = say("without the third");
    assert_eq!(id(&fleet.listen("2", 1)[0]), second);
    fleet.nothing_for("3");
    let send = [
        "send",
        "--user",
        "3",
        "--to",
        &group,
        "--group",
        "still here?",
    ];
    let result = run(&mut fleet.user(&send));
    match result.code {
        // The group's writer refuses the message if the store of groups answers the station too
        // late.
        Some(0) => fleet.traced(id(&result.json_lines()[0]), &["refused"]),
        code => assert_eq!(code, Some(1), "{}", result.stdout),
    }
    fleet.nothing_for("2");

    let mut ada = fleet.user(&["chat", "--user", "1", "--to", "2"]);
    let mut ada = Process::start(&mut ada);
    let mut bea = fleet.user(&["chat", "--user", "2", "--to", "1"]);
    let mut bea = Process::start(bea.env("PACKETBOAT_URL", fleet.boat("boat-2")));
    ada.type_line("forget this");
    bea.line_is("1: forget this");
    ada.line_is("[read] forget this");
    ada.type_line("/recall");
    bea.line_is("[changed] 1: (recalled)");
    for chat in [&mut ada, &mut bea] {
        chat.feed(String::new());
        assert!(chat.ended(WAIT_TIMEOUT).success());
    }
    fleet.at_rest();
}

/// Each service ends in order on SIGTERM, and messages sent meanwhile come through the others.
#[test]
#[ignore = "needs the real parts: make e2e"]
fn services_come_and_go_one_by_one() {
    let mut fleet = Fleet::start("cluster");
    fleet.send("1", "2", "hello");
    assert_eq!(fleet.listen("2", 1).len(), 1);
    let mut sent_ids = BTreeSet::new();
    for name in ["carrier-1", "station-1", "horn-1", "boat-2"] {
        fleet.process(name).signal("TERM");
        assert!(fleet.process(name).ended(WAIT_TIMEOUT).success(), "{name}");
        sent_ids.insert(fleet.send("1", "2", name));
        fleet.restart(name);
        sent_ids.insert(fleet.send("1", "2", name));
    }
    let received_ids = fleet.listen("2", sent_ids.len());
    let received_ids: BTreeSet<String> = received_ids
        .iter()
        .map(|line| id(line).to_owned())
        .collect();
    assert_eq!(received_ids, sent_ids);
    fleet.at_rest();
}
