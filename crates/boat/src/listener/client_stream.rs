//! A client's socket on its way to a session: the balancer's header and the TLS handshake are behind it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use protocol::proxy::{self, Header, HeaderError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::stack::Tls;

/// Read at once.
const CHUNK_BYTES: usize = 8 * 1024;
/// Beyond so much unwritten nothing more is taken.
const UNWRITTEN_MAX: usize = 32 * 1024;

/// The address in a PROXY header, which is read and nothing behind it; `None`: the balancer speaks for itself.
pub(super) async fn proxy_header(
    stream: &mut TcpStream,
) -> io::Result<Result<Option<std::net::SocketAddr>, HeaderError>> {
    let mut header = Vec::new();
    loop {
        let more = match proxy::parse(&header) {
            Ok(Header::Whole { source, .. }) => return Ok(Ok(source)),
            Ok(Header::More(more)) => more,
            Err(error) => return Ok(Err(error)),
        };
        // Never beyond the header's end: what follows is the client's.
        let from = header.len();
        header.resize(from + more, 0);
        let count = stream.read(&mut header[from..]).await?;
        header.truncate(from + count);
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// A socket, and the permit that it holds while it is open.
pub struct Socket<P> {
    pub stream: TcpStream,
    pub permit: P,
}

/// Bytes of a client, through TLS where it is spoken.
pub struct ClientStream<P> {
    socket: Socket<P>,
    tls: Option<Tls>,
    /// Decrypted and not read.
    plain: BytesMut,
}

impl<P> ClientStream<P> {
    pub fn new(socket: Socket<P>, tls: Option<Tls>) -> ClientStream<P> {
        ClientStream {
            socket,
            tls,
            plain: BytesMut::new(),
        }
    }

    /// Shakes hands; ready when both sides have keys and the socket has taken our part.
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.as_ref().is_some_and(Tls::is_handshaking) {
            // What the socket had no room for goes on before more is awaited.
            if let Poll::Ready(Err(error)) = self.poll_unwritten(cx) {
                return Poll::Ready(Err(error));
            }
            if !ready!(self.poll_receive(cx))? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        self.poll_unwritten(cx)
    }

    /// Its parts, for the session; the last are bytes that were decrypted already.
    pub fn into_parts(self) -> (Socket<P>, Option<Tls>, BytesMut) {
        (self.socket, self.tls, self.plain)
    }

    /// Reads from the socket into TLS. False: nothing more comes.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Some(tls) = &mut self.tls else {
            return Poll::Ready(Ok(false));
        };
        let mut chunk = [0; CHUNK_BYTES];
        let mut chunk = ReadBuf::new(&mut chunk);
        ready!(Pin::new(&mut self.socket.stream).poll_read(cx, &mut chunk))?;
        if chunk.filled().is_empty() {
            return Poll::Ready(Ok(false));
        }
        let result = tls.receive(chunk.filled_mut(), &mut self.plain);
        // Also the alert that says what was wrong.
        if let Poll::Ready(Err(error)) = self.poll_unwritten(cx) {
            return Poll::Ready(Err(error));
        }
        result.map_err(io::Error::other)?;
        Poll::Ready(Ok(true))
    }

    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(tls) = &mut self.tls else {
            return Poll::Ready(Ok(()));
        };
        while !tls.unwritten().is_empty() {
            let stream = Pin::new(&mut self.socket.stream);
            match ready!(stream.poll_write(cx, tls.unwritten()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => tls.wrote(count),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<P: Unpin> AsyncRead for ClientStream<P> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.tls.is_none() {
            return Pin::new(&mut this.socket.stream).poll_read(cx, buf);
        }
        while this.plain.is_empty() {
            let has_ended = this.tls.as_ref().is_some_and(Tls::has_ended);
            if has_ended || !ready!(this.poll_receive(cx))? {
                return Poll::Ready(Ok(()));
            }
        }
        let count = this.plain.len().min(buf.remaining());
        buf.put_slice(&this.plain[..count]);
        this.plain.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<P: Unpin> AsyncWrite for ClientStream<P> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(tls) = &mut this.tls else {
            return Pin::new(&mut this.socket.stream).poll_write(cx, bytes);
        };
        if tls.unwritten().len() < UNWRITTEN_MAX {
            tls.send(bytes).map_err(io::Error::other)?;
        } else {
            ready!(this.poll_unwritten(cx))?;
            return Pin::new(this).poll_write(cx, bytes);
        }
        // The rest goes with the next flush.
        match this.poll_unwritten(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_unwritten(cx))?;
        Pin::new(&mut this.socket.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(tls) = &mut this.tls {
            tls.close();
        }
        ready!(this.poll_unwritten(cx))?;
        Pin::new(&mut this.socket.stream).poll_shutdown(cx)
    }
}
