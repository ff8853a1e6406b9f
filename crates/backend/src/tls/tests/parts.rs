//! Credentials for a part: files that change, and handshakes with their content at that moment.

use secrecy::ExposeSecret;

use super::*;
use crate::Kind;
use crate::credentials::Credentials;

/// Loads credentials of section `scylla`, with the password in `password`.
fn load(files: &Files, tls: &ClientTlsConfig) -> crate::Result<Arc<Credentials>> {
    let password = files.path("password");
    Credentials::load("test", "scylla", tls, [("password_file", &*password)])
}

fn trusting(files: &Files, stem: &str) -> ClientTlsConfig {
    ClientTlsConfig {
        ca_file: Some(files.path(&format!("{stem}.crt"))),
        ..ClientTlsConfig::default()
    }
}

fn reason(error: &rustls::Error) -> String {
    advice("scylla", true, error).expect("an advice")
}

#[test]
fn a_password_is_the_files_line_and_in_no_output() {
    let files = Files::new();
    files.write("password", "s3 cret\r\n");
    let credentials = load(&files, &ClientTlsConfig::default()).expect("read");
    let secrets = credentials.current();
    let secret = secrets.secret("password_file").expect("a password");
    assert_eq!(secret.expose_secret(), "s3 cret");
    for text in [format!("{credentials:?}"), format!("{secrets:?}")] {
        assert!(!text.contains("s3 cret"), "{text}");
    }
    for (content, reason) in [("\n", "is empty"), ("\0", "")] {
        files.write("password", content);
        match load(&files, &ClientTlsConfig::default()) {
            Ok(_) => assert!(reason.is_empty(), "{content:?}"),
            Err(error) => {
                assert_eq!(error.kind, Kind::Conflict);
                let text = error.source.to_string();
                assert!(text.contains("scylla.password_file"), "{text}");
                assert!(text.contains(reason), "{text}");
            }
        }
    }
    std::fs::remove_file(files.path("password")).expect("removed");
    let error = load(&files, &ClientTlsConfig::default()).expect_err("gone");
    let text = error.source.to_string();
    assert!(text.contains("cannot be read"), "{text}");
}

#[test]
fn files_that_cannot_be_used_change_nothing() {
    let files = Files::new();
    files.write("password", "before");
    files.make("ca", &["scylla"], 2100);
    files.make("own", &["packetboat"], 2100);
    let CertificateFiles {
        cert_file,
        key_file,
    } = files.pair("own");
    let tls = ClientTlsConfig {
        cert_file: Some(cert_file),
        key_file: Some(key_file),
        ..trusting(&files, "ca")
    };
    let credentials = load(&files, &tls).expect("read");
    let mut changes = credentials.changes();
    assert_eq!(credentials.reload().expect("read"), Reload::Unchanged);

    // Half a renewal changes nothing.
    let key = std::fs::read_to_string(files.path("own.key")).expect("a key");
    files.make("own", &["packetboat"], 2101);
    let new_key = std::fs::read_to_string(files.path("own.key")).expect("a key");
    files.write("own.key", &key);
    files.write("password", "after");
    let error = credentials
        .reload()
        .expect_err("a key of another")
        .to_string();
    assert!(error.contains("is not the key of"), "{error}");
    assert!(!changes.has_changed().expect("it lives"));
    let secret = |credentials: &Credentials| {
        let secrets = credentials.current();
        let secret = secrets.secret("password_file").expect("a password");
        secret.expose_secret().to_owned()
    };
    assert_eq!(secret(&credentials), "before");

    files.write("own.key", &new_key);
    assert_eq!(credentials.reload().expect("read"), Reload::Reloaded);
    assert!(changes.has_changed().expect("it lives"));
    assert_eq!(secret(&credentials), "after");
    changes.mark_unchanged();
}

#[test]
fn a_node_is_known_by_its_address_or_by_its_root_alone() {
    let files = Files::new();
    files.write("password", "secret");
    files.make("node", &["10.0.0.7"], 2100);
    files.make("other", &["10.0.0.7"], 2100);
    let listener = server(&files.load(&["node"]).expect("certificates"));
    let dial = |root: &str, names, address: &str| {
        let credentials = load(&files, &trusting(&files, root)).expect("read");
        let client = credentials.rustls(names).expect("settings");
        let mut client = (*client).clone();
        client.alpn_protocols = vec![b"packetboat.v1".to_vec()];
        Pair::connect(&listener, &Arc::new(client), address).map(drop)
    };
    dial("node", ServerNames::Address, "10.0.0.7").expect("its address");
    let error = dial("node", ServerNames::Address, "10.0.0.8").expect_err("another");
    assert!(reason(&error).contains("scylla.tls.ca_file"));
    dial("node", ServerNames::Ca, "10.0.0.8").expect("its root");
    let foreign = dial("other", ServerNames::Ca, "10.0.0.7").expect_err("another root");
    assert!(reason(&foreign).contains("scylla.tls.ca_file"), "{foreign}");
}

// A renewed root takes effect once it is reread, without a new client.
#[test]
fn a_handshake_takes_what_the_files_hold_at_that_moment() {
    let files = Files::new();
    files.write("password", "secret");
    files.make("node", &["10.0.0.7"], 2100);
    let credentials = load(&files, &trusting(&files, "node")).expect("read");
    let client = credentials.rustls(ServerNames::Address).expect("settings");
    let mut client = (*client).clone();
    client.alpn_protocols = vec![b"packetboat.v1".to_vec()];
    let client = Arc::new(client);
    let dial = || {
        let listener = server(&files.load(&["node"]).expect("certificates"));
        Pair::connect(&listener, &client, "10.0.0.7").map(drop)
    };
    dial().expect("the first root");
    files.make("node", &["10.0.0.7"], 2100);
    dial().expect_err("a root that was not read yet");
    credentials.reload().expect("read");
    dial().expect("the second root");
}

#[test]
fn files_of_a_part_fit_each_other() {
    let problems = |change: fn(&mut ClientTlsConfig)| {
        let mut tls = ClientTlsConfig::default();
        change(&mut tls);
        tls.problems().to_string()
    };
    assert_eq!(problems(|_| ()), "");
    assert_eq!(problems(|tls| tls.ca_file = Some("/ca".into())), "");
    let half = problems(|tls| {
        tls.ca_file = Some("/ca".into());
        tls.cert_file = Some("/cert".into());
    });
    assert!(half.contains("must be set together"), "{half}");
    let plain = problems(|tls| {
        tls.cert_file = Some("/cert".into());
        tls.key_file = Some("/key".into());
    });
    assert!(plain.contains("a client certificate needs TLS"), "{plain}");
}
