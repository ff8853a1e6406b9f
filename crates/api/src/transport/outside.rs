//! Calls to services that are not ours: by host name, over TLS with whatever certificate their
//! caller shows.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Error};
use tower::{Service, ServiceExt};

/// Silence after which a connection is asked whether it lives.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a channel to `uri`, with TLS if there is a configuration for it. The first call connects,
/// within `connect_timeout`, as does the next one after each loss.
///
/// # Errors
/// An invalid address.
pub fn outside(
    uri: &Uri,
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Duration,
) -> Result<Channel, Error> {
    let host = uri.host().unwrap_or_default();
    let default_port = if tls.is_some() { 443 } else { 80 };
    let port = uri.port_u16().unwrap_or(default_port);
    // TLS is ours; the transport's own is not built in.
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"))?
        .origin(uri.clone())
        .connect_timeout(connect_timeout)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    Ok(match tls {
        None => endpoint.connect_lazy(),
        Some(config) => {
            let mut tcp = HttpConnector::new();
            tcp.set_nodelay(true);
            endpoint.connect_with_connector_lazy(SecureConnector {
                tcp,
                connector: config.into(),
                host: host.trim_matches(['[', ']']).to_owned(),
            })
        }
    })
}

#[derive(Clone)]
struct SecureConnector {
    tcp: HttpConnector,
    connector: TlsConnector,
    host: String,
}

impl SecureConnector {
    async fn dial(self, uri: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let stream = self.tcp.oneshot(uri).await.map_err(io::Error::other)?;
        let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
        let stream = self.connector.connect(name, stream.into_inner()).await?;
        Ok(TokioIo::new(stream))
    }
}

impl Service<Uri> for SecureConnector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}
