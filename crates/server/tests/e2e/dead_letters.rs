//! Dead letters, from the operator's commands.

use std::collections::BTreeSet;

use crate::all::All;
use crate::door::get;
use crate::process::{Process, WAIT_TIMEOUT, run, within};
use crate::webhook::Webhook;

/// Waits short enough for a test.
const QUICK: &str = "boat.session.ack_wait = \"300ms\"\ncarrier.ack_wait = \"300ms\"\n\
    carrier.retry_delays = [\"10ms\", \"20ms\", \"30ms\", \"40ms\", \"50ms\"]";

// proves S1-15
#[test]
fn the_message_of_a_listener_that_never_acknowledges_waits() {
    let all = All::with(QUICK);
    let deaf = ["listen", "--user", "2", "--device", "deaf", "--no-ack"];
    let mut deaf = Process::start(&mut all.user(&deaf));
    within(WAIT_TIMEOUT, || {
        let report = run(&mut all.operator(&["doctor", "user", "2"])).stdout;
        report.contains(": 1 sessions")
    });
    let id = all.send("1", "2", "are you there?");
    let result = deaf.look_for(WAIT_TIMEOUT, |line| line.contains(&id));
    result.expect("it is shown");
    all.traced(&id, &["no_ack", "stored_offline"]);
    deaf.kill();
    // Who acknowledges has all the time it takes.
    let all = all.restart("");
    assert_eq!(all.listen("2", 1)[0]["msg_id"], id.as_str());
    all.traced(&id, &["fetched"]);
    all.nothing_for("2");
    run(&mut all.operator(&["audit"])).ok();
}

// proves S1-29, S1-30 in part
#[test]
fn dead_letter_is_listed_shown_and_redriven() {
    let mut all = All::with("station.record_bytes_max = 512");
    all.send("1", "2", "small");
    assert_eq!(all.listen("2", 1)[0]["text"], "small");
    let large = "x".repeat(2000);
    let id = all.send("1", "2", &large);
    all.traced(&id, &["dead", "too_large"]);

    let letter = all.letter("too-large");
    let output = run(&mut all.operator(&["dlq", "show", &letter, "--body"])).ok();
    assert!(
        output.stdout.contains("too-large") && output.stdout.contains(&id),
        "{}",
        output.stdout
    );
    let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
    assert!(stats.contains("too-large"), "{stats}");
    run(&mut all.operator(&["audit"])).ok();

    all.process.signal("TERM");
    all.process.ended(crate::process::WAIT_TIMEOUT);
    let all = all.restart("");
    run(&mut all.operator(&["dlq", "redrive", &letter])).ok();
    let messages = all.listen("2", 1);
    assert_eq!(
        (messages[0]["msg_id"].as_str(), messages[0]["text"].as_str()),
        (Some(&*id), Some(&*large))
    );
    all.traced(&id, &["redriven", "settled"]);
    all.nothing_for("2");
    run(&mut all.operator(&["audit"])).ok();
}

/// Kills the program in the middle of an operator's task; the next process continues it, and nobody
/// gets anything twice.
#[test]
fn killed_redrive_resumes_and_redrives_each_letter_once() {
    const LETTERS: usize = 30;
    let mut all = All::with("station.record_bytes_max = 512");
    all.send("1", "2", "small");
    all.listen("2", 1);
    let large = "x".repeat(1000);
    let sent_ids: BTreeSet<String> = (0..LETTERS).map(|_| all.send("1", "2", &large)).collect();
    let count = format!("message too-large: {LETTERS} letters");
    within(WAIT_TIMEOUT, || {
        let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
        stats.contains(&count)
    });
    all.process.signal("TERM");
    all.process.ended(crate::process::WAIT_TIMEOUT);
    let mut all = all.restart("");
    let redrive = [
        "dlq", "redrive", "--all", "--rate", "10", "--task", "night", "--detach",
    ];
    run(&mut all.operator(&redrive)).ok();
    // In the middle of it: the rest takes seconds more.
    within(WAIT_TIMEOUT, || {
        let text = get(&all.admin, "/metrics").1;
        let mut lines = text.lines();
        let done_count = lines
            .find_map(|line| line.strip_prefix("desk_redrives_total{outcome=\"to_message\"} "));
        done_count.is_some_and(|done_count| done_count != "0")
    });
    all.process.kill();
    let all = all.restart("");
    let watch = ["dlq", "task", "watch", "night", "--output", "json"];
    let task = run(&mut all.operator(&watch)).ok().json_lines();
    assert_eq!(task[0]["items"].as_array().expect("a list").len(), LETTERS);
    let received_ids = all.listen("2", LETTERS);
    let received_ids: Vec<&str> = received_ids
        .iter()
        .filter_map(|line| line["msg_id"].as_str())
        .collect();
    assert_eq!(received_ids.len(), LETTERS, "each once");
    assert_eq!(
        received_ids
            .iter()
            .map(|id| id.to_string())
            .collect::<BTreeSet<_>>(),
        sent_ids
    );
    all.nothing_for("2");
    // A second request under the same name is the same task.
    run(&mut all.operator(&redrive)).ok();
    let tasks = run(&mut all.operator(&["dlq", "task", "list"])).ok().stdout;
    assert_eq!(tasks.matches("night").count(), 1, "{tasks}");
    run(&mut all.operator(&["audit"])).ok();
}

#[test]
fn an_operator_plans_discards_and_restores_and_is_written_down() {
    let all = All::with("station.record_bytes_max = 512");
    // Letters of three sizes have one cause.
    for bytes in 2000..2003 {
        let id = all.send("1", "2", &"x".repeat(bytes));
        all.traced(&id, &["dead", "too_large"]);
    }
    let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
    let cause = "too-large: # bytes, at most # are taken";
    assert!(stats.contains(cause), "{stats}");
    let plan = run(&mut all.operator(&["dlq", "plan", "--cause", cause]))
        .ok()
        .stdout;
    assert!(plan.contains("3  would die again: too-large"), "{plan}");

    let discard = ["dlq", "discard", "--cause", cause, "--why", "a test"];
    let output = run(&mut all.operator(&discard));
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    let confirmation = [&discard[..], &["--confirm", "3"]].concat();
    run(&mut all.operator(&confirmation)).ok();
    let open = run(&mut all.operator(&["dlq", "list", "--open"]))
        .ok()
        .stdout;
    assert_eq!(open, "Nothing is dead.\n");
    let letter = all.letter("too-large");
    let redriven = run(&mut all.operator(&["dlq", "redrive", &letter]));
    assert!(
        redriven.stdout.contains("skipped: discarded"),
        "{}",
        redriven.stdout
    );
    assert_eq!(redriven.code, Some(1));
    run(&mut all.operator(&["dlq", "restore", &letter])).ok();
    let open = run(&mut all.operator(&["dlq", "list", "--open"]))
        .ok()
        .stdout;
    assert!(open.contains(&letter), "{open}");
    run(&mut all.operator(&["dlq", "show", &letter, "--body"])).ok();
    let log = run(&mut all.operator(&["dlq", "log"])).ok().stdout;
    for did in ["discard", "restore", "read the content", "a test"] {
        assert!(log.contains(did), "{did}: {log}");
    }
    run(&mut all.operator(&["audit"])).ok();
}

/// The operator's version of a letter is delivered.
#[test]
fn a_letter_is_mended_in_an_editor_and_from_a_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let mut all = All::with("station.record_bytes_max = 512");
    let id = all.send("1", "2", &"x".repeat(2000));
    all.traced(&id, &["dead", "too_large"]);
    let letter = all.letter("too-large");
    metric(
        &all,
        "desk_letters_open{kind=\"message\",reason=\"too-large\"} 1",
    );

    // The editor script copies its input, and changes nothing.
    let (page, editor) = (all.dir.path("page.json"), all.dir.path("editor"));
    let script = format!("#!/bin/sh\ncp \"$1\" {page:?}\n");
    std::fs::write(&editor, script).expect("written");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&editor, executable).expect("made so");
    let edit = [
        "dlq",
        "edit",
        &letter,
        "--why",
        "a client that sends too much",
    ];
    let output = run(all.operator(&edit).env("VISUAL", &editor)).ok();
    assert!(
        output.stderr.contains("Nothing changed"),
        "{}",
        output.stderr
    );
    let text = std::fs::read_to_string(&page).expect("it was shown");
    assert!(
        text.contains("would refuse it as it is: too-large"),
        "{text}"
    );

    let data = |line: &str| {
        if line.trim_start().starts_with("\"data\"") {
            "      \"data\": \"aGVsbG8=\",".to_owned()
        } else {
            line.to_owned()
        }
    };
    let edited_lines: Vec<String> = text.lines().map(data).collect();
    std::fs::write(&page, edited_lines.join("\n")).expect("written");
    let page = page.to_string_lossy().into_owned();
    let from_file = [&edit[..], &["--file", &page]].concat();
    let unconfirmed_run = run(&mut all.operator(&from_file));
    assert_eq!(unconfirmed_run.code, Some(1), "{}", unconfirmed_run.stdout);
    assert!(
        unconfirmed_run.stderr.contains("--yes"),
        "{}",
        unconfirmed_run.stderr
    );
    let open = run(&mut all.operator(&["dlq", "show", &letter]))
        .ok()
        .stdout;
    assert!(!open.contains("edited"), "{open}");
    let edit_output = [&from_file[..], &["--yes"]].concat();
    let edit_output = run(&mut all.operator(&edit_output)).ok().stdout;
    for expected in [
        "+      \"data\": \"aGVsbG8=\"",
        "A carrier would read it",
        "Saved",
    ] {
        assert!(edit_output.contains(expected), "{expected}: {edit_output}");
    }
    let log = run(&mut all.operator(&["dlq", "log", "--decisions"]))
        .ok()
        .stdout;
    let audit_line = format!("edited {letter}: message.message.data");
    assert!(
        log.contains(&audit_line) && !log.contains("aGVsbG8"),
        "{log}"
    );

    all.process.signal("TERM");
    all.process.ended(crate::process::WAIT_TIMEOUT);
    let all = all.restart("station.record_bytes_max = 512");
    let plan = run(&mut all.operator(&["dlq", "plan", &letter]))
        .ok()
        .stdout;
    assert!(plan.contains("would be placed"), "{plan}");
    run(&mut all.operator(&["dlq", "redrive", &letter])).ok();
    let messages = all.listen("2", 1);
    assert_eq!(messages[0]["msg_id"], id.as_str());
    assert_ne!(messages[0]["text"], "x".repeat(2000));
    let late = run(&mut all.operator(&edit));
    assert!(late.stderr.contains("it was redriven"), "{}", late.stderr);
    metric(
        &all,
        "desk_letters_open{kind=\"message\",reason=\"too-large\"} 0",
    );
    metric(&all, "desk_redrives_total{outcome=\"to_message\"} 1");
    metric(&all, "desk_oldest_open_seconds 0");
}

/// Waits until a line of the metrics begins with `line`.
fn metric(all: &All, line: &str) {
    let mut text = String::new();
    for _ in 0..3000 {
        text = get(&all.admin, "/metrics").1;
        if text.lines().any(|text_line| text_line.starts_with(line)) {
            return;
        }
        std::thread::sleep(crate::process::POLL_INTERVAL);
    }
    let desk_metrics = text.lines().filter(|line| line.starts_with("desk_"));
    panic!("{line}: {:#?}", desk_metrics.collect::<Vec<_>>());
}

/// Exported letters go back to their origin, and nowhere else.
#[test]
fn letters_are_exported_and_come_back() {
    let all = All::with("station.record_bytes_max = 512");
    let sent_ids: Vec<String> = (0..3)
        .map(|_| all.send("1", "2", &"x".repeat(700)))
        .collect();
    for id in &sent_ids {
        all.traced(id, &["dead", "too_large"]);
    }
    let export = run(&mut all.operator(&["dlq", "export", "--reason", "too-large"])).ok();
    assert_eq!(export.json_lines().len(), 3);
    let file = all.dir.path("letters.jsonl");
    std::fs::write(&file, &export.stdout).expect("written");
    let file = file.to_string_lossy().into_owned();
    let import = ["dlq", "import", &file, "--why", "a test"];
    let report = run(&mut all.operator(&import)).ok().stdout;
    assert_eq!(report, "0 letters imported, 3 already present\n");

    let other = All::start();
    let error_text = run(&mut other.operator(&import)).stderr;
    assert!(error_text.contains("another installation"), "{error_text}");
    let log = run(&mut all.operator(&["dlq", "log"])).ok().stdout;
    assert!(
        log.contains("exported 3 letters with their content"),
        "{log}"
    );
    std::fs::write(
        &file,
        "{\"cluster\":1,\"id\":\"message-0-0\",\"headers\":[],\"key\":\"\",\"value\":\"\"}\n",
    )
    .expect("written");
    let output = run(&mut other.operator(&import));
    assert!(
        output.stderr.contains("is not a dead letter"),
        "{}",
        output.stderr
    );
}

/// Without a token an operator sees nothing; with one, only what it allows.
#[test]
fn operators_sign_in_where_there_are_some() {
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("ann");
    std::fs::write(&token, "a-token-of-some-length\n").expect("written");
    let ann = format!("{{ name = \"ann\", token_file = {token:?}, roles = [\"view\"] }}");
    let settings = format!("admin.operators = [{ann}]");
    let all = All::with(&settings);
    let stats = ["dlq", "stats"];
    let output = run(&mut all.operator(&stats));
    assert_eq!(output.code, Some(1));
    let with_token = |arguments: &[&str]| {
        let mut command = all.operator(arguments);
        command.env("PACKETBOAT_ADMIN_TOKEN", "a-token-of-some-length");
        run(&mut command)
    };
    assert_eq!(with_token(&stats).ok().stdout, "Nothing is dead.\n");
    // A file keeps the token out of the process list.
    let token = token.to_string_lossy();
    let from_file = ["dlq", "--operator-token-file", &token, "stats"];
    let report = run(&mut all.operator(&from_file)).ok().stdout;
    assert_eq!(report, "Nothing is dead.\n");
    let mut guess = all.operator(&stats);
    guess.env("PACKETBOAT_ADMIN_TOKEN", "a-token-of-nobody-here");
    assert_eq!(run(&mut guess).code, Some(1));
    let (_, scrape) = get(&all.health, "/metrics");
    for line in ["result=\"refused\"} 1", "result=\"accepted\"} 2"] {
        let line = format!("admin_sign_ins_total{{{line}");
        assert!(scrape.contains(&line), "{line} is not in {scrape}");
    }
    assert_eq!(with_token(&["dlq", "redrive", "message-0-0"]).code, Some(1));
    // The file is reread periodically: an operator with the old token is refused.
    std::fs::write(&*token, "a-token-of-another-day\n").expect("written");
    within(2 * WAIT_TIMEOUT, || with_token(&stats).code == Some(1));
    run(&mut all.operator(&from_file)).ok();
}

// proves S1-30 in part, for notifications
#[test]
fn a_notification_that_nobody_took_is_listed_shown_and_redriven() {
    let webhook = Webhook::refusing();
    let url = &webhook.url;
    let all = All::with(&format!(
        "horn.provider = \"webhook\"\nhorn.url = \"{url}\""
    ));
    all.becomes_known("2"); // and away
    let id = all.send("1", "2", "are you there?");
    all.traced(&id, &["stored_offline", "\"ok\":false"]);

    let list_letters = |topic: &str| {
        let list = ["dlq", "list", "--topic", topic, "--output", "json"];
        let list = run(&mut all.operator(&list)).ok().stdout;
        serde_json::from_str::<serde_json::Value>(&list).expect("JSON")["items"].clone()
    };
    assert_eq!(list_letters("message"), serde_json::json!([]));
    let letters = list_letters("notification");
    let letter = letters[0]["id"].as_str().expect("a letter");
    assert!(letter.starts_with("notification-"), "{letter}");
    assert_eq!(letters[0]["reason"], "refused");
    assert_eq!(letters[0]["targets"], serde_json::json!(["2/desktop"]));
    let letter_list = run(&mut all.operator(&["dlq", "list"])).ok().stdout;
    assert!(
        letter_list.contains(letter) && letter_list.contains(&id),
        "{letter_list}"
    );
    let details = run(&mut all.operator(&["dlq", "show", letter, "--body"])).ok();
    let details = details.stdout;
    assert!(
        details.contains("answered 400") && details.contains("NotificationTask"),
        "{details}"
    );
    let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
    assert!(stats.contains("notification refused: 1 letters"), "{stats}");

    webhook.accept();
    let redrive = ["dlq", "redrive", "--topic", "notification", "--all"];
    let redriven = run(&mut all.operator(&redrive)).ok().stdout;
    assert!(redriven.contains("notified again"), "{redriven}");
    all.traced(&id, &["redriven", "\"ok\":true"]);
    let retry = run(&mut all.operator(&redrive)).ok().stdout;
    assert!(retry.contains("No letter matches"), "{retry}");
    all.at_rest();
}
