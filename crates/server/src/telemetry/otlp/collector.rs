//! Connection to a collector: a channel over a dialer of our own, which reads the files of TLS at
//! each connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Cx, Poll};
use std::time::Duration;

use anyhow::{Context, Result};
use backend::clock::{Clock, SystemClock};
use backend::tls::ClientTlsConfig;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use protocol::settings::Link;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{Service, ServiceExt};

use super::Config;

/// Interval of HTTP/2 pings.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Makes a channel of one connection, dialed at the first call, and again after a break. Call it
/// within a runtime.
pub(super) fn connect(config: &Config, link: &Link) -> Result<(Channel, Dialer)> {
    let url = link.expose();
    let wrong = || format!("log.otlp.endpoint {link:?} is not an address");
    let (scheme, host) = url.split_once("://").with_context(wrong)?;
    // Our own dialer speaks TLS, not the library's.
    let endpoint = Endpoint::from_shared(format!("http://{host}")).with_context(wrong)?;
    let endpoint = endpoint
        .origin(url.parse::<Uri>().with_context(wrong)?)
        .tcp_nodelay(true)
        .connect_timeout(config.timeout)
        .timeout(config.timeout)
        .keep_alive_timeout(config.timeout)
        .http2_keep_alive_interval(KEEPALIVE);
    let dialer = Dialer {
        tcp: HttpConnector::new(),
        tls: (scheme == "https").then(|| Arc::new(config.tls.clone())),
        handshake: config.timeout,
        trouble: Arc::default(),
    };
    Ok((endpoint.connect_with_connector_lazy(dialer.clone()), dialer))
}

/// Opens connections to a collector. Clones share the reason of the last failure.
#[derive(Clone)]
pub(super) struct Dialer {
    tcp: HttpConnector,
    tls: Option<Arc<ClientTlsConfig>>,
    handshake: Duration,
    trouble: Arc<Mutex<Option<String>>>,
}

type Stream = TokioIo<Either<TcpStream, Box<TlsStream<TcpStream>>>>;

impl Dialer {
    /// Reason why the last connection failed, if it did.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    async fn dial(self, uri: Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().to_owned();
        let stream = self.tcp.oneshot(uri).await.map_err(io::Error::other)?;
        let stream = stream.into_inner();
        let Some(tls) = self.tls else {
            return Ok(TokioIo::new(Either::Left(stream)));
        };
        let config = tls.client_config(&[b"h2"], SystemClock.now());
        let config = config.map_err(io::Error::other)?;
        let config =
            config.ok_or_else(|| io::Error::other("log.otlp.tls has no root certificates"))?;
        let name = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let handshake = TlsConnector::from(config).connect(name, stream);
        let stream = timeout(self.handshake, handshake).await??;
        Ok(TokioIo::new(Either::Right(Box::new(stream))))
    }
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Cx<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        let trouble = Arc::clone(&self.trouble);
        Box::pin(async move {
            let result = dialer.dial(uri).await;
            let reason = result.as_ref().err().map(reason);
            *trouble.lock() = reason;
            result
        })
    }
}

/// Text of an error and of its causes.
fn reason(error: &io::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.get_ref().and_then(|inner| inner.source());
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}
