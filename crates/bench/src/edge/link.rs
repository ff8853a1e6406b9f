//! The lightest possible client: raw frames over a socket, and no buffer while nothing comes.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use backend::tls;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::Refusal;
use protocol::frame::{ClientFrame, ServerFrame};
use rand::random;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// Time limit of a whole sign-in.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Heartbeat interval, below the server's limit of silence.
const PING_EVERY: Duration = Duration::from_secs(25);
const HEAD_BYTES_MAX: usize = 8 * 1024;
const FRAME_BYTES_MAX: usize = 1024 * 1024;
/// Receive buffer of a client that does not read: its kernel should hold little.
const SLOW_RECEIVE_BYTES: u32 = 4096;

type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A boat, or the bare server.
#[derive(Clone)]
pub(super) struct ConnectTarget {
    address: SocketAddr,
    tls: Option<TlsConnector>,
}

/// An open WebSocket.
pub(super) struct Link {
    stream: Stream,
    partial: BytesMut,
}

/// Reason why a client was not admitted, or lost its connection.
#[derive(Debug)]
pub(super) enum LinkLoss {
    /// The server refused it.
    Refused(Refusal),
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for LinkLoss {
    fn from(error: E) -> LinkLoss {
        LinkLoss::Failed(error.into())
    }
}

impl LinkLoss {
    /// Time over which the server spreads clients that it sends away.
    pub(super) fn hint(&self) -> Option<Duration> {
        match self {
            LinkLoss::Refused(refusal) => refusal.retry_after,
            LinkLoss::Failed(_) => None,
        }
    }

    /// Name of the kind of loss: the code of a refusal, or the step that failed.
    pub(super) fn kind(&self) -> String {
        match self {
            LinkLoss::Refused(refusal) => refusal.code.name().to_owned(),
            LinkLoss::Failed(error) => error.to_string(),
        }
    }
}

impl std::fmt::Display for LinkLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkLoss::Refused(refusal) => refusal.fmt(f),
            LinkLoss::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl ConnectTarget {
    pub(super) fn new(url: &str, ca_file: Option<&Path>) -> Result<ConnectTarget> {
        let (address, is_secure) = match url.split_once("://") {
            Some(("ws", address)) => (address, false),
            Some(("wss", address)) => (address, true),
            _ => bail!("{url} is neither ws:// nor wss://"),
        };
        let address = address.trim_end_matches('/').parse();
        let tls = if is_secure {
            Some(tls::client_config(ca_file, &[b"http/1.1"])?.into())
        } else {
            None
        };
        Ok(ConnectTarget {
            address: address.context("an IP address with a port is needed")?,
            tls,
        })
    }

    /// Signs in, up to the welcome. `is_slow` gives the socket a small kernel buffer, for a client
    /// that is not going to read.
    pub(super) async fn sign_in(&self, hello: &[u8], is_slow: bool) -> Result<Link, LinkLoss> {
        let sign_in = async {
            let mut link = self.connect(is_slow).await?;
            link.send(hello).await?;
            loop {
                match link.next().await? {
                    ServerFrame::Welcome(_) => return Ok(link),
                    ServerFrame::Closing { refusal, .. } | ServerFrame::Error { refusal, .. } => {
                        return Err(LinkLoss::Refused(refusal));
                    }
                    _ => {}
                }
            }
        };
        timeout(ANSWER_TIMEOUT, sign_in)
            .await
            .context("signing in took too long")?
    }

    async fn connect(&self, is_slow: bool) -> Result<Link> {
        let socket = TcpSocket::new_v4()?;
        if cfg!(target_os = "linux") && self.address.ip().is_loopback() {
            socket.bind(own_address().into())?;
        }
        if is_slow {
            socket.set_recv_buffer_size(SLOW_RECEIVE_BYTES)?;
        }
        let stream = socket.connect(self.address).await.context("connecting")?;
        stream.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Either::Left(stream),
            Some(tls) => {
                let name = ServerName::from(self.address.ip());
                let tls_stream = tls.connect(name, stream).await;
                Either::Right(Box::new(tls_stream.context("TLS")?))
            }
        };
        let mut link = Link {
            stream,
            partial: BytesMut::new(),
        };
        link.upgrade(self.address).await?;
        Ok(link)
    }
}

/// A random loopback address as source: with a single one, for 17,000 clients of a port the kernel
/// spent a third of the CPU searching for free ports.
fn own_address() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, random::<u8>().max(1)), 0)
}

impl Link {
    async fn upgrade(&mut self, address: SocketAddr) -> Result<()> {
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: packetboat.v1\r\n\r\n"
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        loop {
            let head_end = self.partial.windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(at) = head_end {
                let head = self.partial.split_to(at + 4);
                let head = String::from_utf8_lossy(&head);
                let line = head.lines().next().unwrap_or_default();
                ensure!(line.starts_with("HTTP/1.1 101"), "no WebSocket: {line}");
                return Ok(());
            }
            ensure!(self.partial.len() < HEAD_BYTES_MAX, "an endless head");
            self.read().await?;
        }
    }

    /// Sends a frame masked with zeros, which leaves the payload as it is.
    pub(super) async fn send(&mut self, payload: &[u8]) -> Result<()> {
        self.stream.write_all(&mask_frame(payload)).await?;
        Ok(self.stream.flush().await?)
    }

    async fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 1024];
        match self.stream.read(&mut bytes).await? {
            0 => bail!("the server closed the connection"),
            count => self.partial.extend_from_slice(&bytes[..count]),
        }
        Ok(())
    }

    /// Returns the next frame. Cancel safe.
    async fn next(&mut self) -> Result<ServerFrame> {
        loop {
            while let Some((opcode, payload)) = next_frame(&mut self.partial)? {
                match opcode {
                    2 => return Ok(api::codec::decode_server(payload, usize::MAX)?),
                    8 => bail!("the server closed the WebSocket"),
                    _ => {}
                }
            }
            self.read().await?;
        }
    }

    /// Stays connected and sends heartbeats, but reads nothing.
    pub(super) async fn ignore(mut self) {
        let ping = api::codec::encode_client(&ClientFrame::Ping { nonce: 1 });
        while self.send(&ping).await.is_ok() {
            sleep(PING_EVERY).await;
        }
    }

    /// Stays connected, reads, and sends heartbeats.
    pub(super) async fn hold(mut self) -> LinkLoss {
        let ping = api::codec::encode_client(&ClientFrame::Ping { nonce: 1 });
        loop {
            match timeout(PING_EVERY, self.next()).await {
                Ok(Ok(ServerFrame::Closing { refusal, .. })) => return LinkLoss::Refused(refusal),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return LinkLoss::Failed(error),
                Err(_) => {
                    if let Err(error) = self.send(&ping).await {
                        return LinkLoss::Failed(error);
                    }
                }
            }
        }
    }
}

fn mask_frame(payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(payload.len() + 14);
    frame.put_u8(0x82);
    match payload.len() {
        len @ 0..126 => frame.put_u8(0x80 | len as u8),
        len @ 126..0x1_0000 => {
            frame.put_u8(0x80 | 126);
            frame.put_u16(len as u16);
        }
        len => {
            frame.put_u8(0x80 | 127);
            frame.put_u64(len as u64);
        }
    }
    frame.put_u32(0);
    frame.put_slice(payload);
    frame
}

/// Takes the next complete frame: opcode and payload. A server's frames are not masked.
fn next_frame(bytes: &mut BytesMut) -> Result<Option<(u8, Bytes)>> {
    let mut rest = &bytes[..];
    if rest.len() < 2 {
        return Ok(None);
    }
    let (opcode, short) = (rest.get_u8() & 0x0f, rest.get_u8());
    let len = match short {
        126 if rest.len() >= 2 => u64::from(rest.get_u16()),
        127 if rest.len() >= 8 => rest.get_u64(),
        126 | 127 => return Ok(None),
        short => u64::from(short),
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    ensure!(len <= FRAME_BYTES_MAX, "a frame of {len} bytes");
    if rest.len() < len {
        return Ok(None);
    }
    bytes.advance(bytes.len() - rest.len());
    let payload = bytes.split_to(len).freeze();
    if bytes.is_empty() {
        *bytes = BytesMut::new();
    }
    Ok(Some((opcode, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_any_length_are_read_when_they_are_whole() {
        for len in [0, 1, 125, 126, 65_535, 65_536] {
            let payload = vec![7; len];
            // Unmasked, as a server writes it.
            let mut frame = mask_frame(&payload);
            let head = frame.len() - len - 4;
            frame[1] &= 0x7f;
            let mut bytes = BytesMut::from(&frame[..head]);
            bytes.extend_from_slice(&payload);
            let whole = bytes.clone();
            for cut in [1, head, whole.len() - 1] {
                let mut part = BytesMut::from(&whole[..cut.min(whole.len() - 1)]);
                assert!(next_frame(&mut part).expect("a frame").is_none(), "{len}");
            }
            bytes.extend_from_slice(b"\x82");
            let (opcode, read) = next_frame(&mut bytes).expect("a frame").expect("whole");
            assert_eq!((opcode, &read[..]), (2, &payload[..]));
            assert_eq!(&bytes[..], b"\x82");
        }
    }

    #[test]
    fn addresses_are_urls_of_websockets() {
        assert!(ConnectTarget::new("ws://127.0.0.1:9000/", None).is_ok());
        assert!(ConnectTarget::new("tcp://127.0.0.1:9000", None).is_err());
        assert!(ConnectTarget::new("ws://boat", None).is_err());
    }
}
