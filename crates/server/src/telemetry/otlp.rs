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

use protocol::settings::Link;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "otlp")]
pub(super) use self::exporter::{end, export_metrics, start};
#[cfg(not(feature = "otlp"))]
pub(super) use self::without::{end, export_metrics, start};

/// Section `log.otlp`: an OpenTelemetry collector. `boat.trace_share` says which messages are
/// recorded.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the collector, OTLP over gRPC: `http://host:port`. Unset: nothing is sent, and no
    /// message is recorded.
    #[schemars(extend("examples" = ["http://127.0.0.1:4317"]))]
    pub endpoint: Option<Link>,
    /// File with metadata for each call, a line `name: value` each.
    #[schemars(extend("examples" = ["/etc/packetboat/otlp/headers"]))]
    pub headers_file: Option<PathBuf>,
    /// `service.name` of the resource.
    pub service: String,
    /// `service.instance.id` of the resource. Unset: a new one at each start.
    #[schemars(extend("examples" = ["boat-1"]))]
    pub instance: Option<String>,
    /// Time for one call to the collector, which is then repeated; and for the last one when the
    /// process ends.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub timeout: Duration,
    /// Wait of spans for company.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub linger: Duration,
    /// Spans that wait; further ones are dropped and counted.
    pub spans_max: usize,
    /// Spans of one call.
    pub batch_max: usize,
    /// Interval of sending metrics. Zero: never.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
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
        let endpoint = self.endpoint.as_ref()?;
        if !cfg!(feature = "otlp") {
            return Some(
                "log.otlp.endpoint is set, but this program was built without OTLP".into(),
            );
        }
        let rest = endpoint.expose().strip_prefix("http://");
        let named = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with([':', '/']));
        (!named).then(|| {
            format!(
                "log.otlp.endpoint is {endpoint:?}: it must be http://host:port, without TLS. Let a collector \
                 beside this process take it, and speak TLS from there."
            )
        })
    }
}

#[cfg(feature = "otlp")]
impl Config {
    /// Reads the headers as the exporter does at start.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is no `name: value`; no value is repeated.
    pub(crate) fn check_headers(&self) -> anyhow::Result<()> {
        let headers = self.headers_file.as_deref().map(collector::read_headers);
        headers.transpose().map(drop)
    }
}

/// The slim program: no collector, whatever the settings say (which are refused before).
#[cfg(not(feature = "otlp"))]
mod without {
    use anyhow::Result;
    use api::trace::Collector;
    use metrics_exporter_prometheus::PrometheusHandle;

    use super::Config;

    impl Config {
        pub(crate) fn check_headers(&self) -> Result<()> {
            Ok(())
        }
    }

    pub(crate) fn start(_: &Config) -> Result<Option<Collector>> {
        Ok(None)
    }

    pub(crate) fn export_metrics(_: &PrometheusHandle) {}

    pub(crate) fn end() {}
}
