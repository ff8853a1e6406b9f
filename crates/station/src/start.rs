//! Puts a station together, makes it known, and ends it in order.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::transport::{Connector, IN_PROCESS, InProcess};
use api::v1::station_service_server::StationServiceServer;
use backend::Backends;
use backend::discovery::{Instance, Registration, Registry, Role};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::accept::{MessageIds, SendAcceptor};
use crate::auth::{KeyError, TokenDoor};
use crate::boat_clients::BoatClients;
use crate::config::Config;
use crate::grpc::{Station, StationGrpc};
use crate::installation::Installation;
use crate::limits::Limits;
use crate::membership::Membership;
use crate::metrics::AdmissionMetrics;
use crate::part_spawner::PartSpawner;
use crate::read::mail::MailReader;
use crate::read::{ListCache, Reader};
use crate::receipts::{LastReceivedWriter, Receipts};
use crate::session::tickets::{TicketDoor, TicketKeysError};
use crate::session::{Admissions, KickoutQueue, RevocationDoor};
use crate::stores::answered_within;

/// Length of the reservation of ids ahead of the clock. While discovery is away, a station accepts
/// messages for this long; then it refuses them as `unavailable`.
const RESERVE_AHEAD: Duration = Duration::from_secs(600);

/// Time for a boat to take notices. Then they are pushed again, up to five times in a quarter of a
/// minute. Sync makes up for notices lost after that.
const NOTICE_DEADLINE: Duration = Duration::from_secs(1);

/// Errors of starting a station.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot set up token verification")]
    Key(#[from] KeyError),
    #[error(transparent)]
    TicketKeys(#[from] TicketKeysError),
    #[error("a backend is unavailable")]
    Part(#[from] backend::Error),
    #[error(
        "this installation has two numbers, {discovery} in discovery and {store} in the store: one \
         of them belongs to another installation, and clients would start from scratch; see \
         docs/operations/installation.md"
    )]
    Installations { discovery: u64, store: u64 },
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

/// A running station.
#[derive(Debug)]
pub struct StationHandle {
    instance: Instance,
    ready: watch::Receiver<bool>,
    tasks: TaskTracker,
}

impl StationHandle {
    /// Registration by which others find the station. After a lost lease the present incarnation is
    /// a later one.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// True while others find the station: it is registered, and not leaving.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }

    /// Waits until the station has ended: its calls are answered, and the work that they left is
    /// done. A station ends when its token is cancelled; if it ends earlier, one of its parts has
    /// ended by itself.
    pub async fn drained(&self) {
        self.tasks.wait().await;
    }
}

/// Starts a station that runs until `shutdown`.
///
/// # Errors
/// An invalid setting, a backend that does not answer, an address that is taken.
pub async fn start(
    config: Config,
    backends: Backends,
    connector: Connector,
    shutdown: CancellationToken,
) -> Result<StationHandle, StartError> {
    if config.auth.is_well_known() {
        tracing::info!("tokens are verified with the well-known development key");
    }
    let leave_token = shutdown.child_token();
    let spawner = PartSpawner::new(leave_token.clone());
    // A start that fails leaves nothing running.
    let unless_started = spawner.stop.clone().drop_guard();
    let station = assemble(&config, &backends, &connector, &spawner).await?;
    let calls = station.calls.clone();
    let routes = Routes::new(StationServiceServer::new(StationGrpc(station)));
    let (address, guard) = open_listener(&config, connector, routes, &spawner).await?;
    let registry = backends.registry.clone();
    let request = registry.register(Role::Station, &config.name, &address);
    let registration = answered_within(config.store_deadline, request).await?;
    let instance = registration.instance.clone();
    unless_started.disarm();
    let (is_registered, ready_watch) = watch::channel(true);
    let life = Life {
        is_registered,
        config,
        registry,
        address,
        calls,
        stop: spawner.stop,
    };
    spawner
        .tasks
        .spawn(life.run(registration, guard, leave_token));
    spawner.tasks.close();
    Ok(StationHandle {
        instance,
        ready: ready_watch,
        tasks: spawner.tasks,
    })
}

/// Puts the parts of a station together, and starts what keeps them up to date.
async fn assemble(
    config: &Config,
    backends: &Backends,
    connector: &Connector,
    spawner: &PartSpawner,
) -> Result<Arc<Station>, StartError> {
    let deadline = config.store_deadline;
    let tokens = start_tokens(config, backends, spawner)?;
    let tickets = Arc::new(TicketDoor::open(config, backends)?);
    spawner.spawn_endless("tickets", run_endless(tickets.clone().keep()));

    let installation = Installation {
        backends: backends.clone(),
        deadline,
    };
    let cluster = installation.agree(backends.entropy.next().max(1)).await?;
    let ids = MessageIds::lease(
        backends.registry.clone(),
        backends.installation.clone(),
        backends.clock.clone(),
        RESERVE_AHEAD,
        deadline,
    );
    let ids = ids.await?;
    let boats = BoatClients::new(backends, connector.clone(), NOTICE_DEADLINE);
    let boats = Arc::new(boats);
    let directory = answered_within(deadline, backends.registry.watch(Role::Boat)).await?;
    boats.adopt(&directory.borrow());
    let stations = answered_within(deadline, backends.registry.watch(Role::Station)).await?;
    let revocations = Arc::new(RevocationDoor::new(backends, config));
    revocations.load().await?;

    let limits = Arc::new(Limits::new(config, stations));
    let membership = Arc::new(Membership::new(backends, config));
    let list_cache = ListCache::new(backends, deadline);
    let last_received = Arc::new(LastReceivedWriter::new(backends, deadline));
    let reader = Reader::new(backends, config, limits.clone(), list_cache.clone());
    let reader = Arc::new(reader);
    let station = Arc::new(Station {
        admissions: Admissions {
            backends: backends.clone(),
            deadline,
            authenticator: tokens,
            tickets: tickets.clone(),
            revocations: revocations.clone(),
            limits: limits.clone(),
            capacity: config.sessions.capacity(),
            boats: boats.clone(),
            kickouts: KickoutQueue::start(backends, config, spawner),
            cluster,
            metrics: AdmissionMetrics::new(),
        },
        accept: SendAcceptor::new(
            backends,
            config,
            ids,
            limits,
            membership.clone(),
            list_cache.clone(),
            spawner,
        ),
        receipts: Arc::new(Receipts::new(
            backends,
            config,
            boats.clone(),
            membership,
            list_cache,
            last_received.clone(),
            spawner,
        )),
        mail: MailReader::new(backends, config, reader.clone(), spawner),
        reader,
        tickets,
        batch_items_max: config.batch_items_max,
        calls: TaskTracker::new(),
    });

    spawner.spawn_endless("installation", async move {
        installation.keep(cluster).await;
    });
    spawner.spawn_endless("revocations", async move { revocations.follow().await });
    let keeper = station.clone();
    spawner.spawn_endless("ids", async move {
        keeper.accept.ids.keep_reserved().await;
    });
    let stop = spawner.stop.clone();
    spawner.spawn("received", stop.clone(), async move {
        last_received.keep_written(stop).await;
    });
    spawner.spawn_endless("boats", async move { boats.follow(directory).await });
    Ok(station)
}

/// Opens the door for tokens, and keeps its keys fresh.
fn start_tokens(
    config: &Config,
    backends: &Backends,
    spawner: &PartSpawner,
) -> Result<Arc<TokenDoor>, KeyError> {
    let (clock, entropy) = (backends.clock.clone(), backends.entropy.clone());
    let tokens = Arc::new(TokenDoor::open(&config.auth)?);
    tokens.restore(clock.now());
    spawner.spawn_endless("tokens", run_endless(tokens.clone().keep(clock, entropy)));
    Ok(tokens)
}

/// Runs a refresh that may end at once, if there is nothing to refresh, as a part that never ends.
async fn run_endless(refresh: impl Future<Output = ()>) {
    refresh.await;
    pending().await
}

/// Guard of the service, in this process or on the network.
enum ServiceGuard {
    Near {
        _guard: InProcess,
    },
    /// Stops accepting calls when cancelled.
    Far(CancellationToken),
}

async fn open_listener(
    config: &Config,
    connector: Connector,
    routes: Routes,
    spawner: &PartSpawner,
) -> Result<(String, ServiceGuard), StartError> {
    let Some(address) = config.listen else {
        let guard = connector.serve_in_process(&config.name, routes);
        return Ok((
            format!("{IN_PROCESS}{}", config.name),
            ServiceGuard::Near { _guard: guard },
        ));
    };
    let unable = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(unable)?;
    let local_address = listener.local_addr().map_err(unable)?;
    let url = config.advertise.clone();
    let url = url.unwrap_or_else(|| connector.url(local_address));
    let close_token = spawner.stop.child_token();
    let connector = connector.with_stop_grace(config.drain_deadline);
    let close = close_token.clone();
    spawner.spawn("server", close_token.clone(), async move {
        if let Err(error) = connector.serve(listener, routes, close).await {
            tracing::error!(%error, "the station's gRPC server ended");
        }
    });
    Ok((url, ServiceGuard::Far(close_token)))
}

/// Life of a station, from the first registration to the end.
struct Life {
    is_registered: watch::Sender<bool>,
    config: Config,
    registry: Arc<dyn Registry>,
    address: String,
    calls: TaskTracker,
    /// Ends the background work.
    stop: CancellationToken,
}

/// Pause between attempts to register again.
const REGISTER_PAUSE: Duration = Duration::from_secs(1);

impl Life {
    /// Leaves discovery → answers calls in flight → closes the door → finishes the work that they
    /// left.
    async fn run(
        self,
        registration: Registration,
        guard: ServiceGuard,
        leave_token: CancellationToken,
    ) {
        // Also if this ends by a panic: whoever waits for the station hears of it.
        let _stop = self.stop.clone().drop_guard();
        tracing::info!(name = %self.config.name, address = %self.address, "station ready");
        let lease_loop = self.stay_registered(registration);
        leave_token.run_until_cancelled(lease_loop).await;
        self.is_registered.send_replace(false);
        if let ServiceGuard::Far(close_token) = &guard {
            close_token.cancel();
        }
        self.calls.close();
        if timeout(self.config.drain_deadline, self.calls.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                calls = self.calls.len(),
                "station stopped with calls in flight"
            );
        }
        drop(guard);
        self.stop.cancel();
        tracing::info!(name = %self.config.name, "station stopped");
    }

    /// Registers again whenever the lease is lost; meanwhile callers that know the address are
    /// served.
    async fn stay_registered(&self, mut registration: Registration) {
        loop {
            registration.lost_token.cancelled().await;
            self.is_registered.send_replace(false);
            tracing::warn!(name = %self.config.name, "the station lost its lease; registering again");
            registration = loop {
                let attempt =
                    self.registry
                        .register(Role::Station, &self.config.name, &self.address);
                match answered_within(self.config.store_deadline, attempt).await {
                    Ok(registration) => break registration,
                    Err(error) => {
                        tracing::warn!(%error, source = %error.source, "cannot register the station");
                        sleep(REGISTER_PAUSE).await;
                    }
                }
            };
            self.is_registered.send_replace(true);
        }
    }
}
