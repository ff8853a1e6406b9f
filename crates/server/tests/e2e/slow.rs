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
use crate::process::{SOON, within};
use crate::raw::{RawClient, connect_from, hello};

const PAUSE: Duration = Duration::from_millis(200);
/// Delay allowed for a busy machine.
const LATE: Duration = Duration::from_secs(4);
/// Last byte of the loopback address of balancers, which neighbours never use.
const BALANCER: u8 = 2;
const CLIENT: u8 = 1;

/// A drip: its stage, its bytes, and the time within which the connection ends.
struct Drip<'a> {
    what: &'static str,
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
        let mut stream = connect_from(self.url, self.from, None);
        stream.write_all(&self.first).expect("taken");
        let elapsed = drip(&mut stream, &self.bytes);
        let (what, earliest) = (self.what, self.ends.saturating_sub(PAUSE * 2));
        println!("{what}: closed after {elapsed:.1?}");
        let range = earliest..self.ends + LATE;
        assert!(range.contains(&elapsed), "{what} after {elapsed:?}");
    }
}

/// Time until the peer closes.
fn drip(stream: &mut TcpStream, bytes: &[u8]) -> Duration {
    let begun = Instant::now();
    stream.set_read_timeout(Some(PAUSE)).expect("a socket");
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() {
            return begun.elapsed();
        }
        let pause = begun.elapsed();
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return begun.elapsed(),
            Ok(_) => thread::sleep((pause + PAUSE).saturating_sub(begun.elapsed())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return begun.elapsed(),
        }
    }
    panic!("all {} bytes were taken", bytes.len());
}

fn all_at_once(drips: &[Drip<'_>]) {
    thread::scope(|scope| {
        for drip in drips {
            scope.spawn(|| drip.run());
        }
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
fn who_drips_at_a_plain_port_is_closed_in_time_and_a_chat_goes_on() {
    let all = All::with(&format!(
        "boat.proxy.header = \"proxy-v2\"\nboat.proxy.networks = [\"127.0.0.{BALANCER}/32\"]\n\
         boat.upgrade_timeout = \"3s\"\nboat.session.handshake = \"4s\"\nboat.session.heartbeat = \"2s\""
    ));
    let chat = Chat::beside(&all);
    let drip = |what, url, from, first, bytes, seconds| Drip {
        what,
        url,
        from,
        first,
        bytes,
        ends: Duration::from_secs(seconds),
    };
    let (tcp, websocket) = (all.tcp(), &*all.websocket);
    let proxy = endless_proxy_header;
    // A session's first frame, and a later one: bytes without a complete frame count as silence.
    let mut framed = encode_client(&hello(50)).to_vec();
    let length = framed.len();
    assert!((128..16_384).contains(&length), "two bytes of length");
    framed.splice(0..0, [(length & 0x7f) as u8 | 0x80, (length >> 7) as u8]);
    all_at_once(&[
        drip("a PROXY header, TCP", tcp, BALANCER, vec![], proxy(), 2),
        drip(
            "a PROXY header, WebSocket",
            websocket,
            BALANCER,
            vec![],
            proxy(),
            2,
        ),
        drip("a head", websocket, CLIENT, vec![], head("/ws"), 3),
        drip("a first frame", tcp, CLIENT, vec![], half_frame(), 4),
        drip(
            "a first message",
            websocket,
            CLIENT,
            upgrade(),
            half_message(),
            4,
        ),
        drip("a later frame", tcp, CLIENT, framed, half_frame(), 5),
    ]);
    let ended = |code| all.metric(&format!("boat_disconnects_total{{code=\"{code}\"}}"));
    // An end is counted after its client has seen it.
    within(SOON, || ended("heartbeat_missed") == 1);
    within(SOON, || ended("handshake_timeout") == 2);
    chat.end().undisturbed();
    all.at_rest();
}

/// Start of a TLS record, of which nearly all is missing.
fn half_record() -> Vec<u8> {
    let mut record = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    record.resize(300, 7);
    record
}

// T-B8: TLS records, alone, and at the end of an arrival bounded as a whole.
#[test]
fn who_drips_below_tls_is_closed_in_time() {
    let files = tempfile::tempdir().expect("a directory");
    let all = All::with(&format!(
        "{}\nboat.proxy.header = \"proxy-v2\"\nboat.proxy.networks = [\"127.0.0.{BALANCER}/32\"]\n\
         boat.tls_timeout = \"3s\"\nboat.arrival_timeout = \"4s\"",
        // Nobody here verifies the certificate.
        tls(&certificate(files.path(), "boat"))
    ));
    let drip = |what, url, from, bytes, seconds| Drip {
        what,
        url,
        from,
        first: vec![],
        bytes,
        ends: Duration::from_secs(seconds),
    };
    // A header that takes a time of its own, and then a record.
    let mut both = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec();
    let slow_head = both.split_off(9);
    let both = [slow_head, half_record()].concat();
    all_at_once(&[
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
            ..drip("a header and a record", all.tcp(), BALANCER, both, 4)
        },
    ]);
    within(SOON, || all.metric("boat_tls_handshakes_failed_total") >= 2);
    within(SOON, || all.metric("boat_sessions") == 0);
}

// A silent client gets the reason, once there is a session to send it.
#[test]
fn who_says_nothing_is_told_that_no_hello_came() {
    let all = All::with("boat.session.handshake = \"1s\"");
    for mut silent in [
        RawClient::tcp(all.tcp()),
        RawClient::websocket(&all.websocket),
    ] {
        assert_eq!(silent.closing(), Some(Code::HandshakeTimeout));
    }
}
