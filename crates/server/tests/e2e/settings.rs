//! The command line, the settings, and the codes with which they end.

use crate::all::Dir;
use crate::process::{packetboat, run};

#[test]
fn the_default_settings_check_out() {
    let dir = Dir::new();
    let default = run(&mut packetboat(&["config", "default"])).ok().stdout;
    let file = dir.path("packetboat.toml");
    std::fs::write(&file, &default).expect("a file");
    let file = file.to_string_lossy();
    run(&mut packetboat(&["--config", &file, "config", "check"])).ok();
    let print = run(&mut packetboat(&["--config", &file, "config", "print"])).ok();
    let table = |text: &str| text.parse::<toml::Table>().expect("TOML");
    assert_eq!(
        table(&print.stdout),
        table(&default),
        "no secret is set, so none is struck out"
    );
    // The environment wins over the file.
    let print = run(packetboat(&["--config", &file, "config", "print"])
        .env("PACKETBOAT_BOAT__WEBSOCKET", "127.0.0.1:7777"))
    .ok();
    assert!(print.stdout.contains("127.0.0.1:7777"));
}

#[test]
fn settings_that_cannot_be_end_with_3_and_name_the_key() {
    let dir = Dir::new();
    let file = dir.path("packetboat.toml");
    for (text, named) in [
        ("[boat]\nwebsockt = \"127.0.0.1:9000\"\n", "websockt"),
        ("[boat]\nwebsocket = 9000\n", "websocket"),
        ("[carrier]\nack_wait = \"soon\"\n", "ack_wait"),
        ("[boat]\nwebsocket = \"0.0.0.0:9000\"\n", "key_file"),
        ("[ferry]\n", "ferry"),
        ("[admin]\nlisten = \"0.0.0.0:0\"\n", "admin.anybody"),
        (
            "[admin]\nlisten = \"0.0.0.0:0\"\nanybody = true\n",
            "admin.tls.offloaded",
        ),
        (
            "[log.otlp]\nendpoint = \"https://collector:4317\"\n",
            "log.otlp.endpoint",
        ),
        (
            "[embedded]\nledger_retention = \"30days\"\n",
            "ledger_retention",
        ),
    ] {
        std::fs::write(&file, text).expect("a file");
        let file = file.to_string_lossy();
        for command in [&["config", "check"][..], &["all", "--memory"]] {
            let ended = run(packetboat(&["--config", &file]).args(command));
            assert_eq!(ended.code, Some(3), "{text}: {}", ended.stderr);
            assert!(ended.stderr.contains(named), "{text}: {}", ended.stderr);
        }
    }
    let ended = run(packetboat(&["config", "check"]).env("PACKETBOAT_BOAT__NONSENSE", "1"));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let ended = run(&mut packetboat(&[
        "--config",
        "/no/such/file",
        "config",
        "check",
    ]));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for arguments in [
        &[][..],
        &["row"],
        &["send", "--user", "1", "--to", "2"],
        &["send", "--user", "0", "--to", "2", "hello"],
        &["send", "--user", "1", "--to", "2", "--stdin", "hello"],
        &["listen", "--user", "2", "--platform", "toaster"],
        &["dlq", "redrive"],
        &["dlq", "list", "--reason", "boredom"],
        &["dlq", "redrive", "--all", "--limit", "1001"],
        &["audit", "--all", "--last", "1h"],
        &["audit", "--since", "yesterday"],
        &["all", "--memory", "--data", "here"],
    ] {
        let ended = run(&mut packetboat(arguments));
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}"
        );
        assert!(!ended.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [
        &["--help"][..],
        &["all", "--help"],
        &["send", "--help"],
        &["dlq", "--help"],
        &["config", "--help"],
    ] {
        let help = run(&mut packetboat(arguments)).ok().stdout;
        let examples = help.split_once("Examples:");
        assert!(arguments.len() == 1 || examples.is_some(), "{help}");
    }
    let version = run(&mut packetboat(&["--version"])).ok().stdout;
    assert_eq!(
        version,
        format!("packetboat {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn nobody_there_is_an_error_that_says_where() {
    let ended = run(packetboat(&["audit"]).env("PACKETBOAT_ADMIN", "http://127.0.0.1:1"));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("127.0.0.1:1"), "{}", ended.stderr);
}
