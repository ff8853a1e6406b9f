//! The numbers of `/metrics` on their way to the collector.

use std::time::Duration;

use anyhow::Result;
use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource as WireResource;
use opentelemetry_sdk::Resource;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::Config;
use super::collector::connect;
use super::exporter::{Health, Wall};
use super::exposition::{Period, attribute, read, text};
use super::headers::Headers;

pub(super) struct Numbers {
    client: MetricsServiceClient<InterceptedService<Channel, Headers>>,
    resource: WireResource,
    health: Health,
    timeout: Duration,
    /// Start of the counting, in nanoseconds since 1970.
    start_ns: u64,
}

impl Numbers {
    /// Connects to the collector of metrics; `None` if none is set. Call it within a runtime.
    pub(super) fn connect(
        config: &Config,
        headers: Headers,
        resource: &Resource,
    ) -> Result<Option<Numbers>> {
        let Some(link) = config.metrics() else {
            return Ok(None);
        };
        let (channel, dialer) = connect(config, link)?;
        let attributes = resource.iter();
        let attributes =
            attributes.map(|(key, value)| attribute(key.as_str(), text(value.as_str())));
        Ok(Some(Numbers {
            client: MetricsServiceClient::with_interceptor(channel, headers),
            resource: WireResource {
                attributes: attributes.collect(),
                ..WireResource::default()
            },
            health: Health::new("metrics", dialer),
            timeout: config.timeout,
            start_ns: Wall::new().nanos(),
        }))
    }

    /// Sends the numbers every `interval` until `stop`, and once more then.
    pub(super) async fn carry(
        mut self,
        mut handle: watch::Receiver<Option<PrometheusHandle>>,
        interval: Duration,
        stop: CancellationToken,
    ) {
        let first = stop
            .run_until_cancelled(handle.wait_for(Option::is_some))
            .await;
        let first = first.and_then(|first| Some(first.ok()?.clone()));
        let Some(Some(handle)) = first else { return };
        let now = Wall::new();
        let mut ticker = tokio::time::interval(interval);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The numbers go out once more after `stop`, as of the end.
            let is_last = stop.run_until_cancelled(ticker.tick()).await.is_none();
            let (start, end) = (self.start_ns, now.nanos());
            self.send(read(&handle.render(), Period { start, end }))
                .await;
            if is_last {
                return;
            }
        }
    }

    /// Sends once, without a retry: the next numbers contain it all again.
    async fn send(&mut self, metrics: Vec<Metric>) {
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(InstrumentationScope {
                        name: "packetboat".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        match timeout(self.timeout, self.client.export(request)).await {
            Ok(Ok(_)) => self.health.succeeded(),
            Ok(Err(status)) => {
                let error = format!("{:?}: {}", status.code(), status.message());
                self.health.failed(&error);
            }
            Err(_) => self.health.failed("export timed out"),
        }
    }
}
