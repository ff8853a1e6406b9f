//! TLS of the desk: its settings, and handshakes under a deadline and a bound.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backend::clock::SystemClock;
use backend::tls::{CertificateError, CertificateFiles, Certificates, TlsVersion, server_config};
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time for a handshake, the wait for a place included.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Handshakes side by side: those of strangers, too, cost CPU.
const HANDSHAKES_MAX: usize = 32;
/// Bytes of a request without TLS that are read, so that its answer is not lost by a reset.
const PLAIN_BYTES_MAX: u64 = 16 * 1024;
/// Protocols of the desk: operators' gRPC has HTTP/2, browsers have both.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

const PLAIN: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 48\r\n\
                     connection: close\r\n\r\nthis port speaks TLS: ask by https:// in its URL";

/// Section `admin.tls`.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM: the desk's certificate, then those between it and a root; read again where it changes, as
    /// its key is. What cannot be used changes nothing. Unset: no TLS.
    #[schemars(extend("examples" = ["/etc/packetboat/desk/tls.crt"]))]
    pub cert_file: Option<PathBuf>,
    /// PEM: its private key, without a passphrase.
    #[schemars(extend("examples" = ["/etc/packetboat/desk/tls.key"]))]
    pub key_file: Option<PathBuf>,
    /// Assurance that a proxy ends TLS in front of the desk, or that the network between is nobody
    /// else's.
    pub offloaded: bool,
}

impl TlsConfig {
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    fn files(&self) -> Option<CertificateFiles> {
        Some(CertificateFiles {
            cert_file: self.cert_file.clone()?,
            key_file: self.key_file.clone()?,
        })
    }

    /// Settings that cannot work, by names of this section, files that cannot be used included.
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.cert_file.is_some() != self.key_file.is_some() {
            let reason = "a certificate and its key need each other";
            problems.refuse("cert_file", "", reason, "Name both files or none");
        }
        if self.is_on() && self.offloaded {
            let reason = "there is a certificate, too, and only one of them can be meant";
            let remedy = "Without cert_file and key_file, or false";
            problems.refuse("offloaded", true, reason, remedy);
        }
        if let Err(error) = self.load() {
            problems.refuse("cert_file", "", &error.to_string(), "");
        }
        problems
    }

    /// Reads the files; none where the desk speaks no TLS.
    ///
    /// # Errors
    /// A file that cannot be read, a key of another certificate, one that is over.
    pub fn load(&self) -> Result<Option<Arc<Certificates>>, CertificateError> {
        let files = self.files();
        let load = |files| Certificates::load(&[files], Arc::new(SystemClock));
        files.map(load).transpose()
    }
}

/// Handshakes of a listener.
pub(super) struct Handshakes {
    acceptor: TlsAcceptor,
    places: Semaphore,
}

impl Handshakes {
    pub(super) fn new(certificates: Arc<Certificates>) -> Result<Handshakes, rustls::Error> {
        let config = server_config(certificates, TlsVersion::Tls12, &PROTOCOLS)?;
        Ok(Handshakes {
            acceptor: config.into(),
            places: Semaphore::new(HANDSHAKES_MAX),
        })
    }

    /// A connection that has shown that it speaks TLS. One that speaks HTTP is answered how to, and is none.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<Box<TlsStream<TcpStream>>> {
        let handshake = timeout(HANDSHAKE_WITHIN, Box::pin(self.shake(stream)));
        handshake.await.unwrap_or_else(|_| {
            let text = "the handshake did not end in time";
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }

    async fn shake(&self, mut stream: TcpStream) -> io::Result<Box<TlsStream<TcpStream>>> {
        let mut first = [0];
        // A method of HTTP begins with a letter, and no record of TLS does.
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            stream.write_all(PLAIN.as_bytes()).await?;
            stream.shutdown().await?;
            let mut rest = stream.take(PLAIN_BYTES_MAX);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
            return Err(io::Error::other("it speaks HTTP without TLS"));
        }
        let place = self.places.acquire().await;
        let _place = place.map_err(io::Error::other)?;
        Ok(Box::new(self.acceptor.accept(stream).await?))
    }
}
