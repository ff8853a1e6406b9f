//! Files as operators leave them, and rustls handshakes with itself over them.

mod identity;
#[cfg(feature = "scylla")]
mod parts;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::Timestamp;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, HandshakeKind, ProtocolVersion, ServerConnection};
use tempfile::TempDir;

use super::*;
use crate::clock::{Clock, SystemClock};
use crate::files::Reload;

/// Folder with certificates.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(TempDir::new().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn pair(&self, stem: &str) -> CertificateFiles {
        CertificateFiles::within(self.0.path(), stem)
    }

    /// Makes a certificate for `names`, its key beside it, and returns the certificate.
    fn make(&self, stem: &str, names: &[&str], end_year: i32) -> Vec<u8> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_after = rcgen::date_time_ymd(end_year, 1, 1);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let result = (self.pair(stem)).write(&certificate.pem(), &key.serialize_pem());
        result.expect("files");
        certificate.der().to_vec()
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).expect("a file");
    }

    fn load(&self, stems: &[&str]) -> Result<Arc<Certificates>, CertificateError> {
        let files: Vec<_> = stems.iter().map(|stem| self.pair(stem)).collect();
        Certificates::load(&files, Arc::new(SystemClock))
    }
}

/// Connection in memory.
struct Pair {
    client: ClientConnection,
    server: ServerConnection,
}

impl Pair {
    fn connect(
        server: &Arc<ServerConfig>,
        client: &Arc<ClientConfig>,
        name: &str,
    ) -> Result<Pair, rustls::Error> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let mut pair = Pair {
            client: ClientConnection::new(client.clone(), name)?,
            server: ServerConnection::new(server.clone())?,
        };
        pair.run()?;
        Ok(pair)
    }

    fn run(&mut self) -> Result<(), rustls::Error> {
        while self.client.wants_write() || self.server.wants_write() {
            let mut bytes = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut bytes).expect("a vector");
            }
            self.server.read_tls(&mut &bytes[..]).expect("a slice");
            self.server.process_new_packets()?;
            let mut bytes = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut bytes).expect("a vector");
            }
            self.client.read_tls(&mut &bytes[..]).expect("a slice");
            self.client.process_new_packets()?;
        }
        Ok(())
    }

    fn certificate(&self) -> &[u8] {
        let chain = self.client.peer_certificates().expect("a certificate");
        &chain[0]
    }

    fn echo(&mut self, text: &[u8; 4]) {
        let mut buffer = [0; 4];
        self.client.writer().write_all(text).expect("room");
        self.run().expect("good bytes");
        self.server.reader().read_exact(&mut buffer).expect("bytes");
        self.server.writer().write_all(&buffer).expect("room");
        self.run().expect("good bytes");
        self.client.reader().read_exact(&mut buffer).expect("bytes");
        assert_eq!(&buffer, text);
    }
}

fn server(certificates: &Arc<Certificates>) -> Arc<ServerConfig> {
    server_config(certificates.clone(), TlsVersion::Tls12, &[b"packetboat.v1"]).expect("settings")
}

/// Configuration of a client that trusts the certificates of all `stems`.
fn client(files: &Files, stems: &[&str]) -> Arc<ClientConfig> {
    let read = |stem: &&str| std::fs::read_to_string(files.pair(stem).cert_file).expect("a file");
    files.write("roots.pem", &stems.iter().map(read).collect::<String>());
    client_config(Some(&files.path("roots.pem")), &[b"packetboat.v1"]).expect("roots")
}

#[test]
fn exact_names_win_over_wildcards_over_the_first_certificate() {
    let files = Files::new();
    let first = files.make("first", &["first.example"], 2100);
    let wild = files.make("wild", &["*.example.com", "*.example.org"], 2100);
    let exact = files.make("exact", &["chat.example.com"], 2100);
    let certificates = files
        .load(&["first", "wild", "exact"])
        .expect("certificates");
    let (server, client) = (
        server(&certificates),
        client(&files, &["first", "wild", "exact"]),
    );
    for (name, expected) in [
        ("first.example", &first),
        ("chat.example.com", &exact),
        ("CHAT.example.com", &exact),
        ("a.example.com", &wild),
        ("b.example.org", &wild),
    ] {
        let pair = Pair::connect(&server, &client, name).expect(name);
        assert_eq!(pair.certificate(), expected, "{name}");
        assert_eq!(pair.server.alpn_protocol(), Some(&b"packetboat.v1"[..]));
    }
    // A wildcard covers one label; a client that sends no name gets the first certificate, which is
    // then not for it.
    for name in ["a.b.example.com", "example.com", "elsewhere", "127.0.0.1"] {
        let error = Pair::connect(&server, &client, name).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("first.example"), "{name}: {text}");
    }
}

#[test]
fn wrong_files_leave_all_as_it_was_and_are_named() {
    let files = Files::new();
    let old = files.make("a", &["a.example"], 2100);
    files.make("b", &["b.example"], 2101);
    let certificates = files.load(&["a", "b"]).expect("certificates");
    let server = server(&certificates);
    let client = client(&files, &["a"]);
    let mut pair = Pair::connect(&server, &client, "a.example").expect("a handshake");
    let end_of_2099 = Timestamp::from_millis(4_102_444_800_000);
    assert_eq!(certificates.expires_at(), end_of_2099);
    assert!(certificates.expires_in().as_secs() > 70 * 365 * 24 * 3600);
    assert_eq!(certificates.reload().expect("files"), Reload::Unchanged);

    let [cert, key] = ["a.crt", "a.key"].map(|name| files.path(name));
    let contents =
        [&cert, &key].map(|path| std::fs::read_to_string(path).expect("a file as it was made"));
    files.make("other", &["a.example"], 2100);
    files.make("past", &["a.example"], 2020);
    let read = |name: &str| std::fs::read_to_string(files.path(name)).expect("a file");
    let wrongs = [
        (read("other.crt"), read("a.key"), "a.key is not the key of"),
        (read("a.crt"), read("other.key"), "a.key is not the key of"),
        (
            read("past.crt"),
            read("past.key"),
            "a.crt expired on Jan  1",
        ),
        ("rubbish".into(), read("a.key"), "a.crt holds no certif"),
        (
            read("a.crt"),
            "rubbish".into(),
            "a.key holds no private key",
        ),
        (read("a.crt"), String::new(), "a.key holds no private key"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
            read("a.key"),
            "a.crt cannot be used",
        ),
        (
            read("a.crt")[..200].to_owned(),
            read("a.key"),
            "a.crt cannot be used",
        ),
    ];
    for (cert, key, expected) in wrongs {
        files.write("a.crt", &cert);
        files.write("a.key", &key);
        // A good certificate beside it waits, too.
        files.make("b", &["b.example"], 2101);
        for _ in 0..2 {
            let error = certificates.reload().expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("rubbish"), "{error}");
        }
        assert!(files.load(&["a", "b"]).is_err());
        pair.echo(b"stay");
        let newcomer = Pair::connect(&server, &client, "a.example").expect("a handshake");
        assert_eq!(newcomer.certificate(), old);
    }
    std::fs::remove_file(&cert).expect("a file");
    let error = certificates.reload().expect_err("no file").to_string();
    assert!(error.contains("a.crt cannot be read"), "{error}");

    files.write("a.crt", &contents[0]);
    files.write("a.key", &contents[1]);
    assert_eq!(certificates.reload().expect("files"), Reload::Reloaded);
    pair.echo(b"stay");
}

#[test]
fn new_files_are_for_new_handshakes_and_end_no_connection() {
    let files = Files::new();
    let old = files.make("a", &["a.example"], 2100);
    let certificates = files.load(&["a"]).expect("certificates");
    let server = server(&certificates);
    let old_client = client(&files, &["a"]);
    let mut old_pair = Pair::connect(&server, &old_client, "a.example").expect("a handshake");
    old_pair.echo(b"ahoy");
    assert_eq!(old_pair.certificate(), old);

    let new = files.make("a", &["a.example", "b.example"], 2101);
    assert_eq!(certificates.reload().expect("files"), Reload::Reloaded);
    assert_eq!(certificates.reload().expect("files"), Reload::Unchanged);
    old_pair.echo(b"stay");
    let new_client = client(&files, &["a"]);
    for name in ["a.example", "b.example"] {
        let pair = Pair::connect(&server, &new_client, name).expect("a handshake");
        assert_eq!(pair.certificate(), new);
    }
    assert!(Pair::connect(&server, &self::client(&files, &["a"]), "c.example").is_err());
    old_pair.echo(b"stay");
    // Earlier tickets stay valid.
    let mut pair = Pair::connect(&server, &old_client, "a.example").expect("a handshake");
    assert_eq!(pair.server.handshake_kind(), Some(HandshakeKind::Resumed));
    pair.echo(b"back");
}

#[test]
fn the_oldest_version_is_what_the_settings_say() {
    let files = Files::new();
    files.make("a", &["a.example"], 2100);
    let certificates = files.load(&["a"]).expect("certificates");
    let mut roots = RootCertStore::empty();
    let chain = certificates::read_certificates(&files.pair("a").cert_file).expect("a file");
    roots.add(chain[0].clone()).expect("a root");
    let mut old = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    old.alpn_protocols = vec![b"packetboat.v1".to_vec()];
    let old = Arc::new(old);
    for (min, is_accepted) in [(TlsVersion::Tls12, true), (TlsVersion::Tls13, false)] {
        let config = server_config(certificates.clone(), min, &[b"packetboat.v1"]);
        let pair = Pair::connect(&config.expect("settings"), &old, "a.example");
        assert_eq!(pair.is_ok(), is_accepted);
        if let Ok(pair) = pair {
            let version = pair.server.protocol_version();
            assert_eq!(version, Some(ProtocolVersion::TLSv1_2));
        }
    }
    let config = server_config(certificates, TlsVersion::Tls13, &[]).expect("settings");
    let new = client(&files, &["a"]);
    let pair = Pair::connect(&config, &new, "a.example").expect("a handshake");
    let group = pair.server.negotiated_key_exchange_group();
    let group = group.map(|group| format!("{:?}", group.name()));
    assert_eq!(group.as_deref(), Some("X25519MLKEM768"));
    let pair = Pair::connect(&config, &new, "a.example").expect("a handshake");
    assert_eq!(pair.server.handshake_kind(), Some(HandshakeKind::Resumed));
}

#[test]
fn keys_of_other_kinds_are_accepted() {
    let files = Files::new();
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let params = CertificateParams::new(["a.example".to_owned()]).expect("names");
    let certificate = params.self_signed(&key).expect("a certificate");
    let result = (files.pair("a")).write(&certificate.pem(), &key.serialize_pem());
    result.expect("files");
    let certificates = files.load(&["a"]).expect("certificates");
    let client = client(&files, &["a"]);
    Pair::connect(&server(&certificates), &client, "a.example").expect("a handshake");
}

#[test]
fn roots_that_are_none_are_refused() {
    let files = Files::new();
    files.write("roots.pem", "rubbish");
    for name in ["roots.pem", "none.pem"] {
        let error = client_config(Some(&files.path(name)), &[]).expect_err("no roots");
        assert!(error.to_string().contains(name), "{error}");
    }
    // Roots of the operating system need no file of ours.
    let error = client_config(None, &[]).err();
    assert!(!matches!(error, Some(CertificateError::Read { .. })));
}

#[test]
fn settings_say_what_is_wrong_with_them() {
    let files = Files::new();
    files.make("a", &["a.example"], 2100);
    files.make("past", &["a.example"], 2020);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let [near, far] = ["127.0.0.1:9001", "10.0.0.7:9001"]
        .map(|text| text.parse::<SocketAddr>().expect("an address"));
    let config = |stems: &[&str], offloaded| TlsConfig {
        certificates: stems.iter().map(|stem| files.pair(stem)).collect(),
        min: TlsVersion::default(),
        offloaded,
    };
    for (config, address, expected) in [
        (config(&[], false), near, ""),
        (config(&[], true), far, ""),
        (config(&["a"], false), far, ""),
        (config(&[], false), far, "certificates is empty: traffic"),
        (
            config(&["a"], true),
            far,
            "offloaded is true: certificates are set",
        ),
        (
            config(&["a", "past"], false),
            near,
            "certificates[1]: the first",
        ),
        (config(&["none"], false), near, "none.crt cannot be read"),
    ] {
        let problems = config.check(address, &clock).to_string();
        assert!(problems.contains(expected), "{problems}");
        assert_eq!(problems.is_empty(), expected.is_empty(), "{problems}");
    }
    let text = r#"{"certificates": [{"cert_file": "a", "key_file": "b"}], "min": "1.3"}"#;
    let read: TlsConfig = serde_json::from_str(text).expect("settings");
    assert_eq!((read.min, read.is_on()), (TlsVersion::Tls13, true));
    assert!(serde_json::from_str::<TlsConfig>(r#"{"min": "1.1"}"#).is_err());
}

/// Clock set by a test.
struct SetClock(Mutex<Timestamp>);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

#[test]
fn an_expired_certificate_stays_until_it_is_renewed() {
    let files = Files::new();
    files.make("a", &["a.example"], 2030);
    let clock = Arc::new(SetClock(Mutex::new(Timestamp::from_millis(
        1_700_000_000_000,
    ))));
    let certificates = Certificates::load(&[files.pair("a")], clock.clone()).expect("files");
    *clock.0.lock() = Timestamp::from_millis(1_900_000_000_000);
    assert_eq!(certificates.reload().expect("the same"), Reload::Unchanged);
    assert!(certificates.expires_in().is_zero());
    files.make("a", &["a.example"], 2030);
    assert!(certificates.reload().is_err());
    files.make("a", &["a.example"], 2100);
    assert_eq!(certificates.reload().expect("files"), Reload::Reloaded);
    assert!(!certificates.expires_in().is_zero());
}

/// One name is abandoned and its certificate ends; renewals of the other still apply.
#[test]
fn an_expired_certificate_blocks_no_other_renewal() {
    let files = Files::new();
    files.make("old", &["old.example"], 2030);
    files.make("new", &["new.example"], 2031);
    let clock = Arc::new(SetClock(Mutex::new(Timestamp::from_millis(
        1_700_000_000_000,
    ))));
    let pairs = [files.pair("old"), files.pair("new")];
    let certificates = Certificates::load(&pairs, clock.clone()).expect("files");
    *clock.0.lock() = Timestamp::from_millis(1_900_000_000_000);
    files.make("new", &["new.example"], 2100);
    assert_eq!(certificates.reload().expect("files"), Reload::Reloaded);
    assert_eq!(certificates.reload().expect("files"), Reload::Unchanged);
    assert!(Certificates::load(&pairs, clock).is_err(), "at a start");
}

/// A certificate of tomorrow, as from a clock that is ahead, replaces no valid one.
#[test]
fn a_certificate_not_valid_yet_is_refused() {
    let files = Files::new();
    files.make("a", &["a.example"], 2100);
    let certificates = files.load(&["a"]).expect("files");
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("names");
    params.not_before = rcgen::date_time_ymd(2090, 1, 1);
    params.not_after = rcgen::date_time_ymd(2100, 1, 1);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let early = params.self_signed(&key).expect("a certificate");
    let result = files.pair("a").write(&early.pem(), &key.serialize_pem());
    result.expect("files");
    let error = certificates.reload().expect_err("it begins later");
    assert!(error.to_string().contains("is not valid before"), "{error}");
}
