//! Starts a boat, and offers a handle to the running one.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use api::trace::Spans;
use api::transport::{Connector, IN_PROCESS, InProcess};
use backend::clock::{Clock, Entropy, TimerClock};
use backend::discovery::{Registry, Role};
use backend::tls::{CertificateError, Certificates};
use protocol::presence::BoatLife;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::Routes;

use crate::Config;
use crate::connection::connection_loop::ConnectionLoops;
use crate::connection::connections::Connections;
use crate::connection::driver::DriverParts;
use crate::door::connection_limit::AddressUsage;
use crate::door::listener::PipeListener;
use crate::door::listener::acceptor::bind;
use crate::door::listener::tcp::serve_tcp;
use crate::door::listener::websocket::serve_websocket;
use crate::door::memory::watch_memory;
use crate::door::{Door, certificates};
use crate::downlink::deliver_streams::DeliverStreams;
use crate::downlink::{Downlink, grpc};
use crate::leaving::Leaving;
use crate::membership::lease::{BoatLease, call_registry};
use crate::membership::reregister::Reregistration;
use crate::membership::revocations::follow_revocations;
use crate::membership::stall_detector::watch_pauses;
use crate::membership::urgent::assert_urgent;
use crate::status::BoatStatus;
use crate::uplink::Uplink;
use crate::uplink::lane_calls::{carry_leaves, carry_mail_acks, carry_receipts, carry_sends};
use crate::uplink::station_pool::StationPool;

/// Dependencies of a boat.
#[derive(Clone)]
pub struct BoatParts {
    pub registry: Arc<dyn Registry>,
    pub connector: Connector,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Runtime that serves clients. A runtime of their own keeps the few tasks that carry messages
    /// from queueing behind thousands of connections.
    pub connections: Handle,
}

/// Reason why a boat did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {address} ({name}): {source}; is the port in use?")]
    Bind {
        /// Setting of section `boat` that holds the address.
        name: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
    #[error("boat.tls: {0}")]
    Certificates(#[from] CertificateError),
    #[error("discovery failed: {0}")]
    Registry(#[from] backend::Error),
}

/// A running boat. Dropping the handle changes nothing: cancel the token that it was started with.
pub struct BoatHandle {
    pub(crate) door: Arc<Door>,
    websocket: SocketAddr,
    tcp: SocketAddr,
    grpc: Option<SocketAddr>,
    address: String,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    /// Cancelled when `task` has ended.
    leave_token: CancellationToken,
}

impl BoatHandle {
    /// Address for WebSocket clients.
    pub fn websocket(&self) -> SocketAddr {
        self.websocket
    }

    /// Address for TCP clients.
    pub fn tcp(&self) -> SocketAddr {
        self.tcp
    }

    /// Address of gRPC, if it listens.
    pub fn grpc(&self) -> Option<SocketAddr> {
        self.grpc
    }

    /// Address at which other services call the boat.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The present life, as other services know it.
    pub fn life(&self) -> Option<BoatLife> {
        self.door.drivers.status.life()
    }

    /// Number of sockets, admitted or not.
    pub fn connections(&self) -> usize {
        self.door.drivers.connections.len()
    }

    /// Number of admitted sessions.
    pub fn sessions(&self) -> usize {
        self.door.drivers.connections.sessions()
    }

    /// Way in for clients of this process. It outlives the handle, and keeps nothing running.
    pub fn pipes(&self) -> PipeListener {
        PipeListener {
            door: Arc::clone(&self.door),
        }
    }

    /// Watches whether new clients are welcome: registered, and not leaving.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.door.drivers.status.ready()
    }

    /// Counts of connections by client address.
    pub fn address_usage(&self) -> AddressUsage {
        AddressUsage(Arc::clone(&self.door.connection_limit))
    }

    /// Starts an orderly leave, like cancelling the shutdown token. [`BoatHandle::drained`] waits
    /// for the end.
    pub fn drain(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the boat has left. Without a request to leave, one of its parts has panicked,
    /// and the boat left as well as it could.
    pub async fn left(&self) {
        self.leave_token.cancelled().await;
    }

    /// Waits until the boat has left: every client gone, every lane empty, the lease given up.
    pub async fn drained(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the boat did not shut down cleanly");
        }
    }
}

/// Starts a boat: listens, registers, and serves until `shutdown`; then it leaves in order.
///
/// # Errors
/// An address that cannot be had, or a registry that does not answer.
pub async fn start(
    config: Config,
    parts: BoatParts,
    shutdown: CancellationToken,
) -> Result<BoatHandle, StartError> {
    let shutdown = shutdown.child_token();
    let (websocket, tcp) = {
        let _sockets_belong_there = parts.connections.enter();
        (
            listen("websocket", config.websocket)?,
            listen("tcp", config.tcp)?,
        )
    };
    let grpc = config
        .listen
        .map(|address| listen("listen", address))
        .transpose()?;
    let (websocket_address, tcp_address) = (
        local_address(&websocket, &config)?,
        local_address(&tcp, &config)?,
    );
    let grpc_address = grpc
        .as_ref()
        .map(|grpc| local_address(grpc, &config))
        .transpose()?;

    let directory =
        call_registry(config.registry_timeout, parts.registry.watch(Role::Station)).await?;
    let stations = StationPool::new(directory, parts.connector.clone(), &config);
    let (certificates, tls) = certificates::load(&config, Arc::clone(&parts.clock))?.unzip();
    let rooms = Rooms::new(&config, &parts, stations);
    let loops = ConnectionLoops::new(parts.connections.metrics().num_workers());
    let door = Door::new(&config, tls, loops, Arc::clone(&rooms.drivers));

    let routes = grpc::routes(Arc::clone(&rooms.downlink), Arc::clone(&rooms.leaving));
    let (grpc_transport, address) = serve(&config, &parts, routes, grpc, grpc_address, &shutdown);
    let request = (parts.registry).register(Role::Boat, &config.name, &address);
    let registration = call_registry(config.registry_timeout, request).await?;
    let status = &rooms.drivers.status;
    status.begin_life(registration.instance.life.clone());
    let lane_tasks = spawn_lane_tasks(&rooms.drivers.uplink, &shutdown);
    let upkeep_tasks = spawn_upkeep(&config, &rooms, certificates, &shutdown);
    let loop_tasks: Vec<_> = (door.loops.run(&rooms.drivers))
        .map(|connection_loop| spawn_on(&parts.connections, &shutdown, connection_loop))
        .collect();
    let acceptors = [
        spawn_on(
            &parts.connections,
            &shutdown,
            serve_websocket(websocket, Arc::clone(&door)),
        ),
        spawn_on(
            &parts.connections,
            &shutdown,
            serve_tcp(tcp, Arc::clone(&door)),
        ),
    ];
    status.refresh_ready();
    let lease = BoatLease {
        name: config.name,
        address: address.clone(),
        registration,
        registry: parts.registry,
        registry_timeout: config.registry_timeout,
        fence: config.fence,
        status: Arc::clone(status),
        leaving: Arc::clone(&rooms.leaving),
        reregistration: rooms.reregistration,
    };
    // The first publication shows the state of a serving boat.
    let lease_task = spawn(&shutdown, lease.keep());
    tracing::info!(life = ?status.life(), websocket_at = %websocket_address, tcp_at = %tcp_address, "boat ready");

    let leave_token = CancellationToken::new();
    let leave_parts = (
        rooms.leaving,
        shutdown.clone(),
        leave_token.clone().drop_guard(),
    );
    let task = tokio::spawn(async move {
        let (leaving, shutdown, _left) = leave_parts;
        let _ = shutdown.run_until_cancelled(leaving.follow_orders()).await;
        leaving.leave(acceptors).await;
        drop((upkeep_tasks, lane_tasks, loop_tasks));
        // The lease is given up last of all that others see; then the name is free.
        drop(lease_task);
        grpc_transport.end().await;
    });
    Ok(BoatHandle {
        door,
        websocket: websocket_address,
        tcp: tcp_address,
        grpc: grpc_address,
        address,
        shutdown,
        task,
        leave_token,
    })
}

/// Rooms of a boat behind its door.
struct Rooms {
    leaving: Arc<Leaving>,
    reregistration: Arc<Reregistration>,
    downlink: Arc<Downlink>,
    drivers: Arc<DriverParts>,
}

impl Rooms {
    /// Gives each room the parts that it needs.
    fn new(config: &Config, parts: &BoatParts, stations: StationPool) -> Rooms {
        let connections = Arc::new(Connections::new(TimerClock::starting_at(parts.clock.now())));
        let status = Arc::new(BoatStatus::new());
        let streams = Arc::new(DeliverStreams::new(Spans::here()));
        let uplink = Uplink::new(
            config,
            stations,
            Arc::clone(&connections),
            Arc::clone(&status),
        );
        let leaving = Leaving::new(
            config,
            Arc::clone(&parts.registry),
            Arc::clone(&connections),
            Arc::clone(&uplink),
            Arc::clone(&status),
            Arc::clone(&parts.entropy),
        );
        let reregistration = Reregistration::new(
            config,
            Arc::clone(&uplink),
            Arc::clone(&connections),
            Arc::clone(&status),
            Arc::clone(&parts.entropy),
        );
        let downlink = Downlink::new(
            config,
            Arc::clone(&connections),
            Arc::clone(&status),
            Arc::clone(&streams),
        );
        let drivers = DriverParts::new(
            config,
            Arc::clone(&connections),
            uplink,
            streams,
            Arc::clone(&status),
            Arc::clone(&parts.entropy),
        );
        Rooms {
            leaving,
            reregistration,
            downlink,
            drivers,
        }
    }
}

/// Tasks that keep a boat up to date.
fn spawn_upkeep(
    config: &Config,
    rooms: &Rooms,
    certificates: Option<Arc<Certificates>>,
    shutdown: &CancellationToken,
) -> Vec<AbortOnDropHandle<()>> {
    let reregistration = || Arc::clone(&rooms.reregistration);
    let leaving = Arc::clone(&rooms.leaving);
    let drivers = Arc::clone(&rooms.drivers);
    let mut tasks = vec![
        spawn(shutdown, reregistration().sweep()),
        spawn(shutdown, assert_urgent(reregistration())),
        spawn(shutdown, follow_revocations(reregistration())),
        spawn(
            shutdown,
            watch_pauses(reregistration(), leaving, config.pause_max),
        ),
        spawn(shutdown, watch_memory(drivers, config.memory_max)),
    ];
    tasks.extend(
        certificates.map(|certificates| spawn(shutdown, certificates.keep("boat", "boat.tls"))),
    );
    tasks
}

/// Transport of the gRPC side.
enum GrpcTransport {
    Near(InProcess),
    Far {
        stop: CancellationToken,
        server_task: JoinHandle<()>,
    },
}

impl GrpcTransport {
    async fn end(self) {
        match self {
            GrpcTransport::Near(guard) => drop(guard),
            GrpcTransport::Far { stop, server_task } => {
                stop.cancel();
                let _ = server_task.await;
            }
        }
    }
}

/// Serves carriers and stations, over the network or inside this process. Returns the address
/// advertised to other services.
fn serve(
    config: &Config,
    parts: &BoatParts,
    routes: Routes,
    grpc: Option<TcpListener>,
    grpc_address: Option<SocketAddr>,
    shutdown: &CancellationToken,
) -> (GrpcTransport, String) {
    let (Some(listener), Some(local_address)) = (grpc, grpc_address) else {
        let name = format!("boat/{}", config.name);
        let guard = parts.connector.serve_in_process(&name, routes);
        return (GrpcTransport::Near(guard), format!("{IN_PROCESS}{name}"));
    };
    let stop = CancellationToken::new();
    let (connector, stop_token) = (parts.connector.clone(), stop.clone());
    let boat_guard = shutdown.clone().drop_guard();
    let server_task = tokio::spawn(async move {
        let _ends_boat = boat_guard;
        if let Err(error) = connector.serve(listener, routes, stop_token).await {
            tracing::error!(%error, "the gRPC server ended");
        }
    });
    let advertise_url = config.advertise.clone();
    let address = advertise_url.unwrap_or_else(|| parts.connector.url(local_address));
    (GrpcTransport::Far { stop, server_task }, address)
}

fn spawn_lane_tasks(
    uplink: &Arc<Uplink>,
    shutdown: &CancellationToken,
) -> Vec<AbortOnDropHandle<()>> {
    (0..uplink.queues.len())
        .flat_map(|lane| {
            [
                spawn(shutdown, carry_sends(Arc::clone(uplink), lane)),
                spawn(shutdown, carry_receipts(Arc::clone(uplink), lane)),
                spawn(shutdown, carry_mail_acks(Arc::clone(uplink), lane)),
                spawn(shutdown, carry_leaves(Arc::clone(uplink), lane)),
            ]
        })
        .collect()
}

/// Spawns a part of the boat. A part that ends by itself, by a panic, takes the boat with it: a
/// boat that holds clients and carries nothing for them would be worse.
fn spawn(
    shutdown: &CancellationToken,
    part: impl Future<Output = ()> + Send + 'static,
) -> AbortOnDropHandle<()> {
    spawn_on(&Handle::current(), shutdown, part)
}

fn spawn_on(
    runtime: &Handle,
    shutdown: &CancellationToken,
    part: impl Future<Output = ()> + Send + 'static,
) -> AbortOnDropHandle<()> {
    let boat_guard = shutdown.clone().drop_guard();
    AbortOnDropHandle::new(runtime.spawn(async move {
        let _ends_boat = boat_guard;
        part.await;
    }))
}

fn listen(name: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    bind(address).map_err(|source| StartError::Bind {
        name,
        address,
        source,
    })
}

fn local_address(listener: &TcpListener, config: &Config) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Bind {
        name: "websocket",
        address: config.websocket,
        source,
    })
}
