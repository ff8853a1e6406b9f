//! Sign-in by a service, over real sockets: its possible answers, its deadline, and how often it is
//! asked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::v1::authenticator_service_server::{
    AuthenticatorService as Service, AuthenticatorServiceServer,
};
use api::v1::{AuthenticateRequest, AuthenticateResponse};
use backend::clock::{Clock, SystemClock};
use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, advance, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::test_time::{advance_until, freeze_time, short_wait};

const SECOND: Duration = Duration::from_secs(1);

/// A service that behaves as the token says.
#[derive(Clone, Default)]
struct Platform7 {
    calls: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Service for Platform7 {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let query = request.into_inner();
        let now = SystemClock.now().millis();
        let answer = |user, issued_at, expires_at| {
            Ok(Response::new(AuthenticateResponse {
                user,
                issued_at,
                expires_at,
            }))
        };
        let (begin, end) = (now - 1_000, now + 3_600_000);
        match query.token.as_str() {
            "good" => {
                let from = [query.platform, query.device, query.address];
                assert_eq!(from, ["ios", "phone", "192.0.2.7"]);
                answer(7, begin, end)
            }
            "nobody" => answer(0, begin, end),
            "less" => answer(-7, begin, end),
            "over" => answer(7, begin - 120_000, now - 60_000),
            "long" => answer(7, begin, begin + 25 * 3_600_000),
            "to-come" => answer(7, now + 120_000, end),
            "undated" => answer(7, 0, end),
            "silent" => {
                sleep(60 * SECOND).await;
                answer(7, begin, end)
            }
            "late" => {
                sleep(3 * SECOND).await;
                answer(7, begin, end)
            }
            "unknown" => Err(Status::unauthenticated("signed out\u{7} there")),
            "mute" => Err(Status::unauthenticated("")),
            "locked" => Err(Status::permission_denied("locked")),
            "often" => Err(Status::resource_exhausted("x".repeat(1000))),
            "panicking" => panic!("a service that fails"),
            code => Err(Status::new(
                code.parse::<i32>().expect("a code").into(),
                "broken",
            )),
        }
    }
}

impl Platform7 {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = tonic::transport::Server::builder()
            .add_service(AuthenticatorServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        address
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn config(url: &str) -> Config {
    Config {
        remote: RemoteConfig {
            address: Some(url.into()),
            ..RemoteConfig::default()
        },
        ..Config::default()
    }
}

async fn door() -> (TokenDoor, Platform7) {
    let service = Platform7::default();
    let url = format!("http://{}", service.start().await);
    let door = TokenDoor::open(&config(&url)).expect("fair settings");
    (door, service)
}

async fn ask(door: &TokenDoor, token: &str) -> Result<Principal, Refusal> {
    let device = DeviceId::new("phone").expect("short");
    let client = Client {
        platform: Platform::Ios,
        device: &device,
        address: "192.0.2.7",
    };
    door.authenticate(token, &client, SystemClock.now()).await
}

async fn refusal_for(door: &TokenDoor, token: &str) -> Refusal {
    ask(door, token).await.expect_err(token)
}

#[tokio::test]
async fn the_service_says_whose_a_token_is_and_each_status_has_its_code() {
    let _frozen = freeze_time();
    let (door, service) = door().await;
    for (token, code, text) in [
        ("unknown", Code::Unauthenticated, "signed out there"),
        ("mute", Code::Unauthenticated, "unknown token"),
        ("locked", Code::Forbidden, "locked"),
        ("often", Code::RateLimited, &*"x".repeat(256)),
    ] {
        let refusal = refusal_for(&door, token).await;
        assert_eq!((refusal.code, &*refusal.text), (code, text), "{token}");
    }
    // Every other status, and impossible answers.
    let statuses = (1..=16).filter(|code| ![7, 8, 16].contains(code));
    let statuses = statuses.map(|code: i32| code.to_string());
    let wrong = ["nobody", "less", "over", "long", "to-come", "undated"];
    let wrong = wrong.into_iter().map(str::to_owned);
    let old_calls = service.calls();
    let (mut count, started_at) = (0, Instant::now());
    for token in statuses.chain(["panicking".to_owned()]).chain(wrong) {
        let refusal = refusal_for(&door, &token).await;
        assert_eq!(refusal.code, Code::Unavailable, "{token}: {}", refusal.text);
        // Failures do not add up to an open circuit.
        let identity = ask(&door, "good").await.expect("a good token");
        assert_eq!(identity.user, user());
        assert_eq!((identity.platform, identity.device), (None, None));
        let life = identity.expires_at.since(identity.issued_at);
        assert_eq!(life, HOUR + SECOND);
        count += 2;
    }
    assert_eq!(service.calls() - old_calls, count, "nothing is remembered");
    assert_eq!(
        started_at.elapsed(),
        Duration::ZERO,
        "no answer was waited for"
    );
    for (token, text) in [("", "missing"), (&*"x".repeat(4097), "too long")] {
        let refusal = refusal_for(&door, token).await;
        assert!(refusal.text.contains(text), "{}", refusal.text);
    }
    assert_eq!(service.calls() - old_calls, count, "nobody was asked");
}

#[tokio::test]
async fn a_late_answer_and_nobody_there_are_unavailable() {
    let _frozen = freeze_time();
    let (door, _service) = door().await;
    let started_at = Instant::now();
    let refusal = advance_until(refusal_for(&door, "late")).await;
    assert_eq!(refusal.code, Code::Unavailable);
    let elapsed = started_at.elapsed();
    assert!((2 * SECOND..3 * SECOND).contains(&elapsed), "{elapsed:?}");

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let unreachable =
        TokenDoor::open(&config(&format!("http://{address}"))).expect("fair settings");
    assert_eq!(
        refusal_for(&unreachable, "good").await.code,
        Code::Unavailable
    );
    // A listener that never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let mute = TokenDoor::open(&config(&format!("http://{address}"))).expect("fair settings");
    let started_at = Instant::now();
    let refusal = advance_until(refusal_for(&mute, "good")).await;
    assert_eq!(refusal.code, Code::Unavailable);
    let elapsed = started_at.elapsed();
    assert!(elapsed < 3 * SECOND, "{elapsed:?}");
}

// 257 at once: 256 wait, one does not.
#[tokio::test]
async fn a_flood_waits_in_a_bounded_number_and_the_rest_is_told_at_once() {
    let _frozen = freeze_time();
    let (door, service) = door().await;
    let started_at = Instant::now();
    let sign_ins = (0..257).map(async |_| {
        assert_eq!(refusal_for(&door, "silent").await.code, Code::Unavailable);
        started_at.elapsed()
    });
    let mut sign_ins = pin!(join_all(sign_ins));
    while service.calls() < 256 {
        tokio::select! {
            biased;
            _ = &mut sign_ins => panic!("nobody waits"),
            () = short_wait() => {}
        }
    }
    let waits = advance_until(sign_ins).await;
    let prompt = waits.iter().filter(|wait| **wait < SECOND).count();
    assert_eq!(prompt, 1);
    assert!(waits.iter().all(|wait| *wait < 4 * SECOND));
    assert_eq!(service.calls(), 256);
    // The circuit is open now: nobody waits.
    assert_eq!(refusal_for(&door, "good").await.code, Code::Unavailable);
    assert_eq!(service.calls(), 256);
}

#[tokio::test]
async fn a_service_that_fails_is_left_alone_until_a_probe_is_answered() {
    let _frozen = freeze_time();
    let (door, service) = door().await;
    for _ in 0..8 {
        refusal_for(&door, "14").await;
    }
    assert_eq!(service.calls(), 8);
    let refusal = refusal_for(&door, "good").await;
    assert_eq!(refusal.code, Code::Unavailable);
    let pause = refusal.retry_after.expect("a hint");
    assert!(pause <= SECOND, "{pause:?}");
    assert_eq!(service.calls(), 8, "it was not asked");
    advance(pause + SECOND / 10).await;
    // A refusal is an answer.
    assert_eq!(
        refusal_for(&door, "unknown").await.code,
        Code::Unauthenticated
    );
    ask(&door, "good").await.expect("closed again");
    assert_eq!(service.calls(), 10);
}

#[tokio::test]
async fn tokens_of_known_issuers_are_proved_here_and_all_others_there() {
    let _frozen = freeze_time();
    let service = Platform7::default();
    let url = format!("http://{}", service.start().await);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("secret");
    std::fs::write(&file, [b's'; 32]).expect("written");
    let issuer = serde_json::json!({"issuer": "id", "algorithms": ["HS256"],
        "secrets": [{"kid": "one", "file": file}]});
    let settings = Config {
        issuers: vec![serde_json::from_value(issuer).expect("an issuer")],
        ..config(&url)
    };
    let door = TokenDoor::open(&settings).expect("fair settings");
    let signer = Signer::open(&settings).expect("a secret");
    let now = SystemClock.now();
    let token = signer.sign(&signer.claims(user(), now, HOUR));
    let token = token.expect("signable");
    assert_eq!(ask(&door, &token).await.expect("proved here").user, user());
    let forgery = format!("{}x", token.trim_end_matches('x'));
    assert_eq!(
        refusal_for(&door, &forgery).await.code,
        Code::Unauthenticated
    );
    assert_eq!(
        service.calls(),
        0,
        "no known issuer's token leaves the station"
    );
    ask(&door, "good").await.expect("an opaque token");
    // A token of another issuer is the service's to judge; it takes this text for a code, and
    // panics.
    let other = Signer::default().sign(&Claims::new(user(), now, HOUR));
    let refusal = refusal_for(&door, &other.expect("signable")).await;
    assert_eq!((refusal.code, service.calls()), (Code::Unavailable, 2));

    // Without issuers the development key proves nothing, and signs nothing.
    let without_issuers = config(&url);
    assert!(!without_issuers.is_well_known());
    assert!(Signer::open(&without_issuers).is_err());
    assert_eq!(without_issuers.lifetime_max(), 24 * HOUR);
}

#[test]
fn settings_of_a_service_that_cannot_be_are_refused() {
    let problems = |change: &dyn Fn(&mut Config)| {
        let mut config = config("https://sign-in.example");
        change(&mut config);
        config.problems().to_string()
    };
    let file = || Some(PathBuf::from("/a/file"));
    for (text, word) in [
        (problems(&|it| it.key_file = file()), "key_file"),
        (
            problems(&|it| it.remote.cert_file = file()),
            "remote.cert_file",
        ),
        (
            problems(&|it| it.remote.lifetime_max = 91 * 24 * HOUR),
            "remote.lifetime_max",
        ),
        (
            problems(&|it| it.remote.lifetime_max = Duration::ZERO),
            "remote.lifetime_max",
        ),
        (
            problems(&|it| it.remote.address = Some("http://sign-in.example".into())),
            "loopback",
        ),
        (
            problems(&|it| it.remote.address = Some("sign-in.example:443".into())),
            "remote.address",
        ),
    ] {
        assert!(
            text.starts_with(word) || text.contains(word),
            "{word}: {text}"
        );
    }
    assert_eq!(problems(&|_| {}), "");
}

/// Certificates in files, and the service behind TLS that requires one of them.
struct SecuredService {
    dir: TempDir,
    root: CertifiedIssuer<'static, KeyPair>,
}

impl SecuredService {
    fn new() -> SecuredService {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = CertifiedIssuer::self_signed(params, key).expect("a root");
        let dir = tempfile::tempdir().expect("a directory");
        SecuredService { dir, root }
    }

    fn write(&self, name: &str, content: &str) -> Option<PathBuf> {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).expect("written");
        Some(path)
    }

    async fn serve(&self, plain: SocketAddr) -> SocketAddr {
        let (leaf, key) = self.leaf();
        let mut roots = RootCertStore::empty();
        roots.add(self.root.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(clients.build().expect("a verifier"))
            .with_single_cert(
                vec![leaf.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            )
            .expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await?;
                    let mut inner = TcpStream::connect(plain).await?;
                    tokio::io::copy_bidirectional(&mut stream, &mut inner).await
                });
            }
        });
        address
    }

    fn leaf(&self) -> (rcgen::Certificate, KeyPair) {
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.root).expect("signed"), key)
    }
}

#[tokio::test]
async fn both_prove_who_they_are() {
    let _frozen = freeze_time();
    let (service, tls_service, other) = (
        Platform7::default(),
        SecuredService::new(),
        SecuredService::new(),
    );
    let address = tls_service.serve(service.start().await).await;
    let (leaf, key) = tls_service.leaf();
    let right = RemoteConfig {
        address: Some(
            format!("https://localhost:{}", address.port())
                .as_str()
                .into(),
        ),
        ca_file: tls_service.write("ca", &tls_service.root.pem()),
        cert_file: tls_service.write("cert", &leaf.pem()),
        key_file: tls_service.write("key", &key.serialize_pem()),
        ..RemoteConfig::default()
    };
    let open = |remote: &RemoteConfig| {
        let config = Config {
            remote: remote.clone(),
            ..Config::default()
        };
        TokenDoor::open(&config)
    };
    let good = open(&right).expect("fair settings");
    ask(&good, "good").await.expect("TLS both ways");
    let mut by_identity = right.clone();
    (by_identity.cert_file, by_identity.key_file) = (None, None);
    by_identity.identify(right.cert_file.as_ref(), right.key_file.as_ref());
    ask(&open(&by_identity).expect("fair"), "good")
        .await
        .expect("the station's own");
    assert_eq!(service.calls(), 2);

    let without = RemoteConfig {
        cert_file: None,
        key_file: None,
        ..right.clone()
    };
    let stranger = RemoteConfig {
        ca_file: other.write("ca", &other.root.pem()),
        ..right.clone()
    };
    let by_address = RemoteConfig {
        address: Some(
            format!("https://127.0.0.1:{}", address.port())
                .as_str()
                .into(),
        ),
        ..right.clone()
    };
    for wrong in [without, stranger, by_address] {
        let door = open(&wrong).expect("fair settings");
        let refusal = advance_until(refusal_for(&door, "good")).await;
        assert_eq!(refusal.code, Code::Unavailable);
    }
    assert_eq!(service.calls(), 2, "nobody saw the token");
    let broken = RemoteConfig {
        key_file: right.cert_file.clone(),
        ..right
    };
    let error = open(&broken).expect_err("no key").to_string();
    assert!(error.starts_with("station.auth.remote"), "{error}");
}
