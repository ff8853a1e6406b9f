//! From accepted socket to client: the balancer's header, the limits of the client's own address,
//! TLS.

use std::future::poll_fn;
use std::sync::Arc;

use protocol::proxy::HEADER_DEADLINE;
use rustls::ServerConfig;
use tokio::time::timeout;
use tracing::debug;

use super::acceptor::AcceptedStream;
use super::client_stream::{ClientStream, proxy_header};
use crate::config::ProxyHeader;
use crate::door::Door;
use crate::door::arrivals::IncomingClient;
use crate::door::connection_limit::ConnectionPermit;
use crate::stack::Tls;

impl AcceptedStream {
    /// Whether the session's own bytes come first: no header, no TLS.
    pub(super) fn is_plain(&self, door: &Door) -> bool {
        door.tls.is_none() && !self.has_header(door)
    }

    /// Whether a PROXY header comes first: always from trusted networks, never from others.
    fn has_header(&self, door: &Door) -> bool {
        door.proxy_header == ProxyHeader::ProxyV2 && door.balancers.contains(self.address.ip())
    }
}

/// Completes the arrival; `None`: the socket is closed. With `has_head`, a request follows and its
/// head may name the client.
pub(super) async fn arrive(
    mut accepted_stream: AcceptedStream,
    door: &Door,
    tls: Option<&Arc<ServerConfig>>,
    has_head: bool,
) -> Option<(ClientStream<ConnectionPermit>, IncomingClient)> {
    let mut address = accepted_stream.address;
    if accepted_stream.has_header(door) {
        let header = timeout(HEADER_DEADLINE, proxy_header(&mut accepted_stream.stream)).await;
        match header {
            Ok(Ok(Ok(source))) => address = source.unwrap_or(address),
            Ok(Ok(Err(error))) => {
                door.metrics.proxy_headers_refused.increment(1);
                debug!(%error, %address, "PROXY header refused");
                return None;
            }
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    let is_named = !has_head || !door.is_forwarded(accepted_stream.address.ip());
    let (socket, peer) = accepted_stream.admit(door, is_named.then_some(address))?;
    let tls = match tls {
        Some(config) => Some(Tls::new(Arc::clone(config)).ok()?),
        None => None,
    };
    let mut stream = ClientStream::new(socket, tls);
    let handshake = timeout(door.tls_timeout, poll_fn(|cx| stream.poll_handshake(cx)));
    match handshake.await {
        Ok(Ok(())) => Some((stream, peer)),
        Ok(Err(error)) => {
            door.metrics.tls_handshakes_failed.increment(1);
            debug!(%error, %address, "TLS handshake failed");
            None
        }
        Err(_) => {
            door.metrics.tls_handshakes_failed.increment(1);
            None
        }
    }
}
