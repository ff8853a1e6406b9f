use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::DuplexStream;

use super::acceptor::AcceptedStream;
use super::client_stream::ByteStream;
use super::{tcp, websocket};
use crate::door::Door;

/// Way in for clients of this process: each is at the other end of a pipe, and is served as if it
/// had come over loopback, without TLS. A boat that has left refuses it, or closes the pipe.
#[derive(Clone)]
pub struct PipeListener {
    pub(crate) door: Arc<Door>,
}

impl PipeListener {
    /// Begins to serve a client that speaks the TCP protocol. Waits for its place among the
    /// arriving clients.
    pub async fn serve_tcp(&self, client: DuplexStream) {
        if let Some(stream) = self.accept(client).await {
            tcp::begin(stream, &self.door);
        }
    }

    /// Begins to serve a client that asks for a WebSocket. Waits for its place among the arriving
    /// clients, and for its request.
    pub async fn serve_websocket(&self, client: DuplexStream) {
        if let Some(stream) = self.accept(client).await {
            websocket::shake_hands(stream, Arc::clone(&self.door), None, true).await;
        }
    }

    async fn accept(&self, client: DuplexStream) -> Option<AcceptedStream> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        AcceptedStream::new(ByteStream::Pipe(client), address, &self.door).await
    }
}

impl fmt::Debug for PipeListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeListener").finish_non_exhaustive()
    }
}
