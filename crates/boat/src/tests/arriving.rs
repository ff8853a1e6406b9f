//! Arrival of a session: through balancers and TLS, within limits.

use std::cell::Cell;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::v1::outcome::Kind;
use backend::tls::{CertificateFiles, TlsConfig, client_config};
use protocol::Code;
use protocol::frame::{ClientFrame, Hello, ServerFrame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite;

use super::client::{Client, hello, text_send};
use super::counting::{Counts, harbour_with_counts};
use super::delivering::{Stream, delivery};
use super::harbour::{Harbour, settle};
use super::piping::websocket_pipe;
use super::{TEST_TIMEOUT, eventually};
use crate::Config;
use crate::config::ProxyHeader;

const NAME: &str = "boat.test";

fn count(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("not zero")
}

/// A certificate for `NAME` and its key, as files.
fn certificate(directory: &Path) -> CertificateFiles {
    let certificate = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    let files = CertificateFiles::within(directory, "boat");
    let result = files.write(
        &certificate.cert.pem(),
        &certificate.signing_key.serialize_pem(),
    );
    result.expect("writes");
    files
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("connects")
}

async fn tls(
    address: SocketAddr,
    files: &CertificateFiles,
    alpn: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = client_config(Some(&files.cert_file), &[alpn]).expect("a certificate");
    let name = NAME.try_into().expect("a name");
    let connector = TlsConnector::from(config);
    connector.connect(name, connect(address).await).await
}

/// Exchanges frames both ways, and expects an announced end.
async fn is_served(mut client: Client, harbour: &Harbour, user: i64) {
    let welcome = client.hello(user).await;
    assert_eq!(welcome.user.get(), user);
    client.ping().await;
    drop(client);
    eventually("signed off", || harbour.handle.connections() == 0).await;
}

// proves S3-03 in part: the boat's own server speaks TLS on both ports.
#[tokio::test]
async fn clients_speak_tls_on_both_ports() {
    let directory = tempfile::tempdir().expect("a folder");
    let files = certificate(directory.path());
    let harbour = Harbour::with(|config| {
        config.tls = TlsConfig {
            certificates: vec![files.clone()],
            ..TlsConfig::default()
        };
    })
    .await;
    let (websocket, tcp) = (harbour.handle.websocket(), harbour.handle.tcp());

    let stream = tls(websocket, &files, b"http/1.1").await.expect("TLS");
    let client = Client::websocket_over(stream, &[]).await.expect("upgrades");
    is_served(client, &harbour, 1).await;

    let stream = tls(tcp, &files, b"packetboat.v1").await.expect("TLS");
    is_served(Client::tcp_over(stream), &harbour, 2).await;

    // A connection ends in order: with the last frame, and with a close that marks it as the last.
    let stream = tls(tcp, &files, b"packetboat.v1").await.expect("TLS");
    let mut client = Client::tcp_over(stream);
    let token = "forged".into();
    client
        .send(&ClientFrame::Hello(Hello { token, ..hello(3) }))
        .await;
    assert_eq!(client.closing().await, Some(Code::Unauthenticated));
    let Client::Tcp(connection) = &mut client else {
        panic!("TCP");
    };
    let end = connection.get_mut().read(&mut [0; 16]).await;
    assert_eq!(end.expect("close_notify, not a cut"), 0);

    tls(websocket, &files, b"h2")
        .await
        .expect_err("not a protocol of ours");
    // Plaintext is answered with an alert, and counts as no client.
    let mut plain = connect(tcp).await;
    plain.write_all(b"\x05hello").await.expect("writes");
    let mut alert = Vec::new();
    let _ = plain.read_to_end(&mut alert).await;
    assert_eq!(alert.first(), Some(&0x15));
    assert_eq!(harbour.handle.connections(), 0);
}

fn behind_balancer(header: ProxyHeader) -> impl FnOnce(&mut Config) {
    move |config: &mut Config| {
        config.proxy.header = header;
        config.proxy.networks = vec!["127.0.0.0/8".parse().expect("a network")];
        config.connections_per_address_max = Some(1);
    }
}

/// A PROXY header of version 2 from this address.
fn proxy_header(last: u8) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
    header.extend([203, 0, 113, last, 127, 0, 0, 1, 0x12, 0x34, 0x23, 0x28]);
    header
}

/// The header is there before the boat, which waits for it two seconds, sees the connection.
fn connect_proxied(address: SocketAddr, last: u8) -> TcpStream {
    let mut stream = std::net::TcpStream::connect(address).expect("connects");
    stream.write_all(&proxy_header(last)).expect("writes");
    stream.set_nonblocking(true).expect("a socket");
    TcpStream::from_std(stream).expect("a socket")
}

// proves S1-05 in part: the limits of an address are those of the client, not of the balancer.
#[tokio::test]
async fn a_balancer_names_its_clients_before_their_bytes() {
    let harbour = Harbour::with(behind_balancer(ProxyHeader::ProxyV2)).await;
    let (websocket, tcp) = (harbour.handle.websocket(), harbour.handle.tcp());
    let mut first = Client::tcp_over(connect_proxied(tcp, 7));
    first.hello(1).await;
    let mut second = Client::tcp_over(connect_proxied(tcp, 7));
    assert_eq!(second.closing().await, Some(Code::RateLimited));
    let other = connect_proxied(websocket, 8);
    let mut other = Client::websocket_over(other, &[]).await.expect("upgrades");
    other.hello(2).await;
    first.ping().await;
    let peers: Vec<_> = (harbour.peer.connects.lock().iter())
        .map(|connect| connect.peer.clone())
        .collect();
    assert_eq!(peers, ["203.0.113.7:4660", "203.0.113.8:4660"]);

    // Without a header there is no client: it cannot be left out.
    let mut bare = connect(tcp).await;
    bare.write_all(b"\x05hello, and more than a header")
        .await
        .expect("writes");
    assert_eq!(bare.read(&mut [0; 16]).await.unwrap_or(0), 0);
    assert_eq!(harbour.handle.connections(), 2);
}

#[tokio::test]
async fn the_head_of_a_request_may_name_the_client() {
    let harbour = Harbour::with(behind_balancer(ProxyHeader::XForwardedFor)).await;
    let address = harbour.handle.websocket();
    let connect_from = async |value: &str| {
        let headers = [("X-Forwarded-For", value)];
        Client::websocket_over(connect(address).await, &headers).await
    };
    let mut first = connect_from("10.9.9.9, 203.0.113.7, 127.0.0.2")
        .await
        .expect("upgrades");
    first.hello(1).await;
    let mut second = connect_from("203.0.113.7").await.expect("upgrades");
    assert_eq!(second.closing().await, Some(Code::RateLimited));
    let mut other = connect_from("203.0.113.8").await.expect("upgrades");
    other.hello(2).await;
    let peer = harbour.peer.connects.lock()[0].peer.clone();
    assert_eq!(peer, "203.0.113.7:0");
    for headers in [&[][..], &[("X-Forwarded-For", "unknown")]] {
        let result = Client::websocket_over(connect(address).await, headers).await;
        let Err(tungstenite::Error::Http(response)) = result else {
            panic!("a balancer that names nobody");
        };
        assert_eq!(response.status(), 400);
    }
}

#[tokio::test]
async fn proxy_headers_of_untrusted_networks_are_not_believed() {
    let harbour = Harbour::with(|config| {
        behind_balancer(ProxyHeader::ProxyV2)(config);
        config.proxy.networks = vec!["198.51.100.0/24".parse().expect("a network")];
    })
    .await;
    // A client sent the header: it is no valid frame.
    let mut client = Client::tcp_over(connect_proxied(harbour.handle.tcp(), 7));
    assert!(client.closing().await.is_some());
    assert!(harbour.peer.connects.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn silent_clients_of_one_network_give_way_to_its_next_ones() {
    let counts = Counts::default();
    // Two silent clients of one network.
    let (harbour, _recorder) =
        harbour_with_counts(&counts, |config| config.arriving_max = 32).await;
    let harbour = harbour.through_pipes();
    let mut admitted_client = harbour.tcp().await;
    admitted_client.hello(1).await;
    // One at each stage.
    let mut silent = harbour.tcp().await;
    let mut head = websocket_pipe(&harbour);
    head.write_all(b"GET /ws HTTP/1.1\r\n")
        .await
        .expect("writes");
    // Begins to be served.
    settle().await;
    let mut third = harbour.tcp().await;
    assert_eq!(silent.closing().await, Some(Code::HandshakeTimeout));
    let mut fourth = harbour.tcp().await;
    let mut end = Vec::new();
    let read_result = timeout(Duration::from_secs(1), head.read_to_end(&mut end)).await;
    let _ = read_result.expect("closed");
    assert_eq!(counts.limit("arriving_silent"), 2);
    for (client, user) in [(&mut third, 2), (&mut fourth, 3)] {
        client.hello(user).await;
    }
    admitted_client.ping().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_not_waited_for_for_ever() {
    let arrival_timeout = Duration::from_millis(500);
    let harbour = Harbour::piped(|config| config.arrival_timeout = arrival_timeout).await;
    let mut silent = harbour.tcp().await;
    let mut head = websocket_pipe(&harbour);
    head.write_all(b"GET /ws HTTP/1.1\r\n")
        .await
        .expect("writes");
    assert_eq!(silent.closing().await, Some(Code::HandshakeTimeout));
    let mut end = Vec::new();
    let read_result = timeout(Duration::from_secs(2), head.read_to_end(&mut end)).await;
    let _ = read_result.expect("closed");
}

#[tokio::test]
async fn strangers_wait_in_the_kernel_until_there_is_room() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |config| config.arriving_max = 1).await;
    let mut admitted_client = harbour.tcp().await;
    admitted_client.hello(1).await;
    // It has said who it is, and waits for its station.
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    let mut newcomer = harbour.tcp().await;
    newcomer.send(&ClientFrame::Hello(hello(2))).await;
    eventually("asked", || {
        harbour.peer.held_count.load(Ordering::Relaxed) == 1
    })
    .await;
    let mut next = harbour.tcp().await;
    next.send(&ClientFrame::Hello(hello(3))).await;
    eventually("it waits", || counts.limit("arriving") > 0).await;
    admitted_client.ping().await;
    assert_eq!(harbour.handle.sessions(), 1);
    harbour.peer.holds_calls.store(false, Ordering::Relaxed);
    harbour.peer.permits.add_permits(1);
    for client in [&mut newcomer, &mut next] {
        let welcome = client.next().await;
        assert!(
            matches!(welcome, Some(ServerFrame::Welcome(_))),
            "{welcome:?}"
        );
    }
}

/// A client that reads and writes without a pause delays none of its loop, of which this test has
/// one.
#[tokio::test]
async fn a_client_that_never_stops_delays_no_other() {
    let harbour = Harbour::with(|config| config.session.frames_per_second = 1_000_000).await;
    let (mut busy, mut other) = (harbour.tcp().await, harbour.tcp().await);
    busy.hello(1).await;
    other.hello(2).await;
    let pings = vec![ClientFrame::Ping { nonce: 1 }; 2000];
    let pong_count = Cell::new(0);
    let endless = async {
        loop {
            for ping in &pings {
                busy.send(ping).await;
            }
            for _ in &pings {
                busy.next().await;
                pong_count.set(pong_count.get() + 1);
            }
        }
    };
    let other_pings = async {
        for _ in 0..20 {
            other.ping().await;
        }
    };
    tokio::select! {
        biased;
        // The endless client uses up its budget of the runtime's turn.
        other_pings = timeout(TEST_TIMEOUT, other_pings) => other_pings.expect("served meanwhile"),
        () = endless => {}
    }
    // Nor for long: the other gets an answer at least each thousand of these.
    let pong_count = pong_count.get();
    assert!(pong_count < 20_000, "{pong_count} meanwhile");
}

// proves S1-05 in part
#[tokio::test(start_paused = true)]
async fn a_client_that_sends_too_much_is_read_slowly() {
    const SENDS: u8 = 25;
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |config| {
        config.read_bytes_per_second = count(100_000);
        config.read_bytes_burst = count(20_000);
    })
    .await;
    let harbour = harbour.through_pipes();
    let mut other = harbour.tcp().await;
    other.hello(1).await;
    let mut client = harbour.websocket().await;
    client.hello(2).await;
    let start = Instant::now();
    let text = "a".repeat(10_000);
    for number in 0..SENDS {
        client.send(&text_send(1, number, &text)).await;
    }
    other.ping().await;
    let ping_time = start.elapsed();
    assert!(ping_time < Duration::from_millis(500), "{ping_time:?}");
    for _ in 0..SENDS {
        let answer = client.next().await;
        assert!(
            matches!(answer, Some(ServerFrame::Accepted(_))),
            "{answer:?}"
        );
    }
    // All bytes but a burst and one read pass at the rate.
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1500), "{took:?}");
    assert!(counts.limit("session_bytes") > 0);
}

/// An acknowledgement may stand behind bytes whose reading pauses: it counts as in time.
#[tokio::test(start_paused = true)]
async fn no_time_is_judged_while_reading_pauses() {
    const SENDS: u8 = 25;
    let harbour = Harbour::piped(|config| {
        config.read_bytes_per_second = count(100_000);
        config.read_bytes_burst = count(20_000);
        config.session.ack_wait = Duration::from_millis(300);
    })
    .await;
    let mut client = harbour.websocket().await;
    let session = client.hello(2).await.session.get();
    let text = "a".repeat(10_000);
    for number in 0..SENDS {
        client.send(&text_send(1, number, &text)).await;
    }
    let mut stream = Stream::open(&harbour).await;
    stream.deliver(vec![delivery(session, 1)]).await;
    let mut answers = 0;
    while answers < SENDS {
        match client.next().await.expect("a frame") {
            ServerFrame::Message(_) => client.received(1).await,
            ServerFrame::Accepted(_) => answers += 1,
            _ => {}
        }
    }
    assert_eq!(stream.outcomes(1).await, [(1, Kind::Done)]);
    client.ping().await;
}

#[tokio::test(start_paused = true)]
async fn arrivals_of_an_address_have_a_rate() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |config| {
        config.arrivals_per_address = Some(count(1));
        config.arrivals_per_address_burst = Some(count(3));
    })
    .await;
    let harbour = harbour.through_pipes();
    let mut clients = harbour.crew(1..=3).await;
    // Dropped before any frame.
    assert!(harbour.tcp().await.next().await.is_none());
    assert_eq!(counts.limit("arrivals_per_address"), 1);
    for client in &mut clients {
        client.ping().await;
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    harbour.tcp().await.hello(4).await;
}

#[tokio::test]
async fn sign_ins_that_fail_often_reach_no_station() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |config| {
        config.sign_in_failures_per_address = Some(count(1));
        config.sign_in_failures_per_address_burst = Some(count(2));
    })
    .await;
    let mut admitted_client = harbour.tcp().await;
    admitted_client.hello(1).await;
    let forged_hello = || {
        let token = "forged".into();
        ClientFrame::Hello(Hello { token, ..hello(2) })
    };
    let mut codes = Vec::new();
    for _ in 0..3 {
        let mut client = harbour.tcp().await;
        client.send(&forged_hello()).await;
        codes.push(client.closing().await.expect("a code"));
    }
    assert_eq!(
        codes,
        [
            Code::Unauthenticated,
            Code::Unauthenticated,
            Code::RateLimited
        ]
    );
    let connects = harbour.peer.connects.lock().len();
    let mut client = harbour.tcp().await;
    client.send(&ClientFrame::Hello(hello(3))).await;
    assert_eq!(client.closing().await, Some(Code::RateLimited));
    assert_eq!(harbour.peer.connects.lock().len(), connects);
    assert_eq!(counts.limit("sign_in_failures_per_address"), 2);
    // The client aboard is not affected.
    admitted_client.ping().await;
}
