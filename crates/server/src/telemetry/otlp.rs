//! To an OpenTelemetry collector, by OTLP over gRPC: spans as they end, and the numbers of `/metrics`.
//!
//! The exporter has a thread of its own. Whoever records a span puts it into a bounded queue and goes on:
//! a collector that is slow or away costs the spans that find no room, and nothing else.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod numbers;
#[cfg(feature = "otlp")]
mod spans;
#[cfg(all(test, feature = "otlp"))]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(feature = "otlp")]
pub(super) use self::exporter::{end, export_metrics, start};
#[cfg(not(feature = "otlp"))]
pub(super) use self::without::{end, export_metrics, start};

/// What goes to an OpenTelemetry collector. Which messages are recorded is the boat's to say
/// (`boat.trace_share`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the collector listens for OTLP over gRPC: `http://host:port`. Unset: nothing is sent, and no
    /// message is recorded.
    pub endpoint: Option<String>,
    /// A file with what the collector wants as metadata of each call, a line `name: value` each.
    pub headers_file: Option<PathBuf>,
    /// The resource's `service.name`.
    pub service: String,
    /// The resource's `service.instance.id`. Unset: a new one at each start.
    pub instance: Option<String>,
    /// How long a call to the collector may take; then it is tried again. So long, too, the end of the
    /// process waits for the last one.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// How long spans wait for company.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Spans that wait; beyond it they are dropped and counted.
    pub spans_max: usize,
    /// Spans of one call.
    pub batch_max: usize,
    /// How often metrics are sent. Zero: never.
    #[serde(with = "humantime_serde")]
    pub metrics_interval: Duration,
    /// More attributes of the resource, such as `deployment.environment.name`.
    pub attributes: BTreeMap<String, String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            endpoint: None,
            headers_file: None,
            service: "packetboat".into(),
            instance: None,
            timeout: Duration::from_secs(5),
            linger: Duration::from_millis(500),
            spans_max: 8192,
            batch_max: 512,
            metrics_interval: Duration::from_secs(30),
            attributes: BTreeMap::new(),
        }
    }
}

impl Config {
    /// What cannot be, in words.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let endpoint = self.endpoint.as_deref()?;
        if !cfg!(feature = "otlp") {
            return Some(
                "log.otlp.endpoint is set, but this program was built without OTLP".into(),
            );
        }
        let rest = endpoint.strip_prefix("http://");
        let named = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with([':', '/']));
        (!named).then(|| {
            format!(
                "log.otlp.endpoint is {endpoint:?}: it must be http://host:port, without TLS. Let a collector \
                 beside this process take it, and speak TLS from there."
            )
        })
    }
}

/// The slim program: no collector, whatever the settings say (which are refused before).
#[cfg(not(feature = "otlp"))]
mod without {
    use anyhow::Result;
    use api::trace::Collector;
    use metrics_exporter_prometheus::PrometheusHandle;

    use super::Config;

    pub(crate) fn start(_: &Config) -> Result<Option<Collector>> {
        Ok(None)
    }

    pub(crate) fn export_metrics(_: &PrometheusHandle) {}

    pub(crate) fn end() {}
}
