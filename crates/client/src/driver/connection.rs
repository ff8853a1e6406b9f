//! Byte stream that carries frames: WebSocket messages, or plain ones with a length before each.

use std::pin::Pin;
use std::time::Duration;

use api::codec::Frames;
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use protocol::{Code, Refusal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::codec::Framed;

use super::Address;
use super::address::Carrier;
use super::dial::Dial;
use super::tls::Tls;

const SUBPROTOCOL: &str = "packetboat.v1";

/// Time limit of an orderly close.
const FAREWELL: Duration = Duration::from_millis(500);

type FrameStream = Pin<Box<dyn Stream<Item = Result<Bytes, Refusal>> + Send>>;
type FrameSink = Pin<Box<dyn Sink<Bytes, Error = Refusal> + Send>>;

/// An open connection. Its errors are refusals that allow a reconnect, unless the server's close
/// code says otherwise.
pub(super) struct Connection {
    pub(super) stream: FrameStream,
    pub(super) sink: FrameSink,
}

impl Connection {
    /// Opens a connection over a stream of `dial`, with TLS if given, all within `timeout`.
    pub(super) async fn open(
        address: &Address,
        dial: &dyn Dial,
        tls: Option<&Tls>,
        timeout: Duration,
        frame_bytes_max: usize,
    ) -> Result<Connection, Refusal> {
        let connection = async {
            let stream = dial.dial(address).await.map_err(lost)?;
            match tls {
                Some(tls) => {
                    let stream = tls.connect(address, stream).await?;
                    carry(address, stream, frame_bytes_max).await
                }
                None => carry(address, stream, frame_bytes_max).await,
            }
        };
        tokio::time::timeout(timeout, connection)
            .await
            .unwrap_or_else(|_| Err(lost("connecting timed out")))
    }

    /// Writes the frames that are left, closes, and waits until the peer has noticed: closing a
    /// socket with unread bytes may take back the last frames.
    pub(super) async fn close(mut self) {
        let farewell = async {
            if self.sink.close().await.is_ok() {
                while let Some(Ok(_)) = self.stream.next().await {}
            }
        };
        // Late or not, the connection is over.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }
}

async fn carry<S>(
    address: &Address,
    stream: S,
    frame_bytes_max: usize,
) -> Result<Connection, Refusal>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match address.carrier() {
        Carrier::Tcp => Ok(tcp(stream, frame_bytes_max)),
        Carrier::WebSocket => websocket(address.as_str(), stream, frame_bytes_max).await,
    }
}

fn tcp<S>(stream: S, frame_bytes_max: usize) -> Connection
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (outbound, inbound) = Framed::new(stream, Frames::new(frame_bytes_max)).split();
    Connection {
        stream: Box::pin(inbound.map(|frame| frame.map_err(lost))),
        sink: Box::pin(outbound.sink_map_err(lost)),
    }
}

async fn websocket<S>(url: &str, stream: S, frame_bytes_max: usize) -> Result<Connection, Refusal>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut request = url.into_client_request().map_err(lost)?;
    let headers = request.headers_mut();
    headers.insert(
        "Sec-WebSocket-Protocol",
        HeaderValue::from_static(SUBPROTOCOL),
    );
    let config = WebSocketConfig::default()
        .read_buffer_size(8 * 1024)
        .max_message_size(Some(frame_bytes_max))
        .max_frame_size(Some(frame_bytes_max));
    let (socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(config))
        .await
        .map_err(lost)?;
    let (outbound, inbound) = socket.split();
    let outbound = outbound
        .sink_map_err(lost)
        .with(|bytes| std::future::ready(Ok::<_, Refusal>(Message::Binary(bytes))));
    let inbound = inbound.filter_map(|message| std::future::ready(read(message)));
    Ok(Connection {
        stream: Box::pin(inbound),
        sink: Box::pin(outbound),
    })
}

fn read(message: Result<Message, tungstenite::Error>) -> Option<Result<Bytes, Refusal>> {
    match message {
        Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
        Ok(Message::Close(frame)) => Some(Err(closed(frame))),
        Ok(Message::Text(_)) => Some(Err(lost("the server sent text"))),
        Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => None,
        Err(error) => Some(Err(lost(error))),
    }
}

/// Refusal by the server's close code, if that is one of ours.
fn closed(frame: Option<CloseFrame>) -> Refusal {
    let code = |frame: &CloseFrame| Code::from_number(frame.code.into());
    match frame {
        Some(frame) => match code(&frame) {
            Some(code) => Refusal::new(code, frame.reason.as_str()),
            None => lost(format!("the server closed with code {}", frame.code)),
        },
        None => lost("the server closed the connection"),
    }
}

/// Refusal of a failed connection: whatever the cause, another one may do better.
pub(super) fn lost(cause: impl ToString) -> Refusal {
    Refusal::new(Code::Unavailable, cause.to_string())
}
