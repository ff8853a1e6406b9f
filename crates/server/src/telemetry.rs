//! Log lines, metrics and traces of a process.

mod catalogue;
mod flood;
mod lines;
mod otlp;
mod process;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use self::flood::FloodFilter;

pub use otlp::Config as OtlpConfig;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text for people.
    #[default]
    Pretty,
    /// One JSON object per line, for machines.
    Json,
}

/// Section `log`: log lines on stderr.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Format of log lines.
    pub format: Format,
    /// Log filter, such as `info` or `info,boat=debug`. Read again on SIGHUP.
    pub level: String,
    pub otlp: otlp::Config,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            format: Format::Pretty,
            level: "info".into(),
            otlp: otlp::Config::default(),
        }
    }
}

/// Sends log lines to stderr from here on, and spans to the collector if one is set; once a
/// process.
pub fn start_logs(config: &Config) -> Result<()> {
    let filter = filter(&config.level)?;
    let collector = otlp::start(&config.otlp)?;
    let (level, level_handle) = reload::Layer::new(filter);
    let sink = lines::start(Box::new(move |level| Ok(level_handle.reload(level)?)))?;
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(sink);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match config.format {
        Format::Pretty => lines.with_target(true).with_filter(FloodFilter).boxed(),
        Format::Json => lines.json().with_filter(FloodFilter).boxed(),
    };
    let log = tracing_subscriber::registry()
        .with(lines)
        .with(level)
        .with(collector);
    tracing::subscriber::set_global_default(log).context("starting logging")?;
    lines::log_panics();
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(level).with_context(|| format!("log.level {level:?} is not a valid filter"))
}

/// Applies another `log.level` from here on.
///
/// # Errors
/// A level that is no filter: nothing changes.
pub fn set_level(level: &str) -> Result<()> {
    lines::set_level(filter(level)?)
}

/// Histogram buckets, from a tenth of a millisecond to ten seconds.
const SECONDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Pause between two rounds of upkeep.
const UPKEEP: Duration = Duration::from_secs(5);

fn prometheus() -> Result<PrometheusBuilder> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .context("buckets")
}

/// Collects the metrics of this process from here on; `render()` of the handle gives the text of
/// `/metrics`. Needs a runtime, on which samples go into buckets even if nobody scrapes.
pub fn start_metrics(service: &'static str) -> Result<PrometheusHandle> {
    let recorder = prometheus()?.install_recorder();
    let handle = recorder.context("starting the metrics")?;
    otlp::export_metrics(&handle);
    catalogue::describe();
    process::start();
    let version = env!("CARGO_PKG_VERSION");
    metrics::gauge!("packetboat_build_info", "version" => version, "service" => service).set(1);
    tokio::spawn(keep_up(handle.clone()));
    Ok(handle)
}

/// Puts samples into buckets regularly: the recorder keeps every sample of a histogram until then.
async fn keep_up(handle: PrometheusHandle) {
    let mut round = tokio::time::interval(UPKEEP);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        handle.run_upkeep();
        process::look();
        metrics::counter!("log_lines_dropped_total").absolute(lines::dropped_count());
        flood::report();
    }
}

/// Hands over spans, numbers and lines still on their way to the collector and to stderr; at the
/// end of the process.
pub fn end() {
    otlp::end();
    lines::end();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident memory of this process.
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages = statm.split(' ').nth(1).expect("a second field");
        pages.parse::<u64>().expect("a number") * 4096
    }

    // A process that nobody scraped kept sixteen bytes of each sample forever.
    #[tokio::test(start_paused = true)]
    async fn samples_that_nobody_scrapes_take_no_memory() {
        let recorder = prometheus().expect("builds").build_recorder();
        let upkeep = tokio::spawn(keep_up(recorder.handle()));
        let seconds =
            metrics::with_local_recorder(&recorder, || metrics::histogram!("upkeep_test_seconds"));
        let round = async || {
            (0..50_000).for_each(|_| seconds.record(0.001));
            tokio::time::sleep(UPKEEP).await;
        };
        // Warm-up: one round allocates the memory that the next uses again.
        for _ in 0..4 {
            round().await;
        }
        let resident_before = resident();
        for _ in 0..20 {
            round().await;
        }
        let grown = resident().saturating_sub(resident_before);
        upkeep.abort();
        assert!(grown < 4 << 20, "{grown} bytes of a million samples");
    }
}
