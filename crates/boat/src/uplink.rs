//! Calls to stations: those for one session here, those that many sessions share in [`lane_calls`].

pub(crate) mod batch_queue;
mod call_limit;
pub(crate) mod lane_calls;
mod orders;
pub(crate) mod pace;
pub(crate) mod revoked_users;
pub(crate) mod station_pool;
pub(crate) mod station_queues;
pub(crate) mod urgent_queue;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::station::{Connect, MailPageRequest, RefreshToken, SyncCall};
use backend::rate_limit::AddressLimit;
use protocol::frame::Hello;
use protocol::session::Outgoing;
use protocol::{Code, Refusal};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use self::call_limit::CallLimits;
use self::revoked_users::RevokedUsers;
use self::station_pool::{AdmittedSession, StationPool};
use self::station_queues::StationQueues;
use self::urgent_queue::UrgentQueue;
use crate::Config;
use crate::connection::Connection;
use crate::connection::connections::Connections;
use crate::metrics::UplinkMetrics;
use crate::status::BoatStatus;

pub(crate) struct Uplink {
    pub(crate) stations: StationPool,
    pub(crate) queues: StationQueues,
    pub(crate) urgent: UrgentQueue,
    pub(crate) revoked: RevokedUsers,
    connections: Arc<Connections>,
    status: Arc<BoatStatus>,
    limits: CallLimits,
    sign_in_failures: AddressLimit,
    metrics: UplinkMetrics,
    /// Tasks that a boat waits for when it leaves: connections, and calls for them.
    pub(crate) tasks: TaskTracker,
    /// Runtime of the calls, apart from that of the connections.
    runtime: Handle,
}

impl Uplink {
    /// Its calls run on the present runtime.
    pub(crate) fn new(
        config: &Config,
        stations: StationPool,
        connections: Arc<Connections>,
        status: Arc<BoatStatus>,
    ) -> Arc<Uplink> {
        Arc::new(Uplink {
            stations,
            queues: StationQueues::new(config),
            urgent: UrgentQueue::default(),
            revoked: RevokedUsers::new(),
            connections,
            status,
            limits: CallLimits::new(config),
            sign_in_failures: AddressLimit::new(
                "sign_in_failures_per_address",
                "boat.sign_in_failures_per_address",
                config.address_bounds().sign_in_failures,
            ),
            metrics: UplinkMetrics::new(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
        })
    }

    /// Asks a station to admit this client. The connection is in [`Connections`] already, so that a
    /// push routed to it from now on finds it.
    pub(crate) fn admit(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        hello: Hello,
        peer: SocketAddr,
    ) {
        let (uplink, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let has_token = hello.resume.is_none();
            let answer = uplink.connect(&connection, hello, peer).await;
            // A ticket from before a restart is no attack, and a forged one costs a station next to
            // nothing.
            if let Err(refusal) = &answer
                && has_token
            {
                uplink.record_sign_in_failure(peer.ip(), refusal);
            }
            if let Ok(admitted_session) = &answer {
                let mut state = connection.lock();
                state.set_issued_at(admitted_session.issued_at);
                state.login = admitted_session.login;
                state.ticket = admitted_session.ticket;
                drop(state);
                if admitted_session.is_registered {
                    let marker = admitted_session.admission.marker;
                    uplink.status.is_new_marker(marker);
                } else {
                    uplink.metrics.degraded_sign_ins.increment(1);
                    uplink.urgent.register(&connection);
                }
                uplink.connections.record_admission();
            }
            let answer = answer.map(|admitted_session| admitted_session.admission);
            connection.update(|session| session.handle_admitted(answer, uplink.connections.now()));
            // The station may not have read a revocation that reached this boat before the
            // admission.
            uplink
                .revoked
                .end_if_revoked(&connection, uplink.connections.now());
        };
        self.tasks.spawn_on(call, &self.runtime);
    }

    pub(crate) fn fetch_mail(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        request: MailPageRequest,
    ) {
        let (uplink, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let page = match uplink.limits.mail.acquire_slot().await {
                Ok(_call) => uplink.stations.mail_page(connection.id(), request).await,
                Err(refusal) => Err(refusal),
            };
            connection.update(|session| session.handle_page(page, uplink.connections.now()));
        };
        self.tasks.spawn_on(call, &self.runtime);
    }

    pub(crate) fn refresh(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        mut refresh: RefreshToken,
    ) {
        let (uplink, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let answer = match uplink.limits.sign_ins.acquire_slot().await {
                Ok(_call) => {
                    // May have been renewed while the call waited.
                    refresh.ticket = connection.lock().ticket;
                    uplink.stations.refresh(&refresh).await
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
            connection.update(|session| session.handle_refreshed(answer, uplink.connections.now()));
            uplink
                .revoked
                .end_if_revoked(&connection, uplink.connections.now());
        };
        self.tasks.spawn_on(call, &self.runtime);
    }

    pub(crate) fn fetch_page(self: &Arc<Self>, connection: &Arc<Connection>, call: SyncCall) {
        let (uplink, connection) = (Arc::clone(self), Arc::clone(connection));
        let call = async move {
            let number = call.request.request;
            let page = match uplink.limits.questions.acquire_slot().await {
                Ok(_call) => uplink.stations.sync(&call).await,
                Err(refusal) => Err(refusal),
            };
            let answer = page.map(Outgoing::Encoded);
            connection
                .update(|session| session.handle_answer(number, answer, uplink.connections.now()));
        };
        self.tasks.spawn_on(call, &self.runtime);
    }

    async fn connect(
        &self,
        connection: &Connection,
        hello: Hello,
        peer: SocketAddr,
    ) -> Result<AdmittedSession, Refusal> {
        self.check_sign_in(peer.ip())?;
        let calls = match hello.resume {
            Some(_) => &self.limits.resumptions,
            None => &self.limits.sign_ins,
        };
        let _call = calls.acquire_slot().await?;
        if connection.lock().session.is_closed() {
            // The client left meanwhile: keep the slot for clients that are connected.
            return Err(Refusal::new(
                Code::Unavailable,
                "the client has disconnected",
            ));
        }
        let life = self.status.life().ok_or_else(|| {
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

    /// Refuses an address whose sign-ins have failed too often, without asking a station.
    fn check_sign_in(&self, address: IpAddr) -> Result<(), Refusal> {
        self.sign_in_failures.look(address).map_err(|wait| {
            let text = "too many sign-ins from your address have failed; wait";
            Refusal::new(Code::RateLimited, text).retry_after(wait.max(Duration::from_secs(1)))
        })
    }

    /// Counts a sign-in that a station refused through the client's fault.
    fn record_sign_in_failure(&self, address: IpAddr, refusal: &Refusal) {
        if refusal.code == Code::Unauthenticated {
            self.sign_in_failures.count(address);
        }
    }
}
