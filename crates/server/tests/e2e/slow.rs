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
/// Bytes within which a connection ends: half a minute and more. Any wait but its own lasts longer,
/// and what is sent is not complete by then.
const BYTES_MAX: usize = 150;
/// Last byte of the loopback address of balancers, which neighbours never use.
const BALANCER: u8 = 2;
const CLIENT: u8 = 1;

/// A drip: its stage, its bytes, and the time after which the connection ends.
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
        // Before the boat begins to count, however slow the machine is.
        let begun = Instant::now();
        let mut stream = connect_from(self.url, self.from, None);
        stream.write_all(&self.first).expect("taken");
        let taken = drip(&mut stream, &self.bytes);
        let elapsed = begun.elapsed();
        let (what, earliest) = (self.what, self.ends.saturating_sub(PAUSE * 2));
        println!("{what}: closed after {elapsed:.1?} and {taken} bytes");
        assert!(elapsed >= earliest, "{what} after {elapsed:?}");
        assert!(taken < BYTES_MAX, "{what} after {taken} bytes");
    }
}

/// Number of bytes until the peer closes.
fn drip(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_read_timeout(Some(PAUSE)).expect("a socket");
    for (taken, byte) in bytes.iter().enumerate() {
        if stream.write_all(&[*byte]).is_err() {
            return taken;
        }
        let written = Instant::now();
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return taken,
            Ok(_) => thread::sleep(PAUSE.saturating_sub(written.elapsed())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return taken,
        }
    }
    panic!("all {} bytes were taken", bytes.len());
}

fn all_at_once(drips: &[Drip<'_>], meanwhile: impl FnOnce()) {
    thread::scope(|scope| {
        for drip in drips {
            scope.spawn(|| drip.run());
        }
        meanwhile();
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
         boat.upgrade_timeout = \"6s\"\nboat.session.handshake = \"8s\"\nboat.session.heartbeat = \"2s\""
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
        drip("a head", websocket, CLIENT, vec![], head("/ws"), 6),
        drip("a first frame", tcp, CLIENT, vec![], half_frame(), 8),
        drip(
            "a first message",
            websocket,
            CLIENT,
            upgrade(),
            half_message(),
            8,
        ),
        drip("a later frame", tcp, CLIENT, framed, half_frame(), 5),
    ];
    all_at_once(&drips, || chat.goes_on(&all));
    let ended = |code| all.metric(&format!("boat_disconnects_total{{code=\"{code}\"}}"));
    // An end is counted after its client has seen it. A stalled machine may end some of the chat.
    within(SOON, || ended("heartbeat_missed") >= 1);
    within(SOON, || ended("handshake_timeout") >= 2);
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
    // Nobody here verifies the certificate.
    let certificate = tls(&certificate(files.path(), "boat"));
    let all = All::with(&format!("{certificate}\nboat.tls_timeout = \"3s\""));
    let bounded = All::with(&format!(
        "{certificate}\nboat.proxy.header = \"proxy-v2\"\n\
         boat.proxy.networks = [\"127.0.0.{BALANCER}/32\"]\nboat.arrival_timeout = \"4s\""
    ));
    let drip = |what, url, from, bytes, seconds| Drip {
        what,
        url,
        from,
        first: vec![],
        bytes,
        ends: Duration::from_secs(seconds),
    };
    // A header that takes a time of its own, and then a record. On a stalled machine the header may
    // take all the time that one has.
    let mut both = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec();
    let slow_head = both.split_off(9);
    let both = [slow_head, half_record()].concat();
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
            ..drip("a header and a record", bounded.tcp(), BALANCER, both, 2)
        },
    ];
    all_at_once(&drips, || {});
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
