//! `bench edge`, too small for meaningful figures: each part runs.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Command that runs parts at their smallest size.
fn small(parts: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PACKETBOAT_") || text.starts_with("OTEL_") {
            command.env_remove(&name);
        }
    }
    command.arg("edge");
    let numbers = "--connections 40 --cycles 60 --slow 12 --pairs 2 --rate 20 --seconds 1";
    command.args(parts).args(numbers.split(' '));
    command.args("--rounds 1 --settle 0.3 --memory --output json".split(' '));
    command
        // Nobody but slow readers is sent away, however slow the machine is.
        .env("PACKETBOAT_BOAT__SESSION__ACK_WAIT", "5m")
        .env("PACKETBOAT_CARRIER__ACK_WAIT", "5m")
        .env("PACKETBOAT_BOAT__STATION_TIMEOUT", "60s")
        .env("PACKETBOAT_STATION__PUBLISH_DEADLINE", "50s")
        .env("PACKETBOAT_STATION__STORE_DEADLINE", "50s")
        .env("PACKETBOAT_LOG__LEVEL", "error");
    command
}

/// Figures by part and name.
fn figures(parts: &[&str]) -> BTreeMap<(String, String), Value> {
    let data = tempfile::tempdir().expect("a directory");
    let mut command = small(parts);
    let output = command.arg("--data").arg(data.path()).stdin(Stdio::null());
    let output = output.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a JSON line");
    assert_eq!(report["failed"], 0, "{report}");
    let figures = report["figures"].as_array().expect("figures");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let by_name = |figure: &Value| {
        let name = (text(&figure["part"]), text(&figure["name"]));
        (name, figure.clone())
    };
    figures.iter().map(by_name).collect()
}

#[test]
fn connection_bench_compares_plain_tls_and_bare_accept() {
    let figures = figures(&["idle", "connect", "cycles"]);
    for door in ["plain", "TLS"] {
        let key = |part: &str, name: &str| (part.to_owned(), format!("{door}, {name}"));
        let rate = &figures[&key("connect", "a second")];
        assert!(rate["value"].as_f64() > Some(0.0), "{rate}");
        assert_eq!(rate["peer"]["name"], "bare");
        assert!(rate["peer"]["value"].as_f64() > Some(0.0), "{rate}");
        let grown = &figures[&key("cycles", "MiB resident after all")];
        let mib = |value: &Value| value.as_f64().expect("a number");
        let (all, tenth) = (mib(&grown["value"]), mib(&grown["peer"]["value"]));
        assert!(all < tenth * 1.5, "{grown}");
    }
    assert_eq!(figures.keys().filter(|(part, _)| part == "idle").count(), 2);
}

#[test]
fn storms_herds_and_slow_readers_are_measured_beside_a_chat() {
    let figures = figures(&["storm", "herd", "slow"]);
    let value = |part: &str, name: &str| {
        let figure = &figures[&(part.to_owned(), name.to_owned())];
        figure["value"].as_f64().expect("a number")
    };
    assert!(value("storm", "sessions a sign-off") >= 1.0);
    assert!(value("herd", "seconds until 100 % are back") > 0.0);
    assert_eq!(value("slow", "clients sent away"), 12.0);
    for part in ["herd", "slow"] {
        assert!(value(part, "p99 of others who chat, ms") > 0.0);
    }
}
