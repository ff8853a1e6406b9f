//! Frames on a WebSocket: one binary message each.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use bytes::Bytes;
use futures_util::{Sink, Stream};
use protocol::{Code, Refusal};
use tokio_tungstenite::tungstenite::Error as WebSocketError;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};

use super::{Gone, Link, Received, Transport};
use crate::listener::Arrival;

/// The read buffer that every connection holds.
const READ_BYTES: usize = 2 * 1024;
/// Frames are put together up to this size before they are written. A connection keeps what it once
/// used of it.
const WRITE_BYTES: usize = 4 * 1024;
/// What may wait in the library's buffer: at most two frames of ours do.
const WRITE_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(crate) struct WebSocketLink {
    socket: WebSocket,
    arrival: Arc<Arrival>,
}

impl WebSocketLink {
    pub(crate) fn new(socket: WebSocket, arrival: Arc<Arrival>) -> WebSocketLink {
        WebSocketLink { socket, arrival }
    }

    /// Bounds before the first byte is read: the library's own are 64 MiB and more.
    pub(crate) fn bounded(upgrade: WebSocketUpgrade, frame_bytes_max: usize) -> WebSocketUpgrade {
        upgrade
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(WRITE_BYTES)
            .max_write_buffer_size(WRITE_BYTES_MAX)
            .max_message_size(frame_bytes_max)
            .max_frame_size(frame_bytes_max)
    }
}

impl Link for WebSocketLink {
    const TRANSPORT: Transport = Transport::WebSocket;

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(frame))) => Received::Frame(frame),
                Some(Ok(Message::Text(_))) => Received::Refused(Refusal::new(
                    Code::Malformed,
                    "frames are binary messages, this one was text",
                )),
                // The library answers pings and closes by itself; after a close comes the end.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_))) => continue,
                None => Received::End,
                Some(Err(error)) => {
                    let received = refused(error);
                    if matches!(received, Received::Refused(_)) {
                        // The library reads no more, but the client should read why.
                        self.arrival.linger();
                    }
                    received
                }
            });
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Pin::new(&mut self.socket).poll_ready(cx).map_err(|_| Gone)
    }

    fn start_send(&mut self, frame: Bytes) -> Result<(), Gone> {
        self.send(Message::Binary(frame))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(|_| Gone)
    }

    fn start_close(&mut self, code: Code) -> Result<(), Gone> {
        self.send(Message::Close(Some(CloseFrame {
            code: code.number(),
            reason: code.name().into(),
        })))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.poll_flush(cx)
    }
}

impl WebSocketLink {
    fn send(&mut self, message: Message) -> Result<(), Gone> {
        Pin::new(&mut self.socket)
            .start_send(message)
            .map_err(|_| Gone)
    }
}

/// What went wrong, and whose fault it is.
fn refused(error: axum::Error) -> Received {
    let Ok(error) = error.into_inner().downcast::<WebSocketError>() else {
        return Received::End;
    };
    match *error {
        WebSocketError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            let text = format!("a frame of {size} bytes, at most {max_size} are taken");
            Received::Refused(Refusal::new(Code::TooLarge, text))
        }
        WebSocketError::Capacity(_) => {
            Received::Refused(Refusal::new(Code::TooLarge, "a header that is too large"))
        }
        WebSocketError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Received::End,
        WebSocketError::Protocol(_) | WebSocketError::Utf8(_) => {
            let text = format!("these bytes are no WebSocket message: {error}");
            Received::Refused(Refusal::new(Code::Malformed, text))
        }
        _ => Received::End,
    }
}
