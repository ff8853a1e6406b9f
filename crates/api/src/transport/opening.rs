//! First bytes of a connection, under a deadline. HTTP servers time requests, not the silence
//! before the first one.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Preface of every HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that fails if its peer does not begin in time: with a whole preface of HTTP/2, or
/// with anything else.
pub struct OpeningStream<S, P = OwnedSemaphorePermit> {
    stream: S,
    /// `None` once it has begun.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes of the preface received.
    matched_bytes: usize,
    /// Permit among the connections of the listener.
    _permit: P,
}

impl<S, P> OpeningStream<S, P> {
    pub fn new(stream: S, timeout: Duration, permit: P) -> OpeningStream<S, P> {
        OpeningStream {
            stream,
            timer: Some(Box::pin(sleep(timeout))),
            matched_bytes: 0,
            _permit: permit,
        }
    }

    fn match_preface(&mut self, bytes: &[u8]) {
        let rest = &PREFACE[self.matched_bytes..];
        let len = bytes.len().min(rest.len());
        self.matched_bytes += len;
        if bytes[..len] != rest[..len] || self.matched_bytes == PREFACE.len() {
            self.timer = None;
        }
    }
}

impl<S: AsyncRead + Unpin, P: Unpin> AsyncRead for OpeningStream<S, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let old_len = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(timer) = &mut self.timer else {
            return result;
        };
        match result {
            Poll::Pending => timer
                .as_mut()
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
            result => {
                self.match_preface(&buf.filled()[old_len..]);
                result
            }
        }
    }
}

impl<S: AsyncWrite + Unpin, P: Unpin> AsyncWrite for OpeningStream<S, P> {
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: Connected, P> Connected for OpeningStream<S, P> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}
