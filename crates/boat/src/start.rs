//! Starts a boat, and offers a handle to the running one.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use api::transport::{Connector, IN_PROCESS, InProcess};
use backend::clock::{Clock, Entropy};
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

use crate::Config;
use crate::boat::Boat;
use crate::boat_lease::{BoatLease, keep, within};
use crate::certificates;
use crate::connection_limit::AddressUsage;
use crate::drain;
use crate::grpc::routes;
use crate::listener::{PipeListener, bind, serve_tcp, serve_websocket};
use crate::memory::watch_memory;
use crate::reregister::sweep;
use crate::revocations::follow;
use crate::stall_detector::watch_pauses;
use crate::station_pool::StationPool;
use crate::station_queues::{carry_leaves, carry_mail_acks, carry_receipts, carry_sends};
use crate::urgent::assert_urgent;

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
    #[error("listening on {address} ({name}) failed: {source}; is another program there?")]
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
    pub(crate) boat: Arc<Boat>,
    websocket: SocketAddr,
    tcp: SocketAddr,
    grpc: Option<SocketAddr>,
    address: String,
    shutdown: CancellationToken,
    ended: JoinHandle<()>,
    /// Cancelled when `ended` is over.
    left: CancellationToken,
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
        self.boat.life()
    }

    /// Number of sockets, admitted or not.
    pub fn connections(&self) -> usize {
        self.boat.connections.len()
    }

    /// Number of admitted sessions.
    pub fn sessions(&self) -> usize {
        self.boat.sessions()
    }

    /// Way in for clients of this process. It outlives the handle, and keeps nothing running.
    pub fn pipes(&self) -> PipeListener {
        PipeListener {
            boat: Arc::clone(&self.boat),
        }
    }

    /// Watches whether new clients are welcome: registered, and not leaving.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.boat.ready()
    }

    /// Counts of connections by client address.
    pub fn address_usage(&self) -> AddressUsage {
        AddressUsage(Arc::clone(&self.boat.connection_limit))
    }

    /// Starts an orderly leave, like cancelling the shutdown token. [`BoatHandle::drained`] waits
    /// for the end.
    pub fn drain(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the boat has left. Without a request to leave, one of its parts has panicked,
    /// and the boat left as well as it could.
    pub async fn left(&self) {
        self.left.cancelled().await;
    }

    /// Waits until the boat has left: every client gone, every lane empty, the lease given up.
    pub async fn drained(self) {
        if let Err(error) = self.ended.await {
            tracing::error!(%error, "the boat did not leave in order");
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
    let (websocket_at, tcp_at) = (local(&websocket, &config)?, local(&tcp, &config)?);
    let grpc_at = grpc.as_ref().map(|grpc| local(grpc, &config)).transpose()?;

    let roster = within(&config, parts.registry.watch(Role::Station)).await?;
    let stations = StationPool::new(roster, parts.connector.clone(), &config);
    let (certificates, tls) = certificates::load(&config, Arc::clone(&parts.clock))?.unzip();
    let loops = parts.connections.metrics().num_workers();
    let entropy = Arc::clone(&parts.entropy);
    let registry = Arc::clone(&parts.registry);
    let boat = Boat::new(
        config,
        registry,
        stations,
        &*parts.clock,
        entropy,
        loops,
        tls,
    );

    let (served, address) = serve(&boat, &parts, grpc, grpc_at, &shutdown);
    let registering = (parts.registry).register(Role::Boat, &boat.config.name, &address);
    let held = within(&boat.config, registering).await?;
    boat.begin_life(held.instance.life.clone());
    let lease = BoatLease {
        address: address.clone(),
        held,
    };
    let carried = carry(&boat, &shutdown);
    let watched = keep_up(&boat, certificates, &shutdown);
    let driven: Vec<_> = (boat.loops.run(&boat))
        .map(|driving| spawn_on(&parts.connections, &shutdown, driving))
        .collect();
    let acceptors = [
        spawn_on(
            &parts.connections,
            &shutdown,
            serve_websocket(websocket, Arc::clone(&boat)),
        ),
        spawn_on(
            &parts.connections,
            &shutdown,
            serve_tcp(tcp, Arc::clone(&boat)),
        ),
    ];
    boat.refresh_ready();
    // The first publication shows the state of a serving boat.
    let kept = spawn(&shutdown, keep(Arc::clone(&boat), lease));
    tracing::info!(life = ?boat.life(), %websocket_at, %tcp_at, "a boat serves");

    let left = CancellationToken::new();
    let leaving = (
        Arc::clone(&boat),
        shutdown.clone(),
        left.clone().drop_guard(),
    );
    let ended = tokio::spawn(async move {
        let (boat, shutdown, _left) = leaving;
        let orders = drain::obey(&boat);
        let _ = shutdown.run_until_cancelled(orders).await;
        drain::leave(&boat, acceptors).await;
        drop((watched, carried, driven));
        // The lease is given up last of all that others see; then the name is free.
        drop(kept);
        served.end().await;
    });
    Ok(BoatHandle {
        boat,
        websocket: websocket_at,
        tcp: tcp_at,
        grpc: grpc_at,
        address,
        shutdown,
        ended,
        left,
    })
}

/// Tasks that keep a boat up to date.
fn keep_up(
    boat: &Arc<Boat>,
    certificates: Option<Arc<Certificates>>,
    shutdown: &CancellationToken,
) -> Vec<AbortOnDropHandle<()>> {
    let mut watched = vec![
        spawn(shutdown, sweep(Arc::clone(boat))),
        spawn(shutdown, assert_urgent(Arc::clone(boat))),
        spawn(shutdown, follow(Arc::clone(boat))),
        spawn(shutdown, watch_pauses(Arc::clone(boat))),
        spawn(shutdown, watch_memory(Arc::clone(boat))),
    ];
    watched.extend(
        certificates.map(|certificates| spawn(shutdown, certificates.keep("boat", "boat.tls"))),
    );
    watched
}

/// Transport of the gRPC side.
enum GrpcTransport {
    Near(InProcess),
    Far {
        stop: CancellationToken,
        serving: JoinHandle<()>,
    },
}

impl GrpcTransport {
    async fn end(self) {
        match self {
            GrpcTransport::Near(guard) => drop(guard),
            GrpcTransport::Far { stop, serving } => {
                stop.cancel();
                let _ = serving.await;
            }
        }
    }
}

/// Serves carriers and stations, over the network or inside this process. Returns the address
/// advertised to other services.
fn serve(
    boat: &Arc<Boat>,
    parts: &BoatParts,
    grpc: Option<TcpListener>,
    grpc_at: Option<SocketAddr>,
    shutdown: &CancellationToken,
) -> (GrpcTransport, String) {
    let routes = routes(Arc::clone(boat));
    let (Some(listener), Some(bound)) = (grpc, grpc_at) else {
        let name = format!("boat/{}", boat.config.name);
        let guard = parts.connector.serve_in_process(&name, routes);
        return (GrpcTransport::Near(guard), format!("{IN_PROCESS}{name}"));
    };
    let stop = CancellationToken::new();
    let (connector, stopped) = (parts.connector.clone(), stop.clone());
    let ends_boat = shutdown.clone().drop_guard();
    let serving = tokio::spawn(async move {
        let _ends_boat = ends_boat;
        if let Err(error) = connector.serve(listener, routes, stopped).await {
            tracing::error!(%error, "gRPC ended");
        }
    });
    let advertised = boat.config.advertise.clone();
    let address = advertised.unwrap_or_else(|| parts.connector.url(bound));
    (GrpcTransport::Far { stop, serving }, address)
}

fn carry(boat: &Arc<Boat>, shutdown: &CancellationToken) -> Vec<AbortOnDropHandle<()>> {
    (0..boat.lanes.len())
        .flat_map(|lane| {
            [
                spawn(shutdown, carry_sends(Arc::clone(boat), lane)),
                spawn(shutdown, carry_receipts(Arc::clone(boat), lane)),
                spawn(shutdown, carry_mail_acks(Arc::clone(boat), lane)),
                spawn(shutdown, carry_leaves(Arc::clone(boat), lane)),
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
    let ends_boat = shutdown.clone().drop_guard();
    AbortOnDropHandle::new(runtime.spawn(async move {
        let _ends_boat = ends_boat;
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

fn local(listener: &TcpListener, config: &Config) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Bind {
        name: "websocket",
        address: config.websocket,
        source,
    })
}
