//! Health and reflection on a real listener, with and without certificates.

use std::collections::BTreeSet;

use protocol::access::Role;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::identity::Root;
use super::*;

const BOAT: &str = "packetboat.v1.BoatService";

struct Listener {
    url: String,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

async fn start_server(connector: Connector, scheme: &str, reflection: bool) -> Listener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (ready, is_ready) = watch::channel(false);
    let connector = connector.with_standard_services(StandardServices {
        services: &[BOAT],
        ready: is_ready,
        reflection,
    });
    let stop = CancellationToken::new();
    let stop_token = stop.clone();
    let task = tokio::spawn(async move {
        let routes = Routes::new(BoatServiceServer::new(Obedient::default()));
        let server = connector.serve(listener, routes, stop_token);
        server.await.expect("serving");
    });
    Listener {
        url: format!("{scheme}://{address}"),
        ready,
        stop,
        task,
    }
}

fn plain() -> Connector {
    Connector::new(config())
}

async fn check(channel: &Channel, service: &str) -> Result<i32, Code> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    let answer = answer.map_err(|status| status.code())?;
    Ok(answer.into_inner().status)
}

async fn reaches(channel: &Channel, service: &str, status: ServingStatus) {
    let deadline = Instant::now() + LONG_ENOUGH;
    while check(channel, service).await != Ok(status as i32) {
        assert!(Instant::now() < deadline, "{service:?} is not {status}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn ask(
    channel: &Channel,
    question: MessageRequest,
) -> Result<ServerReflectionResponse, Status> {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    };
    let mut client = ServerReflectionClient::new(channel.clone());
    let requests = tokio_stream::once(request);
    let mut answers = client.server_reflection_info(requests).await?.into_inner();
    let answer = answers.message().await?;
    Ok(answer.expect("an answer"))
}

#[tokio::test]
async fn health_is_that_of_the_server_by_each_name() {
    let server = start_server(plain(), "http", false).await;
    let channel = plain().channel(Role::Boat, &server.url);
    for service in ["", BOAT] {
        reaches(&channel, service, ServingStatus::NotServing).await;
    }
    server.ready.send_replace(true);
    for service in ["", BOAT] {
        reaches(&channel, service, ServingStatus::Serving).await;
    }
    server.ready.send_replace(false);
    reaches(&channel, BOAT, ServingStatus::NotServing).await;
    let unknown = check(&channel, "packetboat.v1.StationService").await;
    assert_eq!(unknown, Err(Code::NotFound));
    // Reflection was not turned on.
    let result = ask(&channel, MessageRequest::ListServices(String::new())).await;
    let result = result.expect_err("it is off");
    assert_eq!(result.code(), Code::Unimplemented);
}

// A watch never ends by itself: a station would have waited for it as long as for its sends.
#[tokio::test]
async fn a_watch_keeps_no_server_from_stopping() {
    let patient = plain().with_stop_grace(HOUR);
    let server = start_server(patient, "http", false).await;
    server.ready.send_replace(true);
    let channel = plain().channel(Role::Boat, &server.url);
    reaches(&channel, "", ServingStatus::Serving).await;
    let request = HealthCheckRequest::default();
    let watch = HealthClient::new(channel).watch(request).await;
    let mut watch = watch.expect("a watch").into_inner();
    let first = watch.message().await.expect("an answer");
    let first = first.map(|first| first.status);
    assert_eq!(first, Some(ServingStatus::Serving as i32));
    server.stop.cancel();
    let result = timeout(LONG_ENOUGH, server.task).await;
    result.expect("before its grace").expect("no panic");
    let last = timeout(LONG_ENOUGH, async {
        loop {
            match watch.message().await {
                Ok(Some(answer)) => assert_ne!(answer.status, ServingStatus::Unknown as i32),
                Ok(None) => return Code::Ok,
                Err(status) => return status.code(),
            }
        }
    });
    assert_eq!(last.await.expect("it ends"), Code::Unavailable);
}

#[tokio::test]
async fn each_role_asks_for_health_and_operators_for_descriptors() {
    let root = Root::new();
    let with_certificate = |role| plain().with_identity(root.service(role, HOUR));
    let server = start_server(with_certificate(Role::Boat), "https", true).await;
    server.ready.send_replace(true);
    for role in Role::ALL {
        let channel = with_certificate(role).channel(Role::Boat, &server.url);
        reaches(&channel, BOAT, ServingStatus::Serving).await;
        let response = ask(&channel, MessageRequest::ListServices(String::new())).await;
        if !matches!(role, Role::Backend | Role::Desk) {
            let status = response.expect_err("not for this role");
            assert_eq!(status.code(), Code::PermissionDenied, "{role}");
            continue;
        }
        let response = response.expect("for operators").message_response;
        let Some(MessageResponse::ListServicesResponse(services)) = response else {
            panic!("a list: {response:?}");
        };
        let names = services.service.into_iter().map(|service| service.name);
        let names: BTreeSet<String> = names.collect();
        assert!(names.contains(BOAT), "{names:?}");
        assert!(names.contains("grpc.health.v1.Health"), "{names:?}");
        // The operators' own service is served elsewhere.
        assert!(!names.iter().any(|name| name.contains("Desk")), "{names:?}");
        let symbol = MessageRequest::FileContainingSymbol(BOAT.to_owned());
        let file = ask(&channel, symbol).await.expect("a file");
        let file = file.message_response;
        assert!(
            matches!(file, Some(MessageResponse::FileDescriptorResponse(_))),
            "{file:?}"
        );
    }
}

// kubelet shows no certificate: its probes stay with HTTP.
#[tokio::test]
async fn health_needs_a_certificate_where_proof_is_required() {
    let root = Root::new();
    let connector = plain().with_identity(root.service(Role::Boat, HOUR));
    let server = start_server(connector, "https", false).await;
    server.ready.send_replace(true);
    let stranger = server.url.replace("https", "http");
    let channel = plain().channel(Role::Boat, &stranger);
    assert_eq!(check(&channel, "").await, Err(Code::Unavailable));
}
