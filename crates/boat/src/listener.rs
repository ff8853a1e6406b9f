//! Where clients arrive: accepts at a bounded rate and within the limits, and waits where no file is left.

mod tcp;
mod websocket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::Refusal;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use crate::boat::Boat;
use crate::connection_driver::ConnectionDriver;
use crate::connection_loop::ClientSocket;
use crate::stack::Wire;

pub(crate) use tcp::serve_tcp;
pub(crate) use websocket::serve_websocket;

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;

/// The other end of a socket.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Beyond a limit: to be told, then closed.
    pub(crate) refusal: Option<Refusal>,
}

/// Hands a socket over to the loops.
fn serve(boat: &Arc<Boat>, socket: ClientSocket, wire: Wire, peer: &Peer) {
    let queue = boat.loops.next();
    queue.add(ConnectionDriver::new(boat, queue, wire, peer), socket);
}

/// A listener with a queue that survives a wave of reconnects.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts within the limits.
struct Acceptor {
    listener: TcpListener,
    boat: Arc<Boat>,
    second: Instant,
    accepted: u32,
}

impl Acceptor {
    fn new(listener: TcpListener, boat: Arc<Boat>) -> Acceptor {
        Acceptor {
            listener,
            boat,
            second: Instant::now(),
            accepted: 0,
        }
    }

    /// The next one who can be served or told why not.
    async fn accept(&mut self) -> (ClientSocket, Peer) {
        loop {
            self.pace().await;
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    self.boat.metrics.accepted.increment(1);
                    let Some((permit, refusal)) = self.boat.connection_limit.take(address.ip())
                    else {
                        self.boat.metrics.dropped.increment(1);
                        continue;
                    };
                    // A lone small frame must not wait for the one before it.
                    let _ = stream.set_nodelay(true);
                    let peer = Peer { address, refusal };
                    return (
                        ClientSocket {
                            stream,
                            _permit: permit,
                        },
                        peer,
                    );
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // Out of files, most likely: whoever leaves makes room.
                    self.boat.metrics.accept_pauses.increment(1);
                    warn!(%error, "accepting pauses");
                    sleep(self.boat.config.accept_pause).await;
                }
            }
        }
    }

    /// At most `accepts_per_second`: the rest waits in the kernel.
    async fn pace(&mut self) {
        if self.accepted >= self.boat.config.accepts_per_second {
            sleep_until(self.second + Duration::from_secs(1)).await;
        }
        let now = Instant::now();
        if now >= self.second + Duration::from_secs(1) {
            self.second = now;
            self.accepted = 0;
        }
        self.accepted += 1;
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}
