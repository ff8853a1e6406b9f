//! A station with everything around it: embedded backends, a small boat that notes what it gets,
//! and faults to be switched on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use api::station::{Admission, Connect, SendAnswer};
use api::task::Value;
use api::transport::{Channel, Connector, InProcess};
use api::v1;
use api::v1::boat_service_server::{BoatService, BoatServiceServer};
use api::v1::station_service_client::StationServiceClient;
use async_trait::async_trait;
use backend::cache::CacheConfig;
use backend::clock::{Clock, Entropy, SeededEntropy, TimerClock};
use backend::discovery::{EmbeddedRegistry, Registration, Registry, Role};
use backend::embedded::Engine;
use backend::hook::{Calls, Fault, Faults};
use backend::queue::{Partition, Record};
use backend::{Backends, Embedded, EmbeddedConfig};
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use protocol::access;
use protocol::conversation::{ConversationRow, Head, Side};
use protocol::frame::{Send, ServerFrame};
use protocol::history::Version;
use protocol::keys::Topic;
use protocol::message::Content;
use protocol::message_row::MessageRow;
use protocol::presence::BoatLife;
use protocol::record::{Task, Work};
use protocol::session::Submit;
use protocol::{
    Code, ConversationId, DeviceId, Message, MessageId, Options, Placed, Platform, Position,
    Recipient, Refusal, SendId, Seq, SessionId, Timestamp, UserId,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::auth::{Claims, Signer};
use crate::{Config, StationHandle, start};

pub(super) const BEGIN: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub(super) type Client = StationServiceClient<Channel>;

pub(super) const MAILBOX: Calls = Calls::to("mailbox");
pub(super) const PUBLISHES: Calls = Calls::to("queue").named("publish");
pub(super) const STATUSES: Calls = Calls::to("messages").named("set_status");
pub(super) const PAGES: Calls = Calls::to("messages").named("page");

pub(super) struct World {
    pub(super) client: Client,
    pub(super) backends: Backends,
    pub(super) connector: Connector,
    pub(super) faults: Arc<Faults>,
    lost_mailboxes: Mutex<Vec<i64>>,
    pub(super) boat: Arc<NoticeBoat>,
    pub(super) life: BoatLife,
    pub(super) station: StationHandle,
    pub(super) shutdown: CancellationToken,
    pub(super) engine: Engine,
    pub(super) registry: Arc<EmbeddedRegistry>,
    /// The boat's lease, and its door.
    pub(super) lease: Option<Registration>,
    pub(super) door: Option<InProcess>,
}

pub(super) async fn world() -> World {
    world_with(Config::default()).await
}

/// A world without a cache, for tests that write to the stores themselves.
pub(super) async fn world_with(config: Config) -> World {
    let cache = CacheConfig {
        keep_for: Duration::ZERO,
        ..CacheConfig::default()
    };
    world_with_cache(config, cache).await
}

pub(super) async fn world_with_cache(config: Config, cache: CacheConfig) -> World {
    world_through(config, cache, Connector::default()).await
}

/// A world whose station uses this connector.
pub(super) async fn world_through(
    config: Config,
    cache: CacheConfig,
    connector: Connector,
) -> World {
    let engine = Engine::memory();
    let clock: Arc<dyn Clock> = Arc::new(TimerClock::starting_at(BEGIN));
    let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(7));
    let parts = EmbeddedConfig {
        cache,
        ..EmbeddedConfig::default()
    };
    let parts = Embedded::open(&engine, parts, clock, entropy);
    let Embedded {
        backends, registry, ..
    } = parts.expect("good settings");
    let faults = Arc::new(Faults::default());
    let backends = backends.hooked(&faults.hook());
    let boat = Arc::new(NoticeBoat::default());
    let routes = Routes::new(BoatServiceServer::new(Peer(boat.clone())));
    let guard = connector.serve_in_process("boat-1", routes);
    let request = registry.register(Role::Boat, "boat-1", "inproc:boat-1");
    let registration = request.await.expect("a lease");
    let life = registration.instance.life.clone();
    let shutdown = CancellationToken::new();
    let handle = start(
        config,
        backends.clone(),
        connector.clone(),
        shutdown.clone(),
    )
    .await
    .expect("a station");
    let client = StationServiceClient::new(
        connector.channel(access::Role::Station, &handle.instance().address),
    );
    World {
        client,
        backends,
        connector,
        faults,
        lost_mailboxes: Mutex::default(),
        boat,
        life,
        station: handle,
        shutdown,
        engine,
        registry,
        lease: Some(registration),
        door: Some(guard),
    }
}

pub(super) fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

pub(super) fn session(number: i64) -> SessionId {
    SessionId::new(number).expect("positive")
}

pub(super) fn device(name: &str) -> DeviceId {
    DeviceId::new(name).expect("short")
}

pub(super) fn send_id(number: u8) -> SendId {
    SendId::from_bytes([number; 16])
}

pub(super) fn between(one: i64, other: i64) -> ConversationId {
    ConversationId::private(user(one), user(other)).expect("two users")
}

/// Lets background work run.
pub(super) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

pub(super) fn send(to: i64, number: u8, text: &str) -> Send {
    Send {
        send_id: send_id(number),
        to: Recipient::User(user(to)),
        options: Options::CHAT,
        content: Content::text(text),
        attempt: 0,
        age: Duration::ZERO,
        seen_seq: None,
        trace: None,
    }
}

pub(super) fn as_resend(send: Send, attempt: u32, age: Duration) -> Send {
    Send {
        attempt,
        age,
        ..send
    }
}

/// A send from the session that bears the user's number.
pub(super) fn item(from: i64, send: Send) -> Submit {
    Submit {
        session: session(from),
        user: user(from),
        device: device("phone"),
        platform: Platform::Ios,
        send,
        ticket: None,
    }
}

/// Part of an answer that tests compare: the id, or the code.
pub(super) type SendReply = Result<MessageId, Code>;

/// Calls to a mailbox server that is away; dedupe keys on it get no answer.
const LOST_CALLS: [Calls; 4] = [
    MAILBOX.named("disconnect"),
    MAILBOX.named("sessions"),
    MAILBOX.named("page"),
    MAILBOX.named("acknowledge"),
];
const HANGING_CALL: Calls = MAILBOX.named("dedupe_begin");

impl World {
    /// Takes away the server of these users' mailboxes.
    pub(super) fn lose_mailboxes(&self, users: &[i64]) {
        for user in users {
            for calls in LOST_CALLS {
                self.faults.begin(calls.about(*user), Fault::Unavailable);
            }
            self.faults.begin(HANGING_CALL.about(*user), Fault::Hang);
        }
        self.lost_mailboxes.lock().extend(users);
    }

    pub(super) fn restore_mailboxes(&self) {
        for user in self.lost_mailboxes.lock().drain(..) {
            for calls in LOST_CALLS.into_iter().chain([HANGING_CALL]) {
                self.faults.end(calls.about(user));
            }
        }
    }
}

impl World {
    /// The boat answers again, in the same life.
    pub(super) fn reopen_boat(&mut self) {
        let routes = Routes::new(BoatServiceServer::new(Peer(self.boat.clone())));
        self.door = Some(self.connector.serve_in_process("boat-1", routes));
    }

    pub(super) async fn submit(&self, items: Vec<Submit>) -> Vec<SendReply> {
        let wire = items.iter().map(v1::SendItem::from).collect();
        let answers = self.submit_wire(wire).await;
        assert_eq!(answers.len(), items.len());
        answers
            .into_iter()
            .zip(&items)
            .map(|(answer, item)| match SendAnswer::try_from(answer) {
                Ok(SendAnswer::Accepted(accepted)) => {
                    assert_eq!(accepted.send_id, item.send.send_id);
                    assert_eq!(accepted.accepted_at, accepted.id.timestamp());
                    Ok(accepted.id)
                }
                Ok(SendAnswer::Refused { send_id, refusal }) => {
                    assert_eq!(send_id, item.send.send_id);
                    Err(refusal.code)
                }
                Err(refusal) => panic!("an answer that is none: {refusal}"),
            })
            .collect()
    }

    pub(super) async fn submit_one(&self, item: Submit) -> SendReply {
        self.submit(vec![item]).await.remove(0)
    }

    pub(super) async fn submit_wire(&self, items: Vec<v1::SendItem>) -> Vec<v1::SendAnswer> {
        let request = v1::SendBatchRequest {
            life: Some((&self.life).into()),
            items,
        };
        let answer = self.client.clone().send_batch(request).await;
        answer.expect("answered").into_inner().answers
    }

    /// All records of the topic `message`, by partition, then by offset.
    pub(super) async fn log(&self) -> Vec<Record> {
        let mut all = Vec::new();
        for number in 0..self.backends.queue.partitions(Topic::Message) {
            let partition = Partition {
                topic: Topic::Message,
                number,
            };
            let records = self.backends.queue.read(partition, 0, 10_000).await;
            all.extend(records.expect("readable"));
        }
        all
    }

    pub(super) async fn tasks(&self) -> Vec<Work> {
        let records = self.log().await.into_iter();
        records
            .map(|record| Task::decode(record.value).expect("a task").work)
            .collect()
    }

    /// (id, text) of every message in the log.
    pub(super) async fn messages(&self) -> Vec<(MessageId, String)> {
        let tasks = self.tasks().await.into_iter();
        tasks
            .filter_map(|work| match work {
                Work::Message(task) => Some((task.message.id, message_text(&task.message))),
                Work::Deliver(_) | Work::Kickout(_) => None,
            })
            .collect()
    }

    pub(super) fn token(&self, number: i64) -> String {
        let claims = Claims::new(
            user(number),
            self.backends.clock.now(),
            Duration::from_secs(3600),
        );
        sign(&claims)
    }

    pub(super) fn connect_request(
        &self,
        number: i64,
        platform: Platform,
        session_number: i64,
    ) -> Connect {
        Connect {
            session: session(session_number),
            life: self.life.clone(),
            token: self.token(number),
            resume: None,
            device: device(&format!("phone-{session_number}")),
            platform,
            peer: "192.0.2.1:4711".into(),
            marker: None,
        }
    }

    pub(super) async fn connect(&self, connect: &Connect) -> Result<Admission, Refusal> {
        let answer = self
            .client
            .clone()
            .connect(v1::ConnectRequest::from(connect))
            .await;
        answer
            .expect("answered")
            .into_inner()
            .try_into()
            .expect("a whole answer")
    }

    /// One more boat, with its lease and its door.
    pub(super) async fn add_boat(&self, name: &str) -> (Arc<NoticeBoat>, Registration, InProcess) {
        let boat = Arc::new(NoticeBoat::default());
        let routes = Routes::new(BoatServiceServer::new(Peer(boat.clone())));
        let door = self.connector.serve_in_process(name, routes);
        let address = format!("inproc:{name}");
        let lease = self.registry.register(Role::Boat, name, &address).await;
        settle().await;
        (boat, lease.expect("a lease"), door)
    }

    pub(super) async fn sign_in(
        &self,
        number: i64,
        platform: Platform,
        session_number: i64,
    ) -> Admission {
        let connect = self.connect_request(number, platform, session_number);
        self.connect(&connect).await.expect("admitted")
    }

    /// Writes a message as a carrier would have written it.
    pub(super) async fn place(&self, from: i64, to: i64, seq: u64, text: &str) -> Placed {
        let entry = self.placed(from, to, seq, text);
        self.save_message(&entry).await;
        entry
    }

    /// Same for a message that the test made.
    pub(super) async fn save_message(&self, entry: &Placed) {
        let message = &entry.message;
        let Recipient::User(to) = message.to else {
            panic!("{:?} is no user", message.to);
        };
        let seq = entry.position.seq;
        let version = Version {
            epoch: 1,
            offset: seq.0,
        };
        let old_head = self.backends.heads.load(&[entry.conversation]).await;
        let old_head = old_head.expect("loads")[0].unwrap_or_default();
        let side = entry.conversation.side_of(message.from);
        // Messages that the head does not count are the recipient's.
        let sent_count = side.map_or(0, |side| old_head.sent_by(side)) + 1;
        let rows = MessageRow::from_placed(entry, sent_count, version);
        let save = self.backends.messages.save(rows).await;
        save.expect("saved");
        let head = Head {
            seq,
            last_id: Some(entry.message.id),
            max_id: Some(entry.message.id),
            version,
            from_low: match side {
                Some(Side::Low) => sent_count,
                _ => seq.0.saturating_sub(sent_count),
            },
            rev: old_head.rev,
            stamp: self.backends.clock.now(),
        };
        let save = self.backends.heads.save(vec![(entry.conversation, head)]);
        save.await.expect("saved");
        let now = self.backends.clock.now();
        let rows = [message.from, to]
            .map(|owner| ConversationRow::of(owner, entry.conversation, &head, now));
        let rows = rows.into_iter().flatten().collect();
        let save = self.backends.conversations.save(rows).await;
        save.expect("saved");
    }

    pub(super) fn placed(&self, from: i64, to: i64, seq: u64, text: &str) -> Placed {
        let now = self.backends.clock.now();
        // Unique for every pair and place of a test.
        let offset = from * 1_000_000 + to * 1000 + i64::try_from(seq).expect("small");
        let id = MessageId::new(MessageId::floor_of(BEGIN).get() + offset).expect("positive");
        let prev = (seq > 1).then(|| MessageId::new(id.get() - 1).expect("positive"));
        let message = Message {
            id,
            from: user(from),
            to: Recipient::User(user(to)),
            accepted_at: now,
            device: device("phone"),
            send_id: SendId::from_bytes((id.get() as u128).to_be_bytes()),
            options: Options::CHAT,
            content: Content::text(text),
        };
        Placed {
            conversation: between(from, to),
            position: Position {
                seq: Seq(seq),
                prev,
            },
            message,
        }
    }
}

pub(super) fn message_text(message: &Message) -> String {
    String::from_utf8(message.content.data.to_vec()).expect("text")
}

pub(super) fn sign(claims: &Claims) -> String {
    Signer::default().sign(claims).expect("signable")
}

/// Code of the refusal that a status carries.
pub(super) fn refusal_code(status: &Status) -> Code {
    api::status::to_refusal(status).code
}

fn one_less(count: &AtomicUsize) -> bool {
    let less = |n: usize| n.checked_sub(1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// A boat that notes what it gets.
#[derive(Default)]
pub(super) struct NoticeBoat {
    pub(super) notices: Mutex<Vec<v1::NoticeRequest>>,
    /// Number of next notices that it fails to take.
    pub(super) remaining_failures: AtomicUsize,
    /// Leaves notices without an answer.
    pub(super) hangs: AtomicBool,
}

impl NoticeBoat {
    /// Frames that each session got, in order.
    pub(super) fn frames(&self) -> Vec<(i64, ServerFrame)> {
        let notices = self.notices.lock();
        notices
            .iter()
            .flat_map(|request| &request.notices)
            .map(|notice| {
                let Some(v1::notice::Notice::Frame(frame)) = &notice.notice else {
                    panic!("a notice without a frame: {notice:?}");
                };
                let frame = api::codec::decode_server(frame.clone(), 1 << 20);
                (notice.session, frame.expect("a frame"))
            })
            .collect()
    }
}

struct Peer(Arc<NoticeBoat>);

#[async_trait]
impl BoatService for Peer {
    type DeliverStream = BoxStream<'static, Result<v1::OutcomeBatch, Status>>;

    async fn deliver(
        &self,
        _: Request<Streaming<v1::DeliverBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        Err(Status::unimplemented("stations do not deliver"))
    }

    async fn notice(
        &self,
        request: Request<v1::NoticeRequest>,
    ) -> Result<Response<v1::NoticeResponse>, Status> {
        if self.0.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if one_less(&self.0.remaining_failures) {
            return Err(Status::unavailable("switched off by the test"));
        }
        self.0.notices.lock().push(request.into_inner());
        Ok(Response::new(v1::NoticeResponse::default()))
    }

    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse { alive: true }))
    }

    async fn drain(
        &self,
        _: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        Ok(Response::new(v1::DrainResponse::default()))
    }
}
