use std::time::Duration;

use protocol::Code;
use protocol::frame::{ClientFrame, Hello, ServerFrame};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::client::{Client, hello};
use super::counting::{Counts, harbour_with_counts};
use super::harbour::Harbour;
use super::piping::{tcp_pipe, websocket_pipe};
use super::{TEST_TIMEOUT, eventually};
use crate::Config;

// proves S1-59: the station hears of every session, when it comes and when it goes.
#[tokio::test]
async fn a_client_is_admitted_and_signed_off_on_either_link() {
    let harbour = Harbour::open().await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        let welcome = client.hello(user).await;
        assert_eq!(welcome.user.get(), user);
        client.ping().await;
        assert_eq!(harbour.handle.sessions(), 1);
        drop(client);
        eventually("signed off", || {
            let sign_offs = harbour.peer.disconnects.lock();
            sign_offs
                .iter()
                .any(|key| key.session == welcome.session.get() && key.user == user)
        })
        .await;
        assert_eq!(harbour.handle.sessions(), 0);
    }
    assert_eq!(harbour.handle.connections(), 0);
    let connects = harbour.peer.connects.lock();
    assert_eq!(connects.len(), 2);
    assert!(
        connects
            .iter()
            .all(|connect| connect.peer.starts_with("127.0.0.1:"))
    );
}

#[tokio::test]
async fn a_station_that_says_no_is_heard_and_so_is_its_absence() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        let token = "forged".into();
        client
            .send(&ClientFrame::Hello(Hello { token, ..hello(1) }))
            .await;
        assert_eq!(client.closing().await, Some(Code::Unauthenticated));
    }
    harbour
        .peer
        .is_down
        .store(true, std::sync::atomic::Ordering::Relaxed);
    for mut client in harbour.both().await {
        client.send(&ClientFrame::Hello(hello(1))).await;
        assert_eq!(client.closing().await, Some(Code::Unavailable));
    }
    assert!(harbour.peer.disconnects.lock().is_empty());
}

// proves S1 Pitfall J.
#[tokio::test]
async fn a_client_that_goes_while_the_station_is_asked_is_signed_off() {
    let harbour = Harbour::open().await;
    harbour
        .peer
        .holds_calls
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let mut client = harbour.tcp().await;
    client.send(&ClientFrame::Hello(hello(5))).await;
    eventually("arrived", || harbour.handle.connections() == 1).await;
    drop(client);
    eventually("gone", || harbour.handle.connections() == 0).await;
    harbour.peer.permits.add_permits(1);
    eventually("signed off", || harbour.peer.disconnects.lock().len() == 1).await;
    assert_eq!(harbour.handle.sessions(), 0);
}

// proves S1-05 in part: beyond the limit a connection is told so, with the code of a full boat.
#[tokio::test]
async fn a_full_boat_says_so() {
    let counts = Counts::default();
    let (harbour, _recorder) =
        harbour_with_counts(&counts, |config| config.connections_max = 1).await;
    let mut admitted_client = harbour.tcp().await;
    admitted_client.hello(1).await;
    for mut client in harbour.both().await {
        assert_eq!(client.closing().await, Some(Code::Full));
    }
    let mut client = harbour.websocket().await;
    assert_eq!(client.close_code().await, Some(Code::Full.number()));
    assert_eq!(counts.limit("connections"), 3);
    admitted_client.ping().await;
    drop(admitted_client);
    eventually("a seat is free", || harbour.handle.connections() == 0).await;
    harbour.websocket().await.hello(2).await;
}

/// Threads of this process, those of other tests included.
fn threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task");
    threads.expect("Linux").count()
}

// proves S3-02: a server of its own on asynchronous sockets: one thread, that of this test, serves all who are there, the
// last one as soon as the first.
#[tokio::test]
async fn one_thread_serves_many_websockets() {
    const CLIENTS: i64 = 200;
    let harbour = Harbour::open().await;
    let old_count = threads();
    let mut clients = Vec::new();
    for user in 1..=CLIENTS {
        let mut client = harbour.websocket().await;
        client.hello(user).await;
        clients.push(client);
    }
    assert_eq!(harbour.handle.sessions() as i64, CLIENTS);
    let new_threads = threads().saturating_sub(old_count);
    assert!(
        new_threads < CLIENTS as usize / 2,
        "{new_threads} threads more"
    );
    for client in clients.iter_mut().rev() {
        client.ping().await;
    }
}

#[tokio::test]
async fn one_address_does_not_take_all_seats() {
    let counts = Counts::default();
    let one = |config: &mut Config| config.connections_per_address_max = Some(1);
    let (harbour, _recorder) = harbour_with_counts(&counts, one).await;
    let mut admitted_client = harbour.websocket().await;
    admitted_client.hello(1).await;
    assert_eq!(harbour.tcp().await.closing().await, Some(Code::RateLimited));
    assert_eq!(counts.limit("connections_per_address"), 1);
    admitted_client.ping().await;
}

#[tokio::test]
async fn a_websocket_without_our_subprotocol_is_refused() {
    let harbour = Harbour::open().await;
    let requests = [
        "GET / HTTP/1.1\r\nHost: boat\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: boat\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: boat\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n\r\n",
    ];
    for request in requests {
        let mut stream = TcpStream::connect(harbour.handle.websocket())
            .await
            .expect("connects");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = [0; 64];
        let read_count = stream.read(&mut answer).await.expect("reads");
        let answer = String::from_utf8_lossy(&answer[..read_count]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}

/// The first bytes of the answer; empty if the connection ends without one.
async fn answer(harbour: &Harbour, request: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(harbour.handle.websocket()).await;
    let mut stream = stream.expect("connects");
    stream.write_all(request).await.expect("writes");
    let mut answer = vec![0; 256];
    let read_result = timeout(TEST_TIMEOUT, stream.read(&mut answer)).await;
    answer.truncate(read_result.expect("an answer or an end").unwrap_or(0));
    answer
}

// Over HTTP/2 one TCP connection carried 190 WebSockets on one seat, by extended CONNECT.
#[tokio::test]
async fn http_2_is_refused_on_the_websocket_port() {
    let harbour = Harbour::open().await;
    // The preface of RFC 9113 and an empty SETTINGS frame; in the second case with a WebSocket
    // request right behind it.
    let mut bare = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bare.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let preface_with_connect = [bare.clone(), extended_connect()].concat();
    for request in [bare, preface_with_connect] {
        let answer = answer(&harbour, &request).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || text.starts_with("HTTP/1.1 4"),
            "{answer:?}"
        );
        assert_eq!(harbour.handle.connections(), 0);
    }
}

/// HEADERS of RFC 8441 on stream 1: HPACK literals without an index, as a client sends them.
fn extended_connect() -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/ws"),
        (":authority", "localhost"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "packetboat.v1"),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let head = [0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1];
    [&head[..], &block].concat()
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused() {
    let upgrade = |origin: &str| {
        format!(
            "GET /ws HTTP/1.1\r\nHost: localhost:9000\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: packetboat.v1\r\nOrigin: {origin}\r\n\r\n"
        )
    };
    let code = async |harbour: &Harbour, origin: &str| {
        let answer = answer(harbour, upgrade(origin).as_bytes()).await;
        String::from_utf8_lossy(&answer[9..12]).into_owned()
    };
    let harbour = Harbour::open().await;
    assert_eq!(code(&harbour, "https://evil.example").await, "403");
    assert_eq!(code(&harbour, "null").await, "403");
    assert_eq!(code(&harbour, "http://localhost:5173").await, "101");
    let origins = vec!["https://*.chat.example".to_owned()];
    let harbour = Harbour::with(|config| config.origins = origins).await;
    assert_eq!(code(&harbour, "https://app.chat.example").await, "101");
    assert_eq!(code(&harbour, "http://localhost:5173").await, "403");
}

/// Sends `bytes` one by one until the peer closes; returns the time that took.
async fn drip(mut stream: DuplexStream, bytes: &[u8]) -> Duration {
    let start = Instant::now();
    let mut answer = Vec::new();
    for byte in bytes {
        if stream.write_all(&[*byte]).await.is_err() {
            return start.elapsed();
        }
        let read_result = timeout(Duration::from_millis(20), stream.read_buf(&mut answer)).await;
        if matches!(read_result, Ok(Ok(0) | Err(_))) {
            return start.elapsed();
        }
    }
    panic!("all {} bytes were taken", bytes.len());
}

// T-B8: neither a slow header nor a slow hello holds a connection.
#[tokio::test(start_paused = true)]
async fn slow_writers_are_dropped_at_the_deadline() {
    let harbour = Harbour::piped(|config| {
        config.upgrade_timeout = Duration::from_millis(300);
        config.session.handshake = Duration::from_millis(300);
    })
    .await;
    let mut neighbour = harbour.websocket().await;
    neighbour.hello(1).await;

    let websocket = websocket_pipe(&harbour);
    let header = format!("GET /ws HTTP/1.1\r\nX-Slow: {}", "a".repeat(1000));
    let tcp = tcp_pipe(&harbour).await;
    let mut half_a_frame = vec![0x80 | 100, 0x07];
    half_a_frame.resize(900, 7);
    let (by_header, by_frame) =
        tokio::join!(drip(websocket, header.as_bytes()), drip(tcp, &half_a_frame));
    for time_taken in [by_header, by_frame] {
        let expected = Duration::from_millis(250)..Duration::from_secs(3);
        assert!(expected.contains(&time_taken), "{time_taken:?}");
    }
    for mut silent in harbour.both().await {
        assert_eq!(silent.closing().await, Some(Code::HandshakeTimeout));
    }
    neighbour.ping().await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed() {
    let harbour = Harbour::piped(|config| {
        config.session.heartbeat = Duration::from_millis(100);
    })
    .await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        assert_eq!(
            client.hello(user).await.heartbeat,
            Duration::from_millis(100)
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        client.ping().await;
        let start = Instant::now();
        assert_eq!(client.closing().await, Some(Code::HeartbeatMissed));
        assert!(start.elapsed() >= Duration::from_millis(200));
    }
}

/// The head of a frame of 60,000 bytes, and all of it but the last one.
pub(super) fn most_of_a_frame(client: &Client) -> Vec<u8> {
    let mut bytes = match client {
        Client::WebSocket(_) => vec![0x82, 0xfe, 0xea, 0x60, 0, 0, 0, 0],
        Client::Tcp(_) => vec![0xe0, 0xd4, 0x03],
    };
    bytes.resize(bytes.len() + 59_999, 0);
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_does_not_come_on_is_not_waited_for() {
    let harbour = Harbour::piped(|config| {
        config.session.heartbeat = Duration::from_secs(300);
        config.session.write_wait = Duration::from_secs(20);
    })
    .await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        client.hello(user).await;
        let start = Instant::now();
        client.send_raw(&most_of_a_frame(&client)).await;
        assert_eq!(client.closing().await, Some(Code::HeartbeatMissed));
        let seconds = start.elapsed().as_secs();
        assert!((20..22).contains(&seconds), "{seconds} s");
    }
}

// proves S1-33: a session's heartbeat ends at its boat.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_costs_the_station_nothing() {
    let harbour = Harbour::piped(|config| {
        config.session.heartbeat = Duration::from_millis(100);
    })
    .await;
    let mut clients = harbour.both().await;
    for (user, client) in (1..).zip(&mut clients) {
        client.hello(user).await;
    }
    // Assertions out of turn come after a second.
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for client in &mut clients {
            client.ping().await;
        }
    }
    assert_eq!(harbour.handle.sessions(), 2);
    assert_eq!(harbour.peer.connects.lock().len(), 2);
    assert!(harbour.peer.reassertions.lock().is_empty());
    assert!(harbour.peer.disconnects.lock().is_empty());
}

// T-B7: a client that does not read is closed, and the boat holds no more than its bound for it.
#[tokio::test]
async fn a_client_that_does_not_read_is_closed_as_slow() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |config| {
        config.session.outgoing_bytes_max = 64 * 1024;
        config.close_grace = Duration::from_millis(100);
    })
    .await;
    let mut client = harbour.tcp().await;
    let session = client.hello(1).await.session.get();
    let mut neighbour = harbour.tcp().await;
    neighbour.hello(2).await;
    let frame = super::harbour::message_frame(1);
    let notice = api::v1::Notice {
        session,
        notice: Some(api::v1::notice::Notice::Frame(frame)),
    };
    let mut carrier = harbour.carrier();
    let mut missing = Vec::new();
    for _ in 0..2000 {
        let request = api::v1::NoticeRequest {
            life: Some(harbour.life()),
            notices: vec![notice.clone(); 512],
        };
        missing = carrier
            .notice(request)
            .await
            .expect("answers")
            .into_inner()
            .missing;
        if !missing.is_empty() {
            break;
        }
        // The kernel takes as much as it can.
        tokio::task::yield_now().await;
    }
    assert!(missing.contains(&session), "never closed");
    eventually("dropped", || harbour.handle.connections() == 1).await;
    assert_eq!(counts.limit("session_outgoing_bytes"), 1);
    neighbour.ping().await;
    let mut frames = 0;
    while let Some(frame) = client.next().await {
        match frame {
            ServerFrame::Message(_) => frames += 1,
            // The closing frame, in case it got through.
            ServerFrame::Closing { refusal, .. } => assert_eq!(refusal.code, Code::Slow),
            other => panic!("{other:?}"),
        }
    }
    assert!(frames > 0);
}
