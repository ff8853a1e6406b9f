//! A client's socket up to its session: reads the balancer's header and does the TLS handshake.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use protocol::proxy::{self, Header, HeaderError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;

use crate::stack::Tls;

/// Bytes of one read.
const CHUNK_BYTES: usize = 8 * 1024;
/// Unwritten bytes beyond which no more are taken.
const UNWRITTEN_MAX: usize = 32 * 1024;

/// Reads exactly a PROXY header and returns its address; `None`: the balancer speaks for itself.
pub(super) async fn proxy_header(
    stream: &mut ByteStream,
) -> io::Result<Result<Option<std::net::SocketAddr>, HeaderError>> {
    let mut header = Vec::new();
    loop {
        let more = match proxy::parse(&header) {
            Ok(Header::Whole { source, .. }) => return Ok(Ok(source)),
            Ok(Header::More(more)) => more,
            Err(error) => return Ok(Err(error)),
        };
        // Never reads beyond the header: the bytes after it are the client's.
        let from = header.len();
        header.resize(from + more, 0);
        let count = stream.read(&mut header[from..]).await?;
        header.truncate(from + count);
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Bytes to and from a client: over a socket, or through a pipe in this process.
#[derive(Debug)]
pub enum ByteStream {
    Tcp(TcpStream),
    Pipe(DuplexStream),
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            ByteStream::Pipe(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ByteStream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            ByteStream::Pipe(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            ByteStream::Pipe(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            ByteStream::Pipe(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A client's stream, with the permit it holds while open.
pub struct Socket<P> {
    pub stream: ByteStream,
    pub permit: P,
}

/// Bytes of a client, through TLS if spoken.
pub struct ClientStream<P> {
    socket: Socket<P>,
    tls: Option<Tls>,
    /// Decrypted bytes, not yet read.
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

    /// Shakes hands; ready once both sides have keys and the socket has taken our last flight.
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.as_ref().is_some_and(Tls::is_handshaking) {
            // Bytes the socket had no room for go out before more input is awaited.
            if let Poll::Ready(Err(error)) = self.poll_unwritten(cx) {
                return Poll::Ready(Err(error));
            }
            if !ready!(self.poll_receive(cx))? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        self.poll_unwritten(cx)
    }

    /// Splits the stream into its parts for the session; the last one holds bytes that are
    /// decrypted already.
    pub fn into_parts(self) -> (Socket<P>, Option<Tls>, BytesMut) {
        (self.socket, self.tls, self.plain)
    }

    /// Reads from the socket into TLS. False: end of input.
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
        // Includes the alert that names the fault.
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
        // The next flush writes the rest.
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
