//! `packetboat doctor`, from the operator's command line.

use serde_json::Value;

use crate::all::All;
use crate::process::{WAIT_TIMEOUT, run, within};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

#[test]
fn fresh_system_is_healthy_and_lists_steps_before_public_use() {
    let mut all = All::with("audit.continuous = true");
    all.send("1", "2", "hello");
    all.at_rest();
    // A busy machine may need a second try, here and below.
    let mut text = String::new();
    within(WAIT_TIMEOUT, || {
        let output = run(&mut all.operator(&["doctor"]));
        text = output.stdout;
        output.code == Some(0)
    });
    let last = text.lines().last().expect("a verdict");
    assert!(last.starts_with("ok: no failures"), "{text}");
    assert!(text.contains("(all)"), "{text}");
    // Healthy parts share one line; a problem names its remedy.
    assert!(
        text.contains("1 boat (boat-1), 1 station (station-1)"),
        "{text}"
    );
    assert!(text.contains("station.auth.key_file"), "{text}");

    let mut report = Value::Null;
    within(WAIT_TIMEOUT, || {
        let output = run(&mut all.operator(&["doctor", "--output", "json"]));
        report = json(&output.stdout);
        output.code == Some(0)
    });
    assert_eq!(report["verdict"], "warning");
    let findings = report["processes"][0]["findings"].as_array();
    for finding in findings.expect("findings") {
        assert_ne!(finding["verdict"], "failure", "{finding}");
    }

    // One of two processes is missing.
    let mut command = all.operator(&["doctor", "--admin", &all.admin]);
    command.args(["--admin", "http://127.0.0.1:9"]);
    let half = run(&mut command);
    assert_eq!(half.code, Some(1));
    assert!(half.stdout.contains("admin_port"), "{}", half.stdout);
    assert!(half.stdout.contains("carriers"), "{}", half.stdout);

    all.process.signal("TERM");
    all.process.ended(WAIT_TIMEOUT);
    let gone = run(&mut all.operator(&["doctor"]));
    assert_eq!(gone.code, Some(1));
    assert!(gone.stdout.contains("is it running"), "{}", gone.stdout);
}

#[test]
fn a_user_to_whom_all_is_well_needs_no_repair() {
    let all = All::start();
    all.becomes_known("2"); // and away
    all.send("1", "2", "hello");
    all.at_rest();
    let mut told = String::new();
    within(WAIT_TIMEOUT, || {
        told = run(&mut all.operator(&["doctor", "user", "2"])).stdout;
        told.contains("ok: no inconsistencies")
    });
    assert!(
        told.contains("1 messages waiting, 1 conversations with 1 messages"),
        "{told}"
    );
    let repair = ["doctor", "user", "2", "--repair", "--why", "a test"];
    within(WAIT_TIMEOUT, || {
        let told = run(&mut all.operator(&repair)).stdout;
        told.contains("nothing to repair")
    });
    let report = ["doctor", "user", "2", "--output", "json"];
    within(WAIT_TIMEOUT, || {
        let report = json(&run(&mut all.operator(&report)).stdout);
        (&report["user"], &report["verdict"]) == (&"2".into(), &"ok".into())
    });
    let nobody = run(&mut all.operator(&["doctor", "user", "0"]));
    assert_eq!(nobody.code, Some(2), "{}", nobody.stderr);
}
