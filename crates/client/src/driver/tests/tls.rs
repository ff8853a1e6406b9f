//! TLS against a rustls server, and the texts users read when it fails.

use std::net::SocketAddr;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::boat::Doors;
use super::*;

/// Self-signed certificate.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn until(names: &[&str], end_year: i32) -> Identity {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        let name = format!("signer {end_year}");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(end_year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Identity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        }
    }

    fn for_names(names: &[&str]) -> Identity {
        Identity::until(names, 2100)
    }

    fn trust(&self) -> Arc<rustls::ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a root");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }

    fn door(&self, protocol: &str) -> TlsAcceptor {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .expect("an identity");
        config.alpn_protocols = vec![protocol.into()];
        Arc::new(config).into()
    }

    async fn boat(&self) -> Boat {
        let doors = Doors {
            websocket: self.door("http/1.1"),
            tcp: self.door("packetboat.v1"),
        };
        Boat::start_behind(Some(doors)).await
    }
}

fn secure(identity: &Identity, url: String, user: i64) -> ClientConfig {
    ClientConfig {
        tls: Some(identity.trust()),
        ..config(url, user)
    }
}

fn wss(boat: &Boat) -> String {
    format!("wss://{}/ws", boat.websocket)
}

fn tls(boat: &Boat) -> String {
    format!("tls://{}", boat.tcp)
}

/// Reason for there being no connection.
async fn failure_text(config: ClientConfig) -> String {
    let (client, _events) = Client::connect(config).await.expect("started");
    let mut state = client.state();
    let state_change =
        state.wait_for(|state| matches!(state, ConnectionState::Reconnecting { .. }));
    let state_change = timeout(TEST_TIMEOUT, state_change).await.expect("in time");
    match &*state_change.expect("the client lives") {
        ConnectionState::Reconnecting { why, .. } => {
            assert_eq!(why.code, Code::Unavailable);
            why.text.clone()
        }
        state => panic!("{state:?}"),
    }
}

// proves S1-06 in part: the reference client uses it, over both transports.
#[tokio::test]
async fn tls_works_on_both_transports_and_after_a_reconnect() {
    let identity = Identity::for_names(&["127.0.0.1"]);
    let boat = identity.boat().await;
    let (alice, _events) = start(secure(&identity, wss(&boat), 1)).await;
    let (bob, mut bob_events) = start(secure(&identity, tls(&boat), 2)).await;
    for (number, text) in ["hello", "again"].into_iter().enumerate() {
        let mut ticket = say(&alice, 2, text).await;
        ticket.accepted().await.expect("accepted");
        assert_eq!(next_texts(&mut bob_events, 1).await, [text]);
        let mut answer = say(&bob, 1, "yes").await;
        answer.accepted().await.expect("accepted");
        assert_eq!(next_texts(&mut bob_events, 1).await, ["yes"]);
        timeout(TEST_TIMEOUT, ticket.delivered())
            .await
            .expect("in time")
            .expect("delivered");
        boat.drop_connections();
        until("both are back", || boat.hellos() == 2 * (number + 2)).await;
    }
}

#[tokio::test]
async fn names_are_checked_not_only_addresses() {
    let identity = Identity::for_names(&["localhost"]);
    let boat = identity.boat().await;
    let url = format!("wss://localhost:{}/", boat.websocket.port());
    start(secure(&identity, url, 1)).await;
}

#[tokio::test]
async fn a_certificate_of_somebody_else_says_how_to_trust_it() {
    let boat = Identity::for_names(&["127.0.0.1"]).boat().await;
    let namesake = Identity::for_names(&["127.0.0.1"]);
    let stranger = Identity::until(&["127.0.0.1"], 2101);
    for (other, url) in [
        (&stranger, wss(&boat)),
        (&stranger, tls(&boat)),
        (&namesake, tls(&boat)),
    ] {
        let why = failure_text(secure(other, url, 1)).await;
        assert!(
            why.starts_with("the certificate of 127.0.0.1 is not trusted"),
            "{why}"
        );
        assert!(why.contains("--ca-file"), "{why}");
    }
    assert_eq!(boat.hellos(), 0);
}

#[tokio::test]
async fn a_certificate_for_another_name_says_whose_it_is() {
    let identity =
        Identity::for_names(&["boat.example", "*.boat.example", "10.0.0.7", "d.example"]);
    let boat = identity.boat().await;
    let why = failure_text(secure(&identity, wss(&boat), 1)).await;
    let wanted = "the certificate is for boat.example, *.boat.example, 10.0.0.7, not for \
                  127.0.0.1: use a URL with one of its names";
    assert_eq!(why, wanted);
    assert_eq!(boat.hellos(), 0);
}

#[tokio::test]
async fn a_certificate_that_has_ended_says_so() {
    let identity = Identity::until(&["127.0.0.1"], 2020);
    let boat = identity.boat().await;
    let why = failure_text(secure(&identity, tls(&boat), 1)).await;
    assert!(
        why.contains("the certificate of 127.0.0.1 has expired"),
        "{why}"
    );
}

#[tokio::test]
async fn the_other_port_is_told_from_the_right_one() {
    let identity = Identity::for_names(&["127.0.0.1"]);
    let boat = identity.boat().await;
    for url in [
        format!("wss://{}", boat.tcp),
        format!("tls://{}", boat.websocket),
    ] {
        let why = failure_text(secure(&identity, url, 1)).await;
        assert!(why.contains("speaks another protocol"), "{why}");
    }
}

/// Listener that answers each connection with these bytes and keeps it open, or ends it without
/// any.
async fn listener(answer: Option<&'static [u8]>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut sockets = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            if let Some(answer) = answer {
                socket.write_all(answer).await.expect("written");
                sockets.push(socket);
            }
        }
    });
    address
}

#[tokio::test]
async fn plain_listener_is_reported_and_a_silent_one_times_out() {
    let identity = Identity::for_names(&["127.0.0.1"]);
    let plain = listener(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let why = failure_text(secure(&identity, format!("wss://{plain}"), 1)).await;
    assert!(why.contains("does not speak TLS"), "{why}");

    let silent = listener(Some(b"")).await;
    for scheme in ["wss", "tls"] {
        let mut config = secure(&identity, format!("{scheme}://{silent}"), 1);
        config.connect_timeout = Duration::from_millis(200);
        assert_eq!(failure_text(config).await, "connecting timed out");
    }

    let absent = listener(None).await;
    let why = failure_text(secure(&identity, format!("tls://{absent}"), 1)).await;
    assert!(why.contains("TLS"), "{why}");
}

#[tokio::test]
async fn an_address_with_tls_needs_somebody_to_trust() {
    for url in ["wss://boat.example/ws", "tls://boat.example:9001"] {
        let result = Client::connect(config(url.to_owned(), 1)).await;
        assert!(matches!(result, Err(ConnectError::Trust(_))), "{url}");
    }
    let identity = Identity::for_names(&["127.0.0.1"]);
    let odd = secure(&identity, format!("wss://{}/", "a".repeat(300)), 1);
    let result = Client::connect(odd).await;
    assert!(matches!(result, Err(ConnectError::Host(_))));
}
