//! The contract of a channel, run on all kinds: near, far, and in TLS.

mod hostile;
mod identity;
mod standard;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::{Code as Refused, Refusal};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};

use super::listen::serve;
use super::*;
use crate::status;
use crate::trace;
use crate::v1::boat_service_client::BoatServiceClient;
use crate::v1::boat_service_server::{BoatService, BoatServiceServer};
use crate::v1::{
    BoatLife, DeliverBatch, Delivery, DrainRequest, DrainResponse, Notice, NoticeRequest,
    NoticeResponse, Outcome, OutcomeBatch, ProbeRequest, ProbeResponse, notice,
};

/// Obeys the name of the boat in a request.
#[derive(Clone, Default)]
struct Obedient {
    /// Handlers and stream readers at work.
    busy: Arc<AtomicUsize>,
}

struct Busy(Arc<AtomicUsize>);

impl Obedient {
    fn busy(&self) -> Busy {
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(&self.busy))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl BoatService for Obedient {
    type DeliverStream = ReceiverStream<Result<OutcomeBatch, Status>>;

    /// Echoes the token of each delivery, from a task of its own, as a real boat does.
    async fn deliver(
        &self,
        request: Request<Streaming<DeliverBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let mut batches = request.into_inner();
        let (answers, stream) = mpsc::channel(4);
        let busy = self.busy();
        tokio::spawn(async move {
            let _busy = busy;
            while let Some(Ok(batch)) = batches.next().await {
                let is_refused = batch.life.is_some_and(|life| life.boat == "refuse");
                let answer = if is_refused {
                    Err(Status::permission_denied("not this life"))
                } else {
                    let outcomes = batch.deliveries.iter().map(|delivery| Outcome {
                        token: delivery.token,
                        kind: 1,
                    });
                    Ok(OutcomeBatch {
                        outcomes: outcomes.collect(),
                    })
                };
                if answers.send(answer).await.is_err() || is_refused {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    /// Answers with as many sessions as the first notice's frame has bytes.
    async fn notice(
        &self,
        request: Request<NoticeRequest>,
    ) -> Result<Response<NoticeResponse>, Status> {
        let notices = request.into_inner().notices;
        let size = match notices.first().and_then(|first| first.notice.as_ref()) {
            Some(notice::Notice::Frame(frame)) => frame.len(),
            _ => 0,
        };
        Ok(Response::new(NoticeResponse {
            missing: vec![i64::MAX; size],
        }))
    }

    async fn probe(
        &self,
        request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        let _busy = self.busy();
        let life = request.get_ref().life.clone().unwrap_or_default();
        match life.boat.as_str() {
            "never" => std::future::pending().await,
            "panic" => panic!("as the test wants it"),
            "refuse" => {
                let refusal = Refusal::new(Refused::NotFound, "no such life: ü")
                    .retry_after(Duration::from_millis(70));
                Err(status::from_refusal(&refusal))
            }
            "headers" => {
                let metadata = request.metadata();
                let mut response = Response::new(ProbeResponse { alive: true });
                for name in ["x-text", "grpc-timeout"] {
                    if let Some(value) = metadata.get(name) {
                        let name = format!("seen-{name}");
                        let name: tonic::metadata::AsciiMetadataKey = name.parse().expect("a key");
                        response.metadata_mut().insert(name, value.clone());
                    }
                }
                if let Some(trace) = trace::current() {
                    let trace = trace.to_string().parse().expect("a value");
                    response.metadata_mut().insert("seen-trace", trace);
                }
                if let Some(value) = metadata.get_bin("x-bytes-bin") {
                    let metadata = response.metadata_mut();
                    metadata.insert_bin("seen-x-bytes-bin", value.clone());
                }
                Ok(response)
            }
            _ => Ok(Response::new(ProbeResponse { alive: true })),
        }
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        Ok(Response::new(DrainResponse::default()))
    }
}

/// A server and a channel to it, near or far.
struct Pair {
    channel: Channel,
    boat: Obedient,
    server: TestServer,
}

enum TestServer {
    Near {
        _guard: InProcess,
    },
    Far {
        task: JoinHandle<()>,
        address: SocketAddr,
    },
}

/// Bound of what must happen, however busy the machine is. It says nothing about speed.
const LONG_ENOUGH: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A busy machine lets none of the hours pass.
fn config() -> Config {
    Config {
        unary_timeout: HOUR,
        connect_timeout: HOUR,
        keepalive_interval: HOUR,
        keepalive_timeout: HOUR,
        stop_grace: Duration::from_millis(100),
        ..Config::default()
    }
}

impl Pair {
    fn near() -> Pair {
        let connector = Connector::new(config());
        let boat = Obedient::default();
        let routes = Routes::new(BoatServiceServer::new(boat.clone()));
        let guard = connector.serve_in_process("boat", routes);
        Pair {
            channel: connector.channel(Role::Boat, "inproc:boat"),
            boat,
            server: TestServer::Near { _guard: guard },
        }
    }

    async fn far() -> Pair {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let boat = Obedient::default();
        let routes = Routes::new(BoatServiceServer::new(boat.clone()));
        let task = tokio::spawn(async move {
            let stop = CancellationToken::new();
            let config = config();
            let server = serve(listener, routes, &config, None, stop);
            server.await.expect("serving");
        });
        Pair {
            channel: Connector::new(config()).channel(Role::Boat, &format!("http://{address}")),
            boat,
            server: TestServer::Far { task, address },
        }
    }

    fn client(&self) -> BoatServiceClient<Channel> {
        BoatServiceClient::new(self.channel.clone())
    }

    /// Waits until no handler and no reader is left: none may outlive its call.
    async fn idle(&self) {
        let idle = async {
            while self.boat.busy.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let result = tokio::time::timeout(LONG_ENOUGH, idle).await;
        result.expect("a handler outlives its call");
    }

    async fn busy(&self) {
        while self.boat.busy.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl TestServer {
    async fn end(self) {
        match self {
            TestServer::Near { _guard } => drop(_guard),
            TestServer::Far { task, .. } => {
                task.abort();
                assert!(task.await.expect_err("aborted").is_cancelled());
            }
        }
    }
}

macro_rules! contract {
    ($($name:ident)+) => {
        mod near {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::Pair::near()).await;
            })+
        }
        mod far {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Pair::far().await).await;
            })+
        }
        mod proved {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Pair::proved().await).await;
            })+
        }
    };
}

contract! {
    calls_are_answered
    refusals_arrive_as_they_were_said
    metadata_goes_both_ways
    a_call_bears_the_trace_of_its_task
    a_deadline_ends_a_call_and_its_handler
    a_unary_call_has_a_deadline_of_its_own
    a_deadline_ends_a_stream
    a_stream_without_a_deadline_goes_on
    a_dropped_call_drops_its_handler
    streams_go_both_ways_one_at_a_time
    a_stream_may_end_with_a_refusal
    a_stream_ends_when_its_caller_closes_it
    a_dropped_stream_ends_its_reader
    sizes_up_to_the_limit_pass_and_larger_ones_do_not
    a_panic_is_an_answer
    a_server_that_goes_ends_its_calls
    a_server_that_goes_ends_its_streams
    a_server_that_is_gone_is_unavailable
    calls_at_the_same_time_are_told_apart
}

fn life(boat: &str) -> Option<BoatLife> {
    Some(BoatLife {
        boat: boat.to_owned(),
        incarnation: 1,
    })
}

fn probe(boat: &str) -> Request<ProbeRequest> {
    Request::new(ProbeRequest { life: life(boat) })
}

fn probe_within(boat: &str, timeout: Duration) -> Request<ProbeRequest> {
    let mut request = probe(boat);
    request.set_timeout(timeout);
    request
}

fn batch(boat: &str, tokens: impl IntoIterator<Item = u64>) -> DeliverBatch {
    let deliveries = tokens.into_iter().map(|token| Delivery {
        token,
        ..Delivery::default()
    });
    DeliverBatch {
        life: life(boat),
        deliveries: deliveries.collect(),
        notices: Vec::new(),
    }
}

fn tokens(batch: OutcomeBatch) -> Vec<u64> {
    batch.outcomes.iter().map(|outcome| outcome.token).collect()
}

/// Opens a stream of deliveries.
async fn open(pair: &Pair) -> (mpsc::Sender<DeliverBatch>, Streaming<OutcomeBatch>) {
    let (sender, receiver) = mpsc::channel(4);
    let mut client = pair.client();
    let stream = client.deliver(ReceiverStream::new(receiver)).await;
    (sender, stream.expect("opened").into_inner())
}

async fn calls_are_answered(pair: Pair) {
    let answer = pair.client().probe(probe("well")).await.expect("answered");
    assert!(answer.get_ref().alive);
}

async fn refusals_arrive_as_they_were_said(pair: Pair) {
    let status = pair
        .client()
        .probe(probe("refuse"))
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::NotFound);
    let refusal = status::to_refusal(&status);
    assert_eq!(refusal.code, Refused::NotFound);
    assert_eq!(refusal.text, "no such life: ü");
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(70)));
}

async fn metadata_goes_both_ways(pair: Pair) {
    let mut request = probe_within("headers", LONG_ENOUGH);
    let metadata = request.metadata_mut();
    metadata.insert("x-text", "said".parse().expect("a value"));
    let bytes = tonic::metadata::MetadataValue::from_bytes(b"\0\xff");
    metadata.insert_bin("x-bytes-bin", bytes.clone());
    let answer = pair.client().probe(request).await.expect("answered");
    let seen_metadata = answer.metadata();
    assert_eq!(seen_metadata.get("seen-x-text").expect("came"), "said");
    assert_eq!(seen_metadata.get_bin("seen-x-bytes-bin"), Some(&bytes));
    // The server knows the deadline.
    assert!(seen_metadata.contains_key("seen-grpc-timeout"));
    let answer = pair
        .client()
        .probe(probe("headers"))
        .await
        .expect("answered");
    assert!(answer.metadata().contains_key("seen-grpc-timeout"));
}

async fn a_call_bears_the_trace_of_its_task(pair: Pair) {
    let root = protocol::TraceContext::root(1, 2, 3);
    let trace_header = async |trace| {
        let mut client = pair.client();
        let answer = trace::within(trace, client.probe(probe("headers"))).await;
        let answer = answer.expect("answered");
        let trace_header = answer.metadata().get("seen-trace").cloned();
        trace_header.map(|trace_header| trace_header.to_str().expect("a text").to_owned())
    };
    assert_eq!(trace_header(Some(root)).await, Some(root.to_string()));
    assert_eq!(trace_header(None).await, None);
}

async fn a_deadline_ends_a_call_and_its_handler(pair: Pair) {
    let request = probe_within("never", Duration::from_millis(50));
    let status = pair.client().probe(request).await.expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(status::to_refusal(&status).code, Refused::DeadlineExceeded);
    pair.idle().await;
}

async fn a_unary_call_has_a_deadline_of_its_own(pair: Pair) {
    let channel = pair
        .channel
        .clone()
        .with_unary_timeout(Duration::from_millis(50));
    let status = BoatServiceClient::new(channel).probe(probe("never")).await;
    assert_eq!(status.expect_err("too late").code(), Code::DeadlineExceeded);
    pair.idle().await;
}

async fn a_deadline_ends_a_stream(pair: Pair) {
    // On a busy machine the first answer may come too late: then the next stream has more time.
    let mut timeout = Duration::from_millis(100);
    let is_answered = loop {
        let (is_answered, status) = stream_within(&pair, timeout).await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        if is_answered || timeout > LONG_ENOUGH {
            break is_answered;
        }
        timeout *= 2;
    };
    assert!(is_answered, "not even within {timeout:?}");
    pair.idle().await;
}

/// Whether a stream with this deadline brought its first answer, and how it ended.
async fn stream_within(pair: &Pair, timeout: Duration) -> (bool, Status) {
    let (sender, receiver) = mpsc::channel(4);
    sender.send(batch("well", [1])).await.expect("room");
    let mut request = Request::new(ReceiverStream::new(receiver));
    request.set_timeout(timeout);
    let mut outcomes = match pair.client().deliver(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return (false, status),
    };
    match outcomes.message().await {
        Ok(first) => assert_eq!(tokens(first.expect("open")), [1]),
        Err(status) => return (false, status),
    }
    (true, outcomes.message().await.expect_err("too late"))
}

async fn a_stream_without_a_deadline_goes_on(mut pair: Pair) {
    pair.channel = pair.channel.with_unary_timeout(Duration::from_millis(20));
    let (sender, mut outcomes) = open(&pair).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    sender.send(batch("well", [9])).await.expect("open");
    let answer = outcomes
        .message()
        .await
        .expect("no deadline")
        .expect("open");
    assert_eq!(tokens(answer), [9]);
}

async fn a_dropped_call_drops_its_handler(pair: Pair) {
    let mut client = pair.client();
    let call = tokio::spawn(async move { client.probe(probe("never")).await });
    pair.busy().await;
    call.abort();
    pair.idle().await;
}

async fn streams_go_both_ways_one_at_a_time(pair: Pair) {
    let (sender, mut outcomes) = open(&pair).await;
    for token in 0..100 {
        sender
            .send(batch("well", [token, token + 1]))
            .await
            .expect("open");
        let answer = outcomes.message().await.expect("well").expect("open");
        assert_eq!(tokens(answer), [token, token + 1]);
    }
}

async fn a_stream_may_end_with_a_refusal(pair: Pair) {
    let (sender, mut outcomes) = open(&pair).await;
    sender.send(batch("refuse", [])).await.expect("open");
    let status = outcomes.message().await.expect_err("refused");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "not this life");
}

async fn a_stream_ends_when_its_caller_closes_it(pair: Pair) {
    let (sender, mut outcomes) = open(&pair).await;
    sender.send(batch("well", [1])).await.expect("open");
    drop(sender);
    assert!(outcomes.message().await.expect("well").is_some());
    assert!(outcomes.message().await.expect("a clean end").is_none());
    pair.idle().await;
}

async fn a_dropped_stream_ends_its_reader(pair: Pair) {
    let (sender, outcomes) = open(&pair).await;
    pair.busy().await;
    drop(outcomes);
    pair.idle().await;
    // The caller's own side learns of it as well.
    tokio::time::timeout(LONG_ENOUGH, sender.closed())
        .await
        .expect("the sender is told");
}

async fn sizes_up_to_the_limit_pass_and_larger_ones_do_not(pair: Pair) {
    let sized = |len: usize| NoticeRequest {
        life: None,
        notices: vec![Notice {
            session: 1,
            notice: Some(notice::Notice::Frame(Bytes::from(vec![7; len]))),
        }],
    };
    let mut client = pair.client();
    // An answer has nine bytes per session.
    let fits = MESSAGE_BYTES_MAX / 9 - 10;
    let answer = client
        .notice(sized(fits))
        .await
        .expect("answer within the limit");
    assert_eq!(answer.get_ref().missing.len(), fits);
    let status = client.notice(sized(MESSAGE_BYTES_MAX / 9 + 10)).await;
    let status = status.expect_err("the answer is too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let status = client.notice(sized(MESSAGE_BYTES_MAX)).await;
    let status = status.expect_err("the request is too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert_eq!(status::to_refusal(&status).code, Refused::TooLarge);
    assert!(
        client.probe(probe("well")).await.is_ok(),
        "later calls are well"
    );
}

async fn a_panic_is_an_answer(pair: Pair) {
    let mut client = pair.client();
    let status = client.probe(probe("panic")).await.expect_err("panicked");
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(
        client.probe(probe("well")).await.is_ok(),
        "later calls are well"
    );
    pair.idle().await;
}

async fn a_server_that_goes_ends_its_calls(pair: Pair) {
    let mut client = pair.client();
    let call = tokio::spawn(async move { client.probe(probe("never")).await });
    pair.busy().await;
    pair.server.end().await;
    let status = call
        .await
        .expect("no panic")
        .expect_err("the server is gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status::to_refusal(&status).code.retryable());
}

async fn a_server_that_goes_ends_its_streams(pair: Pair) {
    let (sender, mut outcomes) = open(&pair).await;
    sender.send(batch("well", [1])).await.expect("open");
    assert!(outcomes.message().await.expect("well").is_some());
    let busy = Arc::clone(&pair.boat.busy);
    pair.server.end().await;
    let status = outcomes.message().await.expect_err("the server is gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let readers_end = async {
        while busy.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let result = tokio::time::timeout(LONG_ENOUGH, readers_end).await;
    result.expect("the server's reader outlives the server");
}

async fn a_server_that_is_gone_is_unavailable(pair: Pair) {
    let mut client = pair.client();
    assert!(client.probe(probe("well")).await.is_ok());
    pair.server.end().await;
    for _ in 0..3 {
        let status = client.probe(probe("well")).await.expect_err("gone");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

async fn calls_at_the_same_time_are_told_apart(pair: Pair) {
    let calls = (0..50).map(|number| {
        let mut client = pair.client();
        async move {
            let boat = if number % 2 == 0 { "well" } else { "refuse" };
            (number, client.probe(probe(boat)).await.is_ok())
        }
    });
    for (number, well) in futures_util::future::join_all(calls).await {
        assert_eq!(well, number % 2 == 0);
    }
}

#[tokio::test]
async fn a_name_may_be_served_again_and_its_channels_go_on() {
    let connector = Connector::new(config());
    let routes = || Routes::new(BoatServiceServer::new(Obedient::default()));
    let mut client = BoatServiceClient::new(connector.channel(Role::Boat, "inproc:boat"));
    let status = client.probe(probe("well")).await.expect_err("nobody yet");
    assert_eq!(status.code(), Code::Unavailable);

    let first = connector.serve_in_process("boat", routes());
    assert!(client.probe(probe("well")).await.is_ok());
    let second = connector.serve_in_process("boat", routes());
    drop(first);
    assert!(
        client.probe(probe("well")).await.is_ok(),
        "the second serves"
    );
    drop(second);
    assert!(client.probe(probe("well")).await.is_err());
}

#[tokio::test]
async fn a_network_server_may_come_again_at_its_address() {
    // Nobody else takes a port of this address while it is free.
    let listener = TcpListener::bind("127.0.0.77:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut client = BoatServiceClient::new(
        Connector::new(config()).channel(Role::Boat, &format!("http://{address}")),
    );
    let start = |listener| {
        let stop = CancellationToken::new();
        let stop_token = stop.clone();
        let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
        let config = config();
        let task =
            tokio::spawn(async move { serve(listener, routes, &config, None, stop_token).await });
        (stop, task)
    };
    let (stop, task) = start(listener);
    assert!(client.probe(probe("well")).await.is_ok());
    stop.cancel();
    task.await.expect("no panic").expect("an orderly end");
    assert!(client.probe(probe("well")).await.is_err());
    let listener = TcpListener::bind(address)
        .await
        .expect("the port is free again");
    let (_stop, _task) = start(listener);
    let reconnect = async {
        while client.probe(probe("well")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let result = tokio::time::timeout(LONG_ENOUGH, reconnect).await;
    result.expect("the channel connects again by itself");
}

#[tokio::test]
async fn a_stopping_server_finishes_calls_and_ends_streams() {
    // The first server has all the time for an answer, the second one gets to its end.
    for grace in [HOUR, Duration::from_millis(100)] {
        let config = Config {
            stop_grace: grace,
            ..config()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let stop = CancellationToken::new();
        let stop_token = stop.clone();
        let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
        let channel = Connector::new(config.clone()).channel(Role::Boat, &address);
        let task =
            tokio::spawn(async move { serve(listener, routes, &config, None, stop_token).await });
        let mut client = BoatServiceClient::new(channel);
        let (sender, receiver) = mpsc::channel(4);
        let answer = client.deliver(ReceiverStream::new(receiver)).await;
        let mut outcomes = answer.expect("opened").into_inner();
        let start = tokio::time::Instant::now();
        stop.cancel();
        if grace == HOUR {
            sender.send(batch("well", [3])).await.expect("open");
            let answer = outcomes.message().await;
            let answer = answer.expect("within the grace").expect("open");
            assert_eq!(tokens(answer), [3]);
            task.abort();
            continue;
        }
        let status = outcomes.message().await.expect_err("after the grace");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(start.elapsed() >= grace, "{:?}", start.elapsed());
        task.await.expect("no panic").expect("an orderly end");
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_unavailable_and_says_why() {
    let connector = Connector::default();
    for address in ["boat-7:9000", "ftp://boat-7:9000", "", "http://", "in proc"] {
        let mut client = BoatServiceClient::new(connector.channel(Role::Boat, address));
        let status = client.probe(probe("well")).await.expect_err("nowhere");
        assert_eq!(status.code(), Code::Unavailable, "{address}");
        assert!(status.message().contains("inproc:<name>"), "{status}");
    }
}

// The server dies as by kill -9: no last words, its sockets just close.
#[tokio::test]
async fn a_killed_server_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let boat = Obedient::default();
    let busy = Arc::clone(&boat.busy);
    server.spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a listener");
        let routes = Routes::new(BoatServiceServer::new(boat));
        let stop = CancellationToken::new();
        serve(listener, routes, &config(), None, stop)
            .await
            .expect("serving");
    });
    let mut client = BoatServiceClient::new(Connector::new(config()).channel(Role::Boat, &address));
    let (_sender, receiver) = mpsc::channel::<DeliverBatch>(4);
    let answer = client.deliver(ReceiverStream::new(receiver)).await;
    let mut outcomes = answer.expect("opened").into_inner();
    let mut waiting = client.clone();
    let call = tokio::spawn(async move { waiting.probe(probe("never")).await });
    // The stream's reader, and the call.
    while busy.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.shutdown_background();
    let status = outcomes.message().await.expect_err("killed");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = call.await.expect("no panic").expect_err("killed");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = client.probe(probe("well")).await.expect_err("killed");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

// Half a preface held a connection for ever.
#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_begin_is_closed_after_ten_seconds() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
    let config = Config::default();
    let serving = tokio::spawn(async move {
        serve(listener, routes, &config, None, CancellationToken::new()).await
    });
    let cases: [&[u8]; 3] = [
        b"",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for bytes in cases {
        let mut stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("it listens");
        let start = tokio::time::Instant::now();
        stream.write_all(bytes).await.expect("sent");
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        let (duration, text) = (start.elapsed(), String::from_utf8_lossy(bytes));
        let expected = Duration::from_secs(10)..=Duration::from_secs(16);
        assert!(expected.contains(&duration), "{text:?}: {duration:?}");
    }
    serving.abort();
}

// By hand: cargo test -p api --release -- --ignored --nocapture how_long
#[tokio::test]
#[ignore = "prints figures"]
#[allow(clippy::print_stdout)]
async fn how_long_a_call_takes() {
    for (name, pair) in [("near", Pair::near()), ("far", Pair::far().await)] {
        let mut client = pair.client();
        for rounds in [1_000, 20_000] {
            let start = tokio::time::Instant::now();
            for _ in 0..rounds {
                client.probe(probe("well")).await.expect("answered");
            }
            println!("{name}: unary {:?}", start.elapsed() / rounds);
        }
        let (sender, mut outcomes) = open(&pair).await;
        let (rounds, size) = (2_000, 64);
        let start = tokio::time::Instant::now();
        for _ in 0..rounds {
            sender.send(batch("well", 0..size)).await.expect("open");
            outcomes.message().await.expect("well").expect("open");
        }
        let per_message = start.elapsed() / (rounds * size as u32);
        println!("{name}: a message in batches of {size} {per_message:?}");
    }
}
