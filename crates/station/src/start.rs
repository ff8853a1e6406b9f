//! Puts a station together, makes it known, and ends it in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::trace::Spans;
use api::transport::{Connector, IN_PROCESS, InProcess};
use api::v1::station_service_server::StationServiceServer;
use backend::Backends;
use backend::clock::TimerClock;
use backend::discovery::{Instance, Registration, Registry, Role};
use protocol::admission::SendLimits;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::accept::Accept;
use crate::admission::Admissions;
use crate::auth::{Authenticator, KeyError, TokenDoor};
use crate::background::Workers;
use crate::boats::Boats;
use crate::cached::Cached;
use crate::changing::ChangeDoor;
use crate::config::Config;
use crate::current::Current;
use crate::deadline::answered_within;
use crate::groups::Groups;
use crate::heads::Heads;
use crate::ids::MessageIds;
use crate::installation::Installation;
use crate::kickout::{Kick, Kicks};
use crate::limits::Limits;
use crate::mail::{self, MailRoom};
use crate::membership::Membership;
use crate::metrics::{AcceptMetrics, AdmissionMetrics, ReceiptMetrics};
use crate::missed::Missed;
use crate::pages::Pages;
use crate::publisher::Publisher;
use crate::receipt_notifier::ReceiptNotifier;
use crate::receipts::Receipts;
use crate::received::Received;
use crate::recent::Recent;
use crate::records::Records;
use crate::revocations::RevocationDoor;
use crate::seen::remember;
use crate::service::{Door, Station};
use crate::sync::Lookup;
use crate::tickets::{TicketDoor, TicketKeysError};

/// Why a station does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("tokens cannot be checked")]
    Key(#[from] KeyError),
    #[error(transparent)]
    TicketKeys(#[from] TicketKeysError),
    #[error("a part is not there")]
    Part(#[from] backend::Error),
    #[error(
        "this installation has two numbers, {discovery} in discovery and {store} in the store: one of them belongs \
         to another installation, and clients would begin anew; docs/operations/installation.md says what to do"
    )]
    Installations { discovery: u64, store: u64 },
    #[error("the station cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

/// A station at work.
#[derive(Debug)]
pub struct Running {
    instance: Instance,
    registered: watch::Receiver<bool>,
    tasks: TaskTracker,
}

impl Running {
    /// How others find it. After a lost lease the present incarnation is a later one.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Whether others find it: registered, and not leaving.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.registered.clone()
    }

    /// Waits until the station has ended: its calls are answered, and what they left to do is done.
    pub async fn drained(&self) {
        self.tasks.wait().await;
    }
}

/// Starts a station that runs until `shutdown`.
///
/// # Errors
/// A setting that cannot be, a part that does not answer, an address that is taken.
pub async fn start(
    config: Config,
    backends: Backends,
    connector: Connector,
    shutdown: CancellationToken,
) -> Result<Running, StartError> {
    if config.auth.is_well_known() {
        tracing::info!("tokens are signed with the development key, which everybody knows");
    }
    let tokens = Arc::new(TokenDoor::open(&config.auth)?);
    let tickets = TicketDoor::open(
        &config.tickets,
        config.listen.is_none(),
        backends.clock.clone(),
        backends.entropy.as_ref(),
    );
    let tickets = Arc::new(tickets?);
    let (tasks, calls) = (TaskTracker::new(), TaskTracker::new());
    let stop = CancellationToken::new();
    // Nothing that was started outlives a start that fails.
    let unless_started = stop.clone().drop_guard();
    tokens.restore(backends.clock.now());
    let rereading = tokens
        .clone()
        .keep(backends.clock.clone(), backends.entropy.clone());
    tasks.spawn(stop.clone().run_until_cancelled_owned(rereading));
    let rereading = tickets.clone().keep();
    tasks.spawn(stop.clone().run_until_cancelled_owned(rereading));
    let proofs = (tokens as Arc<dyn Authenticator>, tickets);
    let station = assemble(
        &config,
        (&backends, &connector),
        proofs,
        &tasks,
        &calls,
        &stop,
    )
    .await?;
    let routes = Routes::new(StationServiceServer::new(Door(station)));
    let (address, served) = open_door(&config, connector, routes, &tasks, &stop).await?;
    let registry = backends.registry.clone();
    let registering = registry.register(Role::Station, &config.name, &address);
    let registration = answered_within(config.store_deadline, registering).await?;
    let instance = registration.instance.clone();
    unless_started.disarm();
    let (is_registered, registered) = watch::channel(true);
    let life = Life {
        is_registered,
        config,
        registry,
        address,
        calls,
        stop,
    };
    tasks.spawn(life.live(registration, served, shutdown));
    tasks.close();
    Ok(Running {
        instance,
        registered,
        tasks,
    })
}

async fn assemble(
    config: &Config,
    (backends, connector): (&Backends, &Connector),
    (authenticator, tickets): (Arc<dyn Authenticator>, Arc<TicketDoor>),
    tasks: &TaskTracker,
    calls: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Arc<Station>, StartError> {
    let clock = backends.clock.clone();
    let producer = backends.queue.producer();
    let records = Records::of(backends.queue.as_ref());
    let deadline = config.store_deadline;
    let workers = Workers {
        tasks,
        stop,
        waiting_max: config.background_max,
    };
    let installation = Installation {
        registry: backends.registry.clone(),
        store: backends.installation.clone(),
        clock: clock.clone(),
        deadline,
    };
    let cluster = installation.agree(backends.entropy.next().max(1)).await?;
    let ids = MessageIds::lease(
        backends.registry.clone(),
        backends.installation.clone(),
        clock.clone(),
        config.reserve_ahead,
        deadline,
    );
    let ids = ids.await?;
    let receipt_metrics = ReceiptMetrics::new();
    let boats = Arc::new(Boats::new(
        connector.clone(),
        // A life is asked again in seconds, wherever the time of day goes.
        Arc::new(TimerClock::starting_at(clock.now())),
        config.notice_deadline,
    ));
    let roster = answered_within(deadline, backends.registry.watch(Role::Boat)).await?;
    boats.adopt(&roster.borrow());
    let stations = answered_within(deadline, backends.registry.watch(Role::Station)).await?;

    let revocations = RevocationDoor::new(
        backends.revocations.clone(),
        clock.clone(),
        backends.entropy.clone(),
        deadline,
        &config.auth,
    );
    revocations.load().await?;
    let revocations = Arc::new(revocations);

    let admission_metrics = AdmissionMetrics::new();
    let kicks = Kicks {
        producer: producer.clone(),
        records,
        clock: clock.clone(),
        deadline: config.publish_deadline,
        attempts: config.kickout_attempts,
        published: admission_metrics.kickouts_published.clone(),
    };
    let kicker = kicks.clone();
    let ended = workers.spawn("kickout", move |batch: Vec<Kick>| {
        kicker.clone().publish_all(batch)
    });
    let mailbox = backends.mailbox.clone();
    let resolved = workers.spawn("dedupe", move |batch: Vec<_>| {
        let mailbox = mailbox.clone();
        // What is not resolved stays pending, which a resend can live with.
        async move {
            let sends = batch.into_iter().flatten().collect();
            let done = timeout(deadline, mailbox.dedupe_done(sends)).await;
            if !matches!(done, Ok(Ok(()))) {
                ::metrics::counter!("station_dedupe_unresolved_total").increment(1);
            }
        }
    });
    let (conversations, heads) = (backends.conversations.clone(), backends.heads.clone());
    let cached = Cached::new(
        backends.cache.clone(),
        backends.conversations.clone(),
        clock.clone(),
        deadline,
    );
    let registers = cached.clone();
    let seen = workers.spawn("seen", move |batch| {
        let (conversations, heads) = (conversations.clone(), heads.clone());
        remember(conversations, heads, registers.clone(), deadline, batch)
    });
    let (mailbox, timer) = (backends.mailbox.clone(), clock.clone());
    let trims = workers.spawn("mail", move |drained| {
        mail::trim_all(mailbox.clone(), timer.clone(), deadline, drained)
    });
    let groups = backends.groups.clone();
    let membership = Membership::new(groups, config.members_deadline, deadline);
    let membership = Arc::new(membership);
    let notifier = ReceiptNotifier::new(
        (backends.mailbox.clone(), backends.history.clone()),
        boats.clone(),
        deadline,
        (tasks.clone(), stop.clone()),
        receipt_metrics.clone(),
    );
    let work = move |batch| notifier.clone().notify_all(batch);
    let notices = (config.push_receipts).then(|| workers.spawn("receipts", work));

    let ends = Heads {
        store: backends.heads.clone(),
        cached: cached.clone(),
        deadline,
    };
    let current = Current {
        heads: ends.clone(),
        changes: backends.changes.clone(),
        deadline,
    };
    let received = Received::new(backends.mailbox.clone(), clock.clone(), deadline);
    let received = Arc::new(received);
    let limits = Arc::new(Limits::new(config, stations));
    let station = Arc::new(Station {
        admissions: Admissions {
            authenticator,
            limits: limits.clone(),
            mailbox: backends.mailbox.clone(),
            capacity: config.sessions.capacity(),
            devices: backends.devices.clone(),
            groups: backends.groups.clone(),
            boats: boats.clone(),
            kicks,
            ended,
            revocations: revocations.clone(),
            tickets: tickets.clone(),
            clock: clock.clone(),
            cluster,
            deadline,
            metrics: admission_metrics,
        },
        accept: Accept {
            limits: SendLimits {
                body_bytes_max: config.body_bytes_max,
            },
            dedupe_deadline: config.dedupe_deadline,
            rates: limits.clone(),
            ids,
            room: Semaphore::new(room_of(config)),
            mailbox: backends.mailbox.clone(),
            log: Publisher::new(producer, config.publish_deadline),
            records,
            bounds: config.bounds(),
            clock: clock.clone(),
            resolved,
            seen,
            change_deadline: config.members_deadline,
            changes: ChangeDoor {
                history: backends.history.clone(),
                group_history: backends.group_history.clone(),
                membership: membership.clone(),
                changes: backends.changes.clone(),
                clock: clock.clone(),
                deadline,
                rules: config.bounds().rules(),
            },
            membership: membership.clone(),
            metrics: AcceptMetrics::new(),
            spans: Spans::here(),
        },
        receipts: Receipts {
            history: backends.history.clone(),
            group_history: backends.group_history.clone(),
            membership: membership.clone(),
            conversations: backends.conversations.clone(),
            cached: cached.clone(),
            clock: clock.clone(),
            deadline,
            notices,
            tasks: tasks.clone(),
            last_received: received.clone(),
            metrics: receipt_metrics,
        },
        mail: MailRoom {
            mailbox: backends.mailbox.clone(),
            history: backends.history.clone(),
            current: current.clone(),
            ledger: backends.ledger.clone(),
            clock: clock.clone(),
            deadline,
            page_max: config.page_max,
            page_bytes_max: config.page_bytes_max,
            trims,
        },
        lookup: Lookup {
            missed: Missed {
                history: backends.history.clone(),
                mailbox: backends.mailbox.clone(),
                current: current.clone(),
                limits: limits.clone(),
                deadline,
                margin: config.list_margin,
                page_bytes_max: config.page_bytes_max,
            },
            history: backends.history.clone(),
            groups: groups_of(config, backends, membership, ends.clone(), limits.clone()),
            limits,
            heads: ends,
            conversations: backends.conversations.clone(),
            changes: backends.changes.clone(),
            current,
            cached,
            pages: Pages::new(&config.pages, config.page_bytes_max),
            ledger: backends.ledger.clone(),
            clock,
            deadline,
            page_max: config.page_max,
            page_bytes_max: config.page_bytes_max,
            list_margin: config.list_margin,
        },
        tickets,
        batch_items_max: config.batch_items_max,
        calls: calls.clone(),
    });

    let token = stop.clone();
    tasks.spawn(token.run_until_cancelled_owned(async move { installation.keep(cluster).await }));
    let token = stop.clone();
    tasks.spawn(token.run_until_cancelled_owned(async move { revocations.follow().await }));
    let (keeper, token) = (station.clone(), stop.clone());
    tasks.spawn(token.run_until_cancelled_owned(async move {
        keeper.accept.ids.keep_reserved().await;
    }));
    let token = stop.clone();
    tasks.spawn(async move { received.keep_written(token).await });
    let token = stop.clone();
    tasks.spawn(token.run_until_cancelled_owned(async move { boats.follow(roster).await }));
    Ok(station)
}

fn groups_of(
    config: &Config,
    backends: &Backends,
    membership: Arc<Membership>,
    heads: Heads,
    limits: Arc<Limits>,
) -> Groups {
    Groups {
        membership,
        groups: backends.groups.clone(),
        history: backends.group_history.clone(),
        recent: Recent {
            timeline: backends.timeline.clone(),
            deadline: config.timeline_deadline,
            bytes_max: config.page_bytes_max,
        },
        cached: heads.cached.clone(),
        heads,
        conversations: backends.conversations.clone(),
        changes: backends.changes.clone(),
        limits,
        deadline: config.store_deadline,
    }
}

/// Room for the sends of a full batch at least, or no full batch would ever be taken.
fn room_of(config: &Config) -> usize {
    let room = config.sends_in_flight_max.max(config.batch_items_max);
    room.min(Semaphore::MAX_PERMITS)
}

/// What keeps the door open, in this process or on the network.
enum Served {
    Near {
        _guard: InProcess,
    },
    /// Cancelled: nothing new is taken.
    Far(CancellationToken),
}

async fn open_door(
    config: &Config,
    connector: Connector,
    routes: Routes,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(String, Served), StartError> {
    let Some(address) = config.listen else {
        let guard = connector.serve_in_process(&config.name, routes);
        return Ok((
            format!("{IN_PROCESS}{}", config.name),
            Served::Near { _guard: guard },
        ));
    };
    let unable = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(unable)?;
    let bound = listener.local_addr().map_err(unable)?;
    let told = config.advertise.clone();
    let told = told.unwrap_or_else(|| connector.url(bound));
    let closing = stop.child_token();
    let connector = connector.with_stop_grace(config.drain_deadline);
    let close = closing.clone();
    tasks.spawn(async move {
        if let Err(error) = connector.serve(listener, routes, close).await {
            tracing::error!(%error, "the station's server ended");
        }
    });
    Ok((told, Served::Far(closing)))
}

/// From the first registration to the end.
struct Life {
    is_registered: watch::Sender<bool>,
    config: Config,
    registry: Arc<dyn Registry>,
    address: String,
    calls: TaskTracker,
    /// Ends the background work.
    stop: CancellationToken,
}

/// Between tries to register again.
const REGISTER_PAUSE: Duration = Duration::from_secs(1);

impl Life {
    /// Not found any more → calls in flight answered → door shut → what they left behind done.
    async fn live(self, registration: Registration, served: Served, shutdown: CancellationToken) {
        tracing::info!(name = %self.config.name, address = %self.address, "station ready");
        let registered = self.stay_registered(registration);
        shutdown.run_until_cancelled(registered).await;
        self.is_registered.send_replace(false);
        if let Served::Far(closing) = &served {
            closing.cancel();
        }
        self.calls.close();
        if timeout(self.config.drain_deadline, self.calls.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                calls = self.calls.len(),
                "station ends with calls in flight"
            );
        }
        drop(served);
        self.stop.cancel();
        tracing::info!(name = %self.config.name, "station ended");
    }

    /// Registers again whenever the lease is lost; meanwhile whoever knows the address is served.
    async fn stay_registered(&self, mut registration: Registration) {
        loop {
            registration.lost.cancelled().await;
            self.is_registered.send_replace(false);
            tracing::warn!(name = %self.config.name, "the station lost its lease; registering again");
            registration = loop {
                let again = self
                    .registry
                    .register(Role::Station, &self.config.name, &self.address);
                match answered_within(self.config.store_deadline, again).await {
                    Ok(registration) => break registration,
                    Err(error) => {
                        tracing::warn!(%error, source = %error.source, "the station cannot register");
                        sleep(REGISTER_PAUSE).await;
                    }
                }
            };
            self.is_registered.send_replace(true);
        }
    }
}
