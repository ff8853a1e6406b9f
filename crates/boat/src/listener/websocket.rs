use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_TYPE, HOST, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use protocol::origin;
use protocol::proxy::{self, HeaderError};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout_at};

use super::arrival::arrive;
use super::client_stream::ClientStream;
use super::{Accepted, Acceptor, Peer, serve};
use crate::boat::{Boat, Shortage};
use crate::stack::Wire;
use crate::stack::websocket::handshake;

/// The protocol that a client must ask for.
const SUBPROTOCOL: &str = "packetboat.v1";
/// Of the request: what a browser sends fits several times.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Serves WebSocket clients until dropped; connections live on. HTTP/1.1 and nothing else: there a connection
/// is at most one WebSocket, so that a permit is a client's.
pub(crate) async fn serve_websocket(listener: TcpListener, boat: Arc<Boat>) {
    let local = listener.local_addr();
    let on_loopback = local.is_ok_and(|address| address.ip().is_loopback());
    let mut acceptor = Acceptor::new(listener, Arc::clone(&boat), Shortage::WebSocketFiles);
    loop {
        let accepted = acceptor.accept().await;
        tokio::spawn(shake_hands(accepted, Arc::clone(&boat), on_loopback));
    }
}

/// Reads one request; it is over when the socket is a WebSocket's, or is closed.
async fn shake_hands(accepted: Accepted, boat: Arc<Boat>, on_loopback: bool) {
    let until = accepted.until;
    let arrived = timeout_at(
        until,
        arrive(accepted, &boat, boat.tls_for_websockets(), true),
    );
    let Ok(Some((stream, peer))) = arrived.await else {
        return;
    };
    let within = boat.config.upgrade_timeout;
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut parts, _) = request.into_parts();
        let response = answer(&boat, &peer, on_loopback, &mut parts);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(within)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    // The answer has the same time: who does not read it holds no permit.
    let by = until.min(Instant::now() + within);
    if let Ok(Err(error)) = timeout_at(by, connection).await {
        tracing::debug!(%error, "a connection ended before it was a WebSocket");
    }
}

fn answer(boat: &Arc<Boat>, peer: &Peer, on_loopback: bool, parts: &mut Parts) -> Response<String> {
    if !matches!(parts.uri.path(), "/" | "/ws") {
        let text = "WebSockets are at / and /ws\n";
        return refused(StatusCode::NOT_FOUND, text);
    }
    if !is_welcome(boat, on_loopback, &parts.headers) {
        boat.metrics.origins_refused.increment(1);
        let text = "pages of this origin may not connect: boat.origins names those that may\n";
        return refused(StatusCode::FORBIDDEN, text);
    }
    let forwarded = match forwarded_address(boat, peer, &parts.headers) {
        Ok(forwarded) => forwarded,
        Err(error) => {
            boat.metrics.proxy_headers_refused.increment(1);
            tracing::debug!(%error, peer = %peer.address, "a balancer's header was refused");
            return refused(StatusCode::BAD_REQUEST, &format!("{error}\n"));
        }
    };
    let accepted = match handshake::accept(&parts.method, &parts.headers, SUBPROTOCOL) {
        Ok(accepted) => accepted,
        Err(rejection) => return refused(rejection.status, &rejection.text),
    };
    let accepted = HeaderValue::try_from(accepted).ok();
    let Some((upgrade, accepted)) = parts.extensions.remove::<OnUpgrade>().zip(accepted) else {
        return refused(
            StatusCode::UPGRADE_REQUIRED,
            "this connection cannot be upgraded\n",
        );
    };
    tokio::spawn(begin(Arc::clone(boat), peer.clone(), forwarded, upgrade));
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    headers.insert(
        SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(SUBPROTOCOL),
    );
    response
}

/// One request a connection: a refused one is the last.
fn refused(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if status == StatusCode::UPGRADE_REQUIRED {
        let version = HeaderValue::from_static(handshake::VERSION);
        headers.insert(SEC_WEBSOCKET_VERSION, version);
    }
    response
}

/// Goes on with the socket of a handshake.
async fn begin(boat: Arc<Boat>, mut peer: Peer, forwarded: Option<IpAddr>, upgrade: OnUpgrade) {
    let Ok(upgraded) = upgrade.await else {
        return;
    };
    let Ok(parts) = upgraded.downcast::<TokioIo<ClientStream>>() else {
        tracing::error!("a WebSocket on a socket that nobody accepted");
        return;
    };
    let (mut socket, tls, plain) = parts.io.into_inner().into_parts();
    if let Some(address) = forwarded {
        peer.address = SocketAddr::new(address, 0);
        if !boat.address_limits.may_arrive(address) {
            return;
        }
        peer.refusal = peer.refusal.or_else(|| socket.permit.name(address));
    }
    let mut wire = Wire::websocket(boat.frame_bytes_max()).over(tls);
    // Sent before it read the answer.
    wire.receive_plain(&parts.read_buf);
    wire.receive_plain(&plain);
    serve(&boat, socket, wire, Arc::new(peer));
}

/// The client's address where a balancer names it in the head; `None`: the socket's is its own.
fn forwarded_address(
    boat: &Boat,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Option<IpAddr>, HeaderError> {
    if !boat.is_forwarded(peer.address.ip()) {
        return Ok(None);
    }
    let values = headers.get_all("x-forwarded-for");
    let values = values.iter().map(HeaderValue::as_bytes);
    proxy::forwarded_for(peer.address.ip(), values, &boat.balancers).map(Some)
}

/// Apps send no origin; browsers always do.
fn is_welcome(boat: &Boat, on_loopback: bool, headers: &HeaderMap) -> bool {
    if !headers.contains_key(ORIGIN) {
        return true;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (from, rules) = (text(ORIGIN), &boat.config.origins);
    from.is_some_and(|from| origin::is_welcome(from, text(HOST), rules, on_loopback))
}
