//! `packetboat doctor`, from the operator's command line.

use serde_json::Value;

use crate::all::All;
use crate::process::{SOON, run, within};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

#[test]
fn a_fresh_system_is_well_and_says_what_to_do_before_others_use_it() {
    let mut all = All::with("audit.continuous = true");
    all.send("1", "2", "hello");
    all.at_rest();
    // A busy machine may need a second try, here and below.
    let mut told = String::new();
    within(SOON, || {
        let examined = run(&mut all.operator(&["doctor"]));
        told = examined.stdout;
        examined.code == Some(0)
    });
    let last = told.lines().last().expect("a verdict");
    assert!(last.starts_with("ok: nothing failed"), "{told}");
    assert!(told.contains("(all)"), "{told}");
    // Healthy parts share one line; a problem names its remedy.
    assert!(
        told.contains("1 boat (boat-1), 1 station (station-1)"),
        "{told}"
    );
    assert!(told.contains("station.auth.key_file"), "{told}");

    let mut report = Value::Null;
    within(SOON, || {
        let examined = run(&mut all.operator(&["doctor", "--output", "json"]));
        report = json(&examined.stdout);
        examined.code == Some(0)
    });
    assert_eq!(report["verdict"], "warning");
    let findings = report["processes"][0]["findings"].as_array();
    for finding in findings.expect("findings") {
        assert_ne!(finding["verdict"], "failure", "{finding}");
    }

    // One of two processes is missing.
    let mut both = all.operator(&["doctor", "--admin", &all.admin]);
    both.args(["--admin", "http://127.0.0.1:9"]);
    let half = run(&mut both);
    assert_eq!(half.code, Some(1));
    assert!(half.stdout.contains("admin_port"), "{}", half.stdout);
    assert!(half.stdout.contains("carriers"), "{}", half.stdout);

    all.process.signal("TERM");
    all.process.ended(SOON);
    let gone = run(&mut all.operator(&["doctor"]));
    assert_eq!(gone.code, Some(1));
    assert!(gone.stdout.contains("does it run"), "{}", gone.stdout);
}

#[test]
fn a_user_to_whom_all_is_well_needs_no_repair() {
    let all = All::start();
    all.becomes_known("2"); // and away
    all.send("1", "2", "hello");
    all.at_rest();
    let mut told = String::new();
    within(SOON, || {
        told = run(&mut all.operator(&["doctor", "user", "2"])).stdout;
        told.contains("ok: nothing contradicts itself")
    });
    assert!(
        told.contains("1 messages waiting, 1 conversations with 1 messages"),
        "{told}"
    );
    let repair = ["doctor", "user", "2", "--repair", "--why", "a test"];
    within(SOON, || {
        let told = run(&mut all.operator(&repair)).stdout;
        told.contains("nothing to mend")
    });
    let report = ["doctor", "user", "2", "--output", "json"];
    within(SOON, || {
        let report = json(&run(&mut all.operator(&report)).stdout);
        (&report["user"], &report["verdict"]) == (&"2".into(), &"ok".into())
    });
    let nobody = run(&mut all.operator(&["doctor", "user", "0"]));
    assert_eq!(nobody.code, Some(2), "{}", nobody.stderr);
}
