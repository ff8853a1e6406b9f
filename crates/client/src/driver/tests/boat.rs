//! Server in a test: real sockets and frames, with the services behind them as a value.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::codec::{Frames, decode_client, encode_message, encode_server};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use protocol::frame::{Acked, ClientFrame, Hello, PlacedEcho, ServerFrame, SyncPage, Welcome};
use protocol::receipt::ReceiptKind;
use protocol::{Code, DeviceId, MessageId, Recipient, Refusal, SessionId, Timestamp, UserId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_util::codec::Framed;

use crate::core::tests::server::{SendResult, Server};

const FRAME_MAX: usize = 64 * 1024;

/// Order to a connection.
enum Order {
    Write(Bytes),
    /// Closes with this code, on WebSocket without a frame before it.
    Close(Code),
    Drop,
}

#[derive(Default)]
struct Inside {
    server: Server,
    connections: BTreeMap<u64, (Option<UserId>, mpsc::UnboundedSender<Order>)>,
    last: u64,
    cluster: u64,
    /// Messages are accepted, but neither answered nor delivered.
    mute: bool,
    acked_ids: Vec<MessageId>,
    hellos: Vec<Hello>,
    refreshes: Vec<String>,
    /// Life of the tokens of new sessions.
    token_life: Option<Duration>,
}

#[derive(Clone)]
pub(super) struct Boat {
    inside: Arc<Mutex<Inside>>,
    pub(super) websocket: SocketAddr,
    pub(super) tcp: SocketAddr,
    doors: Option<Doors>,
}

/// TLS of the two listeners.
#[derive(Clone)]
pub(super) struct Doors {
    pub(super) websocket: TlsAcceptor,
    pub(super) tcp: TlsAcceptor,
}

impl Boat {
    pub(super) async fn start() -> Boat {
        Boat::start_behind(None).await
    }

    pub(super) async fn start_behind(doors: Option<Doors>) -> Boat {
        let websocket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let boat = Boat {
            inside: Arc::new(Mutex::new(Inside {
                cluster: 1,
                ..Inside::default()
            })),
            websocket: websocket.local_addr().expect("bound"),
            tcp: tcp.local_addr().expect("bound"),
            doors,
        };
        tokio::spawn(boat.clone().serve(websocket, tcp));
        boat
    }

    async fn serve(self, websocket: TcpListener, tcp: TcpListener) {
        loop {
            tokio::select! {
                biased;
                Ok((socket, _)) = websocket.accept() => {
                    let boat = self.clone();
                    match &self.doors {
                        None => drop(tokio::spawn(boat.serve_websocket(socket))),
                        Some(doors) => {
                            let handshake = doors.websocket.accept(socket);
                            tokio::spawn(async move {
                                if let Ok(stream) = handshake.await {
                                    let spoken = stream.get_ref().1.alpn_protocol();
                                    assert_eq!(spoken, Some(&b"http/1.1"[..]));
                                    boat.serve_websocket(stream).await;
                                }
                            });
                        }
                    }
                }
                Ok((socket, _)) = tcp.accept() => {
                    let boat = self.clone();
                    match &self.doors {
                        None => drop(tokio::spawn(boat.serve_tcp(socket))),
                        Some(doors) => {
                            let handshake = doors.tcp.accept(socket);
                            tokio::spawn(async move {
                                if let Ok(stream) = handshake.await {
                                    let spoken = stream.get_ref().1.alpn_protocol();
                                    assert_eq!(spoken, Some(&b"packetboat.v1"[..]));
                                    boat.serve_tcp(stream).await;
                                }
                            });
                        }
                    }
                }
            }
        }
    }

    pub(super) async fn serve_tcp<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) {
        let (sink, stream) = Framed::new(stream, Frames::new(FRAME_MAX)).split();
        let stream = stream.filter_map(|frame| std::future::ready(frame.ok()));
        self.converse(sink, stream, |_| None).await;
    }

    #[allow(clippy::result_large_err, reason = "the shape is tungstenite's")]
    pub(super) async fn serve_websocket<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) {
        let negotiate = |request: &Request, mut response: Response| {
            let name = "Sec-WebSocket-Protocol";
            assert_eq!(request.headers()[name], "packetboat.v1");
            response
                .headers_mut()
                .insert(name, request.headers()[name].clone());
            Ok(response)
        };
        let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, negotiate).await else {
            return;
        };
        let (sink, stream) = socket.split();
        let stream = stream.filter_map(|message| {
            std::future::ready(match message {
                Ok(Message::Binary(bytes)) => Some(bytes),
                _ => None,
            })
        });
        let (close_sender, mut close) = mpsc::unbounded_channel::<Message>();
        let sink = sink.with(move |bytes: Bytes| {
            let close = close.try_recv().ok();
            std::future::ready(Ok::<_, tokio_tungstenite::tungstenite::Error>(
                close.unwrap_or(Message::Binary(bytes)),
            ))
        });
        let close_with = move |code: Code| {
            let frame = CloseFrame {
                code: code.number().into(),
                reason: code.name().into(),
            };
            close_sender.send(Message::Close(Some(frame))).ok()
        };
        self.converse(Box::pin(sink), stream, close_with).await;
    }

    async fn converse<S, R>(self, mut sink: S, mut stream: R, close: impl Fn(Code) -> Option<()>)
    where
        S: Sink<Bytes> + Unpin,
        R: Stream<Item = Bytes> + Unpin,
    {
        let (sender, mut orders) = mpsc::unbounded_channel();
        let number = {
            let mut inside = self.lock();
            inside.last += 1;
            let number = inside.last;
            inside.connections.insert(number, (None, sender));
            number
        };
        let mut hello: Option<Hello> = None;
        loop {
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::Write(bytes)) => {
                        if sink.send(bytes).await.is_err() {
                            break;
                        }
                    }
                    Some(Order::Close(code)) => {
                        // The code goes into a close frame, or the last frame on transports without
                        // one.
                        let refusal = Refusal::new(code, code.name());
                        let last = encode_server(&ServerFrame::Closing {
                            refusal,
                            resume: None,
                        });
                        close(code);
                        let _ = sink.send(last).await;
                        break;
                    }
                    Some(Order::Drop) | None => break,
                },
                frame = stream.next() => {
                    let Some(bytes) = frame else { break };
                    let frame = decode_client(bytes, FRAME_MAX).expect("a frame");
                    match frame {
                        ClientFrame::Hello(first) => {
                            self.welcome(number, &first);
                            hello = Some(first);
                        }
                        frame => {
                            let device = hello.as_ref().expect("hello first").device.clone();
                            self.handle(number, &device, frame);
                        }
                    }
                }
            }
        }
        self.lock().connections.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("not poisoned")
    }

    fn welcome(&self, number: u64, hello: &Hello) {
        let user: UserId = hello.token.parse().expect("the token is the user");
        let mut inside = self.lock();
        inside.hellos.push(hello.clone());
        if let Some((owner, _)) = inside.connections.get_mut(&number) {
            *owner = Some(user);
        }
        let welcome = Welcome {
            session: SessionId::new(number as i64).expect("positive"),
            user,
            server_time: Timestamp::from_millis(1_000_000 + inside.last as i64),
            heartbeat: Duration::from_secs(30),
            frame_bytes_max: FRAME_MAX as u32,
            send_window: 16,
            cluster: inside.cluster,
            marker: 1,
            recovered: true,
            expires_at: (inside.token_life)
                .map(|life| Timestamp::from_millis(1_000_000 + inside.last as i64) + life),
        };
        inside.write(number, &ServerFrame::Welcome(welcome));
    }

    fn handle(&self, number: u64, device: &DeviceId, frame: ClientFrame) {
        let mut inside = self.lock();
        let Some(user) = inside.connections.get(&number).and_then(|(user, _)| *user) else {
            return;
        };
        let now = Timestamp::from_millis(1_000_000 + inside.last as i64);
        match frame {
            ClientFrame::Send(send) => {
                let (acceptance, result) = inside.server.accept(user, device, &send, now);
                if inside.mute {
                    return;
                }
                inside.write(number, &ServerFrame::Accepted(acceptance));
                let entry = match result {
                    Some(SendResult::Placed(entry)) => entry,
                    Some(SendResult::Changed(conversation, change)) => {
                        let frame = ServerFrame::Changed {
                            conversation,
                            changed: change,
                        };
                        let bytes = api::codec::encode_server(&frame);
                        inside.write_to(user, &bytes);
                        if let Recipient::User(to) = send.to {
                            inside.write_to(to, &bytes);
                        }
                        return;
                    }
                    Some(SendResult::Hidden(owner, word)) => {
                        let frame = ServerFrame::Listed(word);
                        return inside.write_to(owner, &api::codec::encode_server(&frame));
                    }
                    Some(SendResult::Nothing) | None => return,
                };
                let echo = PlacedEcho {
                    send_id: send.send_id,
                    id: acceptance.id,
                    conversation: entry.conversation,
                    position: entry.position,
                };
                inside.write(number, &ServerFrame::Placed(echo));
                if let Recipient::User(to) = send.to {
                    inside.write_to(to, &encode_message(&entry));
                }
            }
            ClientFrame::Ack(ack) => {
                for item in &ack.items {
                    if ack.kind == ReceiptKind::Received {
                        inside.acked_ids.push(item.id);
                    }
                    let notice =
                        (inside.server).receipt(ack.kind, item.conversation, item.seq, user, now);
                    if let Some((from, receipt)) = notice {
                        let frame = encode_server(&ServerFrame::Receipts(vec![receipt]));
                        inside.write_to(from, &frame);
                    }
                }
                let reply = Acked {
                    kind: ack.kind,
                    ids: ack.items.iter().map(|item| item.id).collect(),
                    refusals: Vec::new(),
                };
                inside.write(number, &ServerFrame::Acked(reply));
            }
            ClientFrame::Sync(request) => {
                let answer = inside
                    .server
                    .answer(user, request.query, now)
                    .expect("an answer");
                let page = SyncPage {
                    request: request.request,
                    answer,
                };
                inside.write(number, &ServerFrame::Page(page));
            }
            ClientFrame::Ping { nonce } => {
                let server_time = now;
                inside.write(number, &ServerFrame::Pong { nonce, server_time });
            }
            ClientFrame::Refresh(refresh) => {
                inside.refreshes.push(refresh.token);
                let expires_at = Timestamp::MAX;
                inside.write(number, &ServerFrame::Refreshed { expires_at });
            }
            ClientFrame::GiveUp(_)
            | ClientFrame::Hello(_)
            | ClientFrame::Subscribe(_)
            | ClientFrame::Watch(_) => {}
        }
    }

    // Actions and observations of tests.

    pub(super) fn drop_connections(&self) {
        self.order_all(|| Order::Drop);
    }

    pub(super) fn close_connections(&self, code: Code) {
        self.order_all(|| Order::Close(code));
    }

    fn order_all(&self, order: impl Fn() -> Order) {
        for (_, sender) in self.lock().connections.values() {
            let _ = sender.send(order());
        }
    }

    pub(super) fn set_mute(&self, mute: bool) {
        self.lock().mute = mute;
    }

    /// Replaces all data: the installation is another one.
    pub(super) fn replace(&self) {
        let mut inside = self.lock();
        inside.server = Server::default();
        inside.cluster += 1;
    }

    pub(super) fn acked(&self) -> usize {
        let inside = self.lock();
        let ids: std::collections::BTreeSet<_> = inside.acked_ids.iter().collect();
        ids.len()
    }

    /// Number of messages accepted, without repeats.
    pub(super) fn messages(&self) -> usize {
        self.lock().server.acceptances.len()
    }

    pub(super) fn refreshes(&self) -> Vec<String> {
        self.lock().refreshes.clone()
    }

    pub(super) fn issue_for(&self, life: Duration) {
        self.lock().token_life = Some(life);
    }

    pub(super) fn hellos(&self) -> usize {
        self.lock().hellos.len()
    }
}

impl Inside {
    fn write(&mut self, number: u64, frame: &ServerFrame) {
        if let Some((_, sender)) = self.connections.get(&number) {
            let _ = sender.send(Order::Write(encode_server(frame)));
        }
    }

    fn write_to(&mut self, user: UserId, frame: &Bytes) {
        for (whose, sender) in self.connections.values() {
            if *whose == Some(user) {
                let _ = sender.send(Order::Write(frame.clone()));
            }
        }
    }
}
