//! Services that prove their identity: the same contract in TLS, and impostors.

use protocol::access::{Caller, Role};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::*;
use crate::transport::Identity;
use crate::v1::station_service_client::StationServiceClient;
use crate::v1::{KickoutRequest, SendBatchRequest};
use std::sync::atomic::AtomicBool;

/// A root that signs services of these tests: a certificate's host name is its role.
pub(super) struct Root(CertifiedIssuer<'static, KeyPair>);

impl Root {
    pub(super) fn new() -> Root {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Root(CertifiedIssuer::self_signed(params, key).expect("a root"))
    }

    /// A service of `role` that trusts this root; others take its certificate to be good for
    /// `life`.
    pub(super) fn service(&self, role: Role, life: Duration) -> Arc<Proof> {
        let params = CertificateParams::new([role.name().to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &self.0).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a root");
        let roots = Arc::new(roots);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = || vec![leaf.der().clone()];
        let private = || PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let mut server_config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .with_client_cert_verifier(clients.expect("a verifier"))
            .with_single_cert(chain(), private())
            .expect("a certificate");
        server_config.alpn_protocols = vec![b"h2".to_vec()];
        let mut client_config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain(), private())
            .expect("a certificate");
        client_config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(Proof {
            server_config: Arc::new(server_config),
            client_config: Arc::new(client_config),
            life,
            is_required: true,
        })
    }
}

#[derive(Clone)]
pub(super) struct Proof {
    server_config: Arc<ServerConfig>,
    client_config: Arc<ClientConfig>,
    life: Duration,
    is_required: bool,
}

impl Identity for Proof {
    fn accepting(&self) -> Arc<ServerConfig> {
        self.server_config.clone()
    }

    fn calling(&self, _: Role) -> Arc<ClientConfig> {
        self.client_config.clone()
    }

    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)> {
        let is_named = |role: &&Role| {
            let name = role.name().as_bytes();
            certificate.windows(name.len()).any(|bytes| bytes == name)
        };
        let role = Role::ALL.iter().find(is_named)?;
        Some((Caller::new(*role, "a"), self.life))
    }

    fn trusts(&self, _: &[CertificateDer<'_>]) -> bool {
        true
    }

    fn required(&self) -> bool {
        self.is_required
    }
}

fn connector(proof: Arc<Proof>) -> Connector {
    Connector::new(config()).with_identity(proof)
}

/// A boat's server that proves its identity.
async fn start_server(proof: Arc<Proof>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
    let task = tokio::spawn(async move {
        let stop = CancellationToken::new();
        let connector = connector(proof);
        connector
            .serve(listener, routes, stop)
            .await
            .expect("serving");
    });
    (address, task)
}

fn boat_at(connector: &Connector, url: &str) -> BoatServiceClient<Channel> {
    BoatServiceClient::new(connector.channel(Role::Boat, url))
}

#[tokio::test]
async fn a_role_is_refused_what_is_not_its_own() {
    let root = Root::new();
    let (address, _task) = start_server(root.service(Role::Boat, HOUR)).await;
    let url = format!("https://{address}");
    for (role, is_permitted) in [
        (Role::Carrier, true),
        (Role::Station, true),
        (Role::Desk, true),
        (Role::Boat, false),
        (Role::Horn, false),
        (Role::Backend, false),
    ] {
        let caller = connector(root.service(role, HOUR));
        let answer = boat_at(&caller, &url).probe(probe("well")).await;
        match answer {
            Ok(_) => assert!(is_permitted, "{role}"),
            Err(status) => {
                assert!(!is_permitted, "{role}: {status}");
                assert_eq!(status.code(), Code::PermissionDenied, "{role}");
            }
        }
    }
    // A stream is refused before it begins.
    let caller = connector(root.service(Role::Station, HOUR));
    let (_sender, receiver) = mpsc::channel::<DeliverBatch>(1);
    let mut station = boat_at(&caller, &url);
    let result = station.deliver(ReceiverStream::new(receiver)).await;
    let status = result.expect_err("only carriers deliver");
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_peer_without_our_certificate_has_no_connection() {
    let root = Root::new();
    let (address, _task) = start_server(root.service(Role::Boat, HOUR)).await;
    let plain = Connector::new(config());
    let stranger = connector(Root::new().service(Role::Carrier, HOUR));
    for (connector, url) in [
        (&plain, format!("http://{address}")),
        (&stranger, format!("https://{address}")),
    ] {
        let answer = boat_at(connector, &url).probe(probe("well")).await;
        let status = answer.expect_err("no connection");
        assert_eq!(status.code(), Code::Unavailable, "{url}: {status}");
    }
    let nowhere = boat_at(&plain, &format!("https://{address}"))
        .probe(probe("well"))
        .await;
    let status = nowhere.expect_err("no identity");
    assert!(status.message().contains("section identity"), "{status}");
    let friend = connector(root.service(Role::Carrier, HOUR));
    let mut friend = boat_at(&friend, &format!("http://{address}"));
    let answer = friend.probe(probe("well")).await;
    answer.expect("with an identity that is required, http is called in TLS");
}

// Threat 6: another role at a boat's address takes no deliveries.
#[tokio::test]
async fn a_service_of_another_role_is_not_called() {
    let root = Root::new();
    let (address, _task) = start_server(root.service(Role::Horn, HOUR)).await;
    let caller = connector(root.service(Role::Carrier, HOUR));
    let answer = boat_at(&caller, &format!("https://{address}"))
        .probe(probe("well"))
        .await;
    assert_eq!(
        answer.expect_err("no boat").code(),
        Code::Unavailable,
        "its name is not the role that was called"
    );
}

#[tokio::test]
async fn while_a_fleet_changes_over_both_kinds_are_taken() {
    let root = Root::new();
    let proof = Proof {
        is_required: false,
        ..(*root.service(Role::Boat, HOUR)).clone()
    };
    let (address, _task) = start_server(Arc::new(proof)).await;
    let plain = Connector::new(config());
    let with_certificate = connector(root.service(Role::Carrier, HOUR));
    for (connector, url) in [
        (&plain, format!("http://{address}")),
        (&with_certificate, format!("http://{address}")),
        (&with_certificate, format!("https://{address}")),
    ] {
        let answer = boat_at(connector, &url).probe(probe("well")).await;
        answer.expect(&url);
    }
    // A certificate limits its bearer, though no certificate at all would not.
    let horn = connector(root.service(Role::Horn, HOUR));
    let answer = boat_at(&horn, &format!("https://{address}"))
        .probe(probe("well"))
        .await;
    assert_eq!(answer.expect_err("a horn").code(), Code::PermissionDenied);
}

#[tokio::test]
async fn in_one_process_the_composition_says_who_calls() {
    let connector = Connector::default();
    let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
    let _guard = connector.serve_in_process("boat", routes);
    for (role, is_permitted) in [(Role::Carrier, true), (Role::Boat, false)] {
        let own = connector.clone().with_caller(Caller::new(role, "a"));
        let answer = boat_at(&own, "inproc:boat").probe(probe("well")).await;
        assert_eq!(answer.is_ok(), is_permitted, "{role}");
    }
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_of_its_peer() {
    let root = Root::new();
    let server = root.service(Role::Boat, LIFE);
    let (address, _task) = start_server(server).await;
    let caller = connector(root.service(Role::Carrier, HOUR));
    let client = boat_at(&caller, &format!("https://{address}"));
    ends_by_itself(&client).await;
    // The next connection has a handshake of its own.
    in_a_life(async || client.clone().probe(probe("well")).await).await;
}

/// Rest of a certificate that ends soon.
const LIFE: Duration = Duration::from_millis(300);

/// Repeats a call that is refused because, on a busy machine, its connection ended before it.
async fn in_a_life<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    loop {
        let start = Instant::now();
        match call().await {
            Ok(answer) => return answer,
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(start.elapsed() >= LIFE, "{status}");
            }
        }
    }
}

/// Opens a stream, and waits for the end of its connection.
async fn ends_by_itself(client: &BoatServiceClient<Channel>) {
    let (_sender, mut outcomes) = in_a_life(async || {
        let (sender, receiver) = mpsc::channel::<DeliverBatch>(1);
        let answer = client.clone().deliver(ReceiverStream::new(receiver)).await;
        Ok((sender, answer?.into_inner()))
    })
    .await;
    let status = timeout(LONG_ENOUGH, outcomes.message()).await;
    let status = status.expect("an end").expect_err("it has ended");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

// The server saw the end of its caller's certificate, and the caller not that of the server's.
#[tokio::test]
async fn a_caller_leaves_a_server_whose_certificate_has_ended() {
    let root = Root::new();
    let (address, _task) = start_server(root.service(Role::Boat, HOUR)).await;
    let caller = connector(root.service(Role::Carrier, LIFE));
    let client = boat_at(&caller, &format!("https://{address}"));
    ends_by_itself(&client).await;
    in_a_life(async || client.clone().probe(probe("well")).await).await;
}

/// Retires the root of its peers on demand.
struct Fickle {
    proof: Arc<Proof>,
    looks: Arc<AtomicUsize>,
    has_retired: Arc<AtomicBool>,
}

impl Identity for Fickle {
    fn accepting(&self) -> Arc<ServerConfig> {
        self.proof.accepting()
    }

    fn calling(&self, role: Role) -> Arc<ClientConfig> {
        self.proof.calling(role)
    }

    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)> {
        self.proof.peer(certificate)
    }

    fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        assert_eq!(chain.len(), 1);
        self.looks.fetch_add(1, Ordering::SeqCst);
        !self.has_retired.load(Ordering::SeqCst)
    }

    fn required(&self) -> bool {
        true
    }
}

// A thief with a certificate of a retired root stayed for the rest of the certificate's life.
#[tokio::test]
async fn a_connection_ends_whose_root_was_retired() {
    for is_servers in [true, false] {
        let root = Root::new();
        let (looks, has_retired) = (Arc::default(), Arc::default());
        let fickle = |proof: Arc<Proof>, fickle: bool| -> Arc<dyn Identity> {
            if fickle {
                Arc::new(Fickle {
                    proof,
                    looks: Arc::clone(&looks),
                    has_retired: Arc::clone(&has_retired),
                })
            } else {
                proof
            }
        };
        let quick = Config {
            connection_age: Duration::from_millis(40),
            ..config()
        };
        let server = fickle(root.service(Role::Boat, HOUR), is_servers);
        let server = Connector::new(quick.clone()).with_identity(server);
        let caller = fickle(root.service(Role::Carrier, HOUR), !is_servers);
        let caller = Connector::new(quick).with_identity(caller);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
        let _server_task = tokio::spawn(async move {
            let stop = CancellationToken::new();
            server.serve(listener, routes, stop).await
        });
        let mut client = boat_at(&caller, &format!("https://{address}"));
        let (sender, receiver) = mpsc::channel(4);
        let answer = client.deliver(ReceiverStream::new(receiver)).await;
        let mut outcomes = answer.expect("opened").into_inner();
        let start = Instant::now();
        while looks.load(Ordering::SeqCst) < 3 {
            assert!(start.elapsed() < LONG_ENOUGH, "nobody looks");
            sender.send(batch("well", [1])).await.expect("open");
            let answer = outcomes.message().await.expect("well").expect("open");
            assert_eq!(tokens(answer), [1]);
        }
        has_retired.store(true, Ordering::SeqCst);
        let status = timeout(LONG_ENOUGH, outcomes.message()).await;
        let status = status.expect("an end").expect_err("it has ended");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

// Every call succeeds while connections are left behind, and open streams stay on theirs.
#[tokio::test]
async fn connections_that_are_old_are_left_without_haste() {
    let root = Root::new();
    let proof = ConnectionCounter {
        proof: root.service(Role::Boat, HOUR),
        handshakes: Arc::default(),
    };
    let handshakes = Arc::clone(&proof.handshakes);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
    let server = Connector::new(config()).with_identity(Arc::new(proof));
    let _server_task = tokio::spawn(async move {
        let stop = CancellationToken::new();
        server.serve(listener, routes, stop).await
    });
    let age = Duration::from_millis(40);
    let quick = Config {
        connection_age: age,
        ..config()
    };
    let caller = Connector::new(quick).with_identity(root.service(Role::Carrier, HOUR));
    let start = Instant::now();
    let client = boat_at(&caller, &format!("https://{address}"));
    let (sender, receiver) = mpsc::channel(4);
    let mut stream_client = client.clone();
    let answer = stream_client.deliver(ReceiverStream::new(receiver)).await;
    let mut outcomes = answer.expect("opened").into_inner();
    while handshakes.load(Ordering::SeqCst) < 12 {
        assert!(start.elapsed() < LONG_ENOUGH, "connections stay");
        let mut calls = (client.clone(), client.clone());
        let (one, other) = tokio::join!(calls.0.probe(probe("well")), calls.1.probe(probe("well")));
        one.expect("answered");
        other.expect("answered");
        sender.send(batch("well", [1])).await.expect("open");
        let answer = outcomes.message().await.expect("well").expect("open");
        assert_eq!(tokens(answer), [1]);
    }
    // At their age, ten percent more or less.
    let handshake_count = handshakes.load(Ordering::SeqCst) as f64;
    let limit = 1.0 + start.elapsed().div_duration_f64(age.mul_f64(0.9));
    assert!(
        handshake_count <= limit,
        "{handshake_count} connections, of {limit}"
    );
}

/// Counts accepted connections.
struct ConnectionCounter {
    proof: Arc<Proof>,
    handshakes: Arc<AtomicUsize>,
}

impl Identity for ConnectionCounter {
    fn accepting(&self) -> Arc<ServerConfig> {
        self.handshakes.fetch_add(1, Ordering::SeqCst);
        self.proof.accepting()
    }

    fn calling(&self, role: Role) -> Arc<ClientConfig> {
        self.proof.calling(role)
    }

    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)> {
        self.proof.peer(certificate)
    }

    fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.proof.trusts(chain)
    }

    fn required(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_handshake_times_out_after_five_seconds() {
    let (address, _task) = start_server(Root::new().service(Role::Boat, HOUR)).await;
    let mut silent = TcpStream::connect(address).await.expect("listens");
    let start = Instant::now();
    let _ = silent.read_to_end(&mut Vec::new()).await;
    let duration = start.elapsed();
    let expected = Duration::from_secs(5)..Duration::from_secs(6);
    assert!(expected.contains(&duration), "{duration:?}");
}

#[tokio::test]
async fn silent_peers_keep_back_no_other() {
    let root = Root::new();
    let (address, _task) = start_server(root.service(Role::Boat, HOUR)).await;
    let caller = connector(root.service(Role::Carrier, HOUR));
    let is_answered_meanwhile = async || {
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(TcpStream::connect(address).await.expect("listens"));
        }
        let mut client = boat_at(&caller, &format!("https://{address}"));
        client.probe(probe("well")).await.expect("answered");
        let is_there = |peer: &TcpStream| {
            let read = peer.try_read(&mut [0]);
            read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        silent.iter().all(is_there)
    };
    // On a busy machine the silent ones may be given up first: that proves nothing.
    let start = Instant::now();
    while !is_answered_meanwhile().await {
        assert!(start.elapsed() < LONG_ENOUGH, "only after the silent ones");
    }
}

// A forged send without a certificate: no connection. A boat's and a carrier's at Kickout: refused.
#[tokio::test]
async fn a_station_takes_sends_of_boats_alone() {
    let connector = Connector::default();
    let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
    let _guard = connector.serve_in_process("station", routes);
    for role in Role::ALL {
        let own = connector.clone().with_caller(Caller::new(role, "a"));
        let channel = own.channel(Role::Station, "inproc:station");
        let mut client = StationServiceClient::new(channel);
        let send_result = client.send_batch(SendBatchRequest::default()).await;
        let kick_result = client.kickout(KickoutRequest::default()).await;
        // No such service on this server: a permitted call finds nothing.
        let code = |is_permitted| {
            if is_permitted {
                Code::Unimplemented
            } else {
                Code::PermissionDenied
            }
        };
        let send_result = send_result.expect_err("no service").code();
        assert_eq!(send_result, code(role == Role::Boat), "{role}");
        let kick_result = kick_result.expect_err("no service").code();
        let may_kick = matches!(role, Role::Station | Role::Backend | Role::Desk);
        assert_eq!(kick_result, code(may_kick), "{role}");
    }
}

impl Pair {
    pub(super) async fn proved() -> Pair {
        let root = Root::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let boat = Obedient::default();
        let routes = Routes::new(BoatServiceServer::new(boat.clone()));
        let server = connector(root.service(Role::Boat, HOUR));
        let task = tokio::spawn(async move {
            let stop = CancellationToken::new();
            server.serve(listener, routes, stop).await.expect("serving");
        });
        let url = connector(root.service(Role::Boat, HOUR)).url(address);
        let caller = connector(root.service(Role::Carrier, HOUR));
        Pair {
            channel: caller.channel(Role::Boat, &url),
            boat,
            server: TestServer::Far { task, address },
        }
    }
}
