//! World: its machine, hosts, devices and time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::transport::Connector;
use parking_lot::Mutex;
use protocol::frame::ServerFrame;
use protocol::ticket::KeyFile;
use protocol::{DeviceId, Platform, Timestamp, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use server::settings::Settings;
use tempfile::TempDir;
use tests::actions::{FAULT_PERIOD, user};
use tests::core_device::CoreDevice;
use tests::world::{Life, Names, Outages, Panics, Trace};
use tokio::runtime::Builder;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use crate::device::{LivingDevice, Order};
use crate::host::{self, Harbour, Host, HostClock, role};
use crate::machine::Machine;
use crate::plan::{Fault, Plan};
use crate::scenes::Scene;
use crate::troubles::Troubles;

/// Time without trouble within which a world must come to rest.
const REST_TIMEOUT: Duration = Duration::from_secs(1200);
/// Pause between two checks for rest.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before an order to a dead device is repeated.
const ORDER_RETRY_DELAY: Duration = Duration::from_secs(4);
/// Look-back of lists: short, so that no wrong stamp hides behind it.
const LIST_MARGIN: Duration = Duration::from_millis(200);
/// Age of tokens where clocks step: none is from the future.
const TOKEN_AGE: Duration = Duration::from_secs(600);
/// Time without a poll after which a carrier loses its partitions, where carriers read slowly.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(1_500);
/// Delays of retries in worlds with a mailbox that refuses: all of them end before it takes mail.
const RETRY_DELAYS_MS: [u64; 5] = [100, 200, 300, 400, 500];

const PLATFORMS: [Platform; 3] = [Platform::Ios, Platform::Web, Platform::Desktop];

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) settings: Settings,
    machine: Mutex<Arc<Machine>>,
    pub(crate) connector: Connector,
    pub(crate) names: Arc<Names>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) is_healed: Arc<AtomicBool>,
    pub(crate) outages: Arc<Outages>,
    /// Notified to have a host leave in order.
    pub(crate) restarts: Vec<Notify>,
    /// Current life of each host.
    pub(crate) lives: Mutex<BTreeMap<usize, Arc<Life>>>,
    pub(crate) harbours: Mutex<BTreeMap<usize, Harbour>>,
    /// Clock of each host.
    pub(crate) clocks: Mutex<BTreeMap<usize, Arc<HostClock>>>,
    /// Troubles of the parts, in a scene that has them.
    pub(crate) troubles: Option<Arc<Troubles>>,
    /// Devices of the plan, and one more of each user, which comes at the end and knows nothing.
    pub(crate) devices: Vec<Arc<Mutex<CoreDevice>>>,
    device_orders: Vec<mpsc::UnboundedSender<Order>>,
    findings: Mutex<Vec<String>>,
}

/// Runs a world to its end. Returns its verdict, and all events.
pub(crate) fn run(plan: Plan) -> (Result<(), String>, Arc<Trace>) {
    let panics = Panics::collect(false);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let result = runtime.block_on(async {
        let world = World::new(plan).await;
        let trace = Arc::clone(&world.0.trace);
        (World::play(world).await, trace)
    });
    drop(runtime);
    match panics.take().into_iter().next() {
        Some(panic) => (Err(panic), result.1),
        None => result,
    }
}

/// File with the keys of tickets, one for the stations of all worlds.
fn ticket_keys() -> &'static Path {
    static FILE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, file) = FILE.get_or_init(|| {
        let dir = TempDir::new().expect("a directory");
        let file = dir.path().join("keys");
        let keys = KeyFile::new(7, [7; 32]).to_text();
        std::fs::write(&file, keys).expect("a file");
        (dir, file)
    });
    file
}

fn settings(plan: &Plan) -> Settings {
    let mut settings = Settings::default();
    settings.lift_limits();
    settings.boat.websocket = ([127, 0, 0, 1], 0).into();
    settings.boat.tcp = ([127, 0, 0, 1], 0).into();
    settings.boat.trace_share = 0.0;
    settings.station.list_margin = LIST_MARGIN;
    settings.carrier.list_margin = LIST_MARGIN;
    settings.station.tickets.keys_file = Some(ticket_keys().to_owned());
    settings.station.tickets.required = true;
    settings.embedded.queue.partitions = plan.partitions;
    settings.carrier.shards = 1;
    if !plan.keeps_pages {
        settings.station.pages.private_bytes_max = 0;
        settings.station.pages.group_bytes_max = 0;
    }
    match plan.scene.scene {
        Some(Scene::Letters) if plan.scene.has_operator() => {
            settings.carrier.retry_delays = RETRY_DELAYS_MS.map(Duration::from_millis);
        }
        Some(Scene::TwoCarriers) => {
            settings.embedded.queue.poll_interval_max = POLL_INTERVAL_MAX;
        }
        Some(Scene::Visits) => {
            settings.boat.sweep_interval = REST_TIMEOUT * 3;
            settings.boat.sweep_pause_max = REST_TIMEOUT * 3;
        }
        _ => {}
    }
    settings
}

type OrdersOfDevices = Vec<mpsc::UnboundedReceiver<Order>>;

impl World {
    async fn new(plan: Plan) -> (Arc<World>, OrdersOfDevices) {
        let settings = settings(&plan);
        let machine = Machine::new(&settings, plan.seed).await;
        let user_numbers: BTreeSet<usize> = plan.devices.iter().map(|device| device.user).collect();
        let planned_devices = plan.devices.iter().enumerate().map(|(number, device)| {
            let name = format!("device-{number}");
            (device.user, PLATFORMS[device.platform], name)
        });
        let newcomers = user_numbers.iter().map(|&user| {
            let name = format!("newcomer-{user}");
            (user, Platform::Pad, name)
        });
        let devices: Vec<_> = (planned_devices.chain(newcomers))
            .map(|(number, platform, name)| {
                let name = DeviceId::new(&name).expect("short");
                let mut device = CoreDevice::new(user(number), platform, name);
                device.lists_may_be_ahead = plan.steps_clocks();
                Arc::new(Mutex::new(device))
            })
            .collect();
        let (device_orders, orders) = devices.iter().map(|_| mpsc::unbounded_channel()).unzip();
        let trace = Arc::new(Trace::begin());
        let troubles = || Arc::new(Troubles::new(plan.scene.clone(), Arc::clone(&trace)));
        let world = World {
            troubles: plan.scene.has_troubles().then(troubles),
            settings,
            machine: Mutex::new(Arc::new(machine)),
            connector: Connector::default(),
            names: Arc::default(),
            trace,
            is_healed: Arc::default(),
            outages: Arc::default(),
            restarts: plan.hosts.iter().map(|_| Notify::new()).collect(),
            lives: Mutex::default(),
            harbours: Mutex::default(),
            clocks: Mutex::default(),
            devices,
            device_orders,
            findings: Mutex::default(),
            plan,
        };
        (Arc::new(world), orders)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.machine().backends.clock.now()
    }

    /// Time at which a token of now was issued.
    pub(crate) fn token_time(&self) -> Timestamp {
        if self.plan.steps_clocks() {
            self.now() - TOKEN_AGE
        } else {
            self.now()
        }
    }

    /// Machine as it runs now.
    pub(crate) fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.machine.lock())
    }

    pub(crate) fn find(&self, finding: String) {
        self.findings.lock().push(finding);
    }

    fn finding(&self) -> Result<(), String> {
        match self.findings.lock().first() {
            Some(finding) => Err(finding.clone()),
            None => Ok(()),
        }
    }

    /// Repeats an order later to a device that does not run.
    pub(crate) fn retry_later(&self, device: usize, order: Order) {
        let orders = self.device_orders[device].clone();
        tokio::spawn(async move {
            sleep(ORDER_RETRY_DELAY).await;
            let _ = orders.send(order);
        });
    }

    fn order(&self, device: usize, order: Order) {
        let _ = self.device_orders[device].send(order);
    }

    /// I8: *received* reaches a sender only after a device of the recipient has stored the message.
    pub(crate) fn judge_receipts(&self, frame: &ServerFrame) {
        let ServerFrame::Receipts(receipts) = frame else {
            return;
        };
        for receipt in receipts {
            let is_stored = self.devices.iter().any(|device| {
                let device = device.lock();
                device.user == receipt.by && device.has(receipt)
            });
            if !is_stored {
                self.find(format!(
                    "{} is said to be received, but no device has it",
                    receipt.id
                ));
            }
        }
    }

    async fn play((world, orders): (Arc<World>, OrdersOfDevices)) -> Result<(), String> {
        let zero = Instant::now();
        let mut rng = StdRng::seed_from_u64(!world.plan.seed);
        for (number, service) in world.plan.hosts.iter().enumerate() {
            let host = Host::new(number, *service, Arc::clone(&world));
            tokio::spawn(host.supervise());
        }
        let mut devices = world.devices.iter().cloned().zip(orders).enumerate();
        let count = world.plan.devices.len();
        let new_device = |(number, (device, orders))| {
            LivingDevice::new(number, device, Arc::clone(&world), orders)
        };
        for (number, device) in devices.by_ref().take(count) {
            let delay = world.plan.actions.delays.get(number).copied();
            let wait = Duration::from_millis(rng.random_range(0..5_000));
            let delay = delay.unwrap_or_default() + wait;
            tokio::spawn(new_device((number, device)).run(delay));
        }
        tokio::spawn(Arc::clone(&world).happen(zero));
        tokio::spawn(Arc::clone(&world).lose_power(zero));
        if world.plan.scene.has_operator() {
            tokio::spawn(Arc::clone(&world).redrive_letters(zero));
        }
        sleep_until(zero + FAULT_PERIOD).await;
        world.is_healed.store(true, Ordering::Relaxed);
        world.trace.add("world", format_args!("is healed"));
        world.come_to_rest(count).await?;
        // All devices come back, and so does one of each user that was never there.
        world.trace.add("world", format_args!("is at rest"));
        (0..count).for_each(|device| world.order(device, Order::Cut));
        let newcomers: Vec<_> = devices.collect();
        for newcomer in newcomers {
            let delay = Duration::from_millis(rng.random_range(0..600));
            tokio::spawn(new_device(newcomer).run(delay));
        }
        world.come_to_rest(world.devices.len()).await
    }

    fn life(&self, host: usize) -> Option<Arc<Life>> {
        self.lives.lock().get(&host).cloned()
    }

    /// Lets everything in the plan happen at its time.
    async fn happen(self: Arc<Self>, zero: Instant) {
        let mut events = Vec::new();
        let plan = &self.plan;
        for (number, (at, from, to)) in plan.sends.iter().copied().enumerate() {
            let to: UserId = user(to);
            events.push((at, Some((from, Order::Send { number, to })), None));
        }
        for (number, (at, device, action)) in plan.actions.steps.iter().copied().enumerate() {
            events.push((at, Some((device, Order::Do { number, action })), None));
        }
        events.extend(
            plan.faults
                .iter()
                .map(|(at, fault)| (*at, None, Some(*fault))),
        );
        events.sort_by_key(|(at, ..)| *at);
        for (at, order, fault) in events {
            sleep_until(zero + at).await;
            if let Some((device, order)) = order {
                self.order(device, order);
            }
            match fault {
                None => {}
                Some(Fault::Crash(host)) => {
                    self.life(host)
                        .inspect(|life| life.die(format_args!("dies")));
                }
                Some(Fault::Restart(host)) => self.restarts[host].notify_one(),
                Some(Fault::Isolate(host, duration)) => {
                    self.life(host).inspect(|life| life.isolate(duration));
                }
                Some(Fault::Outage(server, duration)) => {
                    let trace = &self.trace;
                    trace.add("world", format_args!("has no {server:?} for {duration:?}"));
                    self.outages.begin(server, duration);
                }
                Some(Fault::Revoke(host)) => {
                    let service = plan.hosts[host];
                    let name = host::name(service, host);
                    role(service).map(|role| self.machine().registry.revoke(role, &name));
                }
                Some(Fault::CrashDevice(device)) => self.order(device, Order::Crash),
                Some(Fault::Cut(device)) => self.order(device, Order::Cut),
                Some(Fault::Away(device, duration)) => self.order(device, Order::Away(duration)),
                Some(Fault::Mute(device, duration)) => self.order(device, Order::Mute(duration)),
                Some(Fault::StepClock(host, offset)) => self.step_clock(host, offset),
                Some(Fault::SlowReads(host, duration)) => {
                    self.life(host).inspect(|life| life.slow_reads(duration));
                }
            }
        }
    }

    /// Sets the clock of a host so many milliseconds off.
    fn step_clock(&self, host: usize, offset: i64) {
        let name = host::name(self.plan.hosts[host], host);
        self.trace.add(
            "world",
            format_args!("sets the clock of {name} {offset} ms off"),
        );
        if let Some(clock) = self.clocks.lock().get(&host) {
            clock.step(offset);
        }
    }

    /// Cuts the power whenever the plan says so.
    async fn lose_power(self: Arc<Self>, zero: Instant) {
        for (number, (at, cut)) in self.plan.power_cuts.iter().enumerate() {
            sleep_until(zero + *at).await;
            let machine = self.machine();
            machine.stall_disk(cut.stall).await;
            let seed = self.plan.seed ^ ((number as u64 + 1) << 56);
            let (machine, undurable_count, written_count) =
                machine.restart(*cut, &self.settings, seed).await;
            // No await from here on: no host may start on the machine that is gone.
            *self.machine.lock() = Arc::new(machine);
            for life in self.lives.lock().values() {
                life.die(format_args!("dies of a power cut"));
            }
            self.harbours.lock().clear();
            self.trace.add(
                "world",
                format_args!(
                    "has {written_count} of the newest {undurable_count} writes after a power cut"
                ),
            );
        }
    }

    /// Waits until the judges are content with the first `devices` devices.
    async fn come_to_rest(&self, devices: usize) -> Result<(), String> {
        let deadline = Instant::now() + REST_TIMEOUT;
        loop {
            sleep(JUDGE_INTERVAL).await;
            self.finding()?;
            match self.judge(devices).await {
                Ok(()) => return Ok(()),
                Err(finding) if Instant::now() > deadline => return Err(finding),
                Err(_) => {}
            }
        }
    }
}
