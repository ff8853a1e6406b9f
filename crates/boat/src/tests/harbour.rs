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
    pub(super) removed: Mutex<Vec<i64>>,
    /// Users whose part of the mailbox does not answer.
    pub(super) boxes_away: Mutex<Vec<i64>>,
    /// Time that a removal or sign-off about such a user takes.
    pub(super) boxes_away_for: Mutex<Duration>,
    /// Number of removals and sign-offs received.
    pub(super) mailbox_calls: AtomicUsize,
    pub(super) reasserted: Mutex<Vec<v1::ReassertSession>>,
    /// Ticket given to new sessions and to asserted ones; empty for none.
    pub(super) ticket: Mutex<Bytes>,
    /// Tickets that calls carried, by call.
    pub(super) shown: Mutex<Vec<(&'static str, Bytes)>>,
    /// Issue time of the tokens of new sessions, in ms; 0 for an older station.
    pub(super) issued_at: AtomicI64,
    pub(super) revoked: Mutex<Vec<v1::RevokedUser>>,
    /// Time up to which `revoked` is complete, in ms.
    pub(super) complete_until: AtomicI64,
    /// Waiting messages, oldest first.
    pub(super) mail: Mutex<VecDeque<v1::MailItem>>,
    pub(super) reassert_as: Mutex<v1::reassert_result::Outcome>,
    /// Marker of the store, as assertions find it.
    pub(super) marker: AtomicU64,
    /// Makes every call fail as unreachable.
    pub(super) down: AtomicBool,
    /// Makes removals and sign-offs fail for good; they are counted in `refused`.
    pub(super) refuses: AtomicBool,
    pub(super) refused: AtomicUsize,
    /// While set, sends (or connects, or probes) wait for a permit.
    pub(super) held: AtomicBool,
    /// Number of calls that waited for a permit so far.
    pub(super) waited: AtomicUsize,
    pub(super) permits: Semaphore,
    /// Delay of resume tickets.
    pub(super) pause: Mutex<Duration>,
    /// While set, questions wait for a permit.
    pub(super) questions_held: AtomicBool,
    /// Accepts sends, and loses their answer.
    pub(super) mute: AtomicBool,
    /// Admits sessions without registering them.
    pub(super) degraded: AtomicBool,
    /// Number of calls received.
    pub(super) asked: AtomicUsize,
    last_id: AtomicI64,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            connects: Mutex::default(),
            disconnects: Mutex::default(),
            batches: Mutex::default(),
            receipts: Mutex::default(),
            removed: Mutex::default(),
            boxes_away: Mutex::default(),
            boxes_away_for: Mutex::default(),
            mailbox_calls: AtomicUsize::new(0),
            reasserted: Mutex::default(),
            ticket: Mutex::default(),
            shown: Mutex::default(),
            complete_until: AtomicI64::new(i64::MAX),
            issued_at: AtomicI64::new(0),
            revoked: Mutex::default(),
            mail: Mutex::default(),
            reassert_as: Mutex::new(v1::reassert_result::Outcome::Known),
            marker: AtomicU64::new(7),
            down: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            waited: AtomicUsize::new(0),
            permits: Semaphore::new(0),
            pause: Mutex::default(),
            questions_held: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            degraded: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            last_id: AtomicI64::new(0),
        }
    }

    fn up(&self) -> Result<(), Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.down.load(Ordering::Relaxed) {
            return Err(Status::unavailable("down"));
        }
        Ok(())
    }

    fn show(&self, call: &'static str, ticket: Bytes) {
        self.shown.lock().push((call, ticket));
    }

    fn take(&self) -> Result<(), Status> {
        self.mailbox_calls.fetch_add(1, Ordering::Relaxed);
        if self.refuses.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let refusal = Refusal::new(Code::InvalidArgument, "this cannot be");
            return Err(from_refusal(&refusal));
        }
        self.up()
    }

    /// Waits for a part of the mailbox that is away, if any of these items is about it.
    async fn give_up(&self, unanswered: &[u32]) {
        if !unanswered.is_empty() {
            let pause = *self.boxes_away_for.lock();
            tokio::time::sleep(pause).await;
        }
    }

    async fn pass(&self) {
        self.pass_unless(&self.held).await;
    }

    async fn pass_unless(&self, held: &AtomicBool) {
        if held.load(Ordering::Relaxed) {
            self.waited.fetch_add(1, Ordering::Relaxed);
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
        self.0.up()?;
        self.0.pass().await;
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
            degraded: self.0.degraded.load(Ordering::Relaxed),
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
            self.0.show("disconnect", ticket);
        }
        for (place, key) in (0..).zip(request.sessions) {
            if self.0.boxes_away.lock().contains(&key.user) {
                unanswered.push(place);
                continue;
            }
            self.0.disconnects.lock().push(key);
        }
        self.0.give_up(&unanswered).await;
        Ok(Response::new(v1::DisconnectResponse { unanswered }))
    }

    async fn reassert(
        &self,
        request: Request<v1::ReassertRequest>,
    ) -> Result<Response<v1::ReassertResponse>, Status> {
        self.0.up()?;
        let sessions = request.into_inner().sessions;
        let result = v1::ReassertResult {
            outcome: (*self.0.reassert_as.lock()).into(),
            marker: self.0.marker.load(Ordering::Relaxed),
            mail_waits: false,
            ticket: self.0.ticket.lock().clone(),
        };
        for session in &sessions {
            self.0.show("reassert", session.ticket.clone());
        }
        let results = vec![result; sessions.len()];
        self.0.reasserted.lock().extend(sessions);
        Ok(Response::new(v1::ReassertResponse { results }))
    }

    /// Issues a token like those of sign-ins, valid until the time that its number names.
    async fn refresh(
        &self,
        request: Request<v1::RefreshRequest>,
    ) -> Result<Response<v1::RefreshResponse>, Status> {
        self.0.up()?;
        let request = request.into_inner();
        self.0.show("refresh", request.ticket);
        let until = (request.token.strip_prefix("until-")).and_then(|until| until.parse().ok());
        let result = match until {
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
        self.0.up()?;
        self.0.pass().await;
        let pause = *self.0.pause.lock();
        tokio::time::sleep(pause).await;
        let sessions = request.into_inner().sessions;
        let ticket = |session: v1::ResumeSession| {
            self.0.show("resume_tickets", session.ticket);
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
        self.0.up()?;
        self.0.pass().await;
        let items = request.into_inner().items;
        for item in &items {
            self.0.show("send", item.ticket.clone());
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
        if self.0.mute.load(Ordering::Relaxed) {
            return Err(Status::unavailable("the connection was lost"));
        }
        Ok(Response::new(v1::SendBatchResponse { answers }))
    }

    async fn receipts(
        &self,
        request: Request<v1::ReceiptsRequest>,
    ) -> Result<Response<v1::ReceiptsResponse>, Status> {
        self.0.up()?;
        let items = request.into_inner().items;
        for item in &items {
            self.0.show("receipts", item.ticket.clone());
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
        self.0.up()?;
        let request = request.into_inner();
        assert!(request.session > 0);
        self.0.show("mail_page", request.ticket);
        let after = request.after_id;
        let mail = self.0.mail.lock();
        let mut waiting = mail.iter().filter(|item| item.msg_id > after).cloned();
        let mails: Vec<_> = waiting.by_ref().take(2).collect();
        Ok(Response::new(v1::MailPageResponse {
            more: waiting.next().is_some(),
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
        for (place, item) in (0..).zip(request.into_inner().items) {
            self.0.show("mail_ack", item.ticket.clone());
            if self.0.boxes_away.lock().contains(&item.user) {
                unanswered.push(place);
                continue;
            }
            self.0
                .mail
                .lock()
                .retain(|mail| !item.msg_ids.contains(&mail.msg_id));
            self.0.removed.lock().extend(item.msg_ids);
        }
        self.0.give_up(&unanswered).await;
        Ok(Response::new(v1::MailAckResponse { unanswered }))
    }

    async fn sync(&self, request: Request<v1::SyncCall>) -> Result<Response<v1::SyncPage>, Status> {
        self.0.up()?;
        self.0.pass_unless(&self.0.questions_held).await;
        let call = request.into_inner();
        self.0.show("sync", call.ticket);
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
        self.0.up()?;
        self.0.pass().await;
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
        self.0.up()?;
        self.0.pass().await;
        let from = request.into_inner();
        let revoked = self.0.revoked.lock();
        let behind = |one: &&v1::RevokedUser| (one.at, one.user) > (from.since, from.after_user);
        let mut rest = revoked.iter().filter(behind).cloned();
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
    seeded: SeededEntropy,
    pub(super) fails: AtomicBool,
}

impl Entropy for Chance {
    fn next(&self) -> u64 {
        assert!(!self.fails.swap(false, Ordering::Relaxed), "as it was told");
        self.seeded.next()
    }
}

/// A peer registered as a station.
pub(super) struct Station {
    pub(super) peer: Arc<Peer>,
    _served: InProcess,
    _registered: Registration,
}

impl Station {
    pub(super) async fn start(
        registry: &EmbeddedRegistry,
        connector: &Connector,
        name: &str,
    ) -> Station {
        let peer = Arc::new(Peer::new());
        let service = StationServiceServer::new(PeerService(Arc::clone(&peer)));
        let at = format!("station/{name}");
        let served = connector.serve_in_process(&at, Routes::new(service));
        let address = format!("inproc:{at}");
        let registered = registry.register(Role::Station, name, &address);
        Station {
            peer,
            _served: served,
            _registered: registered.await.expect("registers"),
        }
    }
}

/// A boat with its peer, and handles that a carrier needs to reach it.
pub(super) struct Harbour {
    pub(super) running: BoatHandle,
    pub(super) peer: Arc<Peer>,
    pub(super) registry: EmbeddedRegistry,
    pub(super) connector: Connector,
    pub(super) engine: Engine,
    pub(super) chance: Arc<Chance>,
    /// Clients come through pipes.
    piped: bool,
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
            seeded: SeededEntropy::new(1),
            fails: AtomicBool::new(false),
        });
        let running = start_boat(&registry, &connector, chance.clone(), configure)
            .await
            .expect("starts");
        Harbour {
            running,
            peer: Arc::clone(&station.peer),
            registry,
            connector,
            engine,
            chance,
            piped: false,
            _station: station,
        }
    }

    /// Lets clients come through pipes: paused time is exact only where no socket is in use.
    pub(super) fn through_pipes(mut self) -> Harbour {
        self.piped = true;
        self
    }

    /// A boat whose clients come through pipes.
    pub(super) async fn piped(configure: impl FnOnce(&mut Config)) -> Harbour {
        Harbour::with(configure).await.through_pipes()
    }

    /// Registers another station at an address where nobody answers.
    pub(super) async fn register_dead_station(&self) -> Registration {
        let dead = (self.registry).register(Role::Station, "dead", "inproc:station/dead");
        dead.await.expect("registers")
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
        match self.piped {
            true => {
                let client = Client::websocket_over(websocket_pipe(self), &[]).await;
                client.expect("upgrades")
            }
            false => Client::websocket(self.running.websocket()).await,
        }
    }

    pub(super) async fn tcp(&self) -> Client {
        match self.piped {
            true => Client::tcp_over(tcp_pipe(self).await),
            false => Client::tcp(self.running.tcp()).await,
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
        (&self.running.life().expect("registered")).into()
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
pub(super) fn frame_of(id: i64) -> Bytes {
    encoded(id, Content::text(format!("message {id}")))
}

/// The same with a text of `bytes` bytes.
pub(super) fn large_frame_of(id: i64, bytes: usize) -> Bytes {
    encoded(id, Content::text("a".repeat(bytes)))
}

fn encoded(id: i64, content: Content) -> Bytes {
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
