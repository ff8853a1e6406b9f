//! A client below the library: it may be slow, silent, wrong, or one of many.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use api::codec::{Frames, decode_server, encode_client};
use backend::clock::{Clock, SystemClock};
use bytes::{Bytes, BytesMut};
use protocol::frame::{ClientFrame, Hello, Send, ServerFrame, VERSION};
use protocol::message::Content;
use protocol::{Code, DeviceId, Options, Platform, Recipient, SendId, UserId};
use station::auth::{Claims, Signer};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};
use tokio_util::codec::{Decoder, Encoder};

use crate::process::WAIT_TIMEOUT;

const FRAME_MAX: usize = 1 << 20;

/// A client of either link.
pub enum RawClient {
    WebSocket(Box<WebSocket<TcpStream>>),
    Tcp(TcpStream, BytesMut),
}

/// Address behind a URL's scheme.
pub fn address(url: &str) -> SocketAddr {
    let address = url.split_once("//").map_or(url, |(_, address)| address);
    address.parse().expect("an address")
}

pub fn connect(url: &str) -> TcpStream {
    TcpStream::connect(address(url)).expect("it listens")
}

/// Connects from this loopback address, with a receive buffer of this many bytes.
pub fn connect_from(url: &str, last: u8, buffer: Option<u32>) -> TcpStream {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().expect("a runtime");
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes).expect("a buffer");
    }
    let from = SocketAddr::from(([127, 0, 0, last], 0));
    socket.bind(from).expect("an address of this machine");
    let connected = runtime.block_on(async { socket.connect(address(url)).await?.into_std() });
    let stream = connected.expect("it listens");
    stream.set_nonblocking(false).expect("a socket");
    stream
}

/// Hello of a user, signed with the development key.
pub fn hello(user: i64) -> ClientFrame {
    hello_with(signed(user))
}

pub fn hello_with(token: String) -> ClientFrame {
    ClientFrame::Hello(Hello {
        version: VERSION,
        token,
        device: DeviceId::new("raw").expect("short"),
        platform: Platform::Desktop,
        marker: None,
        resume: None,
    })
}

/// A message of this many bytes.
pub fn message(to: i64, send_id: [u8; 16], bytes: usize) -> ClientFrame {
    ClientFrame::Send(Send {
        send_id: SendId::from_bytes(send_id),
        to: Recipient::User(UserId::new(to).expect("a user")),
        options: Options::CHAT,
        content: Content::text("m".repeat(bytes)),
        attempt: 0,
        age: Duration::ZERO,
        seen_seq: None,
        trace: None,
    })
}

/// A token signed with the development key.
pub fn signed(user: i64) -> String {
    let user = UserId::new(user).expect("a user");
    let claims = Claims::new(user, SystemClock.now(), Duration::from_secs(3600));
    let token = Signer::default().sign(&claims);
    token.expect("signed")
}

impl RawClient {
    pub fn tcp(url: &str) -> RawClient {
        RawClient::tcp_over(connect(url))
    }

    pub fn tcp_over(stream: TcpStream) -> RawClient {
        stream
            .set_read_timeout(Some(WAIT_TIMEOUT))
            .expect("a socket");
        RawClient::Tcp(stream, BytesMut::new())
    }

    pub fn websocket(url: &str) -> RawClient {
        RawClient::websocket_with(url, &[]).expect("upgraded").0
    }

    /// Connects with further headers; also returns the negotiated extensions.
    pub fn websocket_with(
        url: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(RawClient, Option<String>), tungstenite::Error> {
        let mut request = url.into_client_request().expect("a request");
        for (name, value) in headers.iter().chain(&[SUBPROTOCOL]) {
            let value = value.parse().expect("a header");
            request.headers_mut().insert(*name, value);
        }
        let stream = connect(url);
        stream
            .set_read_timeout(Some(WAIT_TIMEOUT))
            .expect("a socket");
        let handshake = tungstenite::client::client(request, stream);
        let (socket, response) = handshake.map_err(|error| match error {
            tungstenite::HandshakeError::Failure(error) => error,
            tungstenite::HandshakeError::Interrupted(_) => panic!("no answer in time"),
        })?;
        let agreed = response.headers().get("sec-websocket-extensions");
        let agreed = agreed.map(|value| value.to_str().expect("text").to_owned());
        Ok((RawClient::WebSocket(Box::new(socket)), agreed))
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            RawClient::WebSocket(socket) => socket.get_ref(),
            RawClient::Tcp(stream, _) => stream,
        }
    }

    pub fn send(&mut self, frame: &ClientFrame) {
        self.send_bytes(encode_client(frame));
    }

    /// Sends a frame of these bytes. The boat may close before all is written.
    pub fn send_bytes(&mut self, bytes: Bytes) {
        match self {
            RawClient::WebSocket(socket) => drop(socket.send(Message::Binary(bytes))),
            RawClient::Tcp(stream, _) => {
                let mut framed = BytesMut::new();
                let mut frames = Frames::new(FRAME_MAX * 16);
                frames.encode(bytes, &mut framed).expect("a frame");
                let _ = stream.write_all(&framed);
            }
        }
    }

    /// Sends these frames in one write, over TCP.
    pub fn send_together(&mut self, frames: impl IntoIterator<Item = ClientFrame>) {
        let mut framed = BytesMut::new();
        for frame in frames {
            let mut frames = Frames::new(FRAME_MAX);
            let frame = encode_client(&frame);
            frames.encode(frame, &mut framed).expect("a frame");
        }
        self.send_raw(&framed);
    }

    /// Sends bytes below the framing, as far as they are taken.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.socket().write_all(bytes);
    }

    /// The next frame; `None` at the end.
    pub fn next(&mut self) -> Option<ServerFrame> {
        let bytes = match self {
            RawClient::WebSocket(socket) => loop {
                match socket.read() {
                    Ok(Message::Binary(bytes)) => break bytes,
                    Ok(Message::Close(_)) | Err(_) => return None,
                    Ok(_) => {}
                }
            },
            RawClient::Tcp(stream, read) => loop {
                let mut frames = Frames::new(FRAME_MAX);
                if let Some(frame) = frames.decode(read).expect("a frame") {
                    break frame;
                }
                let mut chunk = [0; 64 * 1024];
                match stream.read(&mut chunk) {
                    Ok(0) | Err(_) => return None,
                    Ok(count) => read.extend_from_slice(&chunk[..count]),
                }
            },
        };
        Some(decode_server(bytes, FRAME_MAX).expect("a frame of ours"))
    }

    /// Signs in, and expects a welcome.
    pub fn signed_in(mut self, user: i64) -> RawClient {
        self.send(&hello(user));
        match self.next() {
            Some(ServerFrame::Welcome(_)) => self,
            other => panic!("{other:?} instead of a welcome"),
        }
    }

    /// Proves that this connection is served.
    pub fn ping(&mut self) {
        self.send(&ClientFrame::Ping { nonce: 42 });
        loop {
            match self.next() {
                Some(ServerFrame::Pong { nonce: 42, .. }) => return,
                Some(_) => {}
                None => panic!("ended instead of a pong"),
            }
        }
    }

    /// Code with which the connection ends; frames before it are skipped.
    pub fn closing(&mut self) -> Option<Code> {
        loop {
            if let ServerFrame::Closing { refusal, .. } = self.next()? {
                return Some(refusal.code);
            }
        }
    }
}

const SUBPROTOCOL: (&str, &str) = ("Sec-WebSocket-Protocol", "packetboat.v1");
