//! A desk with TLS, on a real port.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use backend::files::Reload;
use backend::tls::{CertificateFiles, Certificates, client_config};
use rustls::ClientConfig;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, advance};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::assertion_tests::StationProvers;
use super::*;

const REQUEST: &str = "GET /api/v1/me HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// Far more than anything here takes. After that time moves again, and what hangs meets its deadline.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A port whose deadlines pass only as a test says: the kernel and the handshakes take as long as
/// they take.
struct Port {
    address: SocketAddr,
    certificates: Arc<Certificates>,
    files: CertificateFiles,
    dir: TempDir,
    _stop: DropGuard,
    _clock_hold: mpsc::Sender<()>,
}

/// Stops the clock of all timers; paused time alone would jump to the next one while the kernel
/// works.
fn still() -> mpsc::Sender<()> {
    tokio::time::pause();
    let (sender, receiver) = mpsc::channel();
    // Time does not jump while a thread works.
    drop(spawn_blocking(move || receiver.recv_timeout(TEST_TIMEOUT)));
    sender
}

/// Waits while timers stand still.
async fn pass(real: Duration) {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(real);
        let _ = sender.send(());
    });
    let _ = receiver.await;
}

/// A certificate for this machine that signs itself, so that it is its root, too.
fn write(files: &CertificateFiles) {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let outcome = files.write(
        &certificate.cert.pem(),
        &certificate.signing_key.serialize_pem(),
    );
    outcome.expect("files");
}

async fn port() -> Port {
    let clock_hold = still();
    let dir = tempfile::tempdir().expect("a directory");
    let files = CertificateFiles::within(dir.path(), "desk");
    write(&files);
    let mut config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    config.tls.cert_file = Some(files.cert_file.clone());
    config.tls.key_file = Some(files.key_file.clone());
    let certificates = config.tls.load().expect("loads").expect("TLS");
    let parts = Parts {
        health: Health::silent(),
        desk: None,
        doctor: None,
        certificates: Some(certificates.clone()),
    };
    let stop = CancellationToken::new();
    let address = start(&config, parts, stop.clone()).await.expect("binds");
    Port {
        address,
        certificates,
        files,
        dir,
        _stop: stop.drop_guard(),
        _clock_hold: clock_hold,
    }
}

fn trusting_config(root: &Path, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    client_config(Some(root), alpn).expect("a root")
}

impl Port {
    async fn dial(&self, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = "localhost".try_into().expect("a name");
        TlsConnector::from(config).connect(name, stream).await
    }
}

/// The head of an answer.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    String::from_utf8(head).expect("text")
}

async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("asked");
    answer(stream).await
}

// proves S3-03 in part: operators' tokens pass in TLS 1.2 and 1.3, and by protocols of the desk alone.
#[tokio::test]
async fn both_versions_of_tls_are_spoken_and_no_foreign_protocol() {
    let port = port().await;
    let root = &port.files.cert_file;
    for alpn in [&[][..], &[&b"http/1.1"[..]]] {
        let mut stream = port.dial(trusting_config(root, alpn)).await.expect("TLS");
        let answer = ask(&mut stream, REQUEST).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    let stream = port
        .dial(trusting_config(root, &[b"h2", b"http/1.1"]))
        .await;
    assert_eq!(
        stream.expect("TLS").get_ref().1.alpn_protocol(),
        Some(&b"h2"[..])
    );
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(root).expect("a root");
    let der = rustls::pki_types::pem::PemObject::from_pem_slice(&pem).expect("PEM");
    roots.add(der).expect("a root");
    let old = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("1.2")
        .with_root_certificates(roots)
        .with_no_client_auth();
    port.dial(Arc::new(old)).await.expect("TLS 1.2");
    let foreign = port.dial(trusting_config(root, &[b"packetboat.v1"])).await;
    let error = foreign.expect_err("another protocol").to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
}

#[tokio::test]
async fn a_request_in_flight_ends_well_while_certificates_change() {
    let port = port().await;
    let old = trusting_config(&port.files.cert_file, &[]);
    let mut stream = port.dial(old.clone()).await.expect("TLS");
    let (half, rest) = REQUEST.split_at(20);
    stream.write_all(half.as_bytes()).await.expect("begun");

    write(&port.files);
    assert_eq!(port.certificates.reload().expect("right"), Reload::Reloaded);
    let new = trusting_config(&port.files.cert_file, &[]);
    port.dial(new.clone()).await.expect("the new one");
    assert!(port.dial(old).await.is_err(), "the old one is gone");
    let answer = ask(&mut stream, rest).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");

    // Another's key, then no certificate at all: the good pair stays.
    let other = CertificateFiles::within(port.dir.path(), "other");
    write(&other);
    std::fs::copy(&other.key_file, &port.files.key_file).expect("copied");
    let error = port.certificates.reload().expect_err("another's key");
    assert!(error.to_string().contains("is not the key"), "{error}");
    std::fs::write(&port.files.cert_file, "nothing").expect("written");
    port.certificates.reload().expect_err("no certificate");
    port.dial(new).await.expect("as before");
}

#[tokio::test]
async fn plain_http_is_told_to_use_tls_and_finds_no_desk() {
    let port = port().await;
    for request in [REQUEST, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(port.address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("asked");
        stream.shutdown().await.expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.ends_with("https:// in its URL"), "{answer}");
    }
}

#[tokio::test]
async fn an_unfinished_handshake_is_dropped_after_five_seconds() {
    let port = port().await;
    for bytes in [&b""[..], b"\x16\x03\x01"] {
        let start = Instant::now();
        let mut stream = TcpStream::connect(port.address).await.expect("it listens");
        stream.write_all(bytes).await.expect("begun");
        let mut answer = Vec::new();
        let mut end = pin!(stream.read_to_end(&mut answer));
        loop {
            tokio::select! {
                biased;
                // A reset is an end as well.
                _ = &mut end => break,
                () = pass(Duration::from_millis(20)) => advance(Duration::from_millis(500)).await,
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "{bytes:?}");
        }
        let duration = start.elapsed();
        assert!(
            duration >= Duration::from_secs(5),
            "{bytes:?}: {duration:?}"
        );
    }
}

#[tokio::test]
async fn handshakes_beyond_the_bound_wait_for_a_place() {
    let port = port().await;
    let mut stalled_streams = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(port.address).await.expect("it listens");
        stream.write_all(b"\x16\x03\x01").await.expect("begun");
        stalled_streams.push(stream);
    }
    let config = trusting_config(&port.files.cert_file, &[]);
    let mut waiting_stream = None;
    // The last of them may still be on their way to their places.
    for _ in 0..100 {
        let mut dial = Box::pin(port.dial(config.clone()));
        tokio::select! {
            biased;
            served = &mut dial => drop(served.expect("TLS")),
            () = pass(Duration::from_millis(500)) => {
                waiting_stream = Some(dial);
                break;
            }
        }
    }
    let dial = waiting_stream.expect("there is no place");
    stalled_streams.pop();
    tokio::select! {
        biased;
        served = dial => drop(served.expect("TLS")),
        () = pass(TEST_TIMEOUT) => panic!("a place"),
    }
}

#[test]
fn off_loopback_the_desk_wants_operators_and_tls() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = CertificateFiles::within(dir.path(), "desk");
    write(&files);
    let refusal_text = |change: &dyn Fn(&mut Config)| {
        let mut config = Config {
            listen: ([0, 0, 0, 0], 9190).into(),
            ..Config::default()
        };
        change(&mut config);
        config.problems(&StationProvers).to_string()
    };
    let with_operators = |config: &mut Config| {
        config.operators = vec![OperatorConfig {
            name: "ann".to_owned(),
            token_file: "/token".into(),
            roles: Vec::new(),
        }];
    };
    let with_certificate = |config: &mut Config| {
        config.tls.cert_file = Some(files.cert_file.clone());
        config.tls.key_file = Some(files.key_file.clone());
    };
    for (text, words) in [
        (refusal_text(&with_certificate), "admin.operators is empty"),
        (refusal_text(&with_operators), "has no TLS"),
        (refusal_text(&|config| config.anybody = true), "has no TLS"),
        (
            refusal_text(&|config| {
                with_operators(config);
                with_certificate(config);
                config.tls.offloaded = true;
            }),
            "either here or at a proxy",
        ),
        (
            refusal_text(&|config| {
                with_operators(config);
                config.tls.cert_file = Some(files.cert_file.clone());
            }),
            "must be set together",
        ),
        (
            refusal_text(&|config| {
                with_operators(config);
                with_certificate(config);
                config.tls.key_file = Some(files.cert_file.clone());
            }),
            "holds no private key",
        ),
    ] {
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(words), "{words}: {text}");
    }
    let all: [&dyn Fn(&mut Config); 3] = [
        &|config| {
            with_operators(config);
            with_certificate(config);
        },
        &|config| {
            with_operators(config);
            config.tls.offloaded = true;
        },
        &|config| config.listen = ([127, 0, 0, 1], 9190).into(),
    ];
    for right in all {
        assert_eq!(refusal_text(right), "");
    }
}
