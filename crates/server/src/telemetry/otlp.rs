//! Export to an OpenTelemetry collector, by OTLP over gRPC: spans as they end, and the numbers of
//! `/metrics`.
//!
//! Spans go through the batch processor and the exporter of OpenTelemetry's own crates, numbers
//! through its messages. The recorder of a span puts it into a bounded queue and goes on: a
//! collector that is slow or away costs the spans that find no room, and nothing else.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod exposition;
#[cfg(feature = "otlp")]
mod headers;
#[cfg(feature = "otlp")]
mod numbers;
#[cfg(feature = "otlp")]
mod spans;
#[cfg(all(test, feature = "otlp"))]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use backend::tls::ClientTlsConfig;
use protocol::settings::{Link, Problems};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "otlp")]
pub(super) use self::exporter::{end, export_metrics, start};
#[cfg(not(feature = "otlp"))]
pub(super) use self::without::{end, export_metrics, start};

/// Section `log.otlp`: export to an OpenTelemetry collector. `boat.trace_share` decides which
/// messages are recorded.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the collector, OTLP over gRPC: `http://host:port`, or `https://host:port` with
    /// `log.otlp.tls`. Unset: `OTEL_EXPORTER_OTLP_ENDPOINT`; without that, nothing is exported and
    /// no message is recorded.
    #[schemars(extend("examples" = ["http://127.0.0.1:4317"]))]
    pub endpoint: Option<Link>,
    /// Address of a separate collector for spans (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`). Unset:
    /// `endpoint`.
    #[serde(skip)]
    pub traces_endpoint: Option<Link>,
    /// Likewise for metrics (`OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`).
    #[serde(skip)]
    pub metrics_endpoint: Option<Link>,
    /// File with metadata for each call, one `name: value` per line. Read again when it changes.
    #[schemars(extend("examples" = ["/etc/packetboat/otlp/headers"]))]
    pub headers_file: Option<PathBuf>,
    /// Timeout of one call to the collector (`OTEL_EXPORTER_OTLP_TIMEOUT`), which is then repeated.
    /// Also the time for the last call when the process ends.
    #[serde(skip)]
    pub timeout: Duration,
    /// Time that a span waits for others, so that they share a call.
    #[serde(skip)]
    pub linger: Duration,
    /// Maximum number of spans that wait for export; further ones are dropped and counted.
    #[serde(skip)]
    pub spans_max: usize,
    /// Maximum number of spans in one call.
    #[serde(skip)]
    pub batch_max: usize,
    /// Interval between exports of metrics (`OTEL_METRIC_EXPORT_INTERVAL`).
    #[serde(skip)]
    pub metrics_interval: Duration,
    /// Section `log.otlp.tls`: TLS to the collector. Files are read for each new connection.
    pub tls: ClientTlsConfig,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            endpoint: None,
            traces_endpoint: None,
            metrics_endpoint: None,
            headers_file: None,
            timeout: Duration::from_secs(5),
            linger: Duration::from_millis(500),
            spans_max: 8192,
            batch_max: 512,
            metrics_interval: Duration::from_secs(30),
            tls: ClientTlsConfig::default(),
        }
    }
}

impl Config {
    /// Collector of spans.
    pub(crate) fn traces(&self) -> Option<&Link> {
        self.traces_endpoint.as_ref().or(self.endpoint.as_ref())
    }

    /// Collector of metrics.
    pub(crate) fn metrics(&self) -> Option<&Link> {
        self.metrics_endpoint.as_ref().or(self.endpoint.as_ref())
    }

    /// Addresses of the collectors in use, without credentials.
    #[cfg(feature = "cluster")]
    pub(crate) fn collectors(&self) -> Vec<String> {
        let links = self.traces().into_iter().chain(self.metrics());
        let address = |link: &Link| {
            let address = link.to_string();
            let host = address.rsplit_once('@').map(|(_, host)| host.to_owned());
            host.unwrap_or(address)
        };
        links.map(address).collect()
    }

    /// Turns all exports off.
    pub(crate) fn disable(&mut self) {
        self.endpoint = None;
        self.traces_endpoint = None;
        self.metrics_endpoint = None;
    }

    /// Settings that cannot work, by names of this section. Reads no file.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Some(endpoint) = &self.endpoint
            && let Some((reason, remedy)) = self.refusal(endpoint)
        {
            problems.refuse("endpoint", format!("{endpoint:?}"), reason, remedy);
        }
        problems.section("tls", self.tls.problems());
        problems
    }

    /// Reason against an endpoint, and the remedy.
    pub(crate) fn refusal(&self, endpoint: &Link) -> Option<(&'static str, &'static str)> {
        let endpoint = endpoint.expose();
        if !cfg!(feature = "otlp") {
            let reason = "this binary was built without OTLP";
            return Some((reason, "Build with the feature otlp, or leave it unset"));
        }
        let (is_secure, host) = match endpoint.split_once("://") {
            Some(("http", host)) => (false, host),
            Some(("https", host)) => (true, host),
            _ => (false, ""),
        };
        if host.is_empty() || host.starts_with([':', '/']) {
            let reason = "not a collector address";
            return Some((reason, "Use http://host:port or https://host:port"));
        }
        match (is_secure, self.tls.is_on()) {
            (true, false) => Some((
                "no root certificates configured",
                "Set log.otlp.tls.ca_file; those of the operating system are in \
                 /etc/ssl/certs/ca-certificates.crt",
            )),
            (false, true) => Some((
                "log.otlp.tls is set, but this address is without TLS",
                "Use https://, or remove log.otlp.tls",
            )),
            _ => None,
        }
    }
}

#[cfg(feature = "otlp")]
impl Config {
    /// Reads the headers as the exporter does at start.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is no `name: value`; no value is repeated.
    pub(crate) fn check_headers(&self) -> anyhow::Result<()> {
        let collector = self.traces().or_else(|| self.metrics());
        let variable = collector.and_then(|_| headers::variable());
        headers::Headers::load(self.headers_file.as_deref(), variable.as_deref()).map(drop)
    }
}

/// The slim program: no collector (settings that name one are refused before).
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
