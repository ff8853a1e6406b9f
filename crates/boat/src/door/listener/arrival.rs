//! From accepted socket to client: the balancer's header, the limits of the client's own address,
//! TLS.

use std::future::poll_fn;
use std::sync::Arc;

use protocol::proxy::HEADER_DEADLINE;
use rustls::ServerConfig;
use tokio::time::timeout;
use tracing::debug;

use super::client_stream::{ClientStream, proxy_header};
use super::{AcceptedStream, IncomingClient};
use crate::boat::Boat;
use crate::config::ProxyHeader;
use crate::door::connection_limit::ConnectionPermit;
use crate::stack::Tls;

impl AcceptedStream {
    /// Whether the session's own bytes come first: no header, no TLS.
    pub(super) fn is_plain(&self, boat: &Boat) -> bool {
        boat.tls_for_tcp().is_none() && !self.has_header(boat)
    }

    /// Whether a PROXY header comes first: always from trusted networks, never from others.
    fn has_header(&self, boat: &Boat) -> bool {
        boat.config.proxy.header == ProxyHeader::ProxyV2
            && boat.balancers.contains(self.address.ip())
    }
}

/// Completes the arrival; `None`: the socket is closed. With `has_head`, a request follows and its
/// head may name the client.
pub(super) async fn arrive(
    mut accepted_stream: AcceptedStream,
    boat: &Boat,
    tls: Option<&Arc<ServerConfig>>,
    has_head: bool,
) -> Option<(ClientStream<ConnectionPermit>, IncomingClient)> {
    let mut address = accepted_stream.address;
    if accepted_stream.has_header(boat) {
        let header = timeout(HEADER_DEADLINE, proxy_header(&mut accepted_stream.stream)).await;
        match header {
            Ok(Ok(Ok(source))) => address = source.unwrap_or(address),
            Ok(Ok(Err(error))) => {
                boat.metrics.proxy_headers_refused.increment(1);
                debug!(%error, %address, "PROXY header refused");
                return None;
            }
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    let is_named = !has_head || !boat.is_forwarded(accepted_stream.address.ip());
    let (socket, peer) = accepted_stream.admit(boat, is_named.then_some(address))?;
    let tls = match tls {
        Some(config) => Some(Tls::new(Arc::clone(config)).ok()?),
        None => None,
    };
    let mut stream = ClientStream::new(socket, tls);
    let handshake = timeout(
        boat.config.tls_timeout,
        poll_fn(|cx| stream.poll_handshake(cx)),
    );
    match handshake.await {
        Ok(Ok(())) => Some((stream, peer)),
        Ok(Err(error)) => {
            boat.metrics.tls_handshakes_failed.increment(1);
            debug!(%error, %address, "TLS handshake failed");
            None
        }
        Err(_) => {
            boat.metrics.tls_handshakes_failed.increment(1);
            None
        }
    }
}
