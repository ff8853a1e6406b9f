//! A boat, and a peer that answers like a station from memory.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use api::codec::encode_message;
use api::status::from_refusal;
use api::transport::{Channel, Connector, InProcess};
use api::v1;
use api::v1::boat_service_client::BoatServiceClient;
use api::v1::station_service_server::{StationService, StationServiceServer};
use backend::clock::{Entropy, SeededEntropy, SystemClock};
use backend::discovery::{EmbeddedRegistry, Registration, Registry, Role};
use backend::embedded::Engine;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::access;
use protocol::message::Content;
use protocol::session::SessionLimits;
use protocol::{
    Code, ConversationId, DeviceId, Message, Options, Placed, Position, Recipient, Refusal, Seq,
    Timestamp,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::client::{Client, message, send_id, user};
use super::piping::{tcp_pipe, websocket_pipe};
use crate::{BoatHandle, BoatParts, Config, StartError, start};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// Requests the peer received, and answers it is set to give.
pub(super) struct Peer {
    pub(super) connects: Mutex<Vec<v1::ConnectRequest>>,
    pub(super) disconnects: Mutex<Vec<v1::SessionKey>>,
    pub(super) batches: Mutex<Vec<Vec<v1::SendItem>>>,
    pub(super) receipts: Mutex<Vec<v1::ReceiptItem>>,
    pub(super) removed_ids: Mutex<Vec<i64>>,
    /// Users whose part of the mailbox does not answer.
    pub(super) unavailable_users: Mutex<Vec<i64>>,
    /// Time that a removal or sign-off about such a user takes.
    pub(super) unavailable_delay: Mutex<Duration>,
    /// Number of removals and sign-offs received.
    pub(super) mailbox_calls: AtomicUsize,
    pub(super) reassertions: Mutex<Vec<v1::ReassertSession>>,
    /// Ticket given to new sessions and to asserted ones; empty for none.
    pub(super) ticket: Mutex<Bytes>,
    /// Tickets that calls carried, by call.
    pub(super) shown_tickets: Mutex<Vec<(&'static str, Bytes)>>,
    /// Issue time of the tokens of new sessions, in ms; 0 for an older station.
    pub(super) issued_at: AtomicI64,
    pub(super) revocations: Mutex<Vec<v1::RevokedUser>>,
    /// Time up to which `revocations` is complete, in ms.
    pub(super) complete_until: AtomicI64,
    /// Waiting messages, oldest first.
    pub(super) mail: Mutex<VecDeque<v1::MailItem>>,
    pub(super) reassert_as: Mutex<v1::reassert_result::Outcome>,
    /// Marker of the store, as assertions find it.
    pub(super) marker: AtomicU64,
    /// Makes every call fail as unreachable.
    pub(super) is_down: AtomicBool,
    /// Makes removals and sign-offs fail for good; `refusal_count` counts them.
    pub(super) refuses_removals: AtomicBool,
    pub(super) refusal_count: AtomicUsize,
    /// While set, sends (or connects, or probes) wait for a permit.
    pub(super) holds_calls: AtomicBool,
    /// Number of calls that waited for a permit so far.
    pub(super) held_count: AtomicUsize,
    pub(super) permits: Semaphore,
    /// Delay of resume tickets.
    pub(super) pause: Mutex<Duration>,
    /// While set, questions wait for a permit.
    pub(super) holds_questions: AtomicBool,
    /// Accepts sends, and loses their answer.
    pub(super) drops_answers: AtomicBool,
    /// Admits sessions without registering them.
    pub(super) is_degraded: AtomicBool,
    /// Number of calls received.
    pub(super) call_count: AtomicUsize,
    last_id: AtomicI64,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            connects: Mutex::default(),
            disconnects: Mutex::default(),
            batches: Mutex::default(),
            receipts: Mutex::default(),
            removed_ids: Mutex::default(),
            unavailable_users: Mutex::default(),
            unavailable_delay: Mutex::default(),
            mailbox_calls: AtomicUsize::new(0),
            reassertions: Mutex::default(),
            ticket: Mutex::default(),
            shown_tickets: Mutex::default(),
            complete_until: AtomicI64::new(i64::MAX),
            issued_at: AtomicI64::new(0),
            revocations: Mutex::default(),
            mail: Mutex::default(),
            reassert_as: Mutex::new(v1::reassert_result::Outcome::Known),
            marker: AtomicU64::new(7),
            is_down: AtomicBool::new(false),
            refuses_removals: AtomicBool::new(false),
            refusal_count: AtomicUsize::new(0),
            holds_calls: AtomicBool::new(false),
            held_count: AtomicUsize::new(0),
            permits: Semaphore::new(0),
            pause: Mutex::default(),
            holds_questions: AtomicBool::new(false),
            drops_answers: AtomicBool::new(false),
            is_degraded: AtomicBool::new(false),
            call_count: AtomicUsize::new(0),
            last_id: AtomicI64::new(0),
        }
    }

    fn check_reachable(&self) -> Result<(), Status> {
        self.call_count.fetch_add(1, Ordering::Relaxed);
        if self.is_down.load(Ordering::Relaxed) {
            return Err(Status::unavailable("down"));
        }
        Ok(())
    }

    fn record_ticket(&self, call: &'static str, ticket: Bytes) {
        self.shown_tickets.lock().push((call, ticket));
    }

    fn take(&self) -> Result<(), Status> {
        self.mailbox_calls.fetch_add(1, Ordering::Relaxed);
        if self.refuses_removals.load(Ordering::Relaxed) {
            self.refusal_count.fetch_add(1, Ordering::Relaxed);
            let refusal = Refusal::new(Code::InvalidArgument, "this cannot be");
            return Err(from_refusal(&refusal));
        }
        self.check_reachable()
    }

    /// Waits for a part of the mailbox that is away, if any of these items is about it.
    async fn wait_for_unanswered(&self, indices: &[u32]) {
        if !indices.is_empty() {
            let pause = *self.unavailable_delay.lock();
            tokio::time::sleep(pause).await;
        }
    }

    async fn await_permit(&self) {
        self.await_permit_if(&self.holds_calls).await;
    }

    async fn await_permit_if(&self, is_held: &AtomicBool) {
        if is_held.load(Ordering::Relaxed) {
            self.held_count.fetch_add(1, Ordering::Relaxed);
            self.permits.acquire().await.expect("never closed").forget();
        }
    }
}

#[tonic::async_trait]
impl StationService for PeerService {
    async fn connect(
        &self,
        request: Request<v1::ConnectRequest>,
    ) -> Result<Response<v1::ConnectResponse>, Status> {
        self.0.check_reachable()?;
        self.0.await_permit().await;
        let request = request.into_inner();
        let user = request
            .token
            .strip_prefix("user-")
            .and_then(|user| user.parse().ok());
        self.0.connects.lock().push(request);
        let Some(user) = user else {
            let refusal = Refusal::new(Code::Unauthenticated, "no such token");
            let result = Some(v1::connect_response::Result::Refusal((&refusal).into()));
            return Ok(Response::new(v1::ConnectResponse { result }));
        };
        let admission = v1::Admission {
            user,
            login: 1,
            marker: 7,
            recovered: true,
            mail_waits: !self.0.mail.lock().is_empty(),
            cluster: 9,
            server_time: 1,
            expires_at: i64::MAX,
            degraded: self.0.is_degraded.load(Ordering::Relaxed),
            issued_at: self.0.issued_at.load(Ordering::Relaxed),
            ticket: self.0.ticket.lock().clone(),
        };
        let result = Some(v1::connect_response::Result::Admission(admission));
        Ok(Response::new(v1::ConnectResponse { result }))
    }

    async fn disconnect(
        &self,
        request: Request<v1::DisconnectRequest>,
    ) -> Result<Response<v1::DisconnectResponse>, Status> {
        self.0.take()?;
        let mut unanswered = Vec::new();
        let request = request.into_inner();
        for ticket in request.tickets {
            self.0.record_ticket("disconnect", ticket);
        }
        for (index, key) in (0..).zip(request.sessions) {
            if self.0.unavailable_users.lock().contains(&key.user) {
                unanswered.push(index);
                continue;
            }
            self.0.disconnects.lock().push(key);
        }
        self.0.wait_for_unanswered(&unanswered).await;
        Ok(Response::new(v1::DisconnectResponse { unanswered }))
    }

    async fn reassert(
        &self,
        request: Request<v1::ReassertRequest>,
    ) -> Result<Response<v1::ReassertResponse>, Status> {
        self.0.check_reachable()?;
        let sessions = request.into_inner().sessions;
        let result = v1::ReassertResult {
            outcome: (*self.0.reassert_as.lock()).into(),
            marker: self.0.marker.load(Ordering::Relaxed),
            mail_waits: false,
            ticket: self.0.ticket.lock().clone(),
        };
        for session in &sessions {
            self.0.record_ticket("reassert", session.ticket.clone());
        }
        let results = vec![result; sessions.len()];
        self.0.reassertions.lock().extend(sessions);
        Ok(Response::new(v1::ReassertResponse { results }))
    }

    /// Issues a token like those of sign-ins, valid until the time that its number names.
    async fn refresh(
        &self,
        request: Request<v1::RefreshRequest>,
    ) -> Result<Response<v1::RefreshResponse>, Status> {
        self.0.check_reachable()?;
        let request = request.into_inner();
        self.0.record_ticket("refresh", request.ticket);
        let token_expiry = (request.token.strip_prefix("until-"))
            .and_then(|token_expiry| token_expiry.parse().ok());
        let result = match token_expiry {
            Some(expires_at) => Ok(api::station::Refreshment {
                expires_at: protocol::Timestamp::from_millis(expires_at),
                issued_at: protocol::Timestamp::from_millis(request.issued_at + 1),
                ticket: (self.0.ticket.lock().as_ref().try_into().ok())
                    .map(protocol::ticket::Ticket::from_bytes),
            }),
            None => Err(Refusal::new(Code::Unauthenticated, "no such token")),
        };
        Ok(Response::new(result.into()))
    }

    /// A ticket of the session's number, repeated.
    async fn resume_tickets(
        &self,
        request: Request<v1::ResumeTicketsRequest>,
    ) -> Result<Response<v1::ResumeTicketsResponse>, Status> {
        self.0.check_reachable()?;
        self.0.await_permit().await;
        let pause = *self.0.pause.lock();
        tokio::time::sleep(pause).await;
        let sessions = request.into_inner().sessions;
        let ticket = |session: v1::ResumeSession| {
            self.0.record_ticket("resume_tickets", session.ticket);
            Bytes::from(session.session.to_be_bytes().repeat(6))
        };
        Ok(Response::new(v1::ResumeTicketsResponse {
            tickets: sessions.into_iter().map(ticket).collect(),
        }))
    }

    async fn send_batch(
        &self,
        request: Request<v1::SendBatchRequest>,
    ) -> Result<Response<v1::SendBatchResponse>, Status> {
        self.0.check_reachable()?;
        self.0.await_permit().await;
        let items = request.into_inner().items;
        for item in &items {
            self.0.record_ticket("send", item.ticket.clone());
        }
        let answers = items.iter().map(|item| {
            let message = item.send.as_ref().and_then(|send| send.message.as_ref());
            v1::SendAnswer {
                send_id: message
                    .map(|message| message.send_id.clone())
                    .unwrap_or_default(),
                msg_id: self.0.last_id.fetch_add(1, Ordering::Relaxed) + 1,
                tm: 1,
                refusal: None,
            }
        });
        let answers = answers.collect();
        self.0.batches.lock().push(items);
        if self.0.drops_answers.load(Ordering::Relaxed) {
            return Err(Status::unavailable("the connection was lost"));
        }
        Ok(Response::new(v1::SendBatchResponse { answers }))
    }

    async fn receipts(
        &self,
        request: Request<v1::ReceiptsRequest>,
    ) -> Result<Response<v1::ReceiptsResponse>, Status> {
        self.0.check_reachable()?;
        let items = request.into_inner().items;
        for item in &items {
            self.0.record_ticket("receipts", item.ticket.clone());
        }
        let answers = items.iter().map(|item| {
            let ack = item.ack.clone().unwrap_or_default();
            v1::AckAnswer {
                kind: ack.kind,
                msg_ids: ack.items.iter().map(|item| item.msg_id).collect(),
                refused: Vec::new(),
            }
        });
        let answers = answers.collect();
        self.0.receipts.lock().extend(items);
        Ok(Response::new(v1::ReceiptsResponse { answers }))
    }

    /// Serves two messages per page.
    async fn mail_page(
        &self,
        request: Request<v1::MailPageRequest>,
    ) -> Result<Response<v1::MailPageResponse>, Status> {
        self.0.check_reachable()?;
        let request = request.into_inner();
        assert!(request.session > 0);
        self.0.record_ticket("mail_page", request.ticket);
        let cursor = request.after_id;
        let mail = self.0.mail.lock();
        let mut mails_left = mail.iter().filter(|item| item.msg_id > cursor).cloned();
        let mails: Vec<_> = mails_left.by_ref().take(2).collect();
        Ok(Response::new(v1::MailPageResponse {
            more: mails_left.next().is_some(),
            next_ms: 1,
            next_id: mails.last().map_or(0, |item| item.msg_id),
            mails,
        }))
    }

    async fn mail_ack(
        &self,
        request: Request<v1::MailAckRequest>,
    ) -> Result<Response<v1::MailAckResponse>, Status> {
        self.0.take()?;
        let mut unanswered = Vec::new();
        for (index, item) in (0..).zip(request.into_inner().items) {
            self.0.record_ticket("mail_ack", item.ticket.clone());
            if self.0.unavailable_users.lock().contains(&item.user) {
                unanswered.push(index);
                continue;
            }
            self.0
                .mail
                .lock()
                .retain(|mail| !item.msg_ids.contains(&mail.msg_id));
            self.0.removed_ids.lock().extend(item.msg_ids);
        }
        self.0.wait_for_unanswered(&unanswered).await;
        Ok(Response::new(v1::MailAckResponse { unanswered }))
    }

    async fn sync(&self, request: Request<v1::SyncCall>) -> Result<Response<v1::SyncPage>, Status> {
        self.0.check_reachable()?;
        self.0.await_permit_if(&self.0.holds_questions).await;
        let call = request.into_inner();
        self.0.record_ticket("sync", call.ticket);
        let question = call.request.unwrap_or_default();
        if question.request == 13 {
            return Err(from_refusal(&Refusal::new(Code::Forbidden, "not yours")));
        }
        Ok(Response::new(v1::SyncPage {
            request: question.request,
            answer: Some(v1::sync_page::Answer::Status(v1::StatusPage::default())),
        }))
    }

    async fn online(
        &self,
        _: Request<v1::OnlineRequest>,
    ) -> Result<Response<v1::OnlineResponse>, Status> {
        self.0.check_reachable()?;
        self.0.await_permit().await;
        Ok(Response::new(v1::OnlineResponse::default()))
    }

    async fn online_members(
        &self,
        _: Request<v1::OnlineMembersRequest>,
    ) -> Result<Response<v1::OnlineMembersResponse>, Status> {
        Err(Status::unimplemented("boats do not ask for it"))
    }

    async fn kickout(
        &self,
        _: Request<v1::KickoutRequest>,
    ) -> Result<Response<v1::KickoutResponse>, Status> {
        Err(Status::unimplemented("boats do not ask for it"))
    }

    async fn revoke(
        &self,
        _: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        Err(Status::unimplemented("boats do not ask for it"))
    }

    /// Serves two users per page; holding the sends holds these, too.
    async fn revoked(
        &self,
        request: Request<v1::RevokedRequest>,
    ) -> Result<Response<v1::RevokedResponse>, Status> {
        self.0.check_reachable()?;
        self.0.await_permit().await;
        let from = request.into_inner();
        let revocations = self.0.revocations.lock();
        let is_later = |revoked_user: &&v1::RevokedUser| {
            (revoked_user.at, revoked_user.user) > (from.since, from.after_user)
        };
        let mut rest = revocations.iter().filter(is_later).cloned();
        let users: Vec<_> = rest.by_ref().take(2).collect();
        let more = rest.next().is_some();
        Ok(Response::new(v1::RevokedResponse {
            users,
            more,
            complete_until: self.0.complete_until.load(Ordering::Relaxed),
            retention_ms: 0,
        }))
    }
}

pub(super) struct PeerService(Arc<Peer>);

/// Entropy that can fail: the next caller panics.
pub(super) struct Chance {
    inner: SeededEntropy,
    pub(super) fails: AtomicBool,
}

impl Entropy for Chance {
    fn next(&self) -> u64 {
        assert!(!self.fails.swap(false, Ordering::Relaxed), "as it was told");
        self.inner.next()
    }
}

/// A peer registered as a station.
pub(super) struct Station {
    pub(super) peer: Arc<Peer>,
    _server: InProcess,
    _registration: Registration,
}

impl Station {
    pub(super) async fn start(
        registry: &EmbeddedRegistry,
        connector: &Connector,
        name: &str,
    ) -> Station {
        let peer = Arc::new(Peer::new());
        let service = StationServiceServer::new(PeerService(Arc::clone(&peer)));
        let service_name = format!("station/{name}");
        let server = connector.serve_in_process(&service_name, Routes::new(service));
        let address = format!("inproc:{service_name}");
        let registration = registry.register(Role::Station, name, &address);
        Station {
            peer,
            _server: server,
            _registration: registration.await.expect("registers"),
        }
    }
}

/// A boat with its peer, and handles that a carrier needs to reach it.
pub(super) struct Harbour {
    pub(super) handle: BoatHandle,
    pub(super) peer: Arc<Peer>,
    pub(super) registry: EmbeddedRegistry,
    pub(super) connector: Connector,
    pub(super) engine: Engine,
    pub(super) chance: Arc<Chance>,
    /// Clients come through pipes.
    uses_pipes: bool,
    _station: Station,
}

impl Harbour {
    pub(super) async fn open() -> Harbour {
        Harbour::with(|_| ()).await
    }

    pub(super) async fn with(configure: impl FnOnce(&mut Config)) -> Harbour {
        let engine = Engine::memory();
        let registry = EmbeddedRegistry::new(engine.clone());
        let connector = Connector::default();
        let station = Station::start(&registry, &connector, "test").await;
        let chance = Arc::new(Chance {
            inner: SeededEntropy::new(1),
            fails: AtomicBool::new(false),
        });
        let handle = start_boat(&registry, &connector, chance.clone(), configure)
            .await
            .expect("starts");
        Harbour {
            handle,
            peer: Arc::clone(&station.peer),
            registry,
            connector,
            engine,
            chance,
            uses_pipes: false,
            _station: station,
        }
    }

    /// Lets clients come through pipes: paused time is exact only where no socket is in use.
    pub(super) fn through_pipes(mut self) -> Harbour {
        self.uses_pipes = true;
        self
    }

    /// A boat whose clients come through pipes.
    pub(super) async fn piped(configure: impl FnOnce(&mut Config)) -> Harbour {
        Harbour::with(configure).await.through_pipes()
    }

    /// Registers another station at an address where nobody answers.
    pub(super) async fn register_dead_station(&self) -> Registration {
        let registration = (self.registry).register(Role::Station, "dead", "inproc:station/dead");
        registration.await.expect("registers")
    }

    pub(super) async fn start_another(
        &self,
        configure: impl FnOnce(&mut Config),
    ) -> Result<BoatHandle, StartError> {
        start_boat(
            &self.registry,
            &self.connector,
            self.chance.clone(),
            configure,
        )
        .await
    }

    pub(super) async fn websocket(&self) -> Client {
        if self.uses_pipes {
            let client = Client::websocket_over(websocket_pipe(self), &[]).await;
            client.expect("upgrades")
        } else {
            Client::websocket(self.handle.websocket()).await
        }
    }

    pub(super) async fn tcp(&self) -> Client {
        if self.uses_pipes {
            Client::tcp_over(tcp_pipe(self).await)
        } else {
            Client::tcp(self.handle.tcp()).await
        }
    }

    /// One client on each link.
    pub(super) async fn both(&self) -> [Client; 2] {
        [self.websocket().await, self.tcp().await]
    }

    /// Clients over TCP, admitted one after the other.
    pub(super) async fn crew(&self, users: RangeInclusive<i64>) -> Vec<Client> {
        let mut clients = Vec::new();
        for user in users {
            let mut client = self.tcp().await;
            client.hello(user).await;
            clients.push(client);
        }
        clients
    }

    pub(super) fn carrier(&self) -> BoatServiceClient<Channel> {
        BoatServiceClient::new(
            self.connector
                .channel(access::Role::Boat, "inproc:boat/boat-1"),
        )
    }

    pub(super) fn life(&self) -> v1::BoatLife {
        (&self.handle.life().expect("registered")).into()
    }
}

async fn start_boat(
    registry: &EmbeddedRegistry,
    connector: &Connector,
    entropy: Arc<dyn Entropy>,
    configure: impl FnOnce(&mut Config),
) -> Result<BoatHandle, StartError> {
    let mut config = Config {
        websocket: SocketAddr::from(([127, 0, 0, 1], 0)),
        tcp: SocketAddr::from(([127, 0, 0, 1], 0)),
        // All clients of a test come from one address.
        connections_per_address_max: Some(100_000),
        arrivals_per_address: Some(NonZeroU32::MAX),
        arrivals_per_address_burst: Some(NonZeroU32::MAX),
        // A busy machine lets none of these pass: tests about one of them set it.
        arrival_timeout: NEVER,
        tls_timeout: NEVER,
        upgrade_timeout: NEVER,
        close_grace: NEVER,
        station_timeout: NEVER,
        registry_timeout: NEVER,
        sweep_pause_max: NEVER,
        pause_max: NEVER,
        session: SessionLimits {
            handshake: NEVER,
            ack_wait: NEVER,
            write_wait: NEVER,
            ..SessionLimits::default()
        },
        ..Config::default()
    };
    configure(&mut config);
    let parts = BoatParts {
        registry: Arc::new(registry.clone()),
        connector: connector.clone(),
        clock: Arc::new(SystemClock),
        entropy,
        connections: tokio::runtime::Handle::current(),
    };
    start(config, parts, CancellationToken::new()).await
}

/// A message from 1 to 2 as a carrier encodes it.
pub(super) fn message_frame(id: i64) -> Bytes {
    encode_frame(id, Content::text(format!("message {id}")))
}

/// The same with a text of `bytes` bytes.
pub(super) fn large_message_frame(id: i64, bytes: usize) -> Bytes {
    encode_frame(id, Content::text("a".repeat(bytes)))
}

fn encode_frame(id: i64, content: Content) -> Bytes {
    encode_message(&Placed {
        message: Message {
            id: message(id),
            from: user(1),
            to: Recipient::User(user(2)),
            accepted_at: Timestamp::from_millis(id),
            device: DeviceId::new("laptop").expect("short"),
            send_id: send_id(id as u8),
            options: Options::CHAT,
            content,
        },
        conversation: ConversationId::private(user(1), user(2)).expect("two users"),
        position: Position {
            seq: Seq(id as u64),
            prev: None,
        },
    })
}

/// Waits long enough for anything in flight to arrive.
pub(super) async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
