//! Proof of what a service is, on each connection between two of them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use protocol::access::{Caller, Role};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::either::Either;
use tonic::transport::server::Connected;
use tower::{Service, ServiceExt};

use crate::access::Peer;

/// Deadline of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// First byte of a TLS record that begins a handshake (RFC 8446, 5.1); no HTTP begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// Certificates of this process and the roots of others', as they are at the moment: each new connection asks again, so
/// that a renewal needs no restart.
pub trait Identity: Send + Sync {
    /// For a connection that a peer opened: it must show a certificate.
    fn accepting(&self) -> Arc<ServerConfig>;

    /// For a connection to a peer of this role, whatever its host is called.
    fn calling(&self, role: Role) -> Arc<ClientConfig>;

    /// The service behind a certificate that was verified, and the time until the certificate ends.
    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)>;

    /// True where peers without a certificate are refused. Otherwise a listener takes both, while a fleet changes over.
    fn required(&self) -> bool;
}

type Stream = Either<TcpStream, Box<tokio_rustls::server::TlsStream<TcpStream>>>;

/// A connection of a listener, with what its peer proved to be.
pub(super) struct Link {
    stream: Stream,
    peer: Peer,
    /// The end of the peer's certificate.
    end: Option<Pin<Box<Sleep>>>,
}

impl Link {
    pub(super) fn plain(stream: TcpStream) -> Link {
        Link {
            stream: Either::Left(stream),
            peer: Peer::default(),
            end: None,
        }
    }

    /// Waits for the peer's proof.
    ///
    /// # Errors
    /// A handshake that failed or took too long, and a peer without a certificate where one is required.
    pub(super) async fn accept(stream: TcpStream, identity: &dyn Identity) -> io::Result<Link> {
        let handshake = async {
            if !identity.required() && !begins_with_tls(&stream).await? {
                return Ok(Link::plain(stream));
            }
            let acceptor = TlsAcceptor::from(identity.accepting());
            let stream = Box::new(acceptor.accept(stream).await?);
            let (_, connection) = stream.get_ref();
            let certificate = connection.peer_certificates().and_then(<[_]>::first);
            let peer = certificate.and_then(|certificate| identity.peer(certificate));
            let Some((caller, rest)) = peer else {
                return Err(io::ErrorKind::PermissionDenied.into());
            };
            Ok(Link {
                stream: Either::Right(stream),
                peer: Peer(Some(caller)),
                end: Some(Box::pin(sleep(rest))),
            })
        };
        match timeout(HANDSHAKE, handshake).await {
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

impl Link {
    /// Fails once the peer's certificate has ended: also a peer that takes no bytes is left then.
    fn look_at_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let ended = |end: &mut Pin<Box<Sleep>>| end.as_mut().poll(cx).is_ready();
        if self.end.as_mut().is_some_and(ended) {
            let text = "the certificate of the peer has ended";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.look_at_end(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
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

/// Opens connections to peers of one role, and proves to each what this process is.
#[derive(Clone)]
pub(super) struct Dialer {
    tcp: HttpConnector,
    identity: Arc<dyn Identity>,
    role: Role,
}

type Dialed = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;

impl Dialer {
    pub(super) fn new(identity: Arc<dyn Identity>, role: Role) -> Dialer {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Dialer {
            tcp,
            identity,
            role,
        }
    }

    async fn dial(self, uri: Uri) -> io::Result<Dialed> {
        let stream = self.tcp.oneshot(uri).await.map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.identity.calling(self.role));
        // Nobody reads it: a peer is known by its role, and asked for by no name.
        let name = ServerName::try_from(self.role.name()).map_err(io::Error::other)?;
        let stream = connector.connect(name, stream.into_inner()).await?;
        Ok(TokioIo::new(stream))
    }
}

impl Service<Uri> for Dialer {
    type Response = Dialed;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Dialed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}
