//! The thread that carries spans and metrics to the collector.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use api::trace::{self, Sink};
use backend::clock::{Clock, SystemClock};
use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry_proto::tonic::trace::v1 as wire;
use protocol::trace::Span;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Config;
use super::collector::{Collector, Refused, read_headers};
use super::numbers::{self, Period};
use super::spans::Recorded;

/// Between tries to reach a collector that is away; doubles up to the longer one.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Of this process: it goes with the log, of which there is one, too.
static RUNNING: OnceLock<Exporter> = OnceLock::new();

/// What is beside the log from here on; `None` where no collector is set.
pub(crate) fn start(config: &Config) -> Result<Option<trace::Collector>> {
    let Some(exporter) = Exporter::start(config)? else {
        return Ok(None);
    };
    let sink = exporter.sink.clone();
    RUNNING
        .set(exporter)
        .ok()
        .context("the exporter runs already")?;
    Ok(Some(trace::Collector::new(sink)))
}

/// The numbers of `/metrics` go to the collector from here on, where one is set.
pub(crate) fn export_metrics(handle: &PrometheusHandle) {
    if let Some(exporter) = RUNNING.get() {
        exporter.export_metrics(handle);
    }
}

/// Waits, for a bounded time, until the collector has what is on its way.
pub(crate) fn end() {
    if let Some(exporter) = RUNNING.get() {
        exporter.end();
    }
}

pub(super) struct Exporter {
    pub(super) sink: Arc<Queue>,
    numbers: watch::Sender<Option<PrometheusHandle>>,
    stop: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Spans on their way out.
pub(super) struct Queue {
    spans: mpsc::Sender<Recorded>,
    now: Wall,
}

impl Sink for Queue {
    fn record(&self, span: Span) {
        let at = self.now.nanos();
        if self.spans.try_send(Recorded { span, at }).is_err() {
            count("dropped", 1);
        }
    }
}

impl Exporter {
    pub(super) fn start(config: &Config) -> Result<Option<Exporter>> {
        let Some(endpoint) = &config.endpoint else {
            return Ok(None);
        };
        let headers = config.headers_file.as_deref().map(read_headers);
        let headers = headers.transpose()?.unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let collector = {
            let _within = runtime.enter();
            Collector::new(config, endpoint.expose(), headers)?
        };
        let (spans, waiting) = mpsc::channel(config.spans_max.max(1));
        let (numbers, handle) = watch::channel(None);
        let now = Wall::new();
        let stop = CancellationToken::new();
        let way = Way {
            collector,
            config: config.clone(),
            stop: stop.clone(),
        };
        let since = now.nanos();
        let run = async move {
            tokio::join!(
                way.clone().carry_spans(waiting),
                way.carry_metrics(handle, since)
            );
        };
        let thread = std::thread::Builder::new().name("otlp".into());
        let thread = thread.spawn(move || runtime.block_on(run))?;
        Ok(Some(Exporter {
            sink: Arc::new(Queue { spans, now }),
            numbers,
            stop,
            thread: Mutex::new(Some(thread)),
        }))
    }

    pub(super) fn export_metrics(&self, handle: &PrometheusHandle) {
        self.numbers.send_replace(Some(handle.clone()));
    }

    pub(super) fn end(&self) {
        self.stop.cancel();
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // Where it panicked, there is nothing left to wait for.
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Way {
    collector: Collector,
    config: Config,
    stop: CancellationToken,
}

impl Way {
    async fn carry_spans(self, mut waiting: mpsc::Receiver<Recorded>) {
        let max = self.config.batch_max.max(1);
        let mut batch = Vec::new();
        let mut health = Health::default();
        while let Some(Some(first)) = self.stop.run_until_cancelled(waiting.recv()).await {
            batch.push(first.into());
            self.stop
                .run_until_cancelled(sleep(self.config.linger))
                .await;
            take_more(&mut waiting, &mut batch, max);
            while !batch.is_empty() && !self.stop.is_cancelled() {
                match self.collector.take_spans(batch.clone()).await {
                    Err(Refused::ForNow(status)) => {
                        let pause = health.failed("spans", &status);
                        self.stop.run_until_cancelled(sleep(pause)).await;
                    }
                    settled => {
                        health.settle(settled, batch.len());
                        batch.clear();
                        take_more(&mut waiting, &mut batch, max);
                    }
                }
            }
        }
        // The end: each of the rest is tried once, as far as time allows.
        waiting.close();
        let rest = async {
            loop {
                take_more(&mut waiting, &mut batch, max);
                if batch.is_empty() {
                    return;
                }
                let count = batch.len();
                let settled = self.collector.take_spans(std::mem::take(&mut batch)).await;
                health.settle(settled, count);
            }
        };
        let _ = timeout(self.config.timeout, rest).await;
    }

    async fn carry_metrics(
        self,
        mut handle: watch::Receiver<Option<PrometheusHandle>>,
        since: u64,
    ) {
        let interval = self.config.metrics_interval;
        if interval.is_zero() {
            return;
        }
        let Some(Ok(handle)) = (self.stop)
            .run_until_cancelled(handle.wait_for(Option::is_some))
            .await
            .map(|handle| handle.map(|handle| handle.clone()))
        else {
            return;
        };
        let Some(handle) = handle else { return };
        let now = Wall::new();
        let mut health = Health::default();
        let mut due = tokio::time::interval(interval);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The last ones are those of the end.
            let ended = self.stop.run_until_cancelled(due.tick()).await.is_none();
            let until = now.nanos();
            let metrics = numbers::read(&handle.render(), Period { since, until });
            let call = self.collector.take_metrics(metrics);
            match timeout(self.config.timeout, call).await {
                Ok(Ok(())) => health.succeeded("metrics"),
                Ok(Err(Refused::ForNow(status) | Refused::ForGood(status))) => {
                    // The next ones say it all again.
                    health.failed("metrics", &status);
                }
                Err(_) => _ = health.failed("metrics", &Status::deadline_exceeded("too slow")),
            }
            if ended {
                return;
            }
        }
    }
}

fn take_more(waiting: &mut mpsc::Receiver<Recorded>, batch: &mut Vec<wire::Span>, max: usize) {
    while batch.len() < max
        && let Ok(next) = waiting.try_recv()
    {
        batch.push(next.into());
    }
}

/// Whether the collector is there: said when it changes, not at each call.
#[derive(Default)]
struct Health {
    failures: u32,
}

impl Health {
    /// Spans that were taken, or will never be.
    fn settle(&mut self, settled: Result<u64, Refused>, spans: usize) {
        let spans = spans as u64;
        match settled {
            Ok(refused) => {
                count("refused", refused);
                count("sent", spans.saturating_sub(refused));
                self.succeeded("spans");
            }
            Err(Refused::ForNow(status) | Refused::ForGood(status)) => {
                count("refused", spans);
                self.failed("spans", &status);
            }
        }
    }

    fn succeeded(&mut self, what: &'static str) {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!(what, "the collector takes them again");
        }
    }

    /// Answers how long to wait.
    fn failed(&mut self, what: &'static str, status: &Status) -> Duration {
        if self.failures == 0 {
            let (code, error) = (status.code(), status.message());
            tracing::warn!(what, ?code, error, "the collector does not take them");
        }
        let pause = PAUSE.saturating_mul(1 << self.failures.min(8));
        self.failures = self.failures.saturating_add(1);
        pause.min(PAUSE_MAX)
    }
}

fn count(result: &'static str, spans: u64) {
    metrics::counter!("otlp_spans_total", "result" => result).increment(spans);
}

/// The time of day in nanoseconds: the clock's milliseconds, carried on by the timer in between.
struct Wall {
    zero: Instant,
    /// What is to be added to the timer.
    offset: AtomicI64,
}

/// The clock has stepped where the two differ by more.
const STEP: i64 = 5_000_000;

impl Wall {
    fn new() -> Wall {
        Wall {
            zero: Instant::now(),
            offset: AtomicI64::new(clock_nanos()),
        }
    }

    fn nanos(&self) -> u64 {
        let timer = i64::try_from(self.zero.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let clock = clock_nanos();
        let mut now = timer.saturating_add(self.offset.load(Ordering::Relaxed));
        if now.abs_diff(clock) > STEP as u64 {
            self.offset.store(clock - timer, Ordering::Relaxed);
            now = clock;
        }
        u64::try_from(now).unwrap_or_default()
    }
}

fn clock_nanos() -> i64 {
    SystemClock.now().millis().saturating_mul(1_000_000)
}
