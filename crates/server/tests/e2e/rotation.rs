//! Runbooks of docs/operations/security.md, section Rotation, typed verbatim while people chat.

use std::path::Path;
use std::process::Command;

use crate::all::{All, Dir};
use crate::certificate::certificate;
use crate::neighbours::{Chat, PAIRS};
use crate::process::{WAIT_TIMEOUT, packetboat, run, within};

/// Lines of the first block of a section.
///
/// # Panics
/// A page without this section, or a section without a block.
pub fn runbook(heading: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../docs/operations/security.md");
    let (_, section) = page
        .split_once(&format!("\n### {heading}\n"))
        .unwrap_or_else(|| panic!("no section {heading:?}"));
    let section = section.split("\n##").next().unwrap_or(section);
    let block = section.split("```\n").nth(1).expect("a block");
    block.lines().filter(|line| !line.is_empty()).collect()
}

/// Types a line in a folder.
pub fn type_line(folder: &Path, line: &str) {
    type_line_with(folder, line, &[]);
}

/// The same, with variables that the preceding section explains.
pub fn type_line_with(folder: &Path, line: &str, variables: &[(&str, &str)]) {
    // The line runs the program that the tests built.
    let plain = packetboat(&[]);
    let program = Path::new(plain.get_program());
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell
        .args(["-euo", "pipefail", "-c", line])
        .current_dir(folder);
    shell.env(
        "PATH",
        format!("{}:{path}", program.parent().expect("a folder").display()),
    );
    for (name, _) in plain.get_envs() {
        shell.env_remove(name);
    }
    shell.envs(variables.iter().copied());
    run(&mut shell).ok();
}

#[test]
fn new_keys_of_tickets_refuse_nothing() {
    let dir = Dir::new();
    let folder = dir.path("runbook");
    std::fs::create_dir(&folder).expect("a folder");
    let lines = runbook("New keys of tickets");
    // The first key is created like the next ones.
    type_line(&folder, lines[0]);
    let keys = folder.join("ticket.keys");
    let more = format!(
        "station.tickets.required = true\nstation.tickets.keys_file = {:?}\nboat.sweep_interval = \"2s\"",
        keys.display().to_string()
    );
    let all = All::over(dir, ["127.0.0.1:0"; 3], &more);
    let chat = Chat::beside(&all);
    let reloads = "station_ticket_keys_reloads_total{result=\"reloaded\"}";
    let mut steps = 0;
    for line in &lines {
        if line.starts_with("sleep ") {
            // Two whole passes over all sessions, and two more for calls in flight.
            let recover_count = || all.metric("boat_recover_total");
            let passes = recover_count() + 4 * 2 * u64::from(PAIRS);
            within(WAIT_TIMEOUT, || recover_count() >= passes);
            continue;
        }
        let old_keys = std::fs::read(&keys).expect("keys");
        type_line(&folder, line);
        assert_ne!(
            std::fs::read(&keys).expect("keys"),
            old_keys,
            "{line} changed nothing"
        );
        steps += 1;
        within(WAIT_TIMEOUT, || all.metric(reloads) == steps);
        chat.goes_on(&all);
    }
    assert_eq!(steps, 3);
    chat.end().undisturbed();
    assert_eq!(all.metric("station_tickets_refused_total"), 0);
    all.at_rest();
}

#[test]
fn a_new_token_of_an_operator_replaces_the_old_one() {
    let dir = Dir::new();
    let folder = dir.path("runbook");
    std::fs::create_dir_all(folder.join("operators")).expect("a folder");
    let lines = runbook("A new token of an operator");
    for line in &lines {
        type_line(&folder, line);
    }
    let file = folder.join("operators/ann");
    let old = folder.join("before");
    std::fs::copy(&file, &old).expect("a copy");
    let more = format!(
        "admin.operators = [{{ name = \"ann\", token_file = {:?}, roles = [\"view\"] }}]",
        file.display().to_string()
    );
    let all = All::over(dir, ["127.0.0.1:0"; 3], &more);
    let may = |token: &Path| {
        let mut command = all.operator(&["dlq", "--operator-token-file"]);
        run(command.arg(token).arg("list")).code == Some(0)
    };
    assert!(may(&old));
    for line in &lines {
        type_line(&folder, line);
    }
    within(WAIT_TIMEOUT, || !may(&old) && may(&file));
}

#[test]
fn a_new_certificate_of_the_desk_needs_no_restart() {
    let dir = Dir::new();
    let folder = dir.path("runbook");
    for name in ["desk", "renewed"] {
        std::fs::create_dir_all(folder.join(name)).expect("a folder");
    }
    let files = certificate(&folder.join("desk"), "desk");
    certificate(&folder.join("renewed"), "desk");
    let new_cert = std::fs::read(folder.join("renewed/desk.crt")).expect("a certificate");
    let more = format!(
        "admin.tls.cert_file = {:?}\nadmin.tls.key_file = {:?}",
        files.cert_file.display().to_string(),
        files.key_file.display().to_string()
    );
    let all = All::over(dir, ["127.0.0.1:0"; 3], &more);
    let trusts = |root: &Path| {
        let mut command = all.operator(&["dlq", "--ca-file"]);
        run(command.arg(root).arg("list")).code == Some(0)
    };
    assert!(trusts(&files.cert_file));
    for line in runbook("A new certificate of the desk") {
        type_line(&folder, line);
    }
    assert_eq!(
        std::fs::read(&files.cert_file).expect("a certificate"),
        new_cert
    );
    within(WAIT_TIMEOUT, || trusts(&files.cert_file));
    assert_eq!(all.metric("tls_reloads_total{result=\"reloaded\"}"), 1);
}
