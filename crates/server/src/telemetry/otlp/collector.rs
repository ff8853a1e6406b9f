//! The way to the collector.

use protocol::settings::strike;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::Config;
use super::spans::{attribute, text};

/// Clones share one connection, which is made when there is something to say, and made again after it broke.
#[derive(Clone)]
pub(super) struct Collector {
    spans: TraceServiceClient<Channel>,
    metrics: MetricsServiceClient<Channel>,
    headers: MetadataMap,
    resource: Resource,
}

/// Why the collector did not take something.
#[derive(Debug)]
pub(super) enum Refused {
    /// It may take it later.
    ForNow(Status),
    ForGood(Status),
}

impl Collector {
    /// Connects when there is something to say. To be called within a runtime.
    pub(super) fn new(config: &Config, endpoint: &str, headers: MetadataMap) -> Result<Collector> {
        let channel = Endpoint::from_shared(endpoint.to_owned())
            .with_context(|| format!("log.otlp.endpoint {:?} is no address", strike(endpoint)))?
            .connect_timeout(config.timeout)
            .timeout(config.timeout)
            .keep_alive_timeout(config.timeout)
            .http2_keep_alive_interval(Duration::from_secs(30))
            .connect_lazy();
        Ok(Collector {
            spans: TraceServiceClient::new(channel.clone()),
            metrics: MetricsServiceClient::new(channel),
            headers,
            resource: resource(config),
        })
    }

    /// Answers how many of them it refused, having taken the others.
    pub(super) async fn take_spans(&self, spans: Vec<Span>) -> Result<u64, Refused> {
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope()),
                    spans,
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let answer = self.spans.clone().export(self.with_headers(request)).await;
        let partly = answer.map_err(judge)?.into_inner().partial_success;
        let refused = partly.map_or(0, |partly| partly.rejected_spans);
        Ok(u64::try_from(refused).unwrap_or_default())
    }

    pub(super) async fn take_metrics(&self, metrics: Vec<Metric>) -> Result<(), Refused> {
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        let answer = self
            .metrics
            .clone()
            .export(self.with_headers(request))
            .await;
        answer.map_err(judge)?;
        Ok(())
    }

    fn with_headers<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request
    }
}

/// As the OTLP specification tells them apart.
fn judge(status: Status) -> Refused {
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        // What tonic says of a connection that breaks.
        | Code::Unknown => Refused::ForNow(status),
        _ => Refused::ForGood(status),
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "packetboat".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn resource(config: &Config) -> Resource {
    let new = || uuid::Uuid::new_v4().to_string();
    let instance = config.instance.clone().unwrap_or_else(new);
    let own = [
        ("service.name", config.service.as_str()),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", &instance),
    ];
    let more = config.attributes.iter();
    let more = more.map(|(key, value)| (key.as_str(), value.as_str()));
    Resource {
        attributes: (own.into_iter().chain(more))
            .map(|(key, value)| attribute(key, text(value)))
            .collect(),
        ..Resource::default()
    }
}

/// Reads `name: value` lines; empty ones and those that begin with `#` are passed over. Values are never
/// repeated in an error.
pub(super) fn read_headers(file: &Path) -> Result<MetadataMap> {
    let lines = std::fs::read_to_string(file)
        .with_context(|| format!("reading log.otlp.headers_file {}", file.display()))?;
    let mut headers = MetadataMap::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(':').and_then(|(name, value)| {
            let name: AsciiMetadataKey = name.trim().to_ascii_lowercase().parse().ok()?;
            let value: AsciiMetadataValue = value.trim().parse().ok()?;
            Some((name, value))
        });
        let Some((name, value)) = header else {
            let (file, number) = (file.display(), number + 1);
            bail!("{file}, line {number}: a header is `name: value`");
        };
        headers.insert(name, value);
    }
    Ok(headers)
}
