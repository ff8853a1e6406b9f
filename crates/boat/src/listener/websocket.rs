use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{Acceptor, Peer, serve};
use crate::boat::Boat;
use crate::connection_loop::ClientSocket;
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
    let mut acceptor = Acceptor::new(listener, Arc::clone(&boat));
    loop {
        let (socket, peer) = acceptor.accept().await;
        tokio::spawn(shake_hands(socket, peer, Arc::clone(&boat), on_loopback));
    }
}

/// Reads one request; it is over when the socket is a WebSocket's, or is closed.
async fn shake_hands(socket: ClientSocket, peer: Peer, boat: Arc<Boat>, on_loopback: bool) {
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
        .serve_connection(TokioIo::new(socket), answer)
        .with_upgrades();
    // The answer has the same time: who does not read it holds no permit.
    if let Ok(Err(error)) = timeout(within, connection).await {
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
    tokio::spawn(begin(Arc::clone(boat), peer.clone(), upgrade));
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
async fn begin(boat: Arc<Boat>, peer: Peer, upgrade: OnUpgrade) {
    let Ok(upgraded) = upgrade.await else {
        return;
    };
    let Ok(parts) = upgraded.downcast::<TokioIo<ClientSocket>>() else {
        tracing::error!("a WebSocket on a socket that nobody accepted");
        return;
    };
    let mut wire = Wire::websocket(boat.frame_bytes_max());
    // Sent before it read the answer.
    wire.receive(&mut Vec::from(parts.read_buf));
    serve(&boat, parts.io.into_inner(), wire, &peer);
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

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ClientSocket {
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
}
