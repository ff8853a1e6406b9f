//! Proof of a service's identity, on each connection between two of them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use protocol::access::{Caller, Role};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::either::Either;
use tonic::transport::server::Connected;
use tower::{Service, ServiceExt};

use crate::access::Peer;

/// Deadline of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// First byte of a TLS record that begins a handshake (RFC 8446, 5.1); no HTTP begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// Certificates of this process and the roots of others', as of now: each new connection asks
/// again, so that a renewal needs no restart.
pub trait Identity: Send + Sync {
    /// Configuration for a connection that a peer opened: the peer must show a certificate.
    fn accepting(&self) -> Arc<ServerConfig>;

    /// Configuration for a connection to a peer of this role, whatever its host is called.
    fn calling(&self, role: Role) -> Arc<ClientConfig>;

    /// Service behind a verified certificate, and the time until the certificate ends.
    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)>;

    /// Whether a chain verified earlier would be accepted today: its root may be retired.
    fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool;

    /// Whether peers without a certificate are refused. Otherwise a listener takes both, while a
    /// fleet changes over.
    fn required(&self) -> bool;
}

type Stream = Either<TcpStream, Box<tokio_rustls::server::TlsStream<TcpStream>>>;

/// A connection of a listener, with its peer's proven identity.
pub(super) struct Link {
    stream: ExpiringStream<Stream>,
    peer: Peer,
}

impl Link {
    pub(super) fn plain(stream: TcpStream) -> Link {
        Link {
            stream: ExpiringStream {
                stream: Either::Left(stream),
                proof: None,
            },
            peer: Peer::default(),
        }
    }

    /// Waits for the peer's proof. Callers leave a connection at this `age`.
    ///
    /// # Errors
    /// A handshake that failed or took too long, and a peer without a certificate if one is
    /// required.
    pub(super) async fn accept(
        stream: TcpStream,
        identity: Arc<dyn Identity>,
        age: Duration,
    ) -> io::Result<Link> {
        let handshake = async {
            if !identity.required() && !begins_with_tls(&stream).await? {
                return Ok(Link::plain(stream));
            }
            let acceptor = TlsAcceptor::from(identity.accepting());
            let stream = Box::new(acceptor.accept(stream).await?);
            let (_, connection) = stream.get_ref();
            let (caller, proof) =
                Proof::from_chain(connection.peer_certificates(), &identity, age)?;
            let proof = Some(Box::new(proof));
            let stream = Either::Right(stream);
            Ok(Link {
                stream: ExpiringStream { stream, proof },
                peer: Peer(Some(caller)),
            })
        };
        match timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(link) => link,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let count = stream.peek(&mut first).await?;
    Ok(count == 1 && first[0] == TLS_HANDSHAKE)
}

impl Connected for Link {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A connection that fails once its peer would no longer be accepted, whoever opened it.
pub(super) struct ExpiringStream<S> {
    stream: S,
    proof: Option<Box<Proof>>,
}

/// Chain that a peer showed, checked again from time to time.
struct Proof {
    chain: Vec<CertificateDer<'static>>,
    identity: Arc<dyn Identity>,
    check_interval: Duration,
    /// End of its certificate.
    end: Instant,
    /// Time of the next check, or the end.
    timer: Pin<Box<Sleep>>,
}

impl Proof {
    /// Service behind a verified chain, and its proof.
    fn from_chain(
        chain: Option<&[CertificateDer<'_>]>,
        identity: &Arc<dyn Identity>,
        age: Duration,
    ) -> io::Result<(Caller, Proof)> {
        let chain = chain.unwrap_or_default();
        let peer = chain.first().and_then(|leaf| identity.peer(leaf));
        let Some((caller, time_left)) = peer else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        let now = Instant::now();
        // Well-behaved callers leave an old connection earlier, and lose no call.
        let check_interval = age.mul_f64(1.25).max(Duration::from_millis(1));
        let end = now + time_left;
        let chain = chain
            .iter()
            .map(|certificate| certificate.clone().into_owned());
        let proof = Proof {
            chain: chain.collect(),
            identity: Arc::clone(identity),
            check_interval,
            end,
            timer: Box::pin(sleep_until(end.min(now + check_interval))),
        };
        Ok((caller, proof))
    }

    /// Resolves with the reason for the connection to end, once there is one.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<&'static str> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if now >= self.end {
                return Poll::Ready("the peer's certificate has expired");
            }
            if !self.identity.trusts(&self.chain) {
                return Poll::Ready("the root of the peer's certificate is no longer trusted");
            }
            self.timer
                .as_mut()
                .reset(self.end.min(now + self.check_interval));
        }
    }
}

impl<S> ExpiringStream<S> {
    /// Fails once the peer is no longer accepted, even if the peer takes no bytes.
    fn look_at_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.proof.as_mut().map(|proof| proof.poll_end(cx)) {
            Some(Poll::Ready(reason)) => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
            _ => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ExpiringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.look_at_end(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ExpiringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.look_at_end(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look_at_end(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.look_at_end(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Opens connections to peers of one role, and proves this process's identity to each.
#[derive(Clone)]
pub(super) struct Dialer {
    tcp: HttpConnector,
    identity: Arc<dyn Identity>,
    role: Role,
    age: Duration,
}

type DialedStream = TokioIo<ExpiringStream<tokio_rustls::client::TlsStream<TcpStream>>>;

impl Dialer {
    /// `age` is the one at which its connections are left.
    pub(super) fn new(identity: Arc<dyn Identity>, role: Role, age: Duration) -> Dialer {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Dialer {
            tcp,
            identity,
            role,
            age,
        }
    }

    async fn dial(self, uri: Uri) -> io::Result<DialedStream> {
        let stream = self.tcp.oneshot(uri).await.map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.identity.calling(self.role));
        // Nobody reads the name: a peer is known by its role, and not asked for by name.
        let name = ServerName::try_from(self.role.name()).map_err(io::Error::other)?;
        let stream = connector.connect(name, stream.into_inner()).await?;
        let (_, connection) = stream.get_ref();
        let chain = connection.peer_certificates();
        let (_, proof) = Proof::from_chain(chain, &self.identity, self.age)?;
        let proof = Some(Box::new(proof));
        Ok(TokioIo::new(ExpiringStream { stream, proof }))
    }
}

impl Service<Uri> for Dialer {
    type Response = DialedStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<DialedStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}
