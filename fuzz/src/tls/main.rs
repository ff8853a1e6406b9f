//! TLS as a boat speaks it: bytes of a stranger, however they are cut, and those of a client that
//! an attacker changes on the way. The first byte says which, the second how.
#![no_main]

mod talk;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use backend::clock::SystemClock;
use backend::tls::{CertificateFiles, Certificates, TlsVersion, server_config};
use boat::stack::Tls;
use boat::stack::tls::HANDSHAKE_BYTES_MAX;
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use rustls::ServerConfig;

const ALPN: &[u8] = b"packetboat.v1";

/// The product's TLS configuration, with a certificate of a hundred years (openssl req -x509
/// -newkey ed25519): Ed25519 signs fast.
static SERVER: LazyLock<Arc<ServerConfig>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tls");
    let files = CertificateFiles {
        cert_file: folder.join("cert.pem"),
        key_file: folder.join("key.pem"),
    };
    let certificates = Certificates::load(&[files], Arc::new(SystemClock));
    let certificates = certificates.expect("the files beside this program's source");
    server_config(certificates, TlsVersion::Tls12, &[ALPN]).expect("a configuration")
});

fn server() -> Tls {
    Tls::new(SERVER.clone()).expect("a connection")
}

/// Outcome of a stranger's bytes, in pieces of `piece`: an error, or none.
fn receive(bytes: &[u8], piece: usize) -> Option<String> {
    let (mut tls, mut plain, mut failure) = (server(), BytesMut::new(), None);
    for chunk in bytes.to_vec().chunks_mut(piece) {
        match tls.receive(chunk, &mut plain) {
            Ok(()) => {}
            Err(error) => assert!(failure.replace(error.to_string()).is_none(), "told twice"),
        }
    }
    assert!(plain.is_empty(), "without keys nothing is said");
    assert!(tls.is_handshaking());
    assert!(tls.unwritten().len() < HANDSHAKE_BYTES_MAX);
    failure
}

fuzz_target!(|data: &[u8]| {
    let [mode, how, bytes @ ..] = data else {
        return;
    };
    match mode % 2 {
        0 => {
            let whole = receive(bytes, bytes.len().max(1));
            assert_eq!(receive(bytes, usize::from(*how) + 1), whole);
        }
        _ => talk::run(*how, bytes),
    }
});
