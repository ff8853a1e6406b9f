//! A night in which much goes wrong at once, and an operator with only the commands.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::fleet::Fleet;
use crate::process::{Process, run};
use crate::real::{self, tool, within};
use crate::webhook::Webhook;

/// Messages of each sender.
const EACH: usize = 2000;
/// Sender and receiver; receivers above 20 are away, the others are online.
const PAIRS: [(i64, i64); 10] = [
    (1, 11),
    (2, 12),
    (3, 13),
    (4, 14),
    (5, 15),
    (6, 21),
    (7, 22),
    (8, 23),
    (9, 24),
    (10, 25),
];
/// Records of each kind of poison.
const POISONED: usize = 60;
/// Receivers: one with a damaged mailbox, one of oversized messages, one whose notifications are
/// refused.
const DAMAGED: &str = "31";
const LARGE: &str = "32";
const REFUSED: &str = "33";

const LIMIT: &str = "station.record_bytes_max = 4096";

fn quick(webhook: &Webhook) -> String {
    format!(
        "carrier.retry_delays = [\"200ms\", \"400ms\", \"600ms\", \"800ms\", \"1s\"]\n\
         horn.provider = \"webhook\"\nhorn.url = \"{}\"\n{LIMIT}",
        webhook.url
    )
}

// proves S1-29, S1-30 in part
#[test]
#[ignore = "needs the real parts: make campaign"]
fn an_operator_clears_up_after_a_night() {
    let webhook = Webhook::accepting();
    let mut fleet = Fleet::with("cluster", &quick(&webhook));
    for user in (21..=25).map(|n: i64| n.to_string()) {
        fleet.becomes_known(&user);
    }
    for user in [DAMAGED, LARGE, REFUSED] {
        fleet.becomes_known(user);
    }
    let present: Vec<Process> = (11..=15)
        .map(|user: i64| Process::start(&mut fleet.user(&["listen", "--user", &user.to_string()])))
        .collect();
    let sends: Vec<Process> = PAIRS.iter().map(|&pair| sending(&fleet, pair)).collect();

    let key = damage_mailbox(&fleet);
    let mut poison_ids = BTreeSet::new();
    poison_ids.extend(several(&fleet, DAMAGED, "hello"));
    poison_ids.extend(several(&fleet, LARGE, &"x".repeat(5000)));
    fleet.process("boat-2").signal("STOP");
    webhook.fail();
    thread::sleep(Duration::from_secs(10));
    fleet.process("boat-2").signal("CONT");
    webhook.refuse_user(REFUSED);
    let refused_ids = several(&fleet, REFUSED, "are you there?");
    let whole = produce_garbage(&fleet);
    produce_misplaced(&fleet, whole);
    let accepted_ids: Vec<BTreeSet<String>> = sends.into_iter().map(accepted_of).collect();
    assert_eq!(
        accepted_ids.iter().map(BTreeSet::len).sum::<usize>(),
        10 * EACH
    );

    // Letters by cause.
    let mut last_causes = Vec::new();
    let causes = within(
        Duration::from_secs(180),
        "all five causes are there",
        || {
            let causes = causes(&fleet);
            if causes != last_causes {
                println!("so far {causes:?}");
                last_causes.clone_from(&causes);
            }
            let reasons = [
                "undecodable",
                "too-large",
                "misplaced",
                "max-retries",
                "refused",
            ];
            let all = reasons
                .iter()
                .all(|reason| reason_count(&causes, reason) >= POISONED as u64);
            all.then_some(causes)
        },
    );
    println!("the operator finds {causes:#?}");

    // A plan forecasts failure: the causes are still present.
    let forecast = plan(&fleet, "too-large");
    assert!(forecast.contains("would die again"), "{forecast}");

    // Remove the causes.
    webhook.accept();
    tool("redis-cli", &["-c", "-p", &port(), "del", &key]);
    fleet.change_settings(LIMIT, "");
    for desk in ["station-1", "station-2", "carrier-1", "carrier-2"] {
        fleet.process(desk).signal("TERM");
        assert!(
            fleet
                .process(desk)
                .ended(crate::process::WAIT_TIMEOUT)
                .success()
        );
        fleet.restart(desk);
    }
    for reason in ["too-large", "max-retries", "misplaced", "refused"] {
        let plan = plan(&fleet, reason).replace('\n', "; ");
        println!("{reason}: {plan}");
        assert!(!plan.contains("would die again"), "{reason}: {plan}");
        redrive(&fleet, reason);
    }
    let undecodable = [
        "dlq",
        "discard",
        "--reason",
        "undecodable",
        "--why",
        "garbage of a night",
    ];
    let count = reason_count(&causes, "undecodable").to_string();
    let confirmation = [&undecodable[..], &["--confirm", &count]].concat();
    run(&mut fleet.operator(&confirmation)).ok();
    within(Duration::from_secs(180), "nothing is dead", || {
        let open = run(&mut fleet.operator(&["dlq", "list", "--open"])).stdout;
        (open == "Nothing is dead.\n").then_some(())
    });

    // Every receiver has every message, once.
    for ((_, to), accepted_ids) in PAIRS
        .iter()
        .zip(&accepted_ids)
        .filter(|((_, to), _)| *to > 20)
    {
        assert_eq!(
            &ids(fleet.listen(&to.to_string(), EACH)),
            accepted_ids,
            "user {to}"
        );
    }
    for (listener, accepted_ids) in present.iter().zip(&accepted_ids) {
        let shown_ids: BTreeSet<String> = (0..EACH)
            .map(|_| id_of(&listener.line().expect("a line")))
            .collect();
        assert_eq!(&shown_ids, accepted_ids);
    }
    for user in [DAMAGED, LARGE] {
        let received_ids = ids(fleet.listen(user, POISONED));
        assert!(received_ids.is_subset(&poison_ids), "user {user}");
        fleet.nothing_for(user);
    }
    assert_eq!(ids(fleet.listen(REFUSED, POISONED)), refused_ids);
    within(Duration::from_secs(300), "the books balance", || {
        let audit = run(&mut fleet.operator(&["audit", "--all"]));
        println!("{}", audit.stdout.lines().next().unwrap_or_default());
        (audit.code == Some(0) && audit.stdout.contains(" 0 in flight")).then_some(())
    });
}

/// A sender of many messages.
fn sending(fleet: &Fleet, (from, to): (i64, i64)) -> Process {
    let (from, to) = (from.to_string(), to.to_string());
    let send = ["send", "--user", &from, "--to", &to, "--stdin"];
    let mut send = fleet.user(&send);
    let boat = if to.as_str() < "13" {
        "boat-2"
    } else {
        "boat-1"
    };
    send.env("PACKETBOAT_URL", fleet.boat(boat));
    let mut send = Process::start(&mut send);
    send.feed((0..EACH).map(|n| format!("{n}\n")).collect());
    send
}

fn accepted_of(send: Process) -> BTreeSet<String> {
    let patience = Duration::from_secs(300);
    let lines: Vec<String> = std::iter::from_fn(|| send.line_within(patience)).collect();
    let refusal_line = lines.iter().find(|line| !line.contains("\"accepted\""));
    assert_eq!(refusal_line, None);
    lines.iter().map(|line| id_of(line)).collect()
}

fn several(fleet: &Fleet, to: &str, text: &str) -> BTreeSet<String> {
    let mut send = fleet.user(&["send", "--user", "9", "--to", to, "--stdin"]);
    let mut send = Process::start(&mut send);
    send.feed(format!("{text}\n").repeat(POISONED));
    let ids = accepted_of(send);
    assert_eq!(ids.len(), POISONED);
    ids
}

/// Send_id of a printed message: if Redis was too slow to recognize a resend, the message was
/// accepted under a second id, and is stored under the first.
fn id_of(line: &str) -> String {
    let line: Value = serde_json::from_str(line).expect("a JSON line");
    line["send_id"].as_str().expect("a send_id").to_owned()
}

fn ids(lines: Vec<Value>) -> BTreeSet<String> {
    lines
        .iter()
        .map(|line| line["send_id"].as_str().expect("a send_id").to_owned())
        .collect()
}

/// Port of a node of the Redis cluster.
fn port() -> String {
    let address = real::addresses("redis-cluster").remove(0);
    address.rsplit(':').next().expect("a port").to_owned()
}

/// Replaces the waiting messages of a user by a value that no script can read.
fn damage_mailbox(fleet: &Fleet) -> String {
    let user: i64 = DAMAGED.parse().expect("a number");
    let bucket = protocol::keys::bucket_of(protocol::UserId::new(user).expect("positive"));
    let key = format!("{}/{{b{bucket:04}}}/u:{user}/p:4/oms", fleet.name());
    let set = tool("redis-cli", &["-c", "-p", &port(), "set", &key, "damaged"]);
    assert_eq!(set.trim(), "OK");
    key
}

fn topic(fleet: &Fleet) -> String {
    format!("{}-message", fleet.name())
}

fn kcat(arguments: &[&str]) -> Command {
    let mut kcat = Command::new("kcat");
    kcat.args(["-q", "-b", &real::addresses("kafka").join(",")])
        .args(arguments);
    kcat
}

/// Writes foreign records into the log. Returns the bytes of a regular record.
fn produce_garbage(fleet: &Fleet) -> Vec<u8> {
    let topic = topic(fleet);
    let mut producer = kcat(&["-P", "-t", &topic, "-p", "0", "-k", "no key of ours"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("kcat runs");
    let mut input = producer.stdin.take().expect("piped");
    for n in 0..POISONED {
        writeln!(input, "no task {n} of ours").expect("it reads");
    }
    drop(input);
    assert!(producer.wait().expect("it ends").success());
    let read = [
        "-C",
        "-t",
        &topic,
        "-p",
        "1",
        "-o",
        "beginning",
        "-c",
        "1",
        "-e",
        "-D",
        "",
    ];
    kcat(&read).output().expect("kcat runs").stdout
}

/// Writes a regular record into partitions it does not belong to.
fn produce_misplaced(fleet: &Fleet, record: Vec<u8>) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), record).expect("written");
    let path = file.path().to_string_lossy().into_owned();
    for _ in 0..POISONED {
        let topic = topic(fleet);
        let put = ["-P", "-t", &topic, "-p", "2", "-k", "another key", &path];
        assert!(kcat(&put).status().expect("kcat runs").success());
    }
}

/// Reason and number of letters of each cause.
fn causes(fleet: &Fleet) -> Vec<(String, u64)> {
    let stats = run(&mut fleet.operator(&["dlq", "stats", "--output", "json"])).stdout;
    let stats: Value = serde_json::from_str(&stats).unwrap_or_default();
    let causes = stats["causes"]["items"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let parse_cause = |cause: &Value| {
        let reason = cause["cause"].as_str()?.split(':').next()?.to_owned();
        Some((reason, cause["summary"]["letters"].as_u64()?))
    };
    causes.iter().filter_map(parse_cause).collect()
}

fn reason_count(causes: &[(String, u64)], reason: &str) -> u64 {
    let letters = causes.iter().filter(|(cause, _)| cause == reason);
    letters.map(|(_, letters)| letters).sum()
}

/// Plan of a carrier: its limits count, and a station may not know new ones yet.
fn plan(fleet: &Fleet, reason: &str) -> String {
    let mut plan = fleet.operator(&["dlq", "plan", "--reason", reason]);
    plan.env("PACKETBOAT_ADMIN", fleet.admin_of("carrier-1"));
    run(&mut plan).ok().stdout
}

/// Redrives letters until none is left.
fn redrive(fleet: &Fleet, reason: &str) {
    let redrive = ["dlq", "redrive", "--reason", reason, "--rate", "100"];
    within(Duration::from_secs(180), "they are redriven", || {
        let report = run(&mut fleet.operator(&redrive)).stdout;
        report.contains("No letter matches").then_some(())
    });
}
