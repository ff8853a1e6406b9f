//! Whole system in this process: on paused time with clients on pipes, or on ports of its own.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::embedded::Engine;
use backend::hook::Faults;
use backend::queue::Partition;
use client::ByteStream;
use operator::audit::log::Log;
use operator::audit::{self, trace};
use operator::dead_letters::{DeadLetters, LetterOutcome, Selection, TaskRefusal};
use protocol::keys::Topic;
use protocol::record::Work;
use protocol::{MessageId, Platform, Timestamp};
use server::compose::{Environment, System};
use server::settings::Settings;
use station::auth::{Claims, Signer};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::judge::{Judges, accepted, audit_all};
use crate::logs::Logs;
use crate::parts;
use crate::paused::{PausedWorld, WAIT_MAX};
use crate::person::{Device, DeviceBuilder};
use crate::pipes::Pipes;
use crate::spans::RecordedSpans;
use crate::wire::Port;

/// Time limit, on the slowest machine, for anything that should come soon. Only a failing test
/// waits that long; on paused time it takes no time.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Look-back of lists: less than a test takes, so that a wrong stamp shows. A write ends within
/// half of it. On paused time a write is the way to a part and back, each with up to a millisecond
/// of the timer; real parts may take two seconds where their tables are new.
pub fn list_margin() -> Duration {
    if parts::are_real() {
        Duration::from_secs(4)
    } else {
        5 * WAIT_MAX
    }
}

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Pause between two looks of the judges.
const JUDGE_INTERVAL: Duration = Duration::from_millis(100);

/// Settings with free ports, and waits that a test can sit through.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.station.list_margin = list_margin();
    settings.lift_limits();
    settings.carrier.list_margin = list_margin();
    settings.boat.websocket = ([127, 0, 0, 1], 0).into();
    settings.boat.tcp = ([127, 0, 0, 1], 0).into();
    settings.boat.session.ack_wait = Duration::from_secs(1);
    settings.boat.session.mail_retry = Duration::from_millis(100);
    settings.boat.retry_pause = Duration::from_millis(100);
    settings.boat.drain_pace = NonZeroU32::MAX;
    settings.boat.trace_share = 0.0;
    settings.boat.close_grace = Duration::from_millis(200);
    settings.carrier.ack_wait = Duration::from_secs(1);
    settings.carrier.commit_interval = Duration::from_millis(10);
    settings.carrier.backoff_min = Duration::from_millis(10);
    settings.carrier.backoff_max = Duration::from_millis(50);
    settings.carrier.finish_wait = Duration::from_millis(500);
    settings.carrier.retry_delays = [10, 20, 30, 40, 50].map(Duration::from_millis);
    settings
}

/// The same on the machine's time, with waits that end nothing on a stalled machine.
pub fn patient_settings() -> Settings {
    let mut settings = settings();
    for margin in [
        &mut settings.station.list_margin,
        &mut settings.carrier.list_margin,
    ] {
        *margin = Duration::from_secs(10);
    }
    for timeout in [
        &mut settings.boat.arrival_timeout,
        &mut settings.boat.tls_timeout,
        &mut settings.boat.upgrade_timeout,
        &mut settings.boat.session.handshake,
        &mut settings.boat.session.ack_wait,
        &mut settings.carrier.ack_wait,
    ] {
        *timeout = 5 * TEST_TIMEOUT;
    }
    settings.boat.station_timeout = 2 * TEST_TIMEOUT;
    for deadline in [
        &mut settings.station.publish_deadline,
        &mut settings.station.dedupe_deadline,
        &mut settings.station.store_deadline,
        &mut settings.station.members_deadline,
    ] {
        *deadline = TEST_TIMEOUT;
    }
    settings
}

/// All four services, with the observations tests need. End it with [`stop`](Cluster::stop).
///
/// On embedded parts time is paused: each call of a part takes a while by the seed, nothing else
/// takes any, and clients come by pipes. The clock passes whenever all tasks wait, so nothing may
/// wait for another process, a socket or a thread, other than one of `spawn_blocking`. A test that
/// needs these starts [`on_sockets`](Cluster::on_sockets) or [`on_disk`](Cluster::on_disk), where
/// the machine's time passes; on the real parts every test does.
///
/// A failing test prints its seed; `PACKETBOAT_SEED=n` repeats it, `PACKETBOAT_SIM_TRACE=1` prints
/// the calls of the parts.
pub struct Cluster {
    system: Option<System>,
    /// False: nobody judges the end.
    is_judged: bool,
    /// `None`: the machine's time passes, and clients come by sockets.
    world: Option<PausedWorld>,
    pipes: Pipes,
    settings: Box<Settings>,
    pub environment: Environment,
    pub backends: Backends,
    /// Spans of traced messages.
    pub spans: Arc<RecordedSpans>,
    logs: Option<Logs>,
    letters: DeadLetters,
    /// Carries out requests of operators.
    worker: JoinHandle<()>,
    stop_worker: CancellationToken,
}

impl Cluster {
    /// Starts a system in memory, or on the real parts.
    pub async fn start() -> Cluster {
        Cluster::with(settings(), |backends| backends).await
    }

    /// As above, with another seed than that of all tests.
    pub async fn seeded(seed: u64) -> Cluster {
        Box::pin(Cluster::begin(settings(), Some(seed), |backends| backends)).await
    }

    /// As above, with other settings.
    pub async fn with(settings: Settings, wrap: impl FnOnce(Backends) -> Backends) -> Cluster {
        Box::pin(Cluster::begin(settings, None, wrap)).await
    }

    async fn begin(
        settings: Settings,
        seed: Option<u64>,
        wrap: impl FnOnce(Backends) -> Backends,
    ) -> Cluster {
        if parts::are_real() {
            return Box::pin(Cluster::on_sockets(settings, wrap)).await;
        }
        let world = PausedWorld::begin(seed);
        let mut environment = world.environment(&settings, Engine::memory());
        environment.backends = wrap(environment.backends);
        Box::pin(Cluster::run(settings, environment, Some(world))).await
    }

    /// Starts a system over this store, which the test reaches behind its back; never on the real
    /// parts.
    pub async fn over(settings: Settings, engine: &Engine) -> Cluster {
        let world = PausedWorld::begin(None);
        let environment = world.environment(&settings, engine.clone());
        Box::pin(Cluster::run(settings, environment, Some(world))).await
    }

    /// Starts a system whose clients come by sockets, on the machine's time: for tests with several
    /// threads, or with clients that are not of this process' runtime.
    pub async fn on_sockets(
        mut settings: Settings,
        wrap: impl FnOnce(Backends) -> Backends,
    ) -> Cluster {
        let mut environment = parts::new(&mut settings).await;
        environment.backends = wrap(environment.backends);
        Box::pin(Cluster::run(settings, environment, None)).await
    }

    /// Starts a system whose parts fail when the test wants them to.
    pub async fn with_faults(settings: Settings) -> (Cluster, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let hook = faults.hook();
        let cluster = Cluster::with(settings, |backends| backends.hooked(&hook)).await;
        (cluster, faults)
    }

    /// Starts a system on a directory, as an earlier one may have left it. The disk has threads of
    /// its own, so the machine's time passes, and clients come by sockets.
    pub async fn on_disk(settings: Settings, dir: &Path) -> Cluster {
        let environment = Environment::on_disk(
            dir,
            &settings.embedded,
            settings.station.sessions.capacity(),
        )
        .expect("stores on disk");
        Box::pin(Cluster::run(settings, environment, None)).await
    }

    async fn run(
        settings: Settings,
        environment: Environment,
        world: Option<PausedWorld>,
    ) -> Cluster {
        let logs = Logs::collect();
        let start = System::start(&settings, environment.clone(), Handle::current());
        let system = Box::pin(start).await.expect("the system starts");
        let pipes = Pipes::default();
        pipes.connect_to(Some(system.boat.pipes()));
        let backends = environment.backends.clone();
        let letters = DeadLetters::new(backends.clone(), settings.station.bounds());
        let stop_worker = CancellationToken::new();
        let work = letters.clone().work("desk".to_owned(), stop_worker.clone());
        Cluster {
            letters,
            worker: tokio::spawn(work),
            stop_worker,
            system: Some(system),
            is_judged: world.is_some() || !parts::are_real(),
            world,
            pipes,
            settings: Box::new(settings),
            environment,
            backends,
            spans: logs.spans.clone(),
            logs: Some(logs),
        }
    }

    /// Expects warnings that contain `part`; at least one must come.
    pub fn expect_log(&mut self, part: &'static str) {
        if let Some(logs) = &mut self.logs {
            logs.expect(part);
        }
    }

    /// Keeps the judges from the end of this test, which leaves something wrong on purpose; the
    /// reason is for its readers.
    pub fn waive_judges(&mut self, _why: &'static str) {
        self.is_judged = false;
    }

    fn system(&self) -> &System {
        self.system.as_ref().expect("it runs")
    }

    pub fn websocket(&self) -> std::net::SocketAddr {
        self.system().websocket()
    }

    pub fn tcp(&self) -> std::net::SocketAddr {
        self.system().tcp()
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.websocket())
    }

    pub fn now(&self) -> Timestamp {
        self.backends.clock.now()
    }

    /// Claims of a user, valid for an hour.
    pub fn claims(&self, user: i64) -> Claims {
        Claims::new(crate::user(user), self.now(), Duration::from_secs(3600))
    }

    /// Token of a user, signed with the development key.
    pub fn token(&self, user: i64) -> String {
        sign(&self.claims(user))
    }

    /// Device of this user: by default desktop, over WebSocket, with nothing kept.
    pub fn device(&self, user: i64) -> DeviceBuilder {
        let tcp = format!("tcp://{}", self.tcp());
        let builder = DeviceBuilder::new(self.url(), tcp, self.token(user));
        match &self.world {
            Some(world) => {
                let dial = Arc::new(self.pipes.clone());
                builder.in_world(dial, world.clock(), world.client_seed())
            }
            None => builder,
        }
    }

    /// Opens the bytes of a connection that is no client's: a pipe on paused time, else a socket.
    pub(crate) async fn dial(&self, port: Port) -> Box<dyn ByteStream> {
        if self.world.is_some() {
            return Box::new(self.pipes.open(port).expect("a boat"));
        }
        let address = match port {
            Port::WebSocket => self.websocket(),
            Port::Tcp => self.tcp(),
        };
        Box::new(TcpStream::connect(address).await.expect("connects"))
    }

    /// Calls of the parts so far, each with its time; none on the machine's time.
    pub fn calls(&self) -> Vec<String> {
        self.world
            .as_ref()
            .map_or_else(Vec::new, PausedWorld::calls)
    }

    /// Ready device of a user, on this platform.
    pub async fn device_on(&self, user: i64, platform: Platform, name: &str) -> Device {
        let device = self.device(user).on(platform).named(name);
        device.ready().await
    }

    pub fn letters(&self) -> &DeadLetters {
        &self.letters
    }

    /// Redrives letters, and waits for the result.
    pub async fn redrive(&self, selection: &Selection) -> Result<Vec<LetterOutcome>, TaskRefusal> {
        self.letters
            .redrive("operator", selection, TEST_TIMEOUT)
            .await
    }

    /// Number of records of topic `message`: one for each accepted message.
    pub async fn tasks(&self) -> u64 {
        let queue = &self.backends.queue;
        let topic = Topic::Message;
        let mut tasks = 0;
        for number in 0..queue.partitions(topic) {
            let bounds = queue.bounds(Partition { topic, number }).await;
            let (first, end) = bounds.expect("the log answers");
            tasks += end - first;
        }
        tasks
    }

    /// Records of topic `message`, partition by partition in order.
    pub async fn accepted(&self) -> Vec<Work> {
        let records = accepted(&self.backends).await;
        records.expect("the log answers")
    }

    /// Ends the services in order, and starts others on their data. The ports are new.
    pub async fn restart(&mut self) {
        self.restart_with(|_| ()).await;
    }

    /// As above, with other settings.
    pub async fn restart_with(&mut self, change: impl FnOnce(&mut Settings)) {
        self.end().await;
        change(&mut self.settings);
        let (settings, environment) = (&self.settings, self.environment.clone());
        let system_result = Box::pin(System::start(settings, environment, Handle::current())).await;
        let system = system_result.expect("the system starts");
        self.pipes.connect_to(Some(system.boat.pipes()));
        self.system = Some(system);
    }

    async fn end(&mut self) {
        self.pipes.connect_to(None);
        if let Some(system) = self.system.take() {
            let result = tokio::time::timeout(TEST_TIMEOUT, system.drain()).await;
            result.expect("it drains");
        }
    }

    fn log(&self) -> Log {
        Log::new(self.backends.queue.clone())
    }

    pub async fn audit(&self) -> audit::Report {
        let report = audit_all(&self.backends).await;
        report.expect("an audit")
    }

    /// Waits until nothing is in flight, and asserts that the books balance with so many messages.
    pub async fn assert_settled(&self, accepted_count: u64) {
        let mut report = self.audit().await;
        let settlement = async {
            while report.in_flight > 0 || !report.balanced {
                tokio::time::sleep(POLL_INTERVAL).await;
                report = self.audit().await;
            }
        };
        // Unless it settles, the figures below tell more than a missed deadline.
        let _ = tokio::time::timeout(TEST_TIMEOUT, settlement).await;
        assert!(report.balanced && report.in_flight == 0, "{report:?}");
        assert_eq!(report.accepted, accepted_count, "{report:?}");
        assert_eq!(report.settled, accepted_count, "{report:?}");
    }

    pub async fn trace(&self, id: MessageId) -> trace::Report {
        let witnesses = trace::Witnesses {
            log: &self.log(),
            messages: self.backends.messages.as_ref(),
            ledger: self.backends.ledger.as_ref(),
            mailbox: self.backends.mailbox.as_ref(),
        };
        let name = trace::Name::Message(id);
        let reports = witnesses.trace(name, self.now()).await;
        reports
            .expect("a trace")
            .pop()
            .expect("something is known of it")
    }

    /// Waits until the trace of a message has an event of this name, for `target` (`2/ios`) if
    /// given.
    pub async fn assert_traced(&self, id: MessageId, event: &str, target: Option<&str>) {
        let mut report = self.trace(id).await;
        let has_event = |report: &trace::Report| {
            report.events.items.iter().any(|e| {
                format!("{:?}", e.event).starts_with(event)
                    && target.is_none_or(|target| e.target.as_deref() == Some(target))
            })
        };
        let event_wait = async {
            while !has_event(&report) {
                tokio::time::sleep(POLL_INTERVAL).await;
                report = self.trace(id).await;
            }
        };
        let _ = tokio::time::timeout(TEST_TIMEOUT, event_wait).await;
        assert!(has_event(&report), "no {event} for {target:?}: {report:#?}");
    }

    /// Waits until the judges are content with what the stores have come to.
    async fn judge(&self) {
        let judges = Judges::new(&self.backends, &self.settings);
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match Box::pin(judges.judge()).await {
                Ok(()) => return,
                Err(finding) if Instant::now() > deadline => panic!("the judges: {finding}"),
                Err(_) => sleep(JUDGE_INTERVAL).await,
            }
        }
    }

    /// Ends the system in order and returns its settings; fails on unexpected log lines, and on
    /// panics that the runtime would hide. On embedded parts the run is judged first, whatever the
    /// test was about: the books balance, history is dense and has the messages of the log in its
    /// order, lists have their end, and the doctor finds nothing that a user misses.
    pub async fn stop(mut self) -> Settings {
        if self.is_judged {
            self.judge().await;
        }
        self.stop_worker.cancel();
        // The worker holds the stores.
        _ = (&mut self.worker).await;
        self.end().await;
        if let Some(logs) = self.logs.take() {
            logs.check();
        }
        let panics = self
            .world
            .as_mut()
            .map_or_else(Vec::new, PausedWorld::panics);
        assert!(panics.is_empty(), "tasks ended with a panic: {panics:#?}");
        parts::drop_keyspace(&self.settings).await;
        Settings::clone(&self.settings)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let was_forgotten = self.system.is_some() && !std::thread::panicking();
        assert!(!was_forgotten, "end a cluster with stop()");
    }
}

/// Token with these claims.
pub fn sign(claims: &Claims) -> String {
    Signer::default().sign(claims).expect("a token")
}

/// Asks until an answer comes.
pub async fn eventually<T>(condition: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let poll = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(TEST_TIMEOUT, poll).await {
        Ok(answer) => answer,
        Err(_) => panic!("not in time: {condition}"),
    }
}
