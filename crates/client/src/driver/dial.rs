//! Byte streams below connections: sockets, or others that an application opens.

use std::io;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Address;

/// Bytes to and from a boat.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Opens the byte stream below a connection, e.g. through a proxy, or to a boat in this process.
/// TLS, if the address asks for it, WebSocket and frames go over it.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Opens a stream to the boat at this address. Dropped if it takes longer than
    /// [`connect_timeout`](super::ClientConfig::connect_timeout), TLS and WebSocket included.
    ///
    /// # Errors
    /// After any error, the client dials again later.
    async fn dial(&self, address: &Address) -> io::Result<Box<dyn ByteStream>>;
}

/// Opens TCP sockets: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDial;

#[async_trait]
impl Dial for TcpDial {
    async fn dial(&self, address: &Address) -> io::Result<Box<dyn ByteStream>> {
        let socket = TcpStream::connect((address.host(), address.port())).await?;
        socket.set_nodelay(true)?;
        Ok(Box::new(socket))
    }
}
