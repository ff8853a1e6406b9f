//! A carrier with everything around it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::task::Value;
use api::transport::{Connector, InProcess};
use api::v1;
use api::v1::boat_service_server::{BoatService, BoatServiceServer};
use api::v1::outcome::Kind;
use async_trait::async_trait;
use backend::clock::{Clock, SeededEntropy, TimerClock};
use backend::devices::DeviceSeen;
use backend::discovery::{Registration, Registry, Role};
use backend::embedded::Engine;
use backend::hook::{Calls, Faults, Op};
use backend::queue::{EmbeddedQueue, NewRecord, Partition, Queue, QueueConfig, Record};
use backend::{Backends, Embedded, EmbeddedConfig};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use operator::DeadLetters;
use operator::dead_letters::{LetterOutcome, Selection, TaskRefusal};
use parking_lot::Mutex;
use protocol::bounds::Bounds;
use protocol::delivery::Origin;
use protocol::frame::{HistoryRange, ServerFrame};
use protocol::keys::{self, Topic};
use protocol::ledger::LedgerEvent;
use protocol::mailbox::{ConnectRequest, NewSession};
use protocol::message::{Content, Target};
use protocol::message_row::Owner;
use protocol::presence::{BoatLife, DeniedBoats, SessionKey};
use protocol::record::{MessageTask, Task, Work};
use protocol::{
    ConversationId, DeviceId, Message, MessageId, Options, Platform, Recipient, SendId, Seq,
    SessionId, Timestamp, UserId,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::{CarrierHandle, Config, start};

pub(super) const BEGIN: Timestamp = Timestamp::from_millis(1_800_000_000_000);
pub(super) const ALICE: i64 = 1;
pub(super) const BOB: i64 = 2;
/// Few, so that messages share a partition.
const PARTITIONS: u32 = 3;

pub(super) fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

pub(super) fn session(number: i64) -> SessionId {
    SessionId::new(number).expect("positive")
}

pub(super) fn between(one: i64, other: i64) -> ConversationId {
    ConversationId::private(user(one), user(other)).expect("two users")
}

pub(super) fn target(number: i64, platform: Platform) -> Target {
    Target {
        user: user(number),
        platform,
    }
}

/// A time of day that the test sets back.
pub(super) struct SteppingClock {
    timer: TimerClock,
    /// Milliseconds.
    lag_ms: AtomicI64,
}

impl SteppingClock {
    pub(super) fn step_back(&self, step_ms: Duration) {
        let step_ms = i64::try_from(step_ms.as_millis()).expect("not for ever");
        self.lag_ms.fetch_add(step_ms, Ordering::SeqCst);
    }
}

impl Clock for SteppingClock {
    fn now(&self) -> Timestamp {
        let lag_ms = self.lag_ms.load(Ordering::SeqCst);
        Timestamp::from_millis(self.timer.now().millis() - lag_ms)
    }
}

pub(super) const ROUTES: Calls = Calls::to("mailbox").named("route_or_store");
pub(super) const PUBLISHES: Calls = Calls::to("queue").named("publish");
pub(super) const ROWS: Calls = Calls::to("messages").named("save");
pub(super) const LISTS: Calls = Calls::to("conversations").writes();
pub(super) const GROUPS: Calls = Calls::to("groups");
pub(super) const TIMELINE: Calls = Calls::to("timeline").named("push");
pub(super) const CACHE: Calls = Calls::to("cache");

pub(super) struct World {
    pub(super) clock: Arc<SteppingClock>,
    pub(super) backends: Backends,
    pub(super) connector: Connector,
    /// Engine beneath all stores.
    pub(super) engine: Engine,
    pub(super) faults: Arc<Faults>,
    /// The log without faults.
    pub(super) log: Arc<EmbeddedQueue>,
    pub(super) boat: Arc<Peer>,
    pub(super) life: BoatLife,
    /// The boat's lease and its door.
    pub(super) lease: Option<Registration>,
    pub(super) door: Option<InProcess>,
    pub(super) config: Config,
    /// Bounds of messages accepted from now on.
    pub(super) bounds: Bounds,
    pub(super) carrier: Option<Carrier>,
    next_message: AtomicI64,
    letters: OnceLock<DeadLetters>,
}

pub(super) struct Carrier {
    pub(super) handle: CarrierHandle,
    pub(super) stop: CancellationToken,
}

/// Reaction of a session to a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Acknowledges,
    AcknowledgesAfter(Duration),
    /// Reads, and never acknowledges.
    Silent,
    Full,
    /// The boat never reports an outcome for it.
    Lost,
}

/// Boat of the test.
#[derive(Default)]
pub(super) struct Peer {
    sessions: Mutex<BTreeMap<i64, Manner>>,
    pub(super) pushes: Mutex<Vec<(i64, i64)>>,
    /// Time of each push in `pushes`.
    pub(super) pushed_at: Mutex<Vec<Instant>>,
    frames: Mutex<Vec<Bytes>>,
    /// Pushes without an outcome yet, and the most of them at a time.
    open: AtomicUsize,
    open_max: AtomicUsize,
    pub(super) notices: Mutex<Vec<v1::Notice>>,
    /// Leaves notices by call without an answer.
    pub(super) hangs: AtomicBool,
}

impl World {
    /// With a carrier.
    pub(super) async fn new() -> World {
        World::with(Config::default()).await
    }

    pub(super) async fn with(config: Config) -> World {
        let mut world = World::without_carrier(config).await;
        world.carrier = Some(world.start().await);
        world
    }

    pub(super) async fn without_carrier(config: Config) -> World {
        let engine = Engine::memory();
        let clock = Arc::new(SteppingClock {
            timer: TimerClock::starting_at(BEGIN),
            lag_ms: AtomicI64::new(0),
        });
        let parts = EmbeddedConfig {
            queue: QueueConfig {
                partitions: PARTITIONS,
                ..QueueConfig::default()
            },
            ..EmbeddedConfig::default()
        };
        let entropy = Arc::new(SeededEntropy::new(7));
        let parts = Embedded::open(&engine, parts, clock.clone(), entropy);
        let parts = parts.expect("good settings");
        let faults = Arc::new(Faults::default());
        let connector = Connector::default();
        let boat = Arc::new(Peer::default());
        let routes = Routes::new(BoatServiceServer::new(Door(boat.clone())));
        let door = connector.serve_in_process("boat-1", routes);
        let lease = parts
            .registry
            .register(Role::Boat, "boat-1", "inproc:boat-1");
        let lease = lease.await.expect("a lease");
        World {
            clock,
            backends: parts.backends.hooked(&faults.hook()),
            faults,
            log: parts.queue,
            connector,
            engine,
            boat,
            life: lease.instance.life.clone(),
            lease: Some(lease),
            door: Some(door),
            config,
            bounds: Bounds::default(),
            carrier: None,
            next_message: AtomicI64::new(0),
            letters: OnceLock::new(),
        }
    }

    pub(super) async fn start(&self) -> Carrier {
        let stop = CancellationToken::new();
        let handle = start(
            self.config.clone(),
            self.backends.clone(),
            self.connector.clone(),
            stop.clone(),
        );
        Carrier {
            handle: handle.await.expect("a carrier"),
            stop,
        }
    }

    /// Ends the carrier in order.
    pub(super) async fn stop(&mut self) {
        let carrier = self.carrier.take().expect("a carrier runs");
        carrier.stop.cancel();
        carrier.handle.drained().await;
    }

    pub(super) fn now(&self) -> Timestamp {
        self.backends.clock.now()
    }

    /// `number` names the session.
    pub(super) async fn sign_in(
        &self,
        user_id: i64,
        platform: Platform,
        number: i64,
        manner: Manner,
    ) {
        self.sign_in_with("device", user_id, platform, number, manner)
            .await;
    }

    /// As above, with another device: a device replaces its own session.
    pub(super) async fn sign_in_with(
        &self,
        device: &str,
        user_id: i64,
        platform: Platform,
        number: i64,
        manner: Manner,
    ) {
        self.register_device(user_id, platform).await;
        let request = ConnectRequest {
            user: user(user_id),
            entry: NewSession {
                key: self.key(user_id, number),
                platform,
                device: DeviceId::new(device).expect("short"),
            },
            denied_boats: DeniedBoats::default(),
            now: self.now(),
        };
        self.backends
            .mailbox
            .connect(request)
            .await
            .expect("registered")
            .expect("room");
        self.boat.sessions.lock().insert(number, manner);
    }

    /// Registers an earlier sign-in on the platform.
    pub(super) async fn register_device(&self, user_id: i64, platform: Platform) {
        let device_seen = DeviceSeen {
            user: user(user_id),
            platform,
            device: DeviceId::new("device").expect("short"),
            at: self.now(),
        };
        self.backends
            .devices
            .seen(device_seen)
            .await
            .expect("written");
    }

    pub(super) fn key(&self, user_id: i64, number: i64) -> SessionKey {
        SessionKey {
            user: user(user_id),
            session: session(number),
            life: self.life.clone(),
        }
    }

    pub(super) fn message(&self, from: i64, to: i64) -> Message {
        let number = self.next_message.fetch_add(1, Ordering::SeqCst) + 1;
        let floor = MessageId::floor_of(self.now()).get();
        Message {
            id: MessageId::new(floor + number).expect("positive"),
            from: user(from),
            to: Recipient::User(user(to)),
            accepted_at: self.now(),
            device: DeviceId::new("phone").expect("short"),
            send_id: SendId::from_bytes([number as u8; 16]),
            options: Options::CHAT,
            content: Content::text(format!("number {number}")),
        }
    }

    /// Accepts a message, as a station would.
    pub(super) async fn send(&self, from: i64, to: i64) -> MessageId {
        let message = self.message(from, to);
        let id = message.id;
        self.accept(task(message)).await;
        id
    }

    pub(super) async fn accept(&self, mut task: MessageTask) {
        task.bounds = self.bounds;
        self.publish(Topic::Message, &Task::new(Work::Message(task), self.now()))
            .await;
    }

    pub(super) async fn publish(&self, topic: Topic, task: &Task) {
        let key = protocol::record::publish_key(&task.work).expect("it belongs to somebody");
        self.publish_raw(topic, &key, task.encode()).await;
    }

    pub(super) async fn publish_raw(&self, topic: Topic, key: &[u8], value: Bytes) {
        let number = keys::partition_of(key, self.backends.queue.partitions(topic));
        self.publish_at(Partition { topic, number }, key, value)
            .await;
    }

    pub(super) async fn publish_at(&self, partition: Partition, key: &[u8], value: Bytes) {
        let record = NewRecord {
            partition,
            key: Bytes::copy_from_slice(key),
            headers: Vec::new(),
            value,
        };
        let answers = self.log.producer().publish(vec![record]).await;
        answers
            .into_iter()
            .for_each(|answer| assert!(answer.is_ok(), "{answer:?}"));
    }

    /// Hides the topic's records from every reader from now on.
    pub(super) fn hide(&self, topic: Topic) {
        let hides =
            move |op: &Op, record: &Record| op.name == "read" && record.partition.topic == topic;
        self.faults.lose_records(hides);
    }

    /// Waits until `is_so` holds; time passes by itself meanwhile.
    pub(super) async fn wait_until(&self, goal: &str, is_so: impl AsyncFn() -> bool) {
        for _ in 0..100_000 {
            if is_so().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never: {goal}");
    }

    /// Waits until the carrier has committed everything in its topics.
    pub(super) async fn wait_until_committed(&self) {
        self.wait_until("everything committed", async || {
            self.uncommitted().await == 0
        })
        .await;
    }

    pub(super) async fn uncommitted(&self) -> u64 {
        let mut open = 0;
        let topics = Topic::ALL.into_iter();
        for topic in topics.filter(|t| matches!(t, Topic::Message | Topic::Retry(_))) {
            for number in 0..self.backends.queue.partitions(topic) {
                let partition = Partition { topic, number };
                let (_, end) = self.backends.queue.bounds(partition).await.expect("bounds");
                let offset = self.backends.queue.committed(crate::GROUP, partition);
                open += end - offset.await.expect("an offset").unwrap_or(0);
            }
        }
        open
    }

    pub(super) async fn records(&self, topic: Topic) -> Vec<Record> {
        let mut records = Vec::new();
        for number in 0..self.backends.queue.partitions(topic) {
            let partition = Partition { topic, number };
            records.extend(
                self.backends
                    .queue
                    .read(partition, 0, 1000)
                    .await
                    .expect("readable"),
            );
        }
        records
    }

    pub(super) async fn waiting(&self, user_id: i64, platform: Platform) -> u64 {
        let count = self.backends.mailbox.waiting(target(user_id, platform));
        count.await.expect("the mailbox is well")
    }

    pub(super) async fn events(&self, id: MessageId) -> Vec<(Option<Target>, LedgerEvent)> {
        let lives = self.backends.ledger.trace(&[id]).await.expect("a ledger");
        let entries = lives.into_iter().flatten();
        entries.map(|entry| (entry.target, entry.event)).collect()
    }

    /// The conversation as its first user has it.
    pub(super) async fn conversation(&self, one: i64, other: i64) -> Vec<(Seq, MessageId)> {
        let rows = self.backends.messages.page(
            Owner::User(user(one)),
            between(one, other),
            HistoryRange::Forward { after: Seq::ZERO },
            1000,
        );
        let rows = rows.await.expect("history is well");
        rows.iter().map(|row| (row.seq(), row.id())).collect()
    }

    /// Dead letters without a worker.
    pub(super) fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.backends.clone(), self.bounds)
    }

    /// Redrives a selection, and waits for the outcomes.
    pub(super) async fn redrive(
        &self,
        selection: &Selection,
    ) -> Result<Vec<LetterOutcome>, TaskRefusal> {
        let letters = self.letters.get_or_init(|| {
            let letters = self.dead_letters();
            tokio::spawn(
                letters
                    .clone()
                    .work("desk".to_owned(), CancellationToken::new()),
            );
            letters
        });
        let timeout = Duration::from_secs(60);
        letters.redrive("ann", selection, timeout).await
    }

    /// The boat answers again, in the same life.
    pub(super) fn reopen_boat(&mut self) {
        let routes = Routes::new(BoatServiceServer::new(Door(self.boat.clone())));
        self.door = Some(self.connector.serve_in_process("boat-1", routes));
    }

    /// The boat's process is gone, and its lease with it.
    pub(super) fn sink_boat(&mut self) {
        self.door = None;
        self.lease = None;
    }
}

pub(super) fn task(message: Message) -> MessageTask {
    MessageTask {
        message,
        origin: None,
        maybe_repeat: false,
        unsure: false,
        age: Duration::ZERO,
        letter: None,
        bounds: Bounds::default(),
    }
}

pub(super) fn from_session(message: Message, number: i64, life: &BoatLife) -> MessageTask {
    MessageTask {
        origin: Some(Origin {
            session: session(number),
            life: life.clone(),
        }),
        ..task(message)
    }
}

impl Peer {
    pub(super) fn set(&self, number: i64, manner: Manner) {
        self.sessions.lock().insert(number, manner);
    }

    /// Largest number of pushes open at a time since the last query of it.
    pub(super) fn take_open_max(&self) -> usize {
        let open = self.open.load(Ordering::SeqCst);
        self.open_max.swap(open, Ordering::SeqCst)
    }

    fn begin(&self) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.open_max.fetch_max(open, Ordering::SeqCst);
    }

    pub(super) fn drop_session(&self, number: i64) {
        self.sessions.lock().remove(&number);
    }

    /// Ids of the messages pushed to a session, in order.
    pub(super) fn pushed_to(&self, number: i64) -> Vec<i64> {
        let pushes = self.pushes.lock();
        let own_pushes = pushes.iter().filter(|(session, _)| *session == number);
        own_pushes.map(|(_, id)| *id).collect()
    }

    /// Pushed frames, decoded as a client would.
    pub(super) fn frames(&self) -> Vec<ServerFrame> {
        let frames = self.frames.lock();
        let frames = frames.iter().map(|frame| decode_frame(frame.clone()));
        frames.collect()
    }

    pub(super) fn drop_frames(&self) {
        self.frames.lock().clear();
    }

    pub(super) fn closed_sessions(&self) -> Vec<i64> {
        self.notified_sessions(|notice| matches!(notice, v1::notice::Notice::Close(_)))
    }

    pub(super) fn resynced_sessions(&self) -> Vec<i64> {
        self.notified_sessions(|notice| matches!(notice, v1::notice::Notice::Resync(_)))
    }

    pub(super) fn hinted_sessions(&self) -> Vec<i64> {
        self.notified_sessions(|notice| matches!(notice, v1::notice::Notice::Hint(_)))
    }

    fn notified_sessions(&self, is_match: impl Fn(&v1::notice::Notice) -> bool) -> Vec<i64> {
        let notices = self.notices.lock();
        let is_match = notices
            .iter()
            .filter(|notices| notices.notice.as_ref().is_some_and(&is_match));
        is_match.map(|notices| notices.session).collect()
    }

    /// Frames that a session got by notice.
    pub(super) fn notice_frames(&self, number: i64) -> Vec<ServerFrame> {
        let notices = self.notices.lock();
        let own_notices = notices.iter().filter(|notices| notices.session == number);
        let frames = own_notices.filter_map(|notices| match &notices.notice {
            Some(v1::notice::Notice::Frame(frame)) => Some(decode_frame(frame.clone())),
            _ => None,
        });
        frames.collect()
    }

    /// Closes sessions as the notices ask, as a boat does. Returns those that are missing.
    fn accept_notices(&self, notices: Vec<v1::Notice>) -> Vec<i64> {
        let mut unknown_sessions = Vec::new();
        for notice in notices {
            let mut sessions = self.sessions.lock();
            if !sessions.contains_key(&notice.session) {
                unknown_sessions.push(notice.session);
            }
            if matches!(notice.notice, Some(v1::notice::Notice::Close(_))) {
                sessions.remove(&notice.session);
            }
            drop(sessions);
            self.notices.lock().push(notice);
        }
        unknown_sessions
    }

    fn take(&self, delivery: &v1::Delivery) -> Option<(Duration, Kind)> {
        self.pushes.lock().push((delivery.session, delivery.msg_id));
        self.pushed_at.lock().push(Instant::now());
        self.frames.lock().push(delivery.frame.clone());
        match self.sessions.lock().get(&delivery.session) {
            None => Some((Duration::ZERO, Kind::NoSession)),
            Some(Manner::Acknowledges) => Some((Duration::from_millis(5), Kind::Done)),
            Some(Manner::AcknowledgesAfter(time)) => Some((*time, Kind::Done)),
            Some(Manner::Silent) => Some((Duration::from_secs(2), Kind::NoAck)),
            Some(Manner::Full) => Some((Duration::ZERO, Kind::Full)),
            Some(Manner::Lost) => None,
        }
    }
}

fn decode_frame(frame: Bytes) -> ServerFrame {
    api::codec::decode_server(frame, 1 << 20).expect("a frame of ours")
}

struct Door(Arc<Peer>);

#[async_trait]
impl BoatService for Door {
    type DeliverStream = BoxStream<'static, Result<v1::OutcomeBatch, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<v1::DeliverBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let (outcomes, answers) = mpsc::channel(1024);
        let peer = self.0.clone();
        tokio::spawn(async move {
            let mut batches = request.into_inner();
            while let Ok(Some(batch)) = batches.message().await {
                peer.accept_notices(batch.notices);
                for delivery in batch.deliveries {
                    let Some((delay, kind)) = peer.take(&delivery) else {
                        continue;
                    };
                    let outcomes = outcomes.clone();
                    let peer = peer.clone();
                    peer.begin();
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        peer.open.fetch_sub(1, Ordering::SeqCst);
                        let outcome = v1::Outcome {
                            token: delivery.token,
                            kind: kind.into(),
                        };
                        let batch = v1::OutcomeBatch {
                            outcomes: vec![outcome],
                        };
                        drop(outcomes.send(Ok(batch)).await);
                    });
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers).boxed()))
    }

    async fn notice(
        &self,
        request: Request<v1::NoticeRequest>,
    ) -> Result<Response<v1::NoticeResponse>, Status> {
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let unknown_sessions = self.0.accept_notices(request.into_inner().notices);
        Ok(Response::new(v1::NoticeResponse {
            missing: unknown_sessions,
        }))
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
