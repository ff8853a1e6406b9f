//! TLS of a port that speaks HTTP: handshakes under a deadline and a bound.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use backend::tls::{Certificates, TlsVersion, server_config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Time for a handshake, the wait for a place included.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Bytes read of a request without TLS, so that a reset does not lose its answer.
const PLAIN_BYTES_MAX: u64 = 16 * 1024;
/// Protocols of every port: gRPC uses HTTP/2, browsers use both.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

const PLAIN: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 48\r\n\
                     connection: close\r\n\r\nthis port speaks TLS: ask by https:// in its URL";

/// Handshakes of a listener.
pub struct Handshakes {
    acceptor: TlsAcceptor,
    places: Semaphore,
}

impl Handshakes {
    /// At most `max` handshakes at a time, those that wait for their peer included.
    fn new(certificates: Arc<Certificates>, max: usize) -> Result<Handshakes, rustls::Error> {
        let config = server_config(certificates, TlsVersion::Tls12, &PROTOCOLS)?;
        Ok(Handshakes {
            acceptor: config.into(),
            places: Semaphore::new(max),
        })
    }

    /// Handshakes of a port whose certificates are read again until `stop`, named `listener` in
    /// metrics and `section` in log lines. `None` if the port speaks no TLS.
    pub fn keep(
        certificates: Option<Arc<Certificates>>,
        max: usize,
        (listener, section): (&'static str, &'static str),
        stop: &CancellationToken,
    ) -> Result<Option<Handshakes>, rustls::Error> {
        let Some(certificates) = certificates else {
            return Ok(None);
        };
        let handshakes = Handshakes::new(certificates.clone(), max)?;
        let keep = certificates.keep(listener, section);
        tokio::spawn(stop.clone().run_until_cancelled_owned(keep));
        Ok(Some(handshakes))
    }

    /// Accepts a connection that speaks TLS. One that speaks plain HTTP gets an answer that says
    /// how to connect, and fails.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<Box<TlsStream<TcpStream>>> {
        let handshake = timeout(HANDSHAKE_WITHIN, Box::pin(self.shake(stream)));
        handshake.await.unwrap_or_else(|_| {
            let text = "the TLS handshake timed out";
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }

    async fn shake(&self, mut stream: TcpStream) -> io::Result<Box<TlsStream<TcpStream>>> {
        let mut first = [0];
        // An HTTP method begins with a letter, and no TLS record does.
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            stream.write_all(PLAIN.as_bytes()).await?;
            stream.shutdown().await?;
            let mut rest = stream.take(PLAIN_BYTES_MAX);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
            return Err(io::Error::other("plain HTTP on a TLS port"));
        }
        let place = self.places.acquire().await;
        let _place = place.map_err(io::Error::other)?;
        Ok(Box::new(self.acceptor.accept(stream).await?))
    }
}
