//! docs/operations/cluster.md as a test: its commands end in a delivered message.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::all::Dir;
use crate::process::run;

/// Commands of the page's first block, without the one that starts the parts.
fn commands() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/cluster.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let block = page.split("```").nth(1).expect("a block");
    let (first, rest) = block.trim_start().split_once('\n').expect("lines");
    assert!(first.starts_with("make real-up "), "{first}");
    rest.to_owned()
}

#[test]
fn the_page_of_the_cluster_says_what_to_type() {
    let commands = commands();
    for service in ["station", "carrier", "horn", "boat"] {
        let line = commands
            .lines()
            .find(|line| line.contains(&format!(" {service}")));
        assert!(line.is_some_and(|line| line.ends_with('&')), "{service}");
    }
    let last: Vec<&str> = commands.lines().rev().take(2).collect();
    assert!(last[0].starts_with("packetboat listen") && last[1].starts_with("packetboat send"));
}

#[test]
#[ignore = "needs the real parts, and the ports of the page: make e2e"]
fn the_page_of_the_cluster_ends_in_a_delivered_message() {
    let real = std::env::var("PACKETBOAT_REAL_DIR").expect("the real parts: make real-up");
    let dir = Dir::new();
    std::fs::create_dir(dir.path("data")).expect("a folder");
    symlink(real, dir.path("data/real")).expect("a link");
    std::fs::create_dir(dir.path("bin")).expect("a folder");
    let program = env!("CARGO_BIN_EXE_packetboat");
    symlink(program, dir.path("bin/packetboat")).expect("a link");
    let path = std::env::var("PATH").expect("a path");
    let script = format!("set -eu\ntrap 'kill $(jobs -p)' EXIT\n{}", commands());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(dir.path(""));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PACKETBOAT_") {
            shell.env_remove(name);
        }
    }
    shell.env("PATH", format!("{}:{path}", dir.path("bin").display()));
    shell.env("XDG_STATE_HOME", dir.path("state"));
    let output = run(&mut shell).ok();
    let lines = output.stdout.lines();
    let messages: Vec<Value> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let accepted_line = messages.iter().find(|line| line.get("text").is_none());
    let id = &accepted_line.expect("what was accepted")["msg_id"];
    let is_received = messages
        .iter()
        .any(|line| line["text"] == "hello" && line["msg_id"] == *id);
    assert!(is_received, "{}", output.stdout);
}
