//! A minimal client, on either link.

use std::net::SocketAddr;
use std::time::Duration;

use api::codec::{Frames, decode_server, encode_client};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use protocol::frame::{
    Ack, AckItem, ClientFrame, Hello, Send, ServerFrame, SyncQuery, SyncRequest, VERSION, Welcome,
};
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Options, Platform, Recipient, SendId, Seq, UserId,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::codec::Framed;

use super::TEST_TIMEOUT;

const FRAME_MAX: usize = 1 << 20;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + std::marker::Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + std::marker::Send> Duplex for T {}

/// A socket, or a layer over it.
type Stream = Box<dyn Duplex>;

pub(super) enum Client {
    WebSocket(Box<WebSocketStream<Stream>>),
    Tcp(Framed<Stream, Frames>),
}

impl Client {
    pub(super) async fn websocket(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).await.expect("connects");
        Client::websocket_over(stream, &[]).await.expect("upgrades")
    }

    pub(super) async fn tcp(address: SocketAddr) -> Client {
        Client::tcp_over(TcpStream::connect(address).await.expect("connects"))
    }

    /// Connects with further headers.
    pub(super) async fn websocket_over(
        stream: impl Duplex + 'static,
        headers: &[(&'static str, &str)],
    ) -> Result<Client, tungstenite::Error> {
        let mut request = "ws://boat/ws".into_client_request().expect("a request");
        let subprotocol = ("Sec-WebSocket-Protocol", "packetboat.v1");
        for (name, value) in headers.iter().chain([&subprotocol]) {
            let value = value.parse().expect("a header");
            request.headers_mut().insert(*name, value);
        }
        let stream: Stream = Box::new(stream);
        let (socket, response) = tokio_tungstenite::client_async(request, stream).await?;
        assert_eq!(response.headers()[subprotocol.0], subprotocol.1);
        Ok(Client::WebSocket(Box::new(socket)))
    }

    pub(super) fn tcp_over(stream: impl Duplex + 'static) -> Client {
        Client::Tcp(Framed::new(Box::new(stream), Frames::new(FRAME_MAX)))
    }

    pub(super) async fn send(&mut self, frame: &ClientFrame) {
        self.send_bytes(encode_client(frame)).await;
    }

    pub(super) async fn send_bytes(&mut self, bytes: Bytes) {
        match self {
            Client::WebSocket(socket) => {
                socket.send(Message::Binary(bytes)).await.expect("sends");
            }
            Client::Tcp(framed) => framed.send(bytes).await.expect("sends"),
        }
    }

    /// Sends all frames in one write.
    pub(super) async fn send_together(&mut self, frames: Vec<ClientFrame>) {
        let frames = frames.iter().map(encode_client);
        match self {
            Client::WebSocket(socket) => {
                let mut messages = stream::iter(frames.map(|it| Ok(Message::Binary(it))));
                socket.send_all(&mut messages).await.expect("sends");
            }
            Client::Tcp(framed) => {
                let mut frames = stream::iter(frames.map(Ok));
                framed.send_all(&mut frames).await.expect("sends");
            }
        }
    }

    pub(super) async fn send_message(&mut self, message: Message) {
        let Client::WebSocket(socket) = self else {
            panic!("only a WebSocket has messages");
        };
        socket.send(message).await.expect("sends");
    }

    /// Sends bytes below the framing.
    pub(super) async fn send_raw(&mut self, bytes: &[u8]) {
        let stream = match self {
            Client::WebSocket(socket) => socket.get_mut(),
            Client::Tcp(framed) => framed.get_mut(),
        };
        // The boat may close before all is written.
        let _ = stream.write_all(bytes).await;
    }

    /// The next frame; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<ServerFrame> {
        let bytes = timeout(TEST_TIMEOUT, self.next_bytes()).await;
        let bytes = bytes.expect("a frame or an end")?;
        Some(decode_server(bytes, FRAME_MAX).expect("a frame of ours"))
    }

    async fn next_bytes(&mut self) -> Option<Bytes> {
        match self {
            Client::WebSocket(socket) => loop {
                match socket.next().await? {
                    Ok(Message::Binary(bytes)) => return Some(bytes),
                    Ok(Message::Close(_)) | Err(_) => return None,
                    Ok(_) => {}
                }
            },
            Client::Tcp(framed) => framed.next().await?.ok(),
        }
    }

    pub(super) async fn hello(&mut self, user: i64) -> Welcome {
        self.send(&ClientFrame::Hello(hello(user))).await;
        match self.next().await {
            Some(ServerFrame::Welcome(welcome)) => welcome,
            other => panic!("{other:?} instead of a welcome"),
        }
    }

    /// Code of the closing frame, or `None` at a bare end; frames before it are skipped.
    pub(super) async fn closing(&mut self) -> Option<Code> {
        while let Some(frame) = self.next().await {
            if let ServerFrame::Closing { refusal, .. } = frame {
                return Some(refusal.code);
            }
        }
        None
    }

    /// Code of the WebSocket's own close, after the last frame.
    pub(super) async fn close_code(&mut self) -> Option<u16> {
        let Client::WebSocket(socket) = self else {
            panic!("only a WebSocket has close codes");
        };
        loop {
            match timeout(TEST_TIMEOUT, socket.next())
                .await
                .expect("an end")?
            {
                Ok(Message::Close(frame)) => return frame.map(|frame| frame.code.into()),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Proves that this connection is served.
    pub(super) async fn ping(&mut self) {
        self.send(&ClientFrame::Ping { nonce: 42 }).await;
        loop {
            match self.next().await {
                Some(ServerFrame::Pong { nonce: 42, .. }) => return,
                Some(_) => {}
                None => panic!("ended instead of a pong"),
            }
        }
    }

    pub(super) async fn received(&mut self, id: i64) {
        self.send(&ClientFrame::Ack(Ack {
            kind: ReceiptKind::Received,
            items: vec![AckItem {
                conversation: ConversationId::private(user(1), user(2)).expect("two users"),
                id: message(id),
                seq: Seq(id as u64),
            }],
        }))
        .await;
    }
}

pub(super) fn hello(user: i64) -> Hello {
    Hello {
        version: VERSION,
        token: format!("user-{user}"),
        device: DeviceId::new("phone").expect("short"),
        platform: Platform::Ios,
        marker: None,
        resume: None,
    }
}

pub(super) fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

pub(super) fn message(number: i64) -> MessageId {
    MessageId::new(number).expect("positive")
}

pub(super) fn send_id(number: u8) -> SendId {
    SendId::from_bytes([number; 16])
}

/// A question about one message.
pub(super) fn question(request: u32) -> ClientFrame {
    let query = SyncQuery::Status {
        ids: vec![message(1)],
    };
    ClientFrame::Sync(SyncRequest { request, query })
}

pub(super) fn text_send(to: i64, number: u8, text: &str) -> ClientFrame {
    ClientFrame::Send(Send {
        send_id: send_id(number),
        to: Recipient::User(user(to)),
        options: Options::CHAT,
        content: Content::text(text),
        attempt: 0,
        age: Duration::ZERO,
        seen_seq: None,
        trace: None,
    })
}
