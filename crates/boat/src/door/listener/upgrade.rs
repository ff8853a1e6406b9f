//! The one request of a socket that becomes a WebSocket: HTTP/1.1 only, read within bounds,
//! answered once.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use crate::stack::websocket::handshake;

/// The protocol that a client must ask for.
pub const SUBPROTOCOL: &str = "packetboat.v1";
/// Bounds of a request, several times a browser's.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Bounds of a request, whose head must come in time.
pub fn http(head_timeout: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(false);
    http
}

/// Serves one request; returns once the socket is upgraded or closed.
pub async fn serve_request<S, A>(stream: S, deadline: Instant, head_timeout: Duration, answer: A)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(&mut Parts) -> Response<String>,
{
    let answer = service_fn(|request: Request<Incoming>| {
        let (mut parts, _) = request.into_parts();
        std::future::ready(Ok::<_, Infallible>(answer(&mut parts)))
    });
    let connection = http(head_timeout).serve_connection(TokioIo::new(stream), answer);
    let connection = connection.with_upgrades();
    // The answer has the same time: a client that does not read it holds no permit.
    let answer_deadline = deadline.min(Instant::now() + head_timeout);
    if let Ok(Err(error)) = timeout_at(answer_deadline, connection).await {
        tracing::debug!(%error, "connection closed before the WebSocket upgrade");
    }
}

/// The answer to a handshake, and on success the future of the upgraded socket.
pub fn accept(parts: &mut Parts) -> (Response<String>, Option<OnUpgrade>) {
    let accept_key = match handshake::accept(&parts.method, &parts.headers, SUBPROTOCOL) {
        Ok(accept_key) => HeaderValue::try_from(accept_key).ok(),
        Err(rejection) => return (refusal_response(rejection.status, &rejection.text), None),
    };
    let Some((upgrade, accept_key)) = parts.extensions.remove::<OnUpgrade>().zip(accept_key) else {
        let text = "cannot upgrade this connection\n";
        return (refusal_response(StatusCode::UPGRADE_REQUIRED, text), None);
    };
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept_key);
    headers.insert(
        SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(SUBPROTOCOL),
    );
    (response, Some(upgrade))
}

/// A refusal; it also ends the connection, as each serves one request.
pub fn refusal_response(status: StatusCode, text: &str) -> Response<String> {
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

/// The upgraded socket, and bytes the client sent before it read the answer.
pub async fn socket<S>(upgrade: OnUpgrade) -> Option<(S, Bytes)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match upgrade.await.ok()?.downcast::<TokioIo<S>>() {
        Ok(parts) => Some((parts.io.into_inner(), parts.read_buf)),
        Err(_) => {
            tracing::error!("bug: WebSocket upgrade on an unknown socket");
            None
        }
    }
}
