//! The floor: the least that a durable chat server can do on the same WebSocket layer.
//!
//! A sender's frame goes into a write-ahead file; one thread flushes it (one `fdatasync` for all that
//! waits); then the sender gets its answer and the peer its message. Receivers acknowledge, and the
//! acknowledgement is read and dropped. No tokens, no ids, no history, no retries.
//!
//! Frames: `[kind][user or n, 8 bytes][body]`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::any;
use bytes::{BufMut, Bytes, BytesMut};
use clap::Args;
use futures_util::{SinkExt, StreamExt};
use server::{errln, outln};
use tokio::sync::mpsc;

pub(super) const HELLO: u8 = 0;
pub(super) const SEND: u8 = 1;
pub(super) const ACCEPTED: u8 = 2;
pub(super) const MESSAGE: u8 = 3;
pub(super) const ACK: u8 = 4;

/// Encodes `[kind][number][body]`.
pub(super) fn frame(kind: u8, number: u64, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(9 + body.len());
    frame.put_u8(kind);
    frame.put_u64(number);
    frame.put_slice(body);
    frame.freeze()
}

/// Decodes a [`frame`].
pub(super) fn parse(frame: &Bytes) -> Option<(u8, u64, Bytes)> {
    let number = frame.get(1..9)?.try_into().ok()?;
    Some((frame[0], u64::from_be_bytes(number), frame.slice(9..)))
}

#[derive(Debug, Args)]
pub(super) struct FloorServer {
    /// Folder of the write-ahead file.
    #[arg(long)]
    data: std::path::PathBuf,
}

type FrameSender = mpsc::UnboundedSender<Bytes>;

/// A send that waits for the flush.
struct UnflushedSend {
    sender: u64,
    n: u64,
    frame: Bytes,
}

#[derive(Default)]
struct Floor {
    connections: Mutex<HashMap<u64, FrameSender>>,
    pending: Mutex<Vec<UnflushedSend>>,
    news: Condvar,
}

impl FloorServer {
    pub(super) fn run(self) -> Result<ExitCode> {
        let file =
            File::create(self.data.join("floor.wal")).context("creating the write-ahead file")?;
        let floor = Arc::new(Floor::default());
        let flusher = floor.clone();
        std::thread::spawn(move || flusher.flush_for_ever(file));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            outln!("{{\"websocket\":\"ws://{}\"}}", listener.local_addr()?)?;
            let router = Router::new().route("/", any(upgrade)).with_state(floor);
            axum::serve(listener, router).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

async fn upgrade(upgrade: WebSocketUpgrade, State(floor): State<Arc<Floor>>) -> Response {
    upgrade
        .read_buffer_size(2048)
        .write_buffer_size(0)
        .protocols(["packetboat.v1"])
        .on_upgrade(move |socket| connection(socket, floor))
}

async fn connection(socket: WebSocket, floor: Arc<Floor>) {
    let (mut write, mut read) = socket.split();
    let (frame_sender, mut queue) = mpsc::unbounded_channel::<Bytes>();
    let mut user = None;
    loop {
        tokio::select! {
            biased;
            Some(frame) = queue.recv() => {
                if write.feed(Message::Binary(frame)).await.is_err() { break }
                while let Ok(frame) = queue.try_recv() {
                    if write.feed(Message::Binary(frame)).await.is_err() { return }
                }
                if write.flush().await.is_err() { break }
            }
            message = read.next() => {
                let Some(Ok(Message::Binary(frame))) = message else { break };
                match (parse(&frame), user) {
                    (Some((HELLO, number, _)), _) => {
                        user = Some(number);
                        lock(&floor.connections).insert(number, frame_sender.clone());
                        let _ = frame_sender.send(self::frame(HELLO, number, &[]));
                    }
                    (Some((SEND, n, _)), Some(sender)) => {
                        lock(&floor.pending).push(UnflushedSend { sender, n, frame });
                        floor.news.notify_one();
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Floor {
    fn flush_for_ever(&self, mut file: File) {
        loop {
            let batch = {
                let pending = lock(&self.pending);
                let mut pending = self
                    .news
                    .wait_while(pending, |pending| pending.is_empty())
                    .unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *pending)
            };
            let bytes: Vec<u8> = batch.iter().flat_map(|p| p.frame.iter().copied()).collect();
            if file
                .write_all(&bytes)
                .and_then(|()| file.sync_data())
                .is_err()
            {
                errln!("floor: cannot write the write-ahead file");
                std::process::exit(1);
            }
            let connections = lock(&self.connections);
            for UnflushedSend { sender, n, frame } in batch {
                if let Some(frame_sender) = connections.get(&sender) {
                    let _ = frame_sender.send(self::frame(ACCEPTED, n, &[]));
                }
                if let Some(frame_sender) = connections.get(&(sender ^ 1)) {
                    let _ = frame_sender.send(self::frame(MESSAGE, n, &frame[9..]));
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
