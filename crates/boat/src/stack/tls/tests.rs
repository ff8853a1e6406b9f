//! Both ends in one thread: rustls as the client, and the adapter, whose bytes arrive in pieces of
//! every size.

mod contract;

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use bytes::BytesMut;
use proptest::prelude::*;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, RootCertStore, ServerConfig,
    SupportedProtocolVersion,
};

use super::*;

const ALPN: &[u8] = b"packetboat.v1";
const NAME: &str = "boat.test";
const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

struct Identity {
    cert: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Identity {
        cert: made.cert.der().clone(),
        key: key.into(),
    }
});

/// A server without a session store, but with tickets: one after a handshake.
fn server_config() -> ServerConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&VERSIONS)
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![IDENTITY.cert.clone()], IDENTITY.key.clone_key())
        .expect("a matching key");
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().expect("a ticketer");
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    config
}

static SERVER: LazyLock<Arc<ServerConfig>> = LazyLock::new(|| Arc::new(server_config()));

fn client_config(version: &'static SupportedProtocolVersion) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(IDENTITY.cert.clone()).expect("a root");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config
}

fn client(config: impl Into<Arc<ClientConfig>>) -> ClientConnection {
    let name = ServerName::try_from(NAME).expect("a name");
    ClientConnection::new(config.into(), name).expect("a client")
}

/// A client, the adapter, and the wire between them.
struct Pair {
    client: ClientConnection,
    tls: Tls,
    /// Plaintext from the client, as the adapter decrypted it.
    plain: BytesMut,
    /// Plaintext from the adapter, as the client decrypted it.
    answers: Vec<u8>,
    /// Ciphertext bytes of the client so far.
    sent_bytes: usize,
}

impl Pair {
    fn new(config: impl Into<Arc<ClientConfig>>) -> Pair {
        let mut client = client(config);
        client.set_buffer_limit(None);
        Pair {
            client,
            tls: Tls::new(SERVER.clone()).expect("a connection"),
            plain: BytesMut::new(),
            answers: Vec::new(),
            sent_bytes: 0,
        }
    }

    fn with_version(version: &'static SupportedProtocolVersion) -> Pair {
        Pair::new(client_config(version))
    }

    fn connected(version: &'static SupportedProtocolVersion) -> Pair {
        let mut pair = Pair::with_version(version);
        pair.run(|_| usize::MAX).expect("a handshake");
        assert!(!pair.tls.is_handshaking() && !pair.client.is_handshaking());
        pair
    }

    fn send(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).expect("room");
    }

    /// Moves bytes both ways until both sides are silent. `piece` gives the number of bytes, at
    /// least one, that the adapter gets at each offset of the client's stream.
    fn run(&mut self, mut piece: impl FnMut(usize) -> usize) -> Result<(), TlsError> {
        loop {
            let mut ciphertext = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut ciphertext).expect("a vector");
            }
            let mut rest = &mut ciphertext[..];
            while !rest.is_empty() {
                let count = piece(self.sent_bytes).clamp(1, rest.len());
                let (next, tail) = rest.split_at_mut(count);
                self.tls.receive(next, &mut self.plain)?;
                self.assert_bounds();
                self.sent_bytes += count;
                rest = tail;
            }
            if !self.read_answers() && !self.client.wants_write() {
                return Ok(());
            }
        }
    }

    /// Has the client read all that the adapter has for it.
    fn read_answers(&mut self) -> bool {
        let ciphertext = self.tls.unwritten().to_vec();
        self.tls.wrote(ciphertext.len());
        let mut rest = &ciphertext[..];
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).expect("a slice");
            let state = self.client.process_new_packets().expect("good bytes");
            let start = self.answers.len();
            self.answers
                .resize(start + state.plaintext_bytes_to_read(), 0);
            let read = self.client.reader().read_exact(&mut self.answers[start..]);
            read.expect("as many bytes as there are");
        }
        !ciphertext.is_empty()
    }

    fn assert_bounds(&self) {
        let capacity = self.tls.partial.capacity();
        assert!(capacity <= RECORD_BYTES_MAX, "{capacity}");
        assert!(self.tls.read_len <= self.tls.partial.len());
    }

    fn assert_idle(&self) {
        let capacities = (self.tls.partial.capacity(), self.tls.unwritten.capacity());
        assert_eq!(capacities, (0, 0));
    }

    /// Sends `bytes` to the adapter and back.
    fn echo(&mut self, bytes: &[u8], mut piece: impl FnMut(usize) -> usize) {
        self.send(bytes);
        self.run(&mut piece).expect("good bytes");
        assert_eq!(self.plain, bytes);
        let plain = std::mem::take(&mut self.plain);
        self.tls.send(&plain).expect("an open connection");
        self.run(piece).expect("good bytes");
        assert_eq!(std::mem::take(&mut self.answers), bytes);
    }

    fn close(&mut self) {
        self.client.send_close_notify();
        self.run(|_| usize::MAX).expect("a close");
        assert!(self.tls.has_ended());
        self.tls.close();
        self.read_answers();
        let end = self.client.reader().read(&mut [0; 1]);
        assert_eq!(end.expect("a clean end"), 0);
    }
}

#[test]
fn a_stream_may_be_split_at_every_byte() {
    for version in VERSIONS {
        let (mut split, mut len) = (0, usize::MAX);
        while split <= len {
            let mut pair = Pair::with_version(version);
            let piece = |offset: usize| {
                if offset < split {
                    split - offset
                } else {
                    usize::MAX
                }
            };
            pair.run(piece).expect("a handshake");
            pair.echo(b"packet", piece);
            pair.echo(b"boat", piece);
            pair.close();
            pair.assert_idle();
            len = pair.sent_bytes;
            split += 1;
        }
        assert!(len > 300, "{len}");
    }
}

#[test]
fn a_stream_may_come_byte_by_byte() {
    for version in VERSIONS {
        let mut pair = Pair::with_version(version);
        pair.run(|_| 1).expect("a handshake");
        pair.echo(b"packetboat", |_| 1);
        pair.close();
    }
}

#[test]
fn a_handshake_in_many_small_records_is_put_together() {
    for piece in [1, 7, usize::MAX] {
        let mut config = client_config(&TLS12);
        config.max_fragment_size = Some(64);
        let mut pair = Pair::new(config);
        pair.run(|_| piece).expect("a handshake");
        pair.echo(&[7; 1000], |_| piece);
        pair.assert_idle();
    }
}

#[test]
fn keys_are_renewed_from_both_sides_views() {
    let mut pair = Pair::connected(&TLS13);
    for round in 0..100 {
        pair.client.refresh_traffic_keys().expect("TLS 1.3");
        pair.echo(&[round; 300], |_| 11);
        pair.assert_idle();
    }
    // Key updates without data in between are an idle client's, or an attack.
    let mut refreshes = 0;
    let error = loop {
        pair.client.refresh_traffic_keys().expect("TLS 1.3");
        match pair.run(|_| usize::MAX) {
            Ok(()) => refreshes += 1,
            Err(error) => break error,
        }
    };
    assert!((30..=33).contains(&refreshes), "{refreshes}: {error}");
    assert_eq!(error.fault(), FaultSide::Client);
}

#[test]
fn a_ticket_spares_the_handshake_in_both_versions() {
    for version in VERSIONS {
        let mut config = client_config(version);
        config.resumption = Resumption::in_memory_sessions(4);
        let config = Arc::new(config);
        for round in 0..3 {
            let mut pair = Pair::new(config.clone());
            pair.run(|_| usize::MAX).expect("a handshake");
            pair.echo(b"hello", |_| usize::MAX);
            assert_eq!(pair.tls.is_resumed(), round > 0, "{version:?}");
            assert_eq!(pair.tls.alpn(), Some(ALPN));
            assert_eq!(pair.tls.version(), Some(version.version));
            pair.close();
        }
    }
}

#[test]
fn another_protocol_is_refused_with_an_alert() {
    for version in VERSIONS {
        let mut config = client_config(version);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let mut pair = Pair::new(config);
        let error = pair.run(|_| usize::MAX).expect_err("a refusal");
        assert!(matches!(
            error,
            TlsError::Failed(Error::NoApplicationProtocol)
        ));
        assert_eq!(error.fault(), FaultSide::Client);
        let mut alert = pair.tls.unwritten();
        pair.client.read_tls(&mut alert).expect("a slice");
        let result = pair.client.process_new_packets();
        let expected = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        assert_eq!(result.expect_err("an alert"), expected);
    }
    let mut config = client_config(&TLS13);
    config.alpn_protocols = Vec::new();
    let mut pair = Pair::new(config);
    pair.run(|_| usize::MAX).expect("a client without a wish");
    assert_eq!(pair.tls.alpn(), None);
}

#[test]
fn a_long_handshake_is_refused_before_it_is_held() {
    let mut config = client_config(&TLS13);
    let names = (0..80).map(|number| vec![number; 250]);
    config.alpn_protocols.extend(names);
    for piece in [1, 1000, usize::MAX] {
        let mut pair = Pair::new(config.clone());
        let error = pair.run(|_| piece).expect_err("a refusal");
        assert!(matches!(error, TlsError::HandshakeTooLarge), "{error}");
        assert_eq!(error.fault(), FaultSide::Client);
    }
    let mut config = client_config(&TLS13);
    config.max_fragment_size = Some(64);
    for piece in [1, 1000, usize::MAX] {
        let mut pair = Pair::new(config.clone());
        let error = pair.run(|_| piece).expect_err("a refusal");
        assert!(matches!(error, TlsError::TooManyRecords), "{error}");
        pair.assert_idle();
    }
}

#[test]
fn a_head_of_no_record_is_refused_at_once() {
    let texts: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n",
        b"ZZZZZ",
        b"\x16\x03\x01\xff\xff",
        b"\0\0\0\0\0\0",
    ];
    for text in texts {
        let mut tls = Tls::new(SERVER.clone()).expect("a connection");
        let mut plain = BytesMut::new();
        let (mut text, mut errors) = (text.to_vec(), Vec::new());
        for byte in &mut text {
            errors.extend(tls.receive(std::slice::from_mut(byte), &mut plain).err());
        }
        assert_eq!(errors.len(), 1);
        let error = &errors[0];
        let is_invalid_message = matches!(error, TlsError::Failed(Error::InvalidMessage(_)));
        assert!(is_invalid_message, "{error}");
        // A fatal alert in plaintext.
        assert_eq!(tls.unwritten()[..6], [21, 3, 3, 0, 2, 2]);
        assert_eq!(tls.partial.capacity(), 0);
    }
}

#[test]
fn behind_an_error_nothing_is_read_kept_or_sent() {
    for version in VERSIONS {
        let mut pair = Pair::connected(version);
        pair.send(b"before");
        let mut ciphertext = Vec::new();
        pair.client.write_tls(&mut ciphertext).expect("a vector");
        let mut forged_record = [23, 3, 3, 0, 40].to_vec();
        forged_record.extend([9; 40]);
        ciphertext.extend(&forged_record);
        let error = pair.tls.receive(&mut ciphertext, &mut pair.plain);
        assert!(matches!(error, Err(TlsError::Failed(Error::DecryptError))));
        assert_eq!(pair.plain, b"before".as_slice());
        let alert = pair.tls.unwritten().to_vec();
        assert_eq!(alert[0], if version == &TLS13 { 23 } else { 21 });
        for _ in 0..10 {
            let late = pair
                .tls
                .receive(&mut forged_record.clone(), &mut pair.plain);
            assert!(late.is_ok());
        }
        assert!(matches!(pair.tls.send(b"late"), Err(TlsError::Closed)));
        pair.tls.close();
        assert_eq!(pair.tls.unwritten(), alert);
        assert_eq!(pair.tls.partial.capacity(), 0);
        pair.client.read_tls(&mut &alert[..]).expect("a slice");
        let result = pair.client.process_new_packets();
        let expected = Error::AlertReceived(AlertDescription::BadRecordMac);
        assert_eq!(result.expect_err("an alert"), expected);
    }
}

#[test]
fn a_side_that_closed_may_be_heard_no_more_but_told() {
    for version in VERSIONS {
        let mut pair = Pair::connected(version);
        pair.client.send_close_notify();
        pair.run(|_| 3).expect("a close");
        assert!(pair.tls.has_ended());
        pair.tls.send(b"the last word").expect("half a connection");
        pair.tls.close();
        let sent_len = pair.tls.unwritten().len();
        pair.tls.close();
        assert_eq!(pair.tls.unwritten().len(), sent_len);
        assert!(matches!(pair.tls.send(b"late"), Err(TlsError::Closed)));
        pair.read_answers();
        assert_eq!(pair.answers, b"the last word");
        pair.assert_idle();

        let mut pair = Pair::connected(version);
        pair.tls.close();
        pair.send(b"unheard");
        pair.run(|_| 3).expect("passed over");
        assert!(pair.plain.is_empty());
        pair.assert_idle();
    }
}

#[test]
fn before_the_handshake_nothing_is_sent_and_a_close_is_silent() {
    let mut tls = Tls::new(SERVER.clone()).expect("a connection");
    assert!(matches!(tls.send(b"early"), Err(TlsError::Handshaking)));
    assert!(tls.is_handshaking());
    tls.close();
    assert_eq!(tls.unwritten(), b"");
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    for version in VERSIONS {
        let mut pair = Pair::connected(version);
        pair.assert_idle();
        pair.echo(&[1; 100_000], |_| 17 * 1024);
        pair.assert_idle();
    }
    assert!(size_of::<Tls>() <= 96, "{}", size_of::<Tls>());
    // On the heap, besides the keys.
    let heap_bytes = size_of::<UnbufferedServerConnection>();
    assert!(heap_bytes <= 1088, "{heap_bytes}");
}

#[test]
fn records_of_the_greatest_size_come_whole_and_in_pieces() {
    for version in VERSIONS {
        let mut pair = Pair::connected(version);
        for piece in [1, 100, 5000, 17 * 1024, usize::MAX] {
            pair.echo(&[piece as u8; 70_000], |_| piece);
        }
    }
}

/// Sizes of the writes, and of the pieces in which they arrive.
fn talk() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let sizes = prop_oneof![1..50usize, 1..20_000usize, 15_000..300_000usize];
    let pieces = prop_oneof![1..8usize, 1..600usize, 1..20_000usize];
    (
        prop::collection::vec(sizes, 1..6),
        prop::collection::vec(pieces, 1..40),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn data_arrives_whole_however_it_is_split((sizes, pieces) in talk(), is_13: bool) {
        let mut pair = Pair::with_version(if is_13 { &TLS13 } else { &TLS12 });
        let mut turn = 0;
        let mut piece = |_| {
            turn += 1;
            pieces[turn % pieces.len()]
        };
        pair.run(&mut piece).expect("a handshake");
        for (round, size) in sizes.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 31 + round) as u8).collect();
            if is_13 && round % 2 == 1 {
                pair.client.refresh_traffic_keys().expect("TLS 1.3");
            }
            pair.echo(&bytes, &mut piece);
        }
        pair.assert_idle();
        pair.close();
    }

    #[test]
    fn noise_neither_panics_nor_fills_memory(
        noise in prop::collection::vec(any::<u8>(), 0..40_000),
        kind in 20..24u8,
        len in any::<u16>(),
        at in 0..4usize,
        piece in 1..5000usize,
    ) {
        // Garbage behind a head that may pass, at a time that may be right.
        let mut pair = match at {
            0 => Pair::with_version(&TLS13),
            1 => Pair::with_version(&TLS12),
            2 => Pair::connected(&TLS13),
            _ => Pair::connected(&TLS12),
        };
        let [high, low] = len.to_be_bytes();
        let mut bytes = vec![kind, 3, 3, high % 72, low];
        bytes.extend(noise);
        for chunk in bytes.chunks_mut(piece) {
            let _ = pair.tls.receive(chunk, &mut pair.plain);
            pair.assert_bounds();
        }
        prop_assert!(pair.plain.is_empty());
        prop_assert!(pair.tls.unwritten().len() < 100);
    }

    #[test]
    fn a_changed_byte_is_noticed_or_harmless(at in 0..4000usize, change in 1..=255u8, is_13: bool) {
        let mut pair = Pair::with_version(if is_13 { &TLS13 } else { &TLS12 });
        let mut hello = Vec::new();
        pair.client.write_tls(&mut hello).expect("a vector");
        let place = at % hello.len();
        hello[place] ^= change;
        let _ = pair.tls.receive(&mut hello, &mut pair.plain);
        pair.assert_bounds();
        prop_assert!(pair.plain.is_empty() && pair.tls.is_handshaking());
    }
}

/// A measurement rather than a test:
/// `cargo test -p boat --release -- --ignored connections_come --nocapture`.
#[test]
#[ignore = "a measurement of some seconds"]
#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn connections_come_and_go_without_growth() {
    let rss = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages = statm.split(' ').nth(1).and_then(|text| text.parse().ok());
        pages.map_or(0, |pages: u64| pages * 4)
    };
    for version in VERSIONS {
        let config = Arc::new(client_config(version));
        let mut figures = Vec::new();
        for round in 0..10_000 {
            let mut pair = Pair::new(config.clone());
            pair.run(|_| usize::MAX).expect("a handshake");
            pair.echo(&[1; 1000], |_| usize::MAX);
            if round % 2 == 0 {
                pair.close();
            }
            if round % 1000 == 999 {
                figures.push(rss());
            }
        }
        println!("{version:?}: RSS in KiB after each 1,000: {figures:?}");
        assert!(figures[9] < figures[0] + 2048, "{figures:?}");
    }
    let rss_before = rss();
    let connections: Vec<Tls> = (0..2000).map(|_| Pair::connected(&TLS13).tls).collect();
    let each = (rss() - rss_before) as f64 / connections.len() as f64;
    println!("size_of Tls {}, idle {each:.1} KiB each", size_of::<Tls>());
}
