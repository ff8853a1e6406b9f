//! An operator signs out a user whose phone was stolen with its token.

use std::thread::sleep;
use std::time::Duration;

use protocol::Code;
use protocol::frame::ServerFrame;

use crate::all::All;
use crate::process::{WAIT_TIMEOUT, packetboat, run, within};
use crate::raw::{RawClient, hello_with};

const THEFT: &str = "the phone was stolen";

fn token(user: i64) -> String {
    let user = user.to_string();
    let output = run(&mut packetboat(&["token", "--user", &user])).ok();
    output.stdout.trim().to_owned()
}

/// Waits for the next second: a token carries the second in which it was signed.
fn next_second() {
    sleep(Duration::from_millis(1100));
}

fn sign_in(all: &All, token: &str) -> Result<RawClient, Code> {
    let mut client = RawClient::tcp(all.tcp());
    client.send(&hello_with(token.to_owned()));
    match client.next() {
        Some(ServerFrame::Welcome(_)) => Ok(client),
        Some(ServerFrame::Closing { refusal, .. }) => Err(refusal.code),
        other => panic!("{other:?}"),
    }
}

// proves S1-34 in part, S1-36 in part: who is signed out leaves no registration behind.
#[test]
fn a_user_who_is_signed_out_comes_back_with_a_new_token_only() {
    let mut all = All::start();
    let stolen = token(7);
    let mut session = sign_in(&all, &stolen).expect("a good token");
    let mut other = sign_in(&all, &token(8)).expect("a good token");
    next_second();
    let kick = ["kick", "--user", "7", "--revoke", "--reason", THEFT];
    let output = run(all.operator(&kick).args(["--output", "json"])).ok();
    let answer = output.json_lines().remove(0);
    assert_eq!(answer["sessions"], 1);
    assert!(
        answer["revoked_before"]["ms"].as_i64().is_some(),
        "{answer}"
    );
    assert_eq!(session.closing(), Some(Code::KickedOut));
    other.ping();
    let code = |all: &All, token: &str| sign_in(all, token).err();
    assert_eq!(code(&all, &stolen), Some(Code::Unauthenticated));
    assert!(all.metric("station_tokens_revoked_total") >= 1);
    next_second();
    assert_eq!(code(&all, &token(7)), None);

    let log = run(&mut all.operator(&["dlq", "log", "--decisions"])).ok();
    let line =
        format!("requested sign-out of user 7 and revocation of all tokens issued so far: {THEFT}");
    assert!(log.stdout.contains(&line), "{}", log.stdout);
    within(WAIT_TIMEOUT, || {
        let doctor = run(&mut all.operator(&["doctor", "user", "8"]));
        doctor.code == Some(0) && doctor.stdout.contains("1 sessions")
    });

    all = all.restart("");
    assert_eq!(code(&all, &stolen), Some(Code::Unauthenticated));
    assert_eq!(code(&all, &token(7)), None);
}

/// Tokens of the other platforms remain valid.
#[test]
fn a_kick_of_one_platform_leaves_the_others() {
    let all = All::start();
    let token = token(7);
    let mut session = sign_in(&all, &token).expect("a good token");
    let kick = |platform: &str| {
        let kick = [
            "kick",
            "--user",
            "7",
            "--platform",
            platform,
            "--reason",
            THEFT,
        ];
        run(&mut all.operator(&kick)).ok().stdout
    };
    assert!(kick("web").contains("user 7: 0 sessions end"));
    session.ping();
    assert!(kick("desktop").contains("user 7: 1 sessions end"));
    assert_eq!(session.closing(), Some(Code::KickedOut));
    assert!(sign_in(&all, &token).is_ok());
}

#[test]
fn kick_without_a_reason_or_for_one_platform_is_refused() {
    let all = All::start();
    let output = run(&mut all.operator(&["kick", "--user", "7", "--reason", " "]));
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    assert!(output.stderr.contains("say why"), "{}", output.stderr);
    let usage = [
        "kick",
        "--user",
        "7",
        "--platform",
        "ios",
        "--revoke",
        "--reason",
        THEFT,
    ];
    assert_eq!(run(&mut all.operator(&usage)).code, Some(2));
}
