//! The exporter against a collector of our own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::trace::Sink;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1 as wire;
use protocol::trace::{Span, Step};
use protocol::{MessageId, Platform, TraceContext};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, timeout};
use tonic::service::Interceptor;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::Config;
use super::exporter::Exporter;
use super::exposition::{attribute, text};
use super::headers::Headers;

/// Time limit, on the slowest machine, for anything that should happen soon. Only a failing test
/// waits that long.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Collector that keeps the requests it receives.
#[derive(Clone, Default)]
struct RequestCollector(Arc<Mutex<Inbox>>);

#[derive(Default)]
struct Inbox {
    traces: Vec<ExportTraceServiceRequest>,
    metrics: Vec<ExportMetricsServiceRequest>,
    tenants: Vec<String>,
    /// Answers to the next calls, the last one first.
    refusals: Vec<Status>,
}

impl RequestCollector {
    fn take<T>(&self, request: Request<T>, keep: impl FnOnce(&mut Inbox, T)) -> Result<(), Status> {
        let mut inbox = self.0.lock().expect("no panic");
        if let Some(refusal) = inbox.refusals.pop() {
            return Err(refusal);
        }
        let tenant = request.metadata().get("x-tenant");
        let tenant = tenant.and_then(|tenant| tenant.to_str().ok());
        inbox.tenants.extend(tenant.map(str::to_owned));
        keep(&mut inbox, request.into_inner());
        Ok(())
    }

    fn spans(&self) -> Vec<wire::Span> {
        let inbox = self.0.lock().expect("no panic");
        let resources = inbox
            .traces
            .iter()
            .flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

#[tonic::async_trait]
impl TraceService for RequestCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(request, |inbox, traces| inbox.traces.push(traces))?;
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for RequestCollector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.take(request, |inbox, metrics| inbox.metrics.push(metrics))?;
        Ok(Response::new(Default::default()))
    }
}

fn listen() -> (RequestCollector, SocketAddr) {
    let (silent, address) = no_listener();
    (listen_at(silent), address)
}

/// Has a collector listen at the address of this socket.
fn listen_at(silent: TcpSocket) -> RequestCollector {
    let listener = silent.listen(16).expect("it listens");
    let collector = RequestCollector::default();
    let server = Server::builder()
        .add_service(TraceServiceServer::new(collector.clone()))
        .add_service(MetricsServiceServer::new(collector.clone()))
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(server);
    collector
}

/// An address at which nobody listens, as long as the socket keeps it.
fn no_listener() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(any_port()).expect("a port");
    let address = socket.local_addr().expect("bound");
    (socket, address)
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn config(collector: SocketAddr) -> Config {
    Config {
        endpoint: Some(format!("http://{collector}").as_str().into()),
        linger: Duration::from_millis(10),
        timeout: TEST_TIMEOUT,
        ..Config::default()
    }
}

fn started(config: &Config) -> Exporter {
    let exporter = Exporter::start(config).expect("it starts");
    exporter.expect("an endpoint is set")
}

fn sink(exporter: &Exporter) -> &dyn Sink {
    exporter.sink.as_deref().expect("spans go somewhere")
}

fn span(number: u64) -> Span {
    let root = TraceContext::root(1, number, 3);
    let context = root.step(Step::Deliver, &[]);
    let duration = Duration::from_millis(20);
    Span::new(Step::Deliver, context, Some(root.span), duration, "acked")
}

async fn eventually<T>(subject: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while Instant::now() < deadline {
        if let Some(answer) = ask() {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in time: {subject}");
}

async fn ended(exporter: Exporter) {
    tokio::task::spawn_blocking(move || exporter.end())
        .await
        .expect("no panic");
}

#[tokio::test]
async fn spans_reach_the_collector_as_they_are() {
    let (collector, address) = listen();
    let dir = tempfile::tempdir().expect("a directory");
    let headers = dir.path().join("headers");
    std::fs::write(&headers, "# who we are\n\nX-Tenant: harbour \n").expect("a file");
    let exporter = started(&Config {
        headers_file: Some(headers),
        ..config(address)
    });
    let sent_span = Span {
        ended_ago: Duration::from_millis(5),
        is_failure: true,
        outcome: "retried",
        message: Some(MessageId::new(77).expect("positive")),
        conversation: Some("private"),
        platform: Some(Platform::Ios),
        record: Some((3, 1042)),
        attempt: Some(2),
        events: vec![("pushed", Duration::from_millis(15))],
        ..span(9)
    };
    sink(&exporter).record(sent_span.clone());
    let received_span = eventually("a span", || collector.spans().pop()).await;
    ended(exporter).await;

    assert_eq!(received_span.name, "deliver");
    assert_eq!(received_span.trace_id, sent_span.context.trace.to_bytes());
    assert_eq!(received_span.span_id, sent_span.context.span.to_bytes());
    assert_eq!(
        Some(received_span.parent_span_id.clone()),
        sent_span.parent.map(|p| p.to_bytes().to_vec())
    );
    let length = received_span.end_time_unix_nano - received_span.start_time_unix_nano;
    assert_eq!(
        Duration::from_nanos(length),
        sent_span.began_ago - sent_span.ended_ago
    );
    let [event] = &received_span.events[..] else {
        panic!("one event: {received_span:?}");
    };
    assert_eq!(event.name, "pushed");
    assert_eq!(
        event.time_unix_nano - received_span.start_time_unix_nano,
        5_000_000
    );
    assert_eq!(received_span.status.expect("it failed").message, "retried");
    for (key, value) in [
        ("packetboat.outcome", "retried"),
        ("messaging.message.id", "77"),
        ("packetboat.conversation.kind", "private"),
        ("packetboat.platform", "ios"),
        ("messaging.destination.partition.id", "3"),
    ] {
        assert!(
            received_span
                .attributes
                .contains(&attribute(key, text(value))),
            "{key}"
        );
    }
    let inbox = collector.0.lock().expect("no panic");
    assert_eq!(inbox.tenants, ["harbour"]);
    let resource = inbox.traces[0].resource_spans[0].resource.clone();
    let attributes = resource.expect("a resource").attributes;
    let service = attribute("service.name", text("packetboat"));
    assert!(attributes.contains(&service), "{attributes:?}");
}

#[tokio::test]
async fn the_numbers_of_metrics_reach_the_collector() {
    let (collector, address) = listen();
    let exporter = started(&Config {
        metrics_interval: Duration::from_millis(50),
        ..config(address)
    });
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        metrics::counter!("boat_sends_total").increment(3);
    });
    exporter.export_metrics(&recorder.handle());
    let request = eventually("metrics", || {
        collector.0.lock().expect("no panic").metrics.pop()
    })
    .await;
    ended(exporter).await;
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    assert_eq!(metrics[0].name, "boat_sends_total");
}

#[tokio::test]
async fn pending_spans_arrive_at_the_end() {
    let (collector, address) = listen();
    let exporter = started(&Config {
        linger: Duration::from_secs(3600),
        batch_max: 10,
        ..config(address)
    });
    for number in 0..35 {
        sink(&exporter).record(span(number));
    }
    ended(exporter).await;
    assert_eq!(collector.spans().len(), 35);
}

// A dead collector costs the spans that find no room, and nothing else: whoever waited for it, at
// the end, too, would wait for ever.
#[tokio::test]
async fn a_dead_collector_holds_nobody_up() {
    let (_silent, dead_address) = no_listener();
    let exporter = started(&Config {
        spans_max: 100,
        batch_max: 10,
        timeout: Duration::from_secs(2),
        ..config(dead_address)
    });
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        for number in 0..20_000 {
            sink(&exporter).record(span(number));
        }
    });
    let numbers = recorder.handle().render();
    let dropped_spans = numbers
        .lines()
        .find_map(|line| line.strip_prefix("otlp_spans_total{result=\"dropped\"} "));
    let dropped_spans: u64 = dropped_spans.expect("counted").parse().expect("a number");
    assert!((19_800..20_000).contains(&dropped_spans), "{dropped_spans}");
    timeout(TEST_TIMEOUT, ended(exporter))
        .await
        .expect("it ends");
}

#[tokio::test]
async fn a_collector_that_comes_back_is_told_what_waited() {
    let (silent, address) = no_listener();
    let exporter = started(&config(address));
    for number in 0..5 {
        sink(&exporter).record(span(number));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let collector = listen_at(silent);
    eventually("all spans", || (collector.spans().len() == 5).then_some(())).await;
    ended(exporter).await;
}

#[tokio::test]
async fn spans_that_are_refused_for_good_do_not_hold_up_the_others() {
    let (collector, address) = listen();
    // The last one comes first.
    let refusals = [
        Status::invalid_argument("nonsense"),
        Status::unavailable("in a moment"),
    ];
    collector
        .0
        .lock()
        .expect("no panic")
        .refusals
        .extend(refusals);
    let exporter = started(&Config {
        batch_max: 1,
        ..config(address)
    });
    for number in 0..3 {
        sink(&exporter).record(span(number));
    }
    let received_spans = eventually("the other spans", || {
        let spans = collector.spans();
        (spans.len() == 2).then_some(spans)
    })
    .await;
    let ids: Vec<_> = received_spans
        .iter()
        .map(|span| span.trace_id.clone())
        .collect();
    assert_eq!(
        ids,
        [1, 2].map(|number| span(number).context.trace.to_bytes())
    );
    ended(exporter).await;
}

/// A certificate for `localhost` that is its own root, in `NAME.crt` and `NAME.key`.
fn certificate(dir: &Path, name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    std::fs::write(dir.join(format!("{name}.crt")), certificate.cert.pem()).expect("written");
    let key = certificate.signing_key.serialize_pem();
    std::fs::write(dir.join(format!("{name}.key")), key).expect("written");
    certificate
}

/// Accepts the first TLS connection, from a client with the certificate `client`.
async fn listen_in_tls(
    own: &rcgen::CertifiedKey<rcgen::KeyPair>,
    client: &rcgen::CertifiedKey<rcgen::KeyPair>,
) -> (RequestCollector, u16) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(client.cert.der().clone()).expect("a root");
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    );
    let key = own.signing_key.serialize_der().try_into().expect("a key");
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(clients.build().expect("a verifier"))
        .with_single_cert(vec![own.cert.der().clone()], key)
        .expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(any_port()).await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let collector = RequestCollector::default();
    let service = TraceServiceServer::new(collector.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let one = tokio_stream::once(Ok::<_, std::io::Error>(stream));
            let server = Server::builder().add_service(service.clone());
            tokio::spawn(server.serve_with_incoming(one));
        }
    });
    (collector, port)
}

#[tokio::test]
async fn a_collector_in_tls_gets_spans_once_the_files_are_right() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = certificate(dir.path(), "collector");
    let client = certificate(dir.path(), "client");
    let (collector, port) = listen_in_tls(&own, &client).await;
    // No connection yet: the root is another one.
    certificate(dir.path(), "ca");
    let path = |name: &str| Some(dir.path().join(name));
    let config = Config {
        endpoint: Some(format!("https://localhost:{port}").as_str().into()),
        tls: backend::tls::ClientTlsConfig {
            ca_file: path("ca.crt"),
            cert_file: path("client.crt"),
            key_file: path("client.key"),
        },
        ..config(any_port())
    };
    assert!(config.problems().is_empty());
    let exporter = started(&config);
    sink(&exporter).record(span(1));
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(collector.spans().is_empty(), "nobody trusts it");
    std::fs::write(dir.path().join("ca.crt"), own.cert.pem()).expect("written");
    eventually("a span", || collector.spans().pop()).await;
    ended(exporter).await;
}

#[tokio::test]
async fn headers_are_read_again_and_the_file_wins_over_the_variable() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("headers");
    std::fs::write(&file, "x-tenant: harbour\n").expect("written");
    let variable = "x-tenant=sea,x-kind=a%20b";
    let mut headers = Headers::load(Some(&file), Some(variable)).expect("headers");
    let mut sent_header = |name: &str| {
        let request = headers.call(Request::new(())).expect("a request");
        let value = request.metadata().get(name).expect("a header");
        value.to_str().expect("text").to_owned()
    };
    assert_eq!(sent_header("x-tenant"), "harbour");
    assert_eq!(sent_header("x-kind"), "a b");
    std::fs::write(&file, "x-tenant: pier\n").expect("written");
    let second_headers = headers.clone();
    second_headers.reload().expect("read");
    std::fs::write(&file, "nonsense").expect("written");
    assert!(second_headers.reload().is_err(), "the last ones stay");
    let mut headers = second_headers;
    let request = headers.call(Request::new(())).expect("a request");
    let tenant = request.metadata().get("x-tenant").expect("a header");
    assert_eq!(tenant.to_str().ok(), Some("pier"));
    assert!(!format!("{request:?}").contains("pier"), "{request:?}");
    assert!(Headers::load(None, Some("x-key secret")).is_err());
}

#[test]
fn endpoints_and_headers_that_cannot_be_are_named() {
    let endpoint = |endpoint: &str| {
        let endpoint = Some(endpoint.into());
        let config = Config {
            endpoint,
            ..Config::default()
        };
        let problems = config.problems();
        (!problems.is_empty()).then(|| problems.to_string())
    };
    assert_eq!(endpoint("http://collector:4317"), None);
    // TLS wants roots.
    for wrong in [
        "https://collector:4317",
        "collector:4317",
        "http://",
        "http://:4317",
        "",
    ] {
        let error_text = endpoint(wrong).expect(wrong);
        assert!(error_text.starts_with("endpoint is"), "{error_text}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("headers");
    for wrong in ["x-key secret", "x key: secret", ": secret"] {
        std::fs::write(&file, format!("# first\n{wrong}\n")).expect("a file");
        let error = super::headers::read_headers(&file).expect_err(wrong);
        let error_text = format!("{error:#}");
        assert!(
            error_text.contains("line 2") && !error_text.contains("secret"),
            "{error_text}"
        );
    }
}
