//! Pairs of users: one sends, the other receives, acknowledges and checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{FutureExt, SinkExt, StreamExt};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::Message;

use super::dialect::{AckOf, BenchFrame, Dialect};
use super::installation::{Also, Cpu, Installation, between, cpu_beside};
use super::sign_in::{Socket, binary, sign_in_all};

/// Sends in flight between the two users of a pair in a closed load.
const WINDOW: u64 = 4;
/// Time after the last send for accepted messages to arrive.
const SETTLE: Duration = Duration::from_secs(20);

/// Upper bound of recorded latencies: longer ones count as this long.
pub(super) const LATENCY_MAX_US: u64 = 60_000_000;

/// Pacing of sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoadPace {
    /// As fast as messages arrive: saturation.
    Closed,
    /// Messages per second over all pairs, whatever comes back; latency counts from the due time of
    /// each.
    Open { rate: f64 },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) pairs: u64,
    pub(super) body_bytes: usize,
    pub(super) pace: LoadPace,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) struct LoadResult {
    /// Messages per second that arrived within the measured time.
    pub(super) rate: f64,
    /// User and system time per message, in microseconds, by service.
    pub(super) services: BTreeMap<String, f64>,
    /// The same for other processes to be reported.
    pub(super) other_cpu: BTreeMap<String, f64>,
    /// Time from due (or sent) to arrived, in microseconds.
    pub(super) latency: Histogram<u64>,
    pub(super) sum: Sum,
}

/// Totals over all pairs, which must add up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) accepted_count: u64,
    pub(super) arrived_count: u64,
    pub(super) lost_count: u64,
    pub(super) repeated_count: u64,
    pub(super) out_of_order: u64,
    pub(super) refused_count: u64,
    /// Pairs with a lost connection: messages in flight then are lost here, and come with the next
    /// sync.
    pub(super) closed_count: u64,
}

impl Sum {
    /// Number of messages and pairs that went wrong.
    pub(super) fn faults(&self) -> u64 {
        self.lost_count
            + self.repeated_count
            + self.out_of_order
            + self.refused_count
            + self.closed_count
    }

    fn add(&mut self, other: Sum) {
        self.accepted_count += other.accepted_count;
        self.arrived_count += other.arrived_count;
        self.lost_count += other.lost_count;
        self.repeated_count += other.repeated_count;
        self.out_of_order += other.out_of_order;
        self.refused_count += other.refused_count;
        self.closed_count += other.closed_count;
    }
}

/// State that all pairs of a run share.
struct Run {
    dialect: Dialect,
    load: Load,
    start: Instant,
    is_sending: AtomicBool,
    is_measuring: AtomicBool,
    /// Start and end of the due times whose latency is recorded, in microseconds from the start,
    /// whenever the messages arrive.
    start_us: AtomicU64,
    end_us: AtomicU64,
    arrived_count: AtomicU64,
    latency: Mutex<Histogram<u64>>,
}

/// Runs one load against one server.
pub(super) async fn run(
    server: &Installation,
    also: &[Also],
    dialect: &Dialect,
    load: Load,
) -> Result<LoadResult> {
    let wait = async {
        tokio::time::sleep(load.duration).await;
        Ok(())
    };
    let (result, ()) = run_beside(server, also, dialect, load, wait).await?;
    Ok(result)
}

/// Like `run`, with the measured time lasting as long as `event`.
pub(super) async fn run_beside<T>(
    server: &Installation,
    also: &[Also],
    dialect: &Dialect,
    load: Load,
    event: impl Future<Output = Result<T>>,
) -> Result<(LoadResult, T)> {
    let sockets = sign_in_all(&server.websocket, dialect, load.pairs * 2).await?;
    let run = Arc::new(Run {
        dialect: dialect.clone(),
        load,
        start: Instant::now(),
        is_sending: AtomicBool::new(true),
        is_measuring: AtomicBool::new(false),
        start_us: AtomicU64::new(u64::MAX),
        end_us: AtomicU64::new(u64::MAX),
        arrived_count: AtomicU64::new(0),
        latency: Mutex::new(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?),
    });
    let mut pairs = JoinSet::new();
    let mut sockets = sockets.into_iter();
    for number in 0..load.pairs {
        let (Some(sender), Some(receiver)) = (sockets.next(), sockets.next()) else {
            bail!("a socket is missing");
        };
        pairs.spawn(LoadPair::new(run.clone(), number).run(sender, receiver));
    }

    tokio::time::sleep(load.warm_up).await;
    let (cpu, other_cpu, start) = (server.cpu()?, cpu_beside(also)?, Instant::now());
    run.start_us.store(run.micros(), Ordering::Relaxed);
    run.is_measuring.store(true, Ordering::Relaxed);
    let result = event.await?;
    run.is_measuring.store(false, Ordering::Relaxed);
    run.end_us.store(run.micros(), Ordering::Relaxed);
    let duration = start.elapsed();
    let cpu = between(&cpu, &server.cpu()?);
    let other_cpu = between(&other_cpu, &cpu_beside(also)?);
    let arrived_count = run.arrived_count.load(Ordering::Relaxed);
    run.is_sending.store(false, Ordering::Relaxed);

    let mut sum = Sum::default();
    while let Some(pair) = pairs.join_next().await {
        sum.add(pair?);
    }
    let latency = run
        .latency
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let load_result = LoadResult {
        rate: arrived_count as f64 / duration.as_secs_f64(),
        services: micros_each(cpu, arrived_count),
        other_cpu: micros_each(other_cpu, arrived_count),
        latency,
        sum,
    };
    Ok((load_result, result))
}

impl LoadResult {
    /// CPU time of all services together.
    pub(super) fn cpu_us(&self) -> f64 {
        self.services.values().sum()
    }
}

fn micros_each(cpu: Cpu, messages: u64) -> BTreeMap<String, f64> {
    let each = |used: Duration| used.as_secs_f64() * 1e6 / messages.max(1) as f64;
    (cpu.into_iter())
        .map(|(name, used)| (name, each(used)))
        .collect()
}

/// One sender, one receiver, and their record of their messages.
struct LoadPair {
    run: Arc<Run>,
    number: u64,
    /// Number of the last message sent; messages are numbered 1, 2, 3 …
    last_sent: u64,
    last_arrived: u64,
    accepted_numbers: BTreeSet<u64>,
    sum: Sum,
}

impl Run {
    fn micros(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

impl LoadPair {
    fn new(run: Arc<Run>, number: u64) -> LoadPair {
        LoadPair {
            run,
            number,
            last_sent: 0,
            last_arrived: 0,
            accepted_numbers: BTreeSet::new(),
            sum: Sum::default(),
        }
    }

    async fn run(mut self, sender: Socket, receiver: Socket) -> Sum {
        match self.drive(sender, receiver).await {
            Ok(()) => self.sum.lost_count = self.accepted_numbers.len() as u64,
            Err(error) => {
                tracing::warn!("a pair ended: {error:#}");
                self.sum.closed_count = 1;
            }
        }
        self.sum
    }

    async fn drive(&mut self, mut sender: Socket, mut receiver: Socket) -> Result<()> {
        let mut deadline = None;
        loop {
            let may_send = self.run.is_sending.load(Ordering::Relaxed);
            if !may_send {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + SETTLE);
                let all_answered =
                    self.sum.accepted_count + self.sum.refused_count == self.last_sent;
                if (all_answered && self.accepted_numbers.is_empty()) || Instant::now() > deadline {
                    break;
                }
            }
            let due_at = self.next_due();
            tokio::select! {
                biased;
                message = receiver.next() => self.receive(message, &mut receiver).await?,
                message = sender.next() => self.answer(message)?,
                () = wait_until(due_at), if may_send && due_at.is_some() => {
                    self.send(due_at, &mut sender).await?;
                }
                () = tokio::time::sleep(Duration::from_millis(100)), if due_at.is_none() || !may_send => {}
            }
        }
        Ok(())
    }

    /// Due time of the next message; `None` while the window is full.
    fn next_due(&self) -> Option<Instant> {
        match self.run.load.pace {
            LoadPace::Closed => {
                (self.last_sent < self.last_arrived + WINDOW).then_some(self.run.start)
            }
            LoadPace::Open { rate } => {
                let interval = self.run.load.pairs as f64 / rate;
                let phase = self.number as f64 / self.run.load.pairs as f64;
                let seconds = (self.last_sent as f64 + phase) * interval;
                Some(self.run.start + Duration::from_secs_f64(seconds))
            }
        }
    }

    async fn send(&mut self, due_at: Option<Instant>, sender: &mut Socket) -> Result<()> {
        let counted_from = match (self.run.load.pace, due_at) {
            (LoadPace::Open { .. }, Some(due_at)) => due_at,
            _ => Instant::now(),
        };
        self.last_sent += 1;
        let micros = counted_from
            .saturating_duration_since(self.run.start)
            .as_micros() as u64;
        let mut body = BytesMut::with_capacity(self.run.load.body_bytes);
        body.put_u64(micros);
        body.resize(self.run.load.body_bytes.max(8), b'.');
        let frame = self
            .run
            .dialect
            .send(self.number * 2, self.last_sent, body.freeze())?;
        sender.send(Message::Binary(frame)).await.context("sending")
    }

    fn answer(
        &mut self,
        message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    ) -> Result<()> {
        let Some(frame) = binary(message)? else {
            return Ok(());
        };
        match self.run.dialect.hear(frame)? {
            BenchFrame::Accepted(n) => {
                self.sum.accepted_count += 1;
                if n > self.last_arrived {
                    self.accepted_numbers.insert(n);
                }
            }
            BenchFrame::Refused(text) => {
                self.sum.refused_count += 1;
                tracing::warn!(text, "refused");
            }
            BenchFrame::Welcome | BenchFrame::Message { .. } | BenchFrame::Other => {}
        }
        Ok(())
    }

    /// Takes this frame and all others that are ready, then acknowledges them together.
    async fn receive(
        &mut self,
        message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
        receiver: &mut Socket,
    ) -> Result<()> {
        let mut acks = Vec::new();
        let mut next = Some(message);
        while let Some(message) = next {
            if let Some(frame) = binary(message)?
                && let BenchFrame::Message { n, body, ack } = self.run.dialect.hear(frame)?
            {
                if let Some(n) = n {
                    self.arrive(n, &body);
                }
                acks.push(ack);
            }
            next = receiver.next().now_or_never();
        }
        self.acknowledge(acks, receiver).await
    }

    async fn acknowledge(&self, acks: Vec<AckOf>, receiver: &mut Socket) -> Result<()> {
        for frame in self.run.dialect.acknowledge(acks) {
            receiver
                .feed(Message::Binary(frame))
                .await
                .context("acknowledging")?;
        }
        receiver.flush().await.context("acknowledging")
    }

    fn arrive(&mut self, n: u64, body: &Bytes) {
        if n <= self.last_arrived {
            // A skipped message is late, not a repeat.
            if self.accepted_numbers.remove(&n) {
                self.sum.arrived_count += 1;
                self.time(body);
            } else {
                self.sum.repeated_count += 1;
            }
            return;
        }
        if n != self.last_arrived + 1 {
            self.sum.out_of_order += 1;
        }
        self.last_arrived = n;
        self.sum.arrived_count += 1;
        self.accepted_numbers.remove(&n);
        self.time(body);
    }

    /// Counts an arrival within the measured time, and records its latency from the due time.
    fn time(&self, body: &Bytes) {
        let run = &self.run;
        if run.is_measuring.load(Ordering::Relaxed) {
            run.arrived_count.fetch_add(1, Ordering::Relaxed);
        }
        let due_us = body.get(..8).and_then(|bytes| bytes.try_into().ok());
        let Some(due_us) = due_us.map(u64::from_be_bytes) else {
            return;
        };
        let window = run.start_us.load(Ordering::Relaxed)..run.end_us.load(Ordering::Relaxed);
        if window.contains(&due_us) {
            let mut latency = run.latency.lock().unwrap_or_else(PoisonError::into_inner);
            latency.saturating_record(run.micros().saturating_sub(due_us).max(1));
        }
    }
}

async fn wait_until(due_at: Option<Instant>) {
    match due_at {
        Some(due_at) => sleep_until(due_at).await,
        None => std::future::pending().await,
    }
}
