//! Connection below the client: frames, and bytes that are none.

use std::time::Duration;

use api::codec::{Frames, decode_server, encode_client};
use api::v1;
use bytes::Bytes;
use client::ByteStream;
use futures_util::{SinkExt, StreamExt};
use prost::Message as _;
use protocol::frame::{Ack, AckItem, ClientFrame, Hello, Send, ServerFrame, VERSION, Welcome};
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Options, Placed, Platform, Recipient, Seq,
};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::codec::Framed;

use crate::paused::send_id;
use crate::system::{Cluster, TEST_TIMEOUT};
use crate::user;

const FRAME_MAX: usize = 1 << 20;

/// Port of the boat for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    WebSocket,
    Tcp,
}

pub const PORTS: [Port; 2] = [Port::WebSocket, Port::Tcp];

/// Connection under the test's control.
pub enum Wire {
    WebSocket(Box<WebSocketStream<Box<dyn ByteStream>>>),
    Tcp(Framed<Box<dyn ByteStream>, Frames>),
}

impl Wire {
    pub async fn open(cluster: &Cluster, port: Port) -> Wire {
        let stream = cluster.dial(port).await;
        match port {
            Port::WebSocket => {
                let mut request = format!("ws://{}/", cluster.websocket())
                    .into_client_request()
                    .expect("a request");
                let subprotocol = "packetboat.v1".parse().expect("a header");
                request
                    .headers_mut()
                    .insert("Sec-WebSocket-Protocol", subprotocol);
                let (socket, _) = tokio_tungstenite::client_async(request, stream)
                    .await
                    .expect("upgrades");
                Wire::WebSocket(Box::new(socket))
            }
            Port::Tcp => Wire::Tcp(Framed::new(stream, Frames::new(FRAME_MAX))),
        }
    }

    /// Opens a connection and signs in.
    pub async fn signed_in(cluster: &Cluster, port: Port, user: i64) -> Wire {
        let mut wire = Wire::open(cluster, port).await;
        wire.send(&ClientFrame::Hello(hello(cluster.token(user))))
            .await;
        wire.welcome().await;
        wire
    }

    pub async fn send(&mut self, frame: &ClientFrame) {
        self.send_frame(encode_client(frame)).await;
    }

    /// Sends bytes as one frame, whatever they are.
    pub async fn send_frame(&mut self, bytes: Bytes) {
        // The server may close before all is written.
        let _ = match self {
            Wire::WebSocket(socket) => socket.send(Message::Binary(bytes)).await.is_ok(),
            Wire::Tcp(framed) => framed.send(bytes).await.is_ok(),
        };
    }

    /// Sends a WebSocket text message.
    pub async fn send_text(&mut self, text: &str) {
        let Wire::WebSocket(socket) = self else {
            panic!("only a WebSocket has texts");
        };
        socket.send(Message::text(text)).await.expect("sends");
    }

    /// Sends bytes below the framing.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        let stream = match self {
            Wire::WebSocket(socket) => socket.get_mut(),
            Wire::Tcp(framed) => framed.get_mut(),
        };
        let _ = stream.write_all(bytes).await;
    }

    /// Next frame; `None` at the end.
    pub async fn next(&mut self) -> Option<ServerFrame> {
        let bytes = timeout(TEST_TIMEOUT, self.next_bytes())
            .await
            .expect("a frame in time")?;
        Some(decode_server(bytes, FRAME_MAX).expect("a frame of ours"))
    }

    /// Next message, with its bytes; other frames are skipped.
    pub async fn next_message(&mut self) -> (Placed, Bytes) {
        loop {
            let bytes = timeout(TEST_TIMEOUT, self.next_bytes()).await;
            let bytes = bytes.expect("a frame in time").expect("no end");
            let frame = decode_server(bytes.clone(), FRAME_MAX).expect("a frame of ours");
            if let ServerFrame::Message(placed) = frame {
                return (placed, bytes);
            }
        }
    }

    /// Next page of a history, field by field; other frames are skipped.
    pub async fn next_history(&mut self) -> v1::HistoryPage {
        loop {
            let bytes = timeout(TEST_TIMEOUT, self.next_bytes()).await;
            let bytes = bytes.expect("a frame in time").expect("no end");
            let frame = v1::ServerFrame::decode(bytes).expect("a frame");
            if let Some(v1::server_frame::Frame::Page(page)) = frame.frame
                && let Some(v1::sync_page::Answer::History(page)) = page.answer
            {
                return page;
            }
        }
    }

    /// Acknowledges a message as stored.
    pub async fn acknowledge(&mut self, placed: &Placed) {
        let item = AckItem {
            conversation: placed.conversation,
            id: placed.message.id,
            seq: placed.position.seq,
        };
        self.confirm(ReceiptKind::Received, item).await;
    }

    /// Acknowledges a message as read, and waits until that is recorded.
    pub async fn read(&mut self, conversation: ConversationId, id: MessageId, seq: Seq) {
        let item = AckItem {
            conversation,
            id,
            seq,
        };
        self.confirm(ReceiptKind::Read, item).await;
        self.find(|frame| match frame {
            ServerFrame::Acked(acked) if acked.kind == ReceiptKind::Read => Some(()),
            _ => None,
        })
        .await;
    }

    async fn confirm(&mut self, kind: ReceiptKind, item: AckItem) {
        let items = vec![item];
        self.send(&ClientFrame::Ack(Ack { kind, items })).await;
    }

    async fn next_bytes(&mut self) -> Option<Bytes> {
        match self {
            Wire::WebSocket(socket) => loop {
                match socket.next().await? {
                    Ok(Message::Binary(bytes)) => return Some(bytes),
                    Ok(Message::Close(_)) | Err(_) => return None,
                    Ok(_) => {}
                }
            },
            Wire::Tcp(framed) => framed.next().await?.ok(),
        }
    }

    /// Checks that nothing comes for a while.
    pub async fn hears_nothing(&mut self) {
        if let Ok(bytes) = timeout(Duration::from_millis(100), self.next_bytes()).await {
            let frame = bytes.map(|bytes| decode_server(bytes, FRAME_MAX));
            panic!("{frame:?} came");
        }
    }

    pub async fn welcome(&mut self) -> Welcome {
        match self.next().await {
            Some(ServerFrame::Welcome(welcome)) => welcome,
            other => panic!("{other:?} instead of a welcome"),
        }
    }

    /// Next frame that `pick` takes; others are skipped.
    pub async fn find<T>(&mut self, mut pick: impl FnMut(ServerFrame) -> Option<T>) -> T {
        loop {
            let frame = self.next().await.expect("the connection goes on");
            let frame_text = format!("{frame:?}");
            if let ServerFrame::Closing { .. } = frame {
                panic!("{frame_text}");
            }
            if let Some(picked) = pick(frame) {
                return picked;
            }
        }
    }

    /// Code that the connection ends with; frames before it are skipped. `None`: it just ended.
    pub async fn closing(&mut self) -> Option<Code> {
        while let Some(frame) = self.next().await {
            if let ServerFrame::Closing { refusal, .. } = frame {
                return Some(refusal.code);
            }
        }
        None
    }

    /// Checks that this connection is served.
    pub async fn is_alive(&mut self) {
        self.send(&ClientFrame::Ping { nonce: 77 }).await;
        self.find(|frame| matches!(frame, ServerFrame::Pong { nonce: 77, .. }).then_some(()))
            .await;
    }

    /// Waits for the answer to a send.
    pub async fn answer(&mut self, send: &Send) -> Result<protocol::MessageId, Code> {
        let expected_id = send.send_id;
        self.find(|frame| match frame {
            ServerFrame::Accepted(accepted) if accepted.send_id == expected_id => {
                Some(Ok(accepted.id))
            }
            ServerFrame::Refused { send_id, refusal } if send_id == expected_id => {
                Some(Err(refusal.code))
            }
            _ => None,
        })
        .await
    }

    /// Sends and waits for the answer.
    pub async fn ask(&mut self, send: Send) -> Result<protocol::MessageId, Code> {
        self.send(&ClientFrame::Send(send.clone())).await;
        self.answer(&send).await
    }
}

/// First frame of a session.
pub fn hello(token: String) -> Hello {
    Hello {
        version: VERSION,
        token,
        device: DeviceId::new("wire").expect("a name"),
        platform: Platform::Desktop,
        marker: None,
        resume: None,
    }
}

/// First try of a text.
pub fn send(to: i64, text: &str) -> Send {
    Send {
        send_id: send_id(),
        to: Recipient::User(user(to)),
        options: Options::CHAT,
        content: Content::text(text),
        attempt: 0,
        age: Duration::ZERO,
        seen_seq: None,
        trace: None,
    }
}
