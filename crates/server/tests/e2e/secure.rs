//! Boats with certificates, and users who reach them.

use rcgen::{CertificateParams, KeyPair};

use crate::all::All;
use crate::process::run;

// proves S1-06: clients reach both ports through TLS, and nobody whom they do not trust.
#[test]
fn messages_go_through_tls_and_a_stranger_is_named() {
    let files = tempfile::tempdir().expect("a directory");
    let file = |name: &str| files.path().join(name).display().to_string();
    for name in ["boat", "other"] {
        let key = KeyPair::generate().expect("a key");
        let names = ["127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(file(&format!("{name}.crt")), certificate.pem()).expect("a file");
        std::fs::write(file(&format!("{name}.key")), key.serialize_pem()).expect("a file");
    }
    let all = All::with(&format!(
        "boat.tls.certificates = [{{ cert_file = {:?}, key_file = {:?} }}]",
        file("boat.crt"),
        file("boat.key")
    ));
    assert!(all.websocket.starts_with("wss://"), "{}", all.websocket);

    let signer = file("boat.crt");
    let trust = ["--ca-file", &signer];
    let send = ["send", "--user", "1", "--to", "2", "hello"];
    run(all.user(&send).args(trust)).ok();
    run(all.user_over_tcp(&send).args(trust)).ok();
    let listen = ["listen", "--user", "2", "--count", "2", "--timeout", "30"];
    let heard = run(all.user(&listen).args(trust)).ok().json_lines();
    assert_eq!(heard.len(), 2);
    let create = ["group", "create", "--user", "1", "2"];
    run(all.user_over_tcp(&create).args(trust)).ok();

    let other = file("other.crt");
    for stranger in [&["--ca-file", &other][..], &[]] {
        let mut send = all.user(&send);
        let failed = run(send.args(stranger).args(["--timeout", "1"]));
        assert_eq!(failed.code, Some(1), "{}", failed.stdout);
        assert!(failed.stderr.contains("--ca-file"), "{}", failed.stderr);
    }
    let plain = all.websocket.replace("wss://", "ws://");
    let mut send = all.user(&["send", "--user", "1", "--to", "2", "x", "--url", &plain]);
    let failed = run(send.args(trust));
    assert_eq!(failed.code, Some(1), "{}", failed.stdout);
    assert!(failed.stderr.contains("leave it out"), "{}", failed.stderr);
}
