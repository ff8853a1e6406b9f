//! State that all connections of a boat share.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use api::boat::DrainOrder;
use api::station::{Connect, MailPageRequest, RefreshToken, SyncCall};
use api::trace::Spans;
use backend::clock::{Clock, Entropy, TimerClock};
use backend::discovery::Registry;
use parking_lot::{Mutex, RwLock};
use protocol::drain::{BoatLoad, BoatState, Drain, ROOM_AGE_MAX, Room};
use protocol::frame::Hello;
use protocol::presence::{BoatLife, Restoration};
use protocol::proxy::TrustedNetworks;
use protocol::session::{Outgoing, SessionLimits};
use protocol::{Code, Refusal, SessionId, Timestamp};
use rustls::ServerConfig;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::config::ProxyHeader;
use crate::connection::Connection;
use crate::connection::connection_loop::ConnectionLoops;
use crate::connection::connections::Connections;
use crate::door::address_limits::AddressLimits;
use crate::door::arrivals::Arrivals;
use crate::door::connection_limit::ConnectionLimit;
use crate::downlink::deliver_streams::DeliverStreams;
use crate::membership::revocations::RevokedUsers;
use crate::membership::urgent::UrgentAssertions;
use crate::metrics::Metrics;
use crate::tracing::ConnectionTracer;
use crate::uplink::call_limit::CallLimit;
use crate::uplink::pace::Pace;
use crate::uplink::station_pool::{AdmittedSession, StationPool};
use crate::uplink::station_queues::StationQueues;

pub(crate) struct Boat {
    pub(crate) config: Config,
    pub(crate) limits: Arc<SessionLimits>,
    pub(crate) metrics: Metrics,
    /// Accept rate, shared by all listeners.
    pub(crate) accepts: Pace,
    pub(crate) sign_offs: Pace,
    pub(crate) assertions: Pace,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    pub(crate) connections: Connections,
    pub(crate) loops: ConnectionLoops,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) stations: StationPool,
    pub(crate) lanes: StationQueues,
    pub(crate) sources: DeliverStreams,
    pub(crate) tracer: ConnectionTracer,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// Tasks of connections and of calls for single sessions.
    pub(crate) tasks: TaskTracker,
    /// Runtime of calls to stations, apart from that of the connections.
    services: Handle,
    /// True while registered and not leaving.
    ready: watch::Sender<bool>,
    /// Time of day at the start, advanced by the runtime's timer: it never steps.
    clock: TimerClock,
    /// All lives of this process, the present one last. A push to an earlier life still means this
    /// boat.
    lives: RwLock<Vec<BoatLife>>,
    /// True while the present life holds its lease.
    is_leased: AtomicBool,
    restoration: Mutex<Restoration>,
    pub(crate) urgent: UrgentAssertions,
    pub(crate) revocations: RevokedUsers,
    phase: watch::Sender<Phase>,
    /// Last order of an operator.
    pub(crate) drain_orders: watch::Sender<DrainOrder>,
    /// Cancelled when the boat leaves for good.
    leave_token: CancellationToken,
    /// Free room on the other boats, as discovery last reported it.
    room: Mutex<Option<(Instant, Room)>>,
    pub(crate) drain: Mutex<Drain>,
    /// True while clients should leave and no other boat has room.
    is_waiting: AtomicBool,
    is_abandoned: AtomicBool,
    sessions: AtomicUsize,
    mail_calls: CallLimit,
    question_calls: CallLimit,
    sign_in_calls: CallLimit,
    resume_calls: CallLimit,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) balancers: TrustedNetworks,
    pub(crate) address_limits: AddressLimits,
    /// Shortages that turn newcomers away: memory, or files to accept them.
    pressure: [AtomicBool; 3],
    tls: Option<ListenerTls>,
}

/// Stage of a boat's life with clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// Not ready, for balancers to see; clients that come all the same are served.
    Notice {
        ends_at: Instant,
    },
    /// Clients are being sent away, or all have gone.
    Draining,
}

/// Reasons to turn newcomers away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Memory,
    /// Files for sockets that a listener could accept; each listener has its own.
    WebSocketFiles,
    TcpFiles,
}

/// TLS configuration per port: they differ in the negotiated protocol.
pub(crate) struct ListenerTls {
    pub(crate) websocket: Arc<ServerConfig>,
    pub(crate) tcp: Arc<ServerConfig>,
}

impl Boat {
    pub(crate) fn new(
        config: Config,
        registry: Arc<dyn Registry>,
        stations: StationPool,
        clock: &dyn Clock,
        entropy: Arc<dyn Entropy>,
        loops: usize,
        tls: Option<ListenerTls>,
    ) -> Arc<Boat> {
        let spans = Spans::here();
        Arc::new(Boat {
            limits: Arc::new(config.session.clone()),
            metrics: Metrics::new(),
            accepts: Pace::new(config.accepts_on(cores())),
            sign_offs: Pace::new(config.presence_writes_per_second.get()),
            assertions: Pace::new(config.presence_writes_per_second.get()),
            connection_limit: ConnectionLimit::new(&config),
            connections: Connections::new(),
            loops: ConnectionLoops::new(loops),
            registry,
            stations,
            lanes: StationQueues::new(&config),
            sources: DeliverStreams::new(spans.clone()),
            tracer: ConnectionTracer::new(&config, spans, Arc::clone(&entropy)),
            entropy,
            tasks: TaskTracker::new(),
            services: Handle::current(),
            ready: watch::Sender::new(false),
            clock: TimerClock::starting_at(clock.now()),
            lives: RwLock::default(),
            is_leased: AtomicBool::new(false),
            restoration: Mutex::default(),
            urgent: UrgentAssertions::default(),
            revocations: RevokedUsers::default(),
            phase: watch::Sender::new(Phase::Serving),
            drain_orders: watch::Sender::new(DrainOrder::Cancel),
            leave_token: CancellationToken::new(),
            room: Mutex::new(None),
            drain: Mutex::new(Drain::new(config.drain_spread)),
            is_waiting: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            sessions: AtomicUsize::new(0),
            mail_calls: CallLimit::for_mail(&config),
            question_calls: CallLimit::for_questions(&config),
            sign_in_calls: CallLimit::for_sign_ins(&config),
            resume_calls: CallLimit::for_resumptions(&config),
            arrivals: Arrivals::new(config.arriving_max),
            balancers: TrustedNetworks::new(config.proxy.networks.clone()),
            address_limits: AddressLimits::new(&config),
            pressure: Default::default(),
            tls,
            config,
        })
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.limits.frame_bytes_max as usize
    }

    /// The present life; `None` before the first registration.
    pub(crate) fn life(&self) -> Option<BoatLife> {
        self.lives.read().last().cloned()
    }

    pub(crate) fn begin_life(&self, life: BoatLife) {
        self.lives.write().push(life);
        self.is_leased.store(true, Ordering::Release);
    }

    pub(crate) fn lose_lease(&self) {
        self.is_leased.store(false, Ordering::Release);
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.is_leased.load(Ordering::Acquire)
    }

    /// Notes the store's marker under which a session was registered. Returns whether the boat had not seen
    /// this marker before.
    pub(crate) fn is_new_marker(&self, marker: u64) -> bool {
        self.restoration.lock().handle_marker(marker)
    }

    pub(crate) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    pub(crate) fn is_mine(&self, life: &BoatLife) -> bool {
        self.lives.read().contains(life)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// True while newcomers are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase() == Phase::Draining
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leave_token.is_cancelled()
    }

    /// Waits until the boat leaves for good.
    pub(crate) async fn leaving(&self) {
        self.leave_token.cancelled().await;
    }

    pub(crate) fn begin_leaving(&self) {
        self.leave_token.cancel();
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.refresh_ready();
    }

    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn set_waits(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
        self.metrics
            .drain_waits
            .set(f64::from(u8::from(is_waiting)));
    }

    /// Room of other boats, while the last reading is still valid.
    pub(crate) fn room(&self) -> Option<Room> {
        let reading = *self.room.lock();
        reading.and_then(|(at, room)| (at.elapsed() < ROOM_AGE_MAX).then_some(room))
    }

    pub(crate) fn set_room(&self, room: Room) {
        *self.room.lock() = Some((Instant::now(), room));
    }

    pub(crate) fn is_waiting_for_room(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Load of this boat as discovery publishes it.
    pub(crate) fn load(&self) -> BoatLoad {
        BoatLoad {
            state: match self.phase() {
                Phase::Notice { .. } | Phase::Draining => BoatState::Draining,
                // Not `ready`, which lags the phase by a moment.
                Phase::Serving if self.lacks_nothing() => BoatState::Open,
                Phase::Serving => BoatState::Tight,
            },
            connections: self.connections.len(),
            seats: self.config.connections_max,
            accepts_per_second: self.config.accepts_on(cores()) as usize,
            leaving: self.drain.lock().leaving(self.now()),
            zone: self.config.zone.clone(),
            url: self.config.public_url.clone(),
        }
    }

    /// Begins or ends a shortage.
    pub(crate) fn set_shortage(&self, shortage: Shortage, is_short: bool) {
        self.pressure[shortage as usize].store(is_short, Ordering::Release);
        self.refresh_ready();
    }

    pub(crate) fn is_short_of(&self, shortage: Shortage) -> bool {
        self.pressure[shortage as usize].load(Ordering::Acquire)
    }

    /// Publishes whether newcomers are welcome: registered, not leaving, short of nothing.
    pub(crate) fn refresh_ready(&self) {
        // Evaluated under the watch's lock: of several concurrent callers the last one sees all
        // changes.
        self.ready.send_if_modified(|ready| {
            let is_ready = self.lacks_nothing() && self.phase() == Phase::Serving;
            std::mem::replace(ready, is_ready) != is_ready
        });
    }

    fn lacks_nothing(&self) -> bool {
        let mut shortages = self.pressure.iter();
        self.has_lease() && !shortages.any(|it| it.load(Ordering::Acquire))
    }

    /// True once connections are to end at their next turn.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Drops the remaining connections without a frame to anybody.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        for connection in self.connections.all() {
            connection.update(|_| ());
        }
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn session_ended(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.metrics.sessions.decrement(1.0);
    }

    /// Returns an unguessable session id that no connection here uses.
    pub(crate) fn new_session_id(&self) -> SessionId {
        loop {
            if let Ok(id) = SessionId::new((self.entropy.next() >> 1) as i64)
                && self.connections.get(id).is_none()
            {
                return id;
            }
        }
    }

    /// Asks a station to admit this client. The connection is in [`Connections`] already, so that a
    /// push routed to it from now on finds it.
    pub(crate) fn admit(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        hello: Hello,
        peer: SocketAddr,
    ) {
        let (boat, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let has_token = hello.resume.is_none();
            let answer = boat.connect(&connection, hello, peer).await;
            // A ticket from before a restart is no attack, and a forged one costs a station next to
            // nothing.
            if let Err(refusal) = &answer
                && has_token
            {
                boat.address_limits
                    .record_sign_in_failure(peer.ip(), refusal);
            }
            if let Ok(admitted_session) = &answer {
                let mut state = connection.lock();
                state.set_issued_at(admitted_session.issued_at);
                state.login = admitted_session.login;
                state.ticket = admitted_session.ticket;
                drop(state);
                if admitted_session.is_registered {
                    boat.is_new_marker(admitted_session.admission.marker);
                } else {
                    boat.metrics.degraded_sign_ins.increment(1);
                    boat.urgent.register(&connection);
                }
                boat.sessions.fetch_add(1, Ordering::Relaxed);
                boat.metrics.sessions.increment(1.0);
            }
            let answer = answer.map(|admitted_session| admitted_session.admission);
            connection.update(|session| session.handle_admitted(answer, boat.now()));
            // The station may not have read a revocation that reached this boat before the
            // admission.
            boat.revocations.end_if_revoked(&boat, &connection);
        };
        self.tasks.spawn_on(call, &self.services);
    }

    pub(crate) fn fetch_mail(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        request: MailPageRequest,
    ) {
        let (boat, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let page = match boat.mail_calls.acquire_slot().await {
                Ok(_call) => boat.stations.mail_page(connection.id(), request).await,
                Err(refusal) => Err(refusal),
            };
            connection.update(|session| session.handle_page(page, boat.now()));
        };
        self.tasks.spawn_on(call, &self.services);
    }

    pub(crate) fn refresh(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        mut refresh: RefreshToken,
    ) {
        let (boat, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let answer = match boat.sign_in_calls.acquire_slot().await {
                Ok(_call) => {
                    // May have been renewed while the call waited.
                    refresh.ticket = connection.lock().ticket;
                    boat.stations.refresh(&refresh).await
                }
                Err(refusal) => Err(refusal),
            };
            if let Ok(refreshment) = &answer {
                let mut state = connection.lock();
                state.set_issued_at(Some(refreshment.issued_at));
                if let Some(ticket) = refreshment.ticket {
                    state.replace_ticket(ticket);
                }
            }
            let answer = answer.map(|refreshment| refreshment.expires_at);
            connection.update(|session| session.handle_refreshed(answer, boat.now()));
            boat.revocations.end_if_revoked(&boat, &connection);
        };
        self.tasks.spawn_on(call, &self.services);
    }

    pub(crate) fn fetch_page(self: &Arc<Self>, connection: &Arc<Connection>, call: SyncCall) {
        let (boat, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let number = call.request.request;
            let page = match boat.question_calls.acquire_slot().await {
                Ok(_call) => boat.stations.sync(&call).await,
                Err(refusal) => Err(refusal),
            };
            let answer = page.map(Outgoing::Encoded);
            connection.update(|session| session.handle_answer(number, answer, boat.now()));
        };
        self.tasks.spawn_on(call, &self.services);
    }

    async fn connect(
        &self,
        connection: &Connection,
        hello: Hello,
        peer: SocketAddr,
    ) -> Result<AdmittedSession, Refusal> {
        self.address_limits.check_sign_in(peer.ip())?;
        let calls = match hello.resume {
            Some(_) => &self.resume_calls,
            None => &self.sign_in_calls,
        };
        let _call = calls.acquire_slot().await?;
        if connection.lock().session.is_closed() {
            // The client left meanwhile: keep the slot for clients that are connected.
            return Err(Refusal::new(
                Code::Unavailable,
                "the client has disconnected",
            ));
        }
        let life = self.life().ok_or_else(|| {
            Refusal::new(
                Code::Unavailable,
                "this boat is not registered yet; try again",
            )
        })?;
        let connect = Connect {
            session: connection.id(),
            life,
            token: hello.token,
            resume: hello.resume,
            device: hello.device,
            platform: hello.platform,
            peer: peer.to_string(),
            marker: hello.marker,
        };
        self.stations.connect(&connect).await
    }

    /// Whether a trusted balancer is at this address, which names its clients.
    pub(crate) fn is_balancer(&self, address: IpAddr) -> bool {
        self.config.proxy.header != ProxyHeader::None && self.balancers.contains(address)
    }

    /// Whether the head of a request from this address names the client, as a trusted balancer's
    /// does.
    pub(crate) fn is_forwarded(&self, address: IpAddr) -> bool {
        self.config.proxy.header == ProxyHeader::XForwardedFor && self.balancers.contains(address)
    }

    pub(crate) fn tls_for_websockets(&self) -> Option<&Arc<ServerConfig>> {
        self.tls.as_ref().map(|tls| &tls.websocket)
    }

    pub(crate) fn tls_for_tcp(&self) -> Option<&Arc<ServerConfig>> {
        self.tls.as_ref().map(|tls| &tls.tcp)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
