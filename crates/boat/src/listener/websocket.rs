use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep, timeout};
use tracing::error;

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

/// Serves WebSocket clients until dropped; connections live on.
pub(crate) async fn serve_websocket(listener: TcpListener, boat: Arc<Boat>) {
    let router = Router::new()
        .route("/", any(upgrade))
        .route("/ws", any(upgrade))
        .with_state(Arc::clone(&boat))
        .into_make_service_with_connect_info::<Arriving>();
    let door = Door::new(listener, boat);
    if let Err(error) = axum::serve(door, router).await {
        error!(%error, "the WebSocket listener ended");
    }
}

async fn upgrade(
    State(boat): State<Arc<Boat>>,
    ConnectInfo(Arriving(arrival)): ConnectInfo<Arriving>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade.protocols([SUBPROTOCOL]),
        Err(rejection) => return rejection.into_response(),
    };
    if upgrade.selected_protocol().is_none() {
        let text = format!("ask for the WebSocket subprotocol {SUBPROTOCOL}\n");
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    WebSocketLink::bounded(upgrade, boat.frame_bytes_max()).on_upgrade(move |socket| {
        arrival.upgraded.store(true, Ordering::Relaxed);
        let link = WebSocketLink::new(socket, Arc::clone(&arrival));
        Drive::new(boat, link, &arrival)
    })
}

impl Listener for Door {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        let Accepted {
            stream,
            arrival,
            seat,
        } = Door::accept(self).await;
        let peer = arrival.peer;
        let deadline = sleep(self.boat.config.upgrade_timeout);
        let guarded = Guarded {
            stream: Some(stream),
            arrival,
            deadline: Some(Box::pin(deadline)),
            seat: Some(seat),
        };
        (guarded, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Brings the arrival from the socket to the handler.
#[derive(Clone, Debug)]
struct Arriving(Arc<Arrival>);

impl Connected<IncomingStream<'_, Door>> for Arriving {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Arriving(Arc::clone(&stream.io().arrival))
    }
}

/// A socket that is dropped if its request is not a WebSocket in time, however slowly it comes.
pub(crate) struct Guarded {
    /// `None` only while it is dropped.
    stream: Option<TcpStream>,
    arrival: Arc<Arrival>,
    deadline: Option<Pin<Box<Sleep>>>,
    seat: Option<Seat>,
}

impl Guarded {
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn check_deadline(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(deadline) = &mut self.deadline {
            if self.arrival.upgraded.load(Ordering::Relaxed) {
                self.deadline = None;
            } else if deadline.as_mut().poll(cx).is_ready() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_deadline(cx)?;
        self.stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Guarded {
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

impl Drop for Guarded {
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
