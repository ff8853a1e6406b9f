//! Log lines, metrics and traces of a process.

mod otlp;

use anyhow::{Context, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

pub use otlp::Config as OtlpConfig;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people: one line an event.
    #[default]
    Pretty,
    /// For machines: one JSON object a line.
    Json,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `pretty` or `json`.
    pub format: Format,
    /// A filter such as `info` or `info,boat=debug`.
    pub level: String,
    /// Traces and metrics for an OpenTelemetry collector.
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

/// Sends log lines to stderr from here on, and spans to the collector where one is set; once a process.
pub fn start_logs(config: &Config) -> Result<()> {
    let filter = EnvFilter::try_new(&config.level)
        .with_context(|| format!("log.level {:?} is no filter", config.level))?;
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match config.format {
        Format::Pretty => lines.with_target(true).boxed(),
        Format::Json => lines.json().boxed(),
    };
    let collector = otlp::start(&config.otlp)?;
    let log = tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .with(collector);
    tracing::subscriber::set_global_default(log).context("starting the log")
}

/// From a tenth of a millisecond to ten seconds.
const SECONDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Collects the metrics of this process from here on; `render()` of the handle is what `/metrics` says.
pub fn start_metrics() -> Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .context("buckets")?
        .install_recorder()
        .context("starting the metrics")?;
    otlp::export_metrics(&handle);
    Ok(handle)
}

/// Hands over what is still on its way to the collector; at the end of the process.
pub fn end() {
    otlp::end();
}
