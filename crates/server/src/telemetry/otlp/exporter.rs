//! Spans and numbers on their way to the collector.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use api::trace::{self, Sink};
use backend::clock::{Clock, SystemClock};
use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{RetryPolicy, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};
use protocol::trace::Span;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::Config;
use super::collector::{Dialer, connect};
use super::headers::{self, Headers};
use super::numbers::Numbers;
use super::spans;
use crate::settings::variables::{RESOURCE_ATTRIBUTES, pairs};

/// Pause between tries to reach a collector that is away; doubles up to `PAUSE_MAX`.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const JITTER: Duration = Duration::from_millis(250);
/// Limit of tries to reach a collector that is away: the life of the process. The queue is the
/// bound.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Divisor of [`Config::timeout`]: a call under way has this part of it at the end.
const LAST: u32 = 4;
/// Pause between two looks at the file of headers.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Exporter of this process: one, like the log that it goes with.
static RUNNING: OnceLock<Exporter> = OnceLock::new();

/// Starts the exporter of this process; `None` if no collector of spans is set.
pub(crate) fn start(config: &Config) -> Result<Option<trace::Collector>> {
    let Some(exporter) = Exporter::start(config)? else {
        return Ok(None);
    };
    let sink = exporter.sink.clone();
    RUNNING
        .set(exporter)
        .ok()
        .context("the exporter is already running")?;
    Ok(sink.map(|sink| trace::Collector::new(sink)))
}

/// Sends the numbers of `/metrics` to the collector from here on, if one is set.
pub(crate) fn export_metrics(handle: &PrometheusHandle) {
    if let Some(exporter) = RUNNING.get() {
        exporter.export_metrics(handle);
    }
}

/// Waits, for a bounded time, until the collector has all that is on its way.
pub(crate) fn end() {
    if let Some(exporter) = RUNNING.get() {
        exporter.end();
    }
}

pub(super) struct Exporter {
    pub(super) sink: Option<Arc<Queue>>,
    handle: watch::Sender<Option<PrometheusHandle>>,
    /// Ends tries that would go on forever.
    stop: CancellationToken,
    /// Ends the thread, once spans have had their time.
    shutdown: CancellationToken,
    timeout: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    pub(super) fn start(config: &Config) -> Result<Option<Exporter>> {
        if config.traces().is_none() && config.metrics().is_none() {
            return Ok(None);
        }
        let variable = headers::variable();
        let headers = Headers::load(config.headers_file.as_deref(), variable.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let _guard = runtime.enter();
        let (stop, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let resource = resource();
        let sink = match config.traces() {
            Some(_) => Some(queue(config, &headers, &resource, &stop)?),
            None => None,
        };
        let (handle, handle_updates) = watch::channel(None);
        let numbers = Numbers::connect(config, headers.clone(), &resource)?;
        let (numbers_stop, last) = (stop.clone(), shutdown.clone());
        let interval = config.metrics_interval;
        let run = async move {
            let carry = async {
                if let Some(numbers) = numbers {
                    numbers.carry(handle_updates, interval, numbers_stop).await;
                }
                last.cancelled().await;
            };
            tokio::select! {
                biased;
                () = carry => {}
                () = reload_headers(headers) => {}
            }
        };
        drop(_guard);
        let thread = std::thread::Builder::new().name("otlp".into());
        let thread = thread.spawn(move || runtime.block_on(run))?;
        Ok(Some(Exporter {
            sink,
            handle,
            stop,
            shutdown,
            timeout: config.timeout,
            thread: Mutex::new(Some(thread)),
        }))
    }

    pub(super) fn export_metrics(&self, handle: &PrometheusHandle) {
        self.handle.send_replace(Some(handle.clone()));
    }

    /// Blocks for [`Config::timeout`] at most, and a moment.
    pub(super) fn end(&self) {
        self.stop.cancel();
        if let Some(sink) = &self.sink {
            // The exporter has counted the outcome already.
            let _ = sink.processor.shutdown_with_timeout(self.timeout);
        }
        self.shutdown.cancel();
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // A thread that panicked leaves nothing to wait for.
            let _ = thread.join();
        }
    }
}

/// Reads the headers again and again, until dropped.
async fn reload_headers(headers: Headers) {
    let mut ticker = tokio::time::interval(RELOAD_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_known = false;
    loop {
        ticker.tick().await;
        let result = headers.reload();
        if let (Err(error), false) = (&result, is_known) {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "cannot reload the collector's headers; keeping the current ones"
            );
        }
        is_known = result.is_err();
    }
}

/// Resource of this process: `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` win over the
/// defaults.
pub(super) fn resource() -> Resource {
    let attributes = std::env::var(RESOURCE_ATTRIBUTES).ok();
    let attributes = pairs(attributes.as_deref()).into_iter().flatten();
    let service = std::env::var("OTEL_SERVICE_NAME").ok();
    let service = service.filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "packetboat"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", uuid::Uuid::new_v4().to_string()),
        ])
        .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value)))
        .with_attributes(service.map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// Spans on their way out.
pub(super) struct Queue {
    processor: BatchSpanProcessor,
    pending_count: Arc<AtomicUsize>,
    max: usize,
    scope: InstrumentationScope,
    now: Wall,
}

impl Sink for Queue {
    fn record(&self, span: Span) {
        let at = self.now.nanos();
        // The processor has room for all spans that pass here: it drops none, and counts none.
        if self.pending_count.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.pending_count.fetch_sub(1, Ordering::Relaxed);
            return count("dropped", 1);
        }
        self.processor.on_end(spans::data(&span, at, &self.scope));
    }
}

fn queue(
    config: &Config,
    headers: &Headers,
    resource: &Resource,
    stop: &CancellationToken,
) -> Result<Arc<Queue>> {
    let link = config
        .traces()
        .context("cannot reach the collector for spans")?;
    let (channel, dialer) = connect(config, link)?;
    let retry = RetryPolicy::recommended()
        .with_max_retries(usize::MAX)
        .with_initial_delay(RETRY_PAUSE)
        .with_max_delay(PAUSE_MAX)
        .with_max_jitter(JITTER);
    let mut inner = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_channel(channel)
        // Limit of all tries together; that of one call is the channel's.
        .with_timeout(FOR_EVER)
        .with_retry_policy(retry)
        .with_interceptor(headers.clone())
        .build()
        .context("creating the span exporter")?;
    inner.set_resource(resource);
    let pending_count = Arc::new(AtomicUsize::new(0));
    let exporter = PatientExporter {
        inner: Arc::new(inner),
        health: Arc::new(Health::new("spans", dialer)),
        runtime: Handle::current(),
        stop: stop.clone(),
        pending_count: pending_count.clone(),
        timeout: config.timeout,
    };
    let max = config.spans_max;
    let batch = BatchConfigBuilder::default()
        .with_max_queue_size(max)
        .with_max_export_batch_size(config.batch_max)
        .with_scheduled_delay(config.linger)
        .build();
    Ok(Arc::new(Queue {
        processor: BatchSpanProcessor::new(exporter, batch),
        pending_count,
        max,
        scope: spans::scope(),
        now: Wall::new(),
    }))
}

/// The exporter of OpenTelemetry, on the runtime of its connection, with an end to its tries.
struct PatientExporter {
    inner: Arc<opentelemetry_otlp::SpanExporter>,
    health: Arc<Health>,
    runtime: Handle,
    stop: CancellationToken,
    pending_count: Arc<AtomicUsize>,
    timeout: Duration,
}

impl std::fmt::Debug for PatientExporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PatientExporter").finish_non_exhaustive()
    }
}

impl SpanExporter for PatientExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let (inner, health) = (self.inner.clone(), self.health.clone());
        let (stop, limit) = (self.stop.clone(), self.timeout);
        let call = async move {
            let mut tries = std::pin::pin!(inner.export(batch.clone()));
            tokio::select! {
                biased;
                outcome = health.watch(&mut tries, limit) => return outcome,
                () = stop.cancelled() => {}
            }
            // At the end, a call under way gets its answer, and a pause between two is cut short.
            if let Ok(outcome) = timeout(limit / LAST, tries).await {
                return outcome;
            }
            let retry = timeout(limit, inner.export(batch)).await;
            retry.unwrap_or(Err(OTelSdkError::Timeout(limit)))
        };
        let join_result = self.runtime.spawn(call).await;
        let outcome = join_result.unwrap_or_else(|error| {
            let error = error.to_string();
            Err(OTelSdkError::InternalFailure(error))
        });
        self.pending_count.fetch_sub(spans, Ordering::Relaxed);
        match &outcome {
            Ok(()) => {
                count("sent", spans as u64);
                self.health.succeeded();
            }
            Err(error) => {
                count("refused", spans as u64);
                self.health.failed(&error.to_string());
            }
        }
        outcome
    }
}

/// Presence of the collector: logged when it changes, not at each call.
pub(super) struct Health {
    signal: &'static str,
    is_away: Mutex<bool>,
    dialer: Dialer,
}

impl Health {
    pub(super) fn new(signal: &'static str, dialer: Dialer) -> Health {
        Health {
            signal,
            is_away: Mutex::new(false),
            dialer,
        }
    }

    /// Waits for an export, and logs it if it takes longer than `limit`.
    async fn watch<T>(&self, export: impl Future<Output = T>, limit: Duration) -> T {
        let mut export = std::pin::pin!(export);
        if let Ok(outcome) = timeout(limit, &mut export).await {
            return outcome;
        }
        self.failed("no success yet, retrying");
        export.await
    }

    pub(super) fn succeeded(&self) {
        if self.turn(false) {
            tracing::info!(what = self.signal, "export to the collector works again");
        }
    }

    pub(super) fn failed(&self, error: &str) {
        if self.turn(true) {
            let connection = self.dialer.trouble();
            let connection = connection.as_deref().unwrap_or("up");
            let signal = self.signal;
            tracing::warn!(
                what = signal,
                error,
                connection,
                "cannot export to the collector"
            );
        }
    }

    /// Notes the state, and returns true if it is new.
    fn turn(&self, is_away: bool) -> bool {
        let Ok(mut current) = self.is_away.lock() else {
            return false;
        };
        std::mem::replace(&mut *current, is_away) != is_away
    }
}

fn count(result: &'static str, spans: u64) {
    metrics::counter!("otlp_spans_total", "result" => result).increment(spans);
}

/// Time of day in nanoseconds: the clock's milliseconds, carried on by the timer in between.
pub(super) struct Wall {
    zero: Instant,
    /// Nanoseconds to add to the timer.
    offset: AtomicI64,
}

/// Difference between clock and timer, in nanoseconds, beyond which the clock has stepped.
const STEP: i64 = 5_000_000;

impl Wall {
    pub(super) fn new() -> Wall {
        Wall {
            zero: Instant::now(),
            offset: AtomicI64::new(clock_nanos()),
        }
    }

    pub(super) fn nanos(&self) -> u64 {
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
