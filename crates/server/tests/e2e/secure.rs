//! Boats and desks with certificates, and the clients that reach them.

use std::thread;

use crate::all::All;
use crate::certificate::{certificate, tls};
use crate::process::{POLL_INTERVAL, WAIT_TIMEOUT, packetboat, run};

// proves S1-06: clients reach both ports through TLS, and nobody whom they do not trust.
#[test]
fn messages_go_through_tls_and_a_stranger_is_named() {
    let files = tempfile::tempdir().expect("a directory");
    let [boat, other] = ["boat", "other"].map(|name| certificate(files.path(), name));
    let all = All::with(&tls(&boat));
    assert!(all.websocket.starts_with("wss://"), "{}", all.websocket);

    let signer = boat.cert_file.display().to_string();
    let trust = ["--ca-file", &signer];
    let send = ["send", "--user", "1", "--to", "2", "hello"];
    run(all.user(&send).args(trust)).ok();
    run(all.user_over_tcp(&send).args(trust)).ok();
    let listen = ["listen", "--user", "2", "--count", "2", "--timeout", "120"];
    let heard = run(all.user(&listen).args(trust)).ok().json_lines();
    assert_eq!(heard.len(), 2);
    let create = ["group", "create", "--user", "1", "2"];
    run(all.user_over_tcp(&create).args(trust)).ok();

    let other = other.cert_file.display().to_string();
    for stranger in [&["--ca-file", &other][..], &[]] {
        // It says why after its first try, and has time for one.
        let told = [1, 4, 16, 64].iter().any(|seconds| {
            let mut send = all.user(&send);
            let patience = ["--timeout", &seconds.to_string()];
            let output = run(send.args(stranger).args(patience));
            assert_eq!(output.code, Some(1), "{}", output.stdout);
            output.stderr.contains("--ca-file")
        });
        assert!(told, "{stranger:?}");
    }
    let plain = all.websocket.replace("wss://", "ws://");
    let mut send = all.user(&["send", "--user", "1", "--to", "2", "x", "--url", &plain]);
    let output = run(send.args(trust));
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    assert!(output.stderr.contains("leave it out"), "{}", output.stderr);
}

// proves S3-03: clients' bytes are encrypted where others can reach a boat, on either port, or nothing starts; the words for it
// are in docs/operations/running.md.
#[test]
fn a_boat_that_others_reach_speaks_tls_or_does_not_start() {
    for port in ["WEBSOCKET", "TCP"] {
        let listen = (format!("PACKETBOAT_BOAT__{port}"), "0.0.0.0:0");
        let mut start = packetboat(&["all", "--memory"]);
        let output = run(start.envs([(&*listen.0, listen.1)]));
        assert_eq!(output.code, Some(3), "{port}: {}", output.stderr);
        for word in ["boat.tls", "certificates", "offloaded"] {
            assert!(output.stderr.contains(word), "{port}: {}", output.stderr);
        }
    }
    let page = include_str!("../../../../docs/operations/running.md");
    assert!(
        page.contains("With `boat.tls.certificates` both client ports speak TLS and nothing else")
    );
}

/// Error of an operator's command at this port; empty on success.
fn told(admin: &str, more: &[&str]) -> String {
    let mut audit = packetboat(&["audit", "--all", "--admin", admin]);
    let output = run(audit.args(more));
    match output.code {
        Some(0) => String::new(),
        code => {
            assert_eq!(code, Some(1), "{admin}: {}", output.stderr);
            output.stderr
        }
    }
}

#[test]
fn a_desk_with_tls_is_asked_over_tls_and_mistakes_are_named() {
    let files = tempfile::tempdir().expect("a directory");
    let [desk, other] = ["desk", "other"].map(|name| certificate(files.path(), name));
    let (cert, key) = (desk.cert_file.display(), desk.key_file.display());
    let settings = format!("admin.tls.cert_file = \"{cert}\"\nadmin.tls.key_file = \"{key}\"");
    let all = All::with(&settings);
    let admin = all.admin.clone();
    assert!(admin.starts_with("https://"), "{admin}");
    let root = desk.cert_file.display().to_string();
    let trust = ["--ca-file", &root];
    assert_eq!(told(&admin, &trust), "");
    let mut doctor = all.operator(&["doctor"]);
    let seen = run(doctor.env("PACKETBOAT_ADMIN_CA_FILE", &root)).stdout;
    assert!(seen.contains("desk_certificate"), "{seen}");
    let lasts = all.metric("cert_expiry_seconds{listener=\"desk\"}");
    assert!(lasts > 86_400, "{lasts}");

    let localhost_url = admin.replace("127.0.0.1", "localhost");
    let plain = admin.replace("https://", "http://");
    let probes = all.health.replace("http://", "https://");
    let stranger = other.cert_file.display().to_string();
    for (admin, more, word) in [
        (&admin, &[][..], "--ca-file"),
        (&admin, &["--ca-file", &stranger], "unknown issuer"),
        (&localhost_url, &trust, "does not cover this host name"),
        (&plain, &[], "this port speaks TLS"),
        (&plain, &trust, "leave it out"),
        (&probes, &trust, "it does not speak TLS"),
        (&admin, &["--ca-file", "/no/such"], "/no/such"),
    ] {
        let text = told(admin, more);
        assert!(text.contains(word), "{admin} {more:?}: {text}");
    }

    // Renewed without a restart, within ten seconds.
    certificate(files.path(), "desk");
    let mut looks = WAIT_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis();
    while !told(&admin, &trust).is_empty() {
        looks -= 1;
        assert!(looks > 0, "{}", told(&admin, &trust));
        thread::sleep(POLL_INTERVAL);
    }
    assert_eq!(all.metric("tls_reloads_total{result=\"reloaded\"}"), 1);
}
