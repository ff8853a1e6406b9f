//! Bytes that drip in one by one: each stage on the way to a session, and a session's own frames,
//! have a deadline, and neighbours are not affected.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use api::codec::encode_client;
use protocol::Code;
use tokio::time::Instant;

use crate::all::All;
use crate::certificate::{certificate, tls};
use crate::neighbours::Chat;
use crate::process::{WAIT_TIMEOUT, within};
use crate::raw::{RawClient, connect_from, hello};

const DRIP_INTERVAL: Duration = Duration::from_millis(200);
/// Upper bound of the bytes sent before a connection ends: nearly a minute. Every other timeout is
/// longer, and the bytes sent by then make no complete message.
const BYTES_MAX: usize = 290;
/// Last byte of the loopback address of balancers, which neighbours never use.
const BALANCER: u8 = 2;
const CLIENT: u8 = 1;

/// A drip: its stage, its bytes, and the time after which the connection ends.
struct Drip<'a> {
    stage: &'static str,
    url: &'a str,
    from: u8,
    /// Bytes sent at once.
    first: Vec<u8>,
    /// Bytes sent one by one.
    bytes: Vec<u8>,
    ends: Duration,
}

impl Drip<'_> {
    fn run(&self) {
        // Before the boat begins to count, however slow the machine is.
        let start = Instant::now();
        let mut stream = connect_from(self.url, self.from, None);
        stream.write_all(&self.first).expect("taken");
        let byte_count = drip(&mut stream, &self.bytes);
        let elapsed = start.elapsed();
        let (stage, earliest) = (self.stage, self.ends.saturating_sub(DRIP_INTERVAL * 2));
        println!("{stage}: closed after {elapsed:.1?} and {byte_count} bytes");
        assert!(elapsed >= earliest, "{stage} after {elapsed:?}");
        assert!(byte_count < BYTES_MAX, "{stage} after {byte_count} bytes");
    }
}

/// Number of bytes until the peer closes.
fn drip(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream
        .set_read_timeout(Some(DRIP_INTERVAL))
        .expect("a socket");
    for (byte_count, byte) in bytes.iter().enumerate() {
        if stream.write_all(&[*byte]).is_err() {
            return byte_count;
        }
        let written_at = Instant::now();
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return byte_count,
            Ok(_) => thread::sleep(DRIP_INTERVAL.saturating_sub(written_at.elapsed())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return byte_count,
        }
    }
    panic!("all {} bytes were taken", bytes.len());
}

fn all_at_once(drips: &[Drip<'_>], action: impl FnOnce()) {
    thread::scope(|scope| {
        for drip in drips {
            scope.spawn(|| drip.run());
        }
        action();
    });
}

/// Start of a PROXY header of version 2 whose addresses never end.
fn endless_proxy_header() -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\xff".to_vec();
    header.resize(300, 0);
    header
}

fn head(path: &str) -> Vec<u8> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: boat\r\nX-Slow: {}",
        "a".repeat(300)
    );
    head.into_bytes()
}

/// Start of a frame of 1,000 bytes.
fn half_frame() -> Vec<u8> {
    let mut frame = vec![0xe8, 0x07];
    frame.resize(400, 0x0a);
    frame
}

/// The same in a masked binary message.
fn half_message() -> Vec<u8> {
    let mut message = vec![0x82, 0xfe, 0x03, 0xe8, 0, 0, 0, 0];
    message.resize(400, 0x0a);
    message
}

fn upgrade() -> Vec<u8> {
    b"GET /ws HTTP/1.1\r\nHost: boat\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
      Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
      Sec-WebSocket-Protocol: packetboat.v1\r\n\r\n"
        .to_vec()
}

// T-B8: proxy header, head, frame and message, each within its own time.
#[test]
fn slow_senders_at_a_plain_port_are_closed_while_a_chat_runs() {
    let all = All::with(&format!(
        "boat.proxy.header = \"proxy-v2\"\nboat.proxy.networks = [\"127.0.0.{BALANCER}/32\"]\n\
         boat.arrival_timeout = \"24s\"\nboat.session.heartbeat = \"2s\""
    ));
    let chat = Chat::beside(&all);
    let drip = |stage, url, from, first, bytes, seconds| Drip {
        stage,
        url,
        from,
        first,
        bytes,
        ends: Duration::from_secs(seconds),
    };
    let (tcp, websocket) = (all.tcp(), &*all.websocket);
    let proxy = endless_proxy_header;
    // A session's first frame, and a later one: bytes without a complete frame count as silence.
    let mut frame = encode_client(&hello(50)).to_vec();
    let length = frame.len();
    assert!((128..16_384).contains(&length), "two bytes of length");
    frame.splice(0..0, [(length & 0x7f) as u8 | 0x80, (length >> 7) as u8]);
    let drips = [
        drip("a PROXY header, TCP", tcp, BALANCER, vec![], proxy(), 2),
        drip(
            "a PROXY header, WebSocket",
            websocket,
            BALANCER,
            vec![],
            proxy(),
            2,
        ),
        // Half of the arrival is for the head, two thirds for the hello.
        drip("a head", websocket, CLIENT, vec![], head("/ws"), 12),
        drip("a first frame", tcp, CLIENT, vec![], half_frame(), 16),
        drip(
            "a first message",
            websocket,
            CLIENT,
            upgrade(),
            half_message(),
            16,
        ),
        drip("a later frame", tcp, CLIENT, frame, half_frame(), 5),
    ];
    all_at_once(&drips, || chat.goes_on(&all));
    let disconnects = |code| all.metric(&format!("boat_disconnects_total{{code=\"{code}\"}}"));
    // An end is counted after its client has seen it. A stalled machine may end some of the chat.
    within(WAIT_TIMEOUT, || disconnects("heartbeat_missed") >= 1);
    within(WAIT_TIMEOUT, || disconnects("handshake_timeout") >= 2);
    chat.end().undisturbed();
    all.at_rest();
}

/// Start of a TLS record, of which nearly all is missing.
fn half_record() -> Vec<u8> {
    let mut record = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    record.resize(300, 7);
    record
}

// T-B8: TLS records, alone, and behind a slow header.
#[test]
fn slow_sender_below_tls_is_closed_in_time() {
    let files = tempfile::tempdir().expect("a directory");
    // Nobody here verifies the certificate.
    let certificate = tls(&certificate(files.path(), "boat"));
    // Half of the arrival is for TLS.
    let all = All::with(&format!("{certificate}\nboat.arrival_timeout = \"6s\""));
    let server = All::with(&format!(
        "{certificate}\nboat.proxy.header = \"proxy-v2\"\n\
         boat.proxy.networks = [\"127.0.0.{BALANCER}/32\"]\nboat.arrival_timeout = \"4s\""
    ));
    let drip = |stage, url, from, bytes, seconds| Drip {
        stage,
        url,
        from,
        first: vec![],
        bytes,
        ends: Duration::from_secs(seconds),
    };
    // A header that takes a time of its own, and then a record. On a stalled machine the header may
    // take all the time that one has.
    let mut payload = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec();
    let slow_head = payload.split_off(9);
    let payload = [slow_head, half_record()].concat();
    let drips = [
        drip("a record, TCP", all.tcp(), CLIENT, half_record(), 3),
        drip(
            "a record, WebSocket",
            &all.websocket,
            CLIENT,
            half_record(),
            3,
        ),
        Drip {
            first: b"\r\n\r\n\0\r\nQU".to_vec(),
            ..drip("a header and a record", server.tcp(), BALANCER, payload, 2)
        },
    ];
    all_at_once(&drips, || {});
    within(WAIT_TIMEOUT, || {
        all.metric("boat_tls_handshakes_failed_total") >= 2
    });
    within(WAIT_TIMEOUT, || all.metric("boat_sessions") == 0);
}

// A silent client gets the reason, once there is a session to send it.
#[test]
fn silent_client_is_told_that_no_hello_came() {
    // Two thirds of the arrival are for the hello.
    let all = All::with("boat.arrival_timeout = \"30s\"");
    for mut silent in [
        RawClient::tcp(all.tcp()),
        RawClient::websocket(&all.websocket),
    ] {
        assert_eq!(silent.closing(), Some(Code::HandshakeTimeout));
    }
}
