//! Frames on TCP: a varint length before each.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use api::codec::{FrameError, Frames, put_length};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::Code;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::codec::Decoder;

use super::{Gone, Link, Received, Transport};
use crate::seats::Seat;

/// Read at once.
const CHUNK_BYTES: usize = 8 * 1024;
/// Waits for the socket; beyond it no frame is taken.
const WRITE_BYTES: usize = 64 * 1024;

pub(crate) struct TcpLink {
    stream: TcpStream,
    frames: Frames,
    /// What has come of the next frame.
    partial: BytesMut,
    /// What the socket has not taken.
    unwritten: BytesMut,
    /// Nothing that comes matters any more.
    closing: bool,
    _seat: Seat,
}

impl TcpLink {
    pub(crate) fn new(stream: TcpStream, frame_bytes_max: usize, seat: Seat) -> TcpLink {
        TcpLink {
            stream,
            frames: Frames::new(frame_bytes_max),
            partial: BytesMut::new(),
            unwritten: BytesMut::new(),
            closing: false,
            _seat: seat,
        }
    }

    /// A frame that is there already.
    fn next(&mut self) -> Option<Received> {
        if self.partial.is_empty() {
            return None;
        }
        let decoded = self.frames.decode(&mut self.partial);
        if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
        match decoded {
            Ok(frame) => frame.map(Received::Frame),
            Err(FrameError::Refused(refusal)) => Some(Received::Refused(refusal)),
            Err(FrameError::Io(_)) => Some(Received::End),
        }
    }
}

impl Link for TcpLink {
    const TRANSPORT: Transport = Transport::Tcp;

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            if let Some(received) = self.next() {
                return Poll::Ready(received);
            }
            let mut chunk = [MaybeUninit::uninit(); CHUNK_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut chunk)) {
                Ok(()) if self.closing && !chunk.filled().is_empty() => {}
                Ok(()) if !chunk.filled().is_empty() => {
                    self.partial.extend_from_slice(chunk.filled());
                }
                Ok(()) | Err(_) => return Poll::Ready(Received::End),
            }
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if self.unwritten.len() < WRITE_BYTES {
            return Poll::Ready(Ok(()));
        }
        self.poll_flush(cx)
    }

    fn start_send(&mut self, frame: Bytes) -> Result<(), Gone> {
        put_length(frame.len(), &mut self.unwritten);
        self.unwritten.put_slice(&frame);
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        while !self.unwritten.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unwritten)) {
                Ok(written) if written > 0 => self.unwritten.advance(written),
                Ok(_) | Err(_) => return Poll::Ready(Err(Gone)),
            }
        }
        self.unwritten = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// The last frame has said it. What still comes is read and forgotten: a socket that is closed with
    /// unread bytes resets the connection, and the client would not read why.
    fn start_close(&mut self, _code: Code) -> Result<(), Gone> {
        self.closing = true;
        self.partial = BytesMut::new();
        Ok(())
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.stream)
            .poll_shutdown(cx)
            .map_err(|_| Gone)
    }
}
