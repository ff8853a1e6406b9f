//! Devices: the client's core on a pipe to some boat, with a disk that takes its time.

use std::sync::Arc;
use std::time::Duration;

use api::codec::{Frames, decode_server, encode_client};
use bytes::Bytes;
use client::core::Change;
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use protocol::frame::ServerFrame;
use protocol::message::Content;
use protocol::{Code, Refusal, SendId, Timestamp, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tests::actions::UserAction;
use tests::core_device::{CoreDevice, Io};
use tests::system::sign;
use tokio::io::duplex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::codec::Framed;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::world::World;

const FRAME_BYTES_MAX: usize = 1 << 20;
/// Capacity of the pipe in each direction, as of a socket.
const PIPE_BYTES: usize = 64 * 1024;
/// Longest travel of a frame, and longest write of the disk.
const HOP_MAX: Duration = Duration::from_millis(30);
/// Longest pause before a dead device restarts.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(3);

/// Order to a device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Send { number: usize, to: UserId },
    Do { number: usize, action: UserAction },
    Crash,
    Cut,
    Away(Duration),
    Mute(Duration),
}

/// Name of the send of a message, by its number.
pub(crate) fn send_id(number: usize) -> SendId {
    SendId::from_bytes((number as u128 + 1).to_be_bytes())
}

enum Event {
    Frame(ServerFrame),
    Broken,
    Connected(Option<Wire>),
    Stored { batch: u64, changes: Vec<Change> },
    Timeout,
    Order(Order),
    Started,
}

struct Wire {
    out: mpsc::UnboundedSender<Bytes>,
    frames: mpsc::UnboundedReceiver<ServerFrame>,
    /// Ends its tasks when dropped.
    _tasks: DropGuard,
}

pub(crate) struct LivingDevice {
    number: usize,
    device: Arc<Mutex<CoreDevice>>,
    name: String,
    world: Arc<World>,
    rng: StdRng,
    wire: Option<Wire>,
    /// Connection attempt and writes under way: they end with the life.
    results: mpsc::UnboundedReceiver<(u32, Event)>,
    result_sender: mpsc::UnboundedSender<(u32, Event)>,
    orders: mpsc::UnboundedReceiver<Order>,
    mute_until: Timestamp,
    away_until: Timestamp,
    disk: Option<Timestamp>,
}

impl LivingDevice {
    pub(crate) fn new(
        number: usize,
        device: Arc<Mutex<CoreDevice>>,
        world: Arc<World>,
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> LivingDevice {
        let (result_sender, results) = mpsc::unbounded_channel();
        let seed = !world.plan.seed ^ ((number as u64 + 1) << 32);
        let name = device.lock().name.to_string();
        LivingDevice {
            number,
            device,
            name,
            world,
            rng: StdRng::seed_from_u64(seed),
            wire: None,
            results,
            result_sender,
            orders,
            mute_until: Timestamp::ZERO,
            away_until: Timestamp::ZERO,
            disk: None,
        }
    }

    /// Runs forever, after `delay`.
    pub(crate) async fn run(mut self, delay: Duration) {
        sleep(delay).await;
        self.start();
        loop {
            let event = self.next().await;
            self.handle(event);
            self.drive();
        }
    }

    fn now(&self) -> Timestamp {
        self.world.now()
    }

    fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_millis(self.rng.random_range(0..=max.as_millis() as u64))
    }

    fn start(&mut self) {
        let mut device = self.device.lock();
        let claims = station::auth::Claims::new(device.user, self.world.token_time(), TOKEN_LIFE);
        device.start(sign(&claims));
        drop(device);
        self.world.trace.add(&self.name, format_args!("starts"));
        self.drive();
    }

    async fn next(&mut self) -> Event {
        let now = self.now();
        let timeout = self.device.lock().poll_timeout();
        let (life, is_mute) = (self.device.lock().life, self.mute_until > now);
        // A timeout due now that has no effect must not fire forever.
        let earliest = now + Duration::from_millis(1);
        let at = |time: Timestamp| Instant::now() + time.max(earliest).since(now);
        let (timer, mute_end) = (timeout.map(at), at(self.mute_until));
        loop {
            return tokio::select! {
                biased;
                Some(order) = self.orders.recv() => Event::Order(order),
                Some((event_life, event)) = self.results.recv() => if event_life == life { event } else { continue },
                () = async { sleep_until(timer.expect("set")).await }, if timer.is_some() => {
                    Event::Timeout
                }
                () = sleep_until(mute_end), if is_mute => Event::Timeout,
                frame = next_frame(&mut self.wire), if !is_mute => {
                    frame.map_or(Event::Broken, Event::Frame)
                }
            };
        }
    }
}

/// Waits for the next frame; forever, without a wire.
async fn next_frame(wire: &mut Option<Wire>) -> Option<ServerFrame> {
    match wire {
        Some(wire) => wire.frames.recv().await,
        None => std::future::pending().await,
    }
}

const TOKEN_LIFE: Duration = Duration::from_secs(3600);

impl LivingDevice {
    fn handle(&mut self, event: Event) {
        let now = self.now();
        if let Event::Connected(wire) = &event {
            let connection = wire.as_ref().map_or("no boat", |_| "a connection");
            self.world
                .trace
                .add(&self.name, format_args!("has {connection}"));
        }
        match event {
            Event::Frame(frame) => {
                let (name, trace) = (frame_name(&frame), &self.world.trace);
                match &frame {
                    ServerFrame::Refused { send_id, refusal } => {
                        trace.add(
                            &self.name,
                            format_args!("hears {name} {send_id}: {refusal}"),
                        );
                    }
                    _ => trace.add(&self.name, format_args!("hears {name}")),
                }
                self.world.judge_receipts(&frame);
                self.device
                    .lock()
                    .with(|core| core.handle_frame(frame, now));
            }
            Event::Timeout => self.device.lock().with(|core| core.handle_timeout(now)),
            Event::Stored { batch, changes } => self.device.lock().stored(batch, changes, now),
            Event::Broken => self.break_wire("the connection broke"),
            Event::Connected(None) => {
                let reason = Refusal::new(Code::Unavailable, "no way to a boat");
                let jitter = self.rng.random();
                let mut device = self.device.lock();
                device.with(|core| core.handle_disconnected(reason, now, jitter));
            }
            Event::Connected(wire) => {
                self.wire = wire;
                self.device.lock().with(|core| core.handle_connected(now));
            }
            Event::Started => self.start(),
            Event::Order(order) => self.obey(order, now),
        }
    }

    fn obey(&mut self, order: Order, now: Timestamp) {
        self.world
            .trace
            .add(&self.name, format_args!("is to {order:?}"));
        let is_running = self.device.lock().is_running();
        match order {
            Order::Send { .. } | Order::Do { .. } if !is_running => {
                self.world.retry_later(self.number, order);
            }
            Order::Send { number, to } => {
                let send_id = send_id(number);
                let content = Content::text(format!("message {number}"));
                self.device.lock().send(send_id, to, content, now);
            }
            Order::Do { number, action } => self.device.lock().perform(action, number, now),
            Order::Crash => {
                if self.device.lock().crash() {
                    self.world.trace.add(&self.name, format_args!("dies"));
                    self.wire = None;
                    self.disk = None;
                    let wait = self.up_to(RESTART_PAUSE_MAX);
                    self.after(wait, Event::Started);
                }
            }
            Order::Cut => self.break_wire("the connection broke"),
            Order::Away(duration) => {
                self.away_until = now + duration;
                self.break_wire("no network");
            }
            Order::Mute(duration) => self.mute_until = now + duration,
        }
    }

    fn break_wire(&mut self, reason: &str) {
        self.hang_up(Refusal::new(Code::Unavailable, reason));
    }

    fn hang_up(&mut self, refusal: Refusal) {
        if self.wire.take().is_none() {
            return;
        }
        self.world
            .trace
            .add(&self.name, format_args!("has no connection: {refusal}"));
        let (now, jitter) = (self.now(), self.rng.random());
        let mut device = self.device.lock();
        device.with(|core| core.handle_disconnected(refusal, now, jitter));
    }

    /// Delivers an event to this life a little later.
    fn after(&self, wait: Duration, event: Event) {
        let (life, result_sender) = (self.device.lock().life, self.result_sender.clone());
        tokio::spawn(async move {
            sleep(wait).await;
            let _ = result_sender.send((life, event));
        });
    }

    fn drive(&mut self) {
        let now = self.now();
        loop {
            let io = self.device.lock().poll(now, |_| {});
            let Some(io) = io else { break };
            match io {
                // Tokens of these worlds do not expire.
                Io::FetchToken => {}
                Io::Connect => self.connect(),
                Io::Disconnect(refusal) => self.hang_up(refusal),
                Io::Transmit(frame) => {
                    let bytes = encode_client(&frame);
                    if let Some(wire) = &self.wire {
                        let _ = wire.out.send(bytes);
                    }
                }
                Io::Store { batch, changes } => {
                    // The disk writes in order.
                    let stored_at =
                        self.disk.map_or(now, |disk| disk.max(now)) + self.up_to(HOP_MAX);
                    self.disk = Some(stored_at);
                    self.after(stored_at.since(now), Event::Stored { batch, changes });
                }
            }
        }
        let findings: Vec<_> = std::iter::from_fn(|| self.device.lock().finding()).collect();
        findings
            .into_iter()
            .for_each(|finding| self.world.find(finding));
    }

    fn connect(&mut self) {
        let wait = self.up_to(HOP_MAX);
        if self.away_until > self.now() {
            return self.after(wait, Event::Connected(None));
        }
        let harbours: Vec<_> = self.world.harbours.lock().values().cloned().collect();
        if harbours.is_empty() {
            return self.after(wait, Event::Connected(None));
        }
        let harbour = harbours[self.rng.random_range(0..harbours.len())].clone();
        let (device_end, boat_end) = duplex(PIPE_BYTES);
        let pipes = harbour.pipes.clone();
        tokio::spawn(async move { pipes.serve_tcp(boat_end).await });
        let (mut sink, mut stream) = Framed::new(device_end, Frames::new(FRAME_BYTES_MAX)).split();
        let (out, mut outgoing) = mpsc::unbounded_channel::<Bytes>();
        let (incoming, frames) = mpsc::unbounded_channel();
        let close_token = CancellationToken::new();
        let tasks = close_token.clone().drop_guard();
        let (up_seed, down_seed) = (self.rng.random(), self.rng.random());
        let (dead, closes) = (harbour.dead.clone(), close_token.clone());
        let upwards = async move {
            let mut rng = StdRng::seed_from_u64(up_seed);
            while let Some(bytes) = outgoing.recv().await {
                hop(&mut rng).await;
                if sink.send(bytes).await.is_err() {
                    break;
                }
            }
        };
        let downwards = async move {
            let mut rng = StdRng::seed_from_u64(down_seed);
            while let Some(Ok(bytes)) = stream.next().await {
                let frame = decode_server(bytes, FRAME_BYTES_MAX).expect("a frame of ours");
                hop(&mut rng).await;
                if incoming.send(frame).is_err() {
                    break;
                }
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = dead.cancelled() => {}
                () = closes.cancelled() => {}
                () = async { tokio::join!(upwards, downwards); } => {}
            }
        });
        let wire = Wire {
            out,
            frames,
            _tasks: tasks,
        };
        self.after(wait, Event::Connected(Some(wire)));
    }
}

/// Waits for the travel time of a frame, in order.
async fn hop(rng: &mut StdRng) {
    let travel = Duration::from_millis(rng.random_range(0..=HOP_MAX.as_millis() as u64 / 2));
    sleep(travel).await;
}

/// Kind of a frame.
fn frame_name(frame: &ServerFrame) -> String {
    let text = format!("{frame:?}");
    let end = text.find(['(', ' ', '{']).unwrap_or(text.len());
    text[..end].to_owned()
}
