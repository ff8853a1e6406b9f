//! A rustls client and the adapter, with an attacker between them who cuts, changes, repeats and
//! swaps.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use boat::stack::Tls;
use boat::stack::tls::TlsError;
use bytes::BytesMut;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
    SupportedProtocolVersion,
};

/// Upper bound of steps in one input.
const STEPS_MAX: usize = 64;
/// Key renewals without data in between: beyond, the adapter takes them for an attack and ends.
const RENEWALS_MAX: usize = 16;

/// Accepts any certificate, as certificates are not under test here.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// Configuration with one key exchange group, the fastest.
fn client_config(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = CryptoProvider {
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("a version")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = vec![super::ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

static CLIENTS: LazyLock<[Arc<ClientConfig>; 2]> =
    LazyLock::new(|| [&TLS13, &TLS12].map(client_config));

struct Talk {
    client: ClientConnection,
    tls: Tls,
    /// Ciphertext of the client under way.
    pending: Vec<u8>,
    /// Plaintext the client wrote; `plain` is the part that arrived.
    said: Vec<u8>,
    plain: BytesMut,
    /// Plaintext the adapter wrote; `heard` is the part that arrived.
    answered: Vec<u8>,
    heard: Vec<u8>,
    /// The attacker changed something.
    is_changed: bool,
    /// The client writes nothing more.
    has_ended: bool,
    has_failed: bool,
    renewals: usize,
}

/// Runs one input. `how`: the version, and whether the handshake completes before the steps. A step
/// is an act and its place.
pub fn run(how: u8, steps: &[u8]) {
    let mut talk = Talk::new(usize::from(how % 2));
    if how & 2 == 0 {
        talk.deliver_all();
        assert!(!talk.tls.is_handshaking() && !talk.client.is_handshaking());
    }
    for step in steps.chunks_exact(2).take(STEPS_MAX) {
        talk.step(step[0], step[1]);
    }
    talk.deliver_all();
    if !talk.is_changed {
        assert!(talk.plain == talk.said && talk.heard == talk.answered);
        assert_eq!(talk.tls.has_ended(), talk.has_ended);
    }
}

impl Talk {
    fn new(version: usize) -> Talk {
        let name = ServerName::try_from("boat.test").expect("a name");
        let client = ClientConnection::new(CLIENTS[version].clone(), name);
        let mut talk = Talk {
            client: client.expect("a client"),
            tls: super::server(),
            pending: Vec::new(),
            said: Vec::new(),
            plain: BytesMut::new(),
            answered: Vec::new(),
            heard: Vec::new(),
            is_changed: false,
            has_ended: false,
            has_failed: false,
            renewals: 0,
        };
        talk.client.set_buffer_limit(None);
        talk.flush();
        talk
    }

    fn step(&mut self, act: u8, at: u8) {
        let place = usize::from(at) * self.pending.len() / 256;
        match act % 8 {
            0 => self.say(usize::from(at) * 68),
            1 => self.answer(usize::from(at) * 68),
            2 => self.deliver(place + 1),
            3 if !self.pending.is_empty() => {
                self.pending[place] ^= 1 << (act >> 5);
                self.is_changed = true;
            }
            4 if !self.pending.is_empty() => {
                self.pending
                    .drain(place..(place + usize::from(act) / 8 + 1).min(self.pending.len()));
                self.is_changed = true;
            }
            5 => self.repeat(usize::from(at)),
            6 => self.swap(usize::from(at)),
            7 => self.end_or_renew(at),
            _ => {}
        }
    }

    fn say(&mut self, len: usize) {
        if self.has_ended || self.has_failed || len == 0 {
            return;
        }
        let words: Vec<u8> = (0..len).map(|at| (at + self.said.len()) as u8).collect();
        self.client.writer().write_all(&words).expect("room");
        self.said.extend(words);
        self.renewals = 0;
        self.flush();
    }

    fn answer(&mut self, len: usize) {
        let words = vec![len as u8; len];
        match self.tls.send(&words) {
            Ok(()) => self.answered.extend(words),
            Err(TlsError::Handshaking) => assert!(self.tls.is_handshaking()),
            Err(TlsError::Closed) => assert!(self.has_failed),
            // An incomplete record head is judged here first.
            Err(error) => {
                assert!(self.is_changed, "{error}");
                self.has_failed = true;
            }
        }
    }

    fn end_or_renew(&mut self, at: u8) {
        if self.has_failed || self.has_ended || self.client.is_handshaking() {
            return;
        }
        if at == 0 {
            self.client.send_close_notify();
            self.has_ended = true;
        } else if self.renewals < RENEWALS_MAX {
            // TLS 1.2 has no renewal.
            let _ = self.client.refresh_traffic_keys();
            self.renewals += 1;
        }
        self.flush();
    }

    /// Whole records under way. The first bytes may be the rest of one.
    fn records(&self) -> Vec<Range<usize>> {
        let (mut records, mut from) = (Vec::new(), 0);
        while let Some(head) = self.pending[from..].first_chunk::<5>() {
            let end = from + 5 + usize::from(u16::from_be_bytes([head[3], head[4]]));
            if end > self.pending.len() {
                break;
            }
            records.push(from..end);
            from = end;
        }
        records
    }

    fn repeat(&mut self, at: usize) {
        let records = self.records();
        if !records.is_empty() {
            let record = self.pending[records[at % records.len()].clone()].to_vec();
            self.pending.extend(record);
            self.is_changed = true;
        }
    }

    fn swap(&mut self, at: usize) {
        let records = self.records();
        if records.len() >= 2 {
            let first = at % (records.len() - 1);
            let (one, other) = (records[first].clone(), &records[first + 1]);
            self.pending[one.start..other.end].rotate_left(one.len());
            self.is_changed = true;
        }
    }

    /// Delivers until both are silent.
    fn deliver_all(&mut self) {
        loop {
            self.deliver(usize::MAX);
            if self.pending.is_empty() {
                return;
            }
        }
    }

    /// Delivers the first `count` bytes under way, and all answers.
    fn deliver(&mut self, count: usize) {
        let count = count.min(self.pending.len());
        let mut bytes: Vec<u8> = self.pending.drain(..count).collect();
        let old_len = self.plain.len();
        let result = self.tls.receive(&mut bytes, &mut self.plain);
        assert!(self.said.starts_with(&self.plain), "words that nobody said");
        if self.has_failed {
            assert!(
                result.is_ok() && self.plain.len() == old_len,
                "heard behind an error"
            );
        } else if let Err(error) = result {
            assert!(self.is_changed, "{error}");
            self.has_failed = true;
            let late = self.tls.send(b"late");
            assert!(matches!(late, Err(TlsError::Closed)));
        }
        self.hear();
    }

    fn hear(&mut self) {
        let output = self.tls.unwritten().to_vec();
        self.tls.wrote(output.len());
        let mut rest = &output[..];
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).expect("a slice");
            match self.client.process_new_packets() {
                Ok(state) => {
                    let from = self.heard.len();
                    self.heard.resize(from + state.plaintext_bytes_to_read(), 0);
                    let read = self.client.reader().read_exact(&mut self.heard[from..]);
                    read.expect("as many bytes as there are");
                }
                Err(error) => {
                    assert!(self.is_changed, "{error}");
                    self.has_ended = true;
                    break;
                }
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.pending).expect("a vector");
        }
    }
}
