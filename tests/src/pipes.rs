//! Pipes to the boat of a system in this process.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use boat::PipeListener;
use client::{Address, ByteStream, Dial};
use parking_lot::Mutex;
use tokio::io::{DuplexStream, duplex};

use crate::wire::Port;

/// Capacity of a pipe in each direction: more than the largest frame, as of a socket.
const PIPE_BYTES: usize = 256 * 1024;

/// Pipes to the boat that runs now; while none does, they are refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipes(Arc<Mutex<Option<PipeListener>>>);

impl Pipes {
    /// Leads new pipes to this boat.
    pub(crate) fn connect_to(&self, boat: Option<PipeListener>) {
        *self.0.lock() = boat;
    }

    /// Opens a pipe to the boat.
    pub(crate) fn open(&self, port: Port) -> io::Result<DuplexStream> {
        let boat = self.0.lock().clone();
        let boat = boat.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (client_end, boat_end) = duplex(PIPE_BYTES);
        tokio::spawn(async move {
            match port {
                Port::WebSocket => boat.serve_websocket(boat_end).await,
                Port::Tcp => boat.serve_tcp(boat_end).await,
            }
        });
        Ok(client_end)
    }
}

#[async_trait]
impl Dial for Pipes {
    async fn dial(&self, address: &Address) -> io::Result<Box<dyn ByteStream>> {
        let port = if address.as_str().starts_with("ws") {
            Port::WebSocket
        } else {
            Port::Tcp
        };
        Ok(Box::new(self.open(port)?))
    }
}
