//! Sign-ins of chatting users.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::SIGN_INS;
use super::dialect::{BenchFrame, Dialect};

const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) type Socket = WebSocketStream<TcpStream>;

/// Bytes of a binary frame; `None` for control frames; an error at the end of the connection.
pub(super) fn binary(
    message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
) -> Result<Option<Bytes>> {
    match message.context("the server closed the connection")?? {
        Message::Binary(bytes) => Ok(Some(bytes)),
        Message::Close(reason) => bail!("the server closed: {reason:?}"),
        _ => Ok(None),
    }
}

/// Signs in users 0 to `count` - 1, a bounded number at a time, in order of user.
pub(super) async fn sign_in_all(url: &str, dialect: &Dialect, count: u64) -> Result<Vec<Socket>> {
    futures_util::stream::iter(0..count)
        .map(|user| async move { sign_in(url, dialect, user).await })
        .buffered(SIGN_INS)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

pub(super) async fn sign_in(url: &str, dialect: &Dialect, user: u64) -> Result<Socket> {
    let address = url
        .strip_prefix("ws://")
        .context("the bench speaks ws://")?;
    let stream = TcpStream::connect(address.trim_end_matches('/'))
        .await
        .context("connecting")?;
    stream.set_nodelay(true)?;
    let mut request = url.into_client_request()?;
    request.headers_mut().insert(
        "sec-websocket-protocol",
        HeaderValue::from_static("packetboat.v1"),
    );
    let config = WebSocketConfig::default()
        .read_buffer_size(2048)
        .write_buffer_size(0);
    let sign_in = async {
        let (mut socket, _) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
        socket.send(Message::Binary(dialect.hello(user)?)).await?;
        loop {
            if let Some(frame) = binary(socket.next().await)? {
                match dialect.hear(frame)? {
                    BenchFrame::Welcome => return anyhow::Ok(socket),
                    BenchFrame::Refused(text) => bail!("refused at sign-in: {text}"),
                    BenchFrame::Accepted(_) | BenchFrame::Message { .. } | BenchFrame::Other => {}
                }
            }
        }
    };
    timeout(SIGN_IN_TIMEOUT, sign_in)
        .await
        .context("signing in took too long")?
}

/// Sends a frame with a message, and waits until it is accepted.
pub(super) async fn say(socket: &mut Socket, dialect: &Dialect, frame: Bytes) -> Result<()> {
    socket.send(Message::Binary(frame)).await?;
    loop {
        let Some(frame) = binary(socket.next().await)? else {
            continue;
        };
        match dialect.hear(frame)? {
            BenchFrame::Accepted(_) => return Ok(()),
            BenchFrame::Refused(text) => bail!("a message was refused: {text}"),
            BenchFrame::Welcome | BenchFrame::Message { .. } | BenchFrame::Other => {}
        }
    }
}
