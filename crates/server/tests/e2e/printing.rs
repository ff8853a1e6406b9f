//! Outputs that nobody reads, or that are full.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::all::{All, Dir, all};
use crate::door::get;
use crate::ports::free_ports;
use crate::process::{Process, WAIT_TIMEOUT, packetboat, within};

/// Exit code that a shell has for a program which SIGPIPE ended.
const READER_LEFT: Option<i32> = Some(141);

/// A pipe that nobody reads any more.
fn left() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

/// A device on which no room is left.
fn full() -> Stdio {
    File::create("/dev/full").expect("the device").into()
}

/// Exit code and standard error of a command that prints there.
fn printed_to(stdout: Stdio, command: &mut Command) -> (Option<i32>, String) {
    let output = command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped());
    let child = output.spawn().expect("it starts");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(output.stderr).expect("text");
    (output.status.code(), stderr)
}

fn assert_ends_well(mut command: impl FnMut() -> Command) {
    let (code, stderr) = printed_to(left(), &mut command());
    assert_eq!(
        (code, stderr.as_str()),
        (READER_LEFT, ""),
        "{:?}",
        command()
    );
    let (code, stderr) = printed_to(full(), &mut command());
    assert_eq!(code, Some(1), "{:?}: {stderr}", command());
    let is_sentence = stderr.starts_with("packetboat: cannot write to standard output");
    assert!(
        is_sentence && stderr.lines().count() == 1,
        "{:?}: {stderr}",
        command()
    );
}

#[test]
fn a_reader_who_leaves_ends_a_command_without_a_word() {
    for arguments in [
        &["config", "schema"][..],
        &["config", "default"],
        &["config", "check"],
        &["config", "print"],
        &["token", "--user", "1"],
        &["--help"],
        &["--version"],
    ] {
        assert_ends_well(|| packetboat(arguments));
    }
}

#[test]
fn a_reader_who_leaves_an_operator_is_no_failure() {
    let all = All::start();
    let id = all.send("1", "2", "hello");
    all.at_rest();
    for arguments in [
        &["trace", &id][..],
        &["audit", "--minutes"],
        &["doctor"],
        &["doctor", "user", "1"],
        &["dlq", "list"],
        &["dlq", "stats"],
        &["dlq", "log"],
        &["dlq", "task", "list"],
        &["drain"],
        &["drain", "--output", "json"],
    ] {
        assert_ends_well(|| all.operator(arguments));
    }
    let listen = ["listen", "--user", "2", "--no-ack", "--count", "1"];
    assert_ends_well(|| all.user(&listen));
    assert_ends_well(|| all.user(&["send", "--user", "1", "--to", "2", "hello"]));
}

#[test]
fn certificates_are_written_though_nobody_reads_their_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let folder = dir.path().join("identity");
    let mut command = packetboat(&["certs", "new"]);
    let (code, stderr) = printed_to(left(), command.arg(&folder));
    assert_eq!((code, stderr.as_str()), (READER_LEFT, ""));
    for name in [
        "ca.key",
        "boat.crt",
        "station.crt",
        "carrier.crt",
        "horn.crt",
    ] {
        assert!(folder.join(name).exists(), "{name}");
    }
}

#[test]
fn a_service_outlives_its_standard_output() {
    for stdout in [left(), full()] {
        let (dir, [port]) = (Dir::new(), free_ports());
        let address = format!("127.0.0.1:{port}");
        let file = dir.settings(["127.0.0.1:0"; 3], "");
        let mut command = all(&file, &dir.path("data"));
        command.env("PACKETBOAT_HEALTH__LISTEN", &address);
        let mut process = Process::printing_to(&mut command, stdout);
        within(WAIT_TIMEOUT, || {
            assert!(process.is_running(), "it ended");
            TcpStream::connect(&address).is_ok() && get(&address, "/readyz").0 == 200
        });
        process.signal("TERM");
        assert!(process.ended(WAIT_TIMEOUT).success());
    }
}
