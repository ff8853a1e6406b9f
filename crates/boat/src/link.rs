//! What a connection is written to and read from: frames, whatever carries them.

mod tcp;
mod websocket;

use std::task::{Context, Poll};

use bytes::Bytes;
use protocol::{Code, Refusal};

pub(crate) use tcp::TcpLink;
pub(crate) use websocket::WebSocketLink;

/// Frames both ways over one socket. An idle link holds no buffer worth speaking of.
pub(crate) trait Link: Unpin + Send + 'static {
    /// For metrics.
    const TRANSPORT: Transport;

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received>;

    /// Room for a frame.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>>;

    /// Takes a frame; only after `poll_ready`.
    fn start_send(&mut self, frame: Bytes) -> Result<(), Gone>;

    /// Ready when the socket has taken everything.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>>;

    /// Says on the link's own level that nothing more follows; only once.
    fn start_close(&mut self, code: Code) -> Result<(), Gone>;

    /// Ready when the socket has taken the end, too.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    WebSocket,
    Tcp,
}

/// What came from the client.
#[derive(Debug)]
pub(crate) enum Received {
    Frame(Bytes),
    /// Not what may come here: to be told, then to be closed.
    Refused(Refusal),
    /// Nothing more comes.
    End,
}

/// The socket takes nothing any more. Why does not matter: the client is gone.
#[derive(Debug)]
pub(crate) struct Gone;
