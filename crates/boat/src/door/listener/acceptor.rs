//! Accepts sockets at a bounded rate and within the limits, and waits while the process is out of
//! files.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::accept_backoff::{self, AcceptBackoff};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::client_stream::ByteStream;
use crate::door::Door;
use crate::door::arrivals::{ArrivalRoom, ClientSocket, IncomingClient};
use crate::status::Shortage;

/// Time for the peer to acknowledge sent bytes; after it the kernel drops the socket.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time before keepalive probes.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Bytes that the kernel queues beyond those it has sent; the rest stays here, and is counted.
const UNSENT_BYTES_MAX: u32 = 16 * 1024;
/// Interval of checks for free files during a shortage.
const FILES_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for a newcomer to read that the boat drains.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 4096;

/// Binds a listener whose queue survives a wave of reconnects.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// An accepted stream whose client is not known yet.
pub(super) struct AcceptedStream {
    pub(super) stream: ByteStream,
    pub(super) address: SocketAddr,
    pub(super) deadline: Instant,
    pub(super) room: ArrivalRoom,
}

/// Accepts at a bounded rate, and only while there is room for arrivals.
pub(super) struct Acceptor {
    listener: TcpListener,
    door: Arc<Door>,
    backoff: AcceptBackoff,
    /// Shortage of files that concerns this listener.
    files: Shortage,
}

impl Acceptor {
    pub(super) fn new(listener: TcpListener, door: Arc<Door>, files: Shortage) -> Acceptor {
        Acceptor {
            listener,
            door,
            backoff: AcceptBackoff::default(),
            files,
        }
    }

    /// Accepts the next socket; the rest wait in the kernel.
    pub(super) async fn accept(&mut self) -> AcceptedStream {
        loop {
            if self.door.accepts.take(1).await {
                self.door.metrics.accept_waits.increment(1);
            }
            let accept_result = if self.door.drivers.status.is_short_of(self.files) {
                // Without new connections nothing else would notice that files are free again.
                let Ok(accept_result) = timeout(FILES_POLL_INTERVAL, self.listener.accept()).await
                else {
                    self.check_files();
                    continue;
                };
                accept_result
            } else {
                self.listener.accept().await
            };
            match accept_result {
                Ok((stream, address)) => {
                    self.backoff.accepted();
                    self.check_files();
                    self.door.metrics.connections_accepted.increment(1);
                    // A socket that refuses the options is dead already.
                    let _ = set_options(&stream);
                    let (stream, address) = (ByteStream::Tcp(stream), canonical(address));
                    if let Some(accepted_stream) =
                        AcceptedStream::new(stream, address, &self.door).await
                    {
                        return accepted_stream;
                    }
                }
                Err(error) if is_exhausted(&error) => {
                    // Clients that leave free files.
                    let pause = self.backoff.failed(self.door.now());
                    self.door.metrics.accept_pauses.increment(1);
                    if pause.warn {
                        warn!(%error, "accepting paused: out of file descriptors or memory");
                    }
                    self.check_files();
                    sleep(pause.length).await;
                }
                // The error concerns one connection, which is gone.
                Err(_) => {}
            }
        }
    }

    fn check_files(&self) {
        let is_short = !self.backoff.is_ready(self.door.now());
        if is_short != self.door.drivers.status.is_short_of(self.files) {
            self.door.drivers.status.set_shortage(self.files, is_short);
        }
    }
}

impl AcceptedStream {
    /// Waits for a place among the arriving clients. `None`: its address opens connections too
    /// quickly.
    pub(super) async fn new(
        stream: ByteStream,
        address: SocketAddr,
        door: &Door,
    ) -> Option<AcceptedStream> {
        let client = (!door.is_balancer(address.ip())).then_some(address.ip());
        if client.is_some_and(|ip| !door.may_arrive(ip)) {
            return None;
        }
        let room = (
            door.arrivals.take(client).await,
            door.drivers.uplink.tasks.token(),
        );
        let arrival_timeout = door.arrival_timeout;
        // While draining, a newcomer gets only its refusal and little time to read it.
        let time_limit = if door.drivers.status.is_draining() {
            arrival_timeout.min(REFUSAL_TIMEOUT)
        } else {
            arrival_timeout
        };
        Some(AcceptedStream {
            stream,
            address,
            deadline: Instant::now() + time_limit,
            room,
        })
    }

    /// Counts this client against the limits, under its own address if known. `None`: not even a
    /// refusal has a place.
    pub(super) fn admit(
        self,
        door: &Door,
        address: Option<SocketAddr>,
    ) -> Option<(ClientSocket, IncomingClient)> {
        let ip = address.map(|address| address.ip().to_canonical());
        // A balancer has named the client; others were counted when they came.
        if let Some(ip) = ip.filter(|_| door.is_balancer(self.address.ip())) {
            self.room.0.name(ip);
            if !door.may_arrive(ip) {
                return None;
            }
        }
        let Some((permit, refusal)) = door.connection_limit.take(ip) else {
            door.metrics.connections_dropped.increment(1);
            return None;
        };
        let socket = ClientSocket {
            stream: self.stream,
            permit,
        };
        let time_left = self.deadline.saturating_duration_since(Instant::now());
        let peer = IncomingClient {
            address: address.unwrap_or(self.address),
            refusal,
            hello_deadline: door.now() + time_left,
            room: Arc::new(self.room),
        };
        Some((socket, peer))
    }
}

/// A dual-stack listener reports IPv4 clients with IPv4-mapped IPv6 addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Has the kernel queue little for a client that does not read, and notice one that is gone.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    // A lone small frame must not wait for the acknowledgement of the one before.
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
