//! A connection's socket, read and written as far as it goes at once.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use protocol::Code;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::seats::Seat;
use crate::stack::{Received, Wire};

/// Read at once.
const CHUNK_BYTES: usize = 8 * 1024;

/// The socket takes nothing any more. Why does not matter: the client is gone.
#[derive(Debug)]
pub(crate) struct Gone;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    WebSocket,
    Tcp,
}

/// Frames both ways over one socket. An idle link holds no buffer.
pub(crate) struct Link {
    stream: TcpStream,
    wire: Wire,
    _seat: Seat,
}

impl Link {
    pub(crate) fn new(stream: TcpStream, wire: Wire, seat: Seat) -> Link {
        Link {
            stream,
            wire,
            _seat: seat,
        }
    }

    /// For metrics.
    pub(crate) fn transport(&self) -> Transport {
        match self.wire.is_websocket() {
            true => Transport::WebSocket,
            false => Transport::Tcp,
        }
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            let received = self.wire.next_frame();
            // What it answers by itself goes at once, or with the next frame.
            if !self.wire.unwritten().is_empty()
                && matches!(self.poll_flush(cx), Poll::Ready(Err(Gone)))
            {
                return Poll::Ready(Received::End);
            }
            if let Some(received) = received {
                return Poll::Ready(received);
            }
            let mut chunk = [MaybeUninit::uninit(); CHUNK_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut chunk)) {
                Ok(()) if !chunk.filled().is_empty() => self.wire.receive(chunk.filled()),
                Ok(()) | Err(_) => return Poll::Ready(Received::End),
            }
        }
    }

    /// Room for a frame.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if self.wire.has_room() {
            return Poll::Ready(Ok(()));
        }
        self.poll_flush(cx)
    }

    /// Takes a frame; only after `poll_ready`.
    pub(crate) fn start_send(&mut self, frame: &[u8]) {
        self.wire.send(frame);
    }

    /// Ready when the socket has taken everything.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        while !self.wire.unwritten().is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, self.wire.unwritten())) {
                Ok(written) if written > 0 => self.wire.wrote(written),
                Ok(_) | Err(_) => return Poll::Ready(Err(Gone)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Says on its own level that nothing more follows; only once.
    pub(crate) fn start_close(&mut self, code: Code) {
        self.wire.close(code);
    }

    /// Ready when the socket has taken the end, too.
    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.stream)
            .poll_shutdown(cx)
            .map_err(|_| Gone)
    }
}
