use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use protocol::origin;
use protocol::proxy::{self, HeaderError};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::time::timeout_at;

use super::acceptor::{AcceptedStream, Acceptor};
use super::arrival::arrive;
use super::client_stream::ClientStream;
use super::upgrade::{self, refusal_response};
use crate::door::Door;
use crate::door::arrivals::IncomingClient;
use crate::door::connection_limit::ConnectionPermit;
use crate::stack::Wire;
use crate::status::Shortage;

/// Serves WebSocket clients until dropped; connections live on. HTTP/1.1 only: there a connection
/// is at most one WebSocket, so that one permit stands for one client.
pub(crate) async fn serve_websocket(listener: TcpListener, door: Arc<Door>) {
    let local = listener.local_addr();
    let on_loopback = local.is_ok_and(|address| address.ip().is_loopback());
    let mut acceptor = Acceptor::new(listener, Arc::clone(&door), Shortage::WebSocketFiles);
    loop {
        let accepted_stream = acceptor.accept().await;
        let tls = door.tls.as_ref().map(|tls| Arc::clone(&tls.websocket));
        tokio::spawn(shake_hands(
            accepted_stream,
            Arc::clone(&door),
            tls,
            on_loopback,
        ));
    }
}

/// Reads one request; returns once the socket is upgraded or closed.
pub(super) async fn shake_hands(
    accepted_stream: AcceptedStream,
    door: Arc<Door>,
    tls: Option<Arc<ServerConfig>>,
    on_loopback: bool,
) {
    let (deadline, end) = (accepted_stream.deadline, accepted_stream.room.0.end_token());
    let arrival = timeout_at(deadline, arrive(accepted_stream, &door, tls.as_ref(), true));
    let Some(Ok(Some((stream, peer)))) = end.run_until_cancelled(arrival).await else {
        return;
    };
    let head_timeout = door.upgrade_timeout;
    let request = upgrade::serve_request(stream, deadline, head_timeout, |parts: &mut Parts| {
        answer(&door, &peer, on_loopback, parts)
    });
    end.run_until_cancelled(request).await;
}

fn answer(
    door: &Arc<Door>,
    peer: &IncomingClient,
    on_loopback: bool,
    parts: &mut Parts,
) -> Response<String> {
    if !matches!(parts.uri.path(), "/" | "/ws") {
        let text = "WebSockets are at / and /ws\n";
        return refusal_response(StatusCode::NOT_FOUND, text);
    }
    if !is_welcome(door, on_loopback, &parts.headers) {
        door.metrics.origins_refused.increment(1);
        let text = "pages of this origin may not connect: see boat.origins\n";
        return refusal_response(StatusCode::FORBIDDEN, text);
    }
    let client_ip = match forwarded_address(door, peer, &parts.headers) {
        Ok(client_ip) => client_ip,
        Err(error) => {
            door.metrics.proxy_headers_refused.increment(1);
            tracing::debug!(%error, peer = %peer.address, "X-Forwarded-For refused");
            return refusal_response(StatusCode::BAD_REQUEST, &format!("{error}\n"));
        }
    };
    let (response, upgrade) = upgrade::accept(parts);
    if let Some(upgrade) = upgrade {
        tokio::spawn(begin(Arc::clone(door), peer.clone(), client_ip, upgrade));
    }
    response
}

/// Turns the upgraded socket into a connection.
async fn begin(
    door: Arc<Door>,
    mut peer: IncomingClient,
    client_ip: Option<IpAddr>,
    upgrade: OnUpgrade,
) {
    let stream = upgrade::socket::<ClientStream<ConnectionPermit>>(upgrade).await;
    let Some((stream, early_bytes)) = stream else {
        return;
    };
    let (mut socket, tls, plain) = stream.into_parts();
    if let Some(address) = client_ip {
        peer.address = SocketAddr::new(address, 0);
        peer.place().name(address);
        if !door.may_arrive(address) {
            return;
        }
        peer.refusal = peer.refusal.or_else(|| socket.permit.name(address));
    }
    let mut wire = Wire::websocket(door.hello_bytes_max()).with_tls(tls);
    // Bytes the client sent before it read the answer.
    wire.receive_plain(&early_bytes);
    wire.receive_plain(&plain);
    door.serve(socket, wire, peer);
}

/// The client's address if a balancer names it in the head; `None`: use the socket's.
fn forwarded_address(
    door: &Door,
    peer: &IncomingClient,
    headers: &HeaderMap,
) -> Result<Option<IpAddr>, HeaderError> {
    if !door.is_forwarded(peer.address.ip()) {
        return Ok(None);
    }
    let values = headers.get_all("x-forwarded-for");
    let values = values.iter().map(HeaderValue::as_bytes);
    proxy::forwarded_for(peer.address.ip(), values, &door.balancers).map(Some)
}

/// Checks the origin: apps send none, browsers always do.
fn is_welcome(door: &Door, on_loopback: bool, headers: &HeaderMap) -> bool {
    if !headers.contains_key(ORIGIN) {
        return true;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (origin, rules) = (text(ORIGIN), &door.origins);
    origin.is_some_and(|origin| origin::is_welcome(origin, text(HOST), rules, on_loopback))
}
