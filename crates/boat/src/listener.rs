//! The listeners of clients: they accept at a bounded rate and within the limits, and wait where no file is left.

mod arrival;
pub mod client_stream;
mod tcp;
pub mod upgrade;
mod websocket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::accept_backoff::{self, AcceptBackoff};
use protocol::{Refusal, Timestamp};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::warn;

use crate::boat::{Boat, Shortage};
use crate::connection_driver::ConnectionDriver;
use crate::connection_loop::ClientSocket;
use crate::stack::Wire;

pub(crate) use tcp::serve_tcp;
pub(crate) use websocket::serve_websocket;

/// Time for the other side to acknowledge what was sent; then the socket is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// A silent socket is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Bytes that the kernel takes beyond what it has sent: the rest is ours, and counted.
const UNSENT_BYTES_MAX: u32 = 16 * 1024;
/// Between two looks at whether there are files again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time of a newcomer to hear that the boat drains.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;

/// A client that arrives, until it is admitted.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Beyond a limit: to be told, then closed.
    pub(crate) refusal: Option<Refusal>,
    /// When its hello has come at the latest.
    pub(crate) until: Timestamp,
    _room: Arc<ArrivalRoom>,
}

/// Hands a socket over to the loops.
fn serve(boat: &Arc<Boat>, socket: ClientSocket, wire: Wire, peer: Arc<Peer>) {
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

/// A socket that was accepted, of nobody in particular.
struct Accepted {
    stream: TcpStream,
    address: SocketAddr,
    until: Instant,
    room: ArrivalRoom,
}

/// A place among those who arrive; a boat that leaves waits for them.
type ArrivalRoom = (OwnedSemaphorePermit, TaskTrackerToken);

/// Accepts at a bounded rate, and no more than may arrive at a time.
struct Acceptor {
    listener: TcpListener,
    boat: Arc<Boat>,
    backoff: AcceptBackoff,
    /// Its own among the boat's.
    files: Shortage,
}

impl Acceptor {
    fn new(listener: TcpListener, boat: Arc<Boat>, files: Shortage) -> Acceptor {
        Acceptor {
            listener,
            boat,
            backoff: AcceptBackoff::default(),
            files,
        }
    }

    /// The next socket; the rest waits in the kernel.
    async fn accept(&mut self) -> Accepted {
        loop {
            if self.boat.accepts.take(1).await {
                self.boat.metrics.accept_waits.increment(1);
            }
            let accepted = match self.boat.is_short_of(self.files) {
                false => self.listener.accept().await,
                // Where nobody comes, nothing else says that there is room again.
                true => match timeout(LOOK_AGAIN, self.listener.accept()).await {
                    Ok(accepted) => accepted,
                    Err(_) => {
                        self.check_files();
                        continue;
                    }
                },
            };
            match accepted {
                Ok((stream, address)) => {
                    self.backoff.accepted();
                    self.check_files();
                    self.boat.metrics.accepted.increment(1);
                    // A socket that cannot have them is gone already.
                    let _ = set_options(&stream);
                    let room = (self.boat.arriving().await, self.boat.tasks.token());
                    return Accepted {
                        stream,
                        address: canonical(address),
                        until: Instant::now() + self.arrives_within(),
                        room,
                    };
                }
                Err(error) if is_exhausted(&error) => {
                    // Whoever leaves makes room.
                    let pause = self.backoff.failed(self.boat.now());
                    self.boat.metrics.accept_pauses.increment(1);
                    if pause.warn {
                        warn!(%error, "accepting pauses: this process has no room for a socket");
                    }
                    self.check_files();
                    sleep(pause.length).await;
                }
                // Of one connection, which is gone.
                Err(_) => {}
            }
        }
    }

    /// Time of a newcomer. One that a boat only tells to go is not waited for.
    fn arrives_within(&self) -> Duration {
        let most = self.boat.config.arrival_timeout;
        match self.boat.is_draining() {
            true => most.min(REFUSED_WITHIN),
            false => most,
        }
    }

    fn check_files(&self) {
        let is_short = !self.backoff.is_ready(self.boat.now());
        if is_short != self.boat.is_short_of(self.files) {
            self.boat.set_shortage(self.files, is_short);
        }
    }
}

impl Accepted {
    /// Has this client count among the others, with its own address where that is known. `None`: not even a word of
    /// refusal has a place.
    fn admit(self, boat: &Boat, address: Option<SocketAddr>) -> Option<(ClientSocket, Peer)> {
        let ip = address.map(|address| address.ip().to_canonical());
        if ip.is_some_and(|ip| !boat.address_limits.may_arrive(ip)) {
            return None;
        }
        let Some((permit, refusal)) = boat.connection_limit.take(ip) else {
            boat.metrics.dropped.increment(1);
            return None;
        };
        let socket = ClientSocket {
            stream: self.stream,
            permit,
        };
        let left = self.until.saturating_duration_since(Instant::now());
        let peer = Peer {
            address: address.unwrap_or(self.address),
            refusal,
            until: boat.now() + left,
            _room: Arc::new(self.room),
        };
        Some((socket, peer))
    }
}

/// A listener for both families names clients of IPv4 by an address of IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The kernel holds little for who does not read, and notices who is gone.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    // A lone small frame must not wait for the one before it.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

fn is_exhausted(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(accept_backoff::is_exhaustion)
}
