use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::header::{CONNECTION, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use protocol::origin;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Accepted, Arrival, Door};
use crate::boat::Boat;
use crate::drive::Drive;
use crate::link::WebSocketLink;
use crate::seats::Seat;

/// The protocol that a client must ask for.
const SUBPROTOCOL: &str = "packetboat.v1";
/// How long, and how much, is read after the last word to a client that broke the rules.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// Of the request: what a browser sends fits several times.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Serves WebSocket clients until dropped; connections live on. HTTP/1.1 and nothing else: there a connection
/// is at most one WebSocket, so that a seat is a client.
pub(crate) async fn serve_websocket(listener: TcpListener, boat: Arc<Boat>) {
    let local = listener.local_addr();
    let on_loopback = local.is_ok_and(|address| address.ip().is_loopback());
    let mut door = Door::new(listener, Arc::clone(&boat));
    loop {
        let accepted = door.accept().await;
        tokio::spawn(shake_hands(accepted, Arc::clone(&boat), on_loopback));
    }
}

/// Reads one request; it is over when the socket is a WebSocket's, or is closed.
async fn shake_hands(accepted: Accepted, boat: Arc<Boat>, on_loopback: bool) {
    let Accepted {
        stream,
        arrival,
        seat,
    } = accepted;
    let within = boat.config.upgrade_timeout;
    let socket = Socket {
        stream: Some(stream),
        arrival: Arc::clone(&arrival),
        seat: Some(seat),
    };
    let answer = service_fn(move |request: Request<Incoming>| {
        let (boat, arrival) = (Arc::clone(&boat), Arc::clone(&arrival));
        async move {
            let (mut parts, _) = request.into_parts();
            let mut response = answer(boat, arrival, on_loopback, &mut parts).await;
            // One request a connection. `keep_alive(false)` would say so in an upgrade, too.
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(within)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(false)
        .serve_connection(TokioIo::new(socket), answer)
        .with_upgrades();
    // The answer has the same time: who does not read it holds no seat.
    if let Ok(Err(error)) = timeout(within, connection).await {
        tracing::debug!(%error, "a connection ended before it was a WebSocket");
    }
}

async fn answer(
    boat: Arc<Boat>,
    arrival: Arc<Arrival>,
    on_loopback: bool,
    parts: &mut Parts,
) -> Response {
    if !matches!(parts.uri.path(), "/" | "/ws") {
        return (StatusCode::NOT_FOUND, "WebSockets are at / and /ws\n").into_response();
    }
    if !is_welcome(&boat, on_loopback, &parts.headers) {
        boat.metrics.origins_refused.increment(1);
        let text = "pages of this origin may not connect: boat.origins names those that may\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let upgrade = match WebSocketUpgrade::from_request_parts(parts, &()).await {
        Ok(upgrade) => upgrade.protocols([SUBPROTOCOL]),
        Err(rejection) => return rejection.into_response(),
    };
    if upgrade.selected_protocol().is_none() {
        let text = format!("ask for the WebSocket subprotocol {SUBPROTOCOL}\n");
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    WebSocketLink::bounded(upgrade, boat.frame_bytes_max()).on_upgrade(move |socket| {
        let link = WebSocketLink::new(socket, Arc::clone(&arrival));
        Drive::new(boat, link, &arrival)
    })
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

/// A socket with its seat, which it gives up when it is closed.
struct Socket {
    /// `None` only while it is dropped.
    stream: Option<TcpStream>,
    arrival: Arc<Arrival>,
    seat: Option<Seat>,
}

impl Socket {
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.arrival.lingers.load(Ordering::Relaxed)
            && let Some(stream) = self.stream.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let seat = self.seat.take();
            runtime.spawn(timeout(LINGER, linger(stream, seat)));
        }
    }
}

/// A socket that is closed with unread bytes resets the connection, and the client would never read
/// why it was closed.
async fn linger(mut stream: TcpStream, _seat: Option<Seat>) {
    let _ = stream.shutdown().await;
    let mut left = LINGER_BYTES;
    let mut chunk = vec![0; 16 * 1024];
    while left > 0 {
        match stream.read(&mut chunk).await {
            Ok(read) if read > 0 => left = left.saturating_sub(read),
            Ok(_) | Err(_) => return,
        }
    }
}
