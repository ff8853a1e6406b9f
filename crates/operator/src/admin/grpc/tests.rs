//! A program of an operator, over the admin port.

use std::net::SocketAddr;

use api::v1::desk_service_client::DeskServiceClient;
use protocol::bounds::Bounds;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use super::*;
use crate::admin::operators::{OperatorConfig, Role};
use crate::admin::tests::dead_letter;
use crate::admin::{Config, Health, Operators, Parts, start};
use crate::in_memory::Environment;

/// An admin port with three letters behind it, and a worker.
async fn port(operators: Operators) -> (DeskServiceClient<Channel>, SocketAddr, DropGuard) {
    let environment = Environment::in_memory().expect("stores in memory");
    let letters = (0..3).map(|offset| dead_letter(offset, environment.backends.clock.now()));
    for published in environment
        .backends
        .queue
        .producer()
        .publish(letters.collect())
        .await
    {
        published.expect("published");
    }
    let desk = Arc::new(Desk::new(
        &environment.backends,
        &environment.connector,
        Bounds::default(),
        operators,
    ));
    let stop = CancellationToken::new();
    desk.employ("worker", stop.clone());
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let parts = Parts {
        health: Health::silent(),
        desk: Some(desk),
        doctor: None,
        certificates: None,
    };
    let address = start(&config, parts, stop.clone()).await.expect("binds");
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let client = DeskServiceClient::new(channel.connect().await.expect("connects"));
    (client, address, stop.drop_guard())
}

#[tokio::test]
async fn a_program_looks_plans_and_discards() {
    let (mut desk, address, _stop) = port(Operators::default()).await;
    let listed = v1::ListLettersRequest {
        limit: 2,
        ..v1::ListLettersRequest::default()
    };
    let page = desk
        .list_letters(listed)
        .await
        .expect("listed")
        .into_inner();
    let names: Vec<&str> = page
        .letters
        .iter()
        .map(|letter| letter.id.as_str())
        .collect();
    assert_eq!(names, ["message-0-0", "message-0-1"]);
    assert_eq!(page.next, "message-0-1");
    let counted = desk.count_letters(v1::CountLettersRequest {}).await;
    let counted = counted.expect("counted").into_inner();
    assert_eq!(counted.reasons[0].reason, "undecodable");
    assert_eq!(counted.causes[0].count.map(|count| count.letters), Some(3));

    let all = v1::LetterSelection {
        filter: Some(v1::LetterFilter::default()),
        limit: 10,
        ..v1::LetterSelection::default()
    };
    let planned = v1::PlanRedriveRequest {
        selection: Some(all.clone()),
    };
    let plan = desk
        .plan_redrive(planned)
        .await
        .expect("planned")
        .into_inner();
    assert_eq!(plan.letters, 3);
    assert_eq!(plan.forecasts[0].forecast, "fail_again");

    let begun = v1::BeginTaskRequest {
        task: "garbage".to_owned(),
        work: v1::DeskWork::Discard.into(),
        selection: Some(all),
        why: "garbage of a night".to_owned(),
        ..v1::BeginTaskRequest::default()
    };
    desk.begin_task(begun).await.expect("begun");
    let watched = v1::WatchTaskRequest {
        task: "garbage".to_owned(),
    };
    let mut changes = desk
        .watch_task(watched)
        .await
        .expect("watched")
        .into_inner();
    let mut last = v1::DeskTask::default();
    while let Some(change) = changes.message().await.expect("goes on") {
        last = change.task.expect("a task");
    }
    assert_eq!(last.state(), v1::DeskTaskState::Over);
    assert_eq!(last.outcomes[0].outcome, "discarded");
    assert_eq!(last.outcomes[0].letters, 3);

    // The same port speaks HTTP/1.1.
    let mut plain = TcpStream::connect(address).await.expect("connects");
    let question =
        "GET /api/v1/dead-letters/tasks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    plain.write_all(question.as_bytes()).await.expect("asks");
    let mut tasks = String::new();
    plain.read_to_string(&mut tasks).await.expect("answers");
    assert!(tasks.contains("garbage of a night"), "{tasks}");
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_code() {
    let (mut desk, _, _stop) = port(Operators::default()).await;
    let watched = v1::WatchTaskRequest {
        task: "nobody".to_owned(),
    };
    let refused = desk.watch_task(watched).await.expect_err("no such task");
    assert_eq!(refused.code(), Code::NotFound);
    let nothing = v1::PlanRedriveRequest::default();
    let refused = desk
        .plan_redrive(nothing)
        .await
        .expect_err("nothing is meant");
    assert_eq!(refused.code(), Code::InvalidArgument);
    let traced = v1::TraceRequest {
        name: "hello".to_owned(),
    };
    let refused = desk.trace(traced).await.expect_err("no name");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn who_has_no_token_is_unauthenticated_and_who_has_no_role_denied() {
    let dir = tempfile::tempdir().expect("a directory");
    let token_file = dir.path().join("ann");
    std::fs::write(&token_file, "a-token-of-some-length\n").expect("writes");
    let ann = OperatorConfig {
        name: "ann".to_owned(),
        token_file,
        roles: vec![Role::View],
    };
    let operators = Operators::load(&[ann]).expect("loads");
    let (mut desk, _, _stop) = port(operators).await;
    let refused = desk.list_tasks(v1::ListTasksRequest {}).await;
    assert_eq!(refused.expect_err("no token").code(), Code::Unauthenticated);
    let as_ann = |mut request: Request<v1::BeginTaskRequest>| {
        let token = "Bearer a-token-of-some-length".parse().expect("ASCII");
        request.metadata_mut().insert("authorization", token);
        request
    };
    let begun = as_ann(Request::new(v1::BeginTaskRequest {
        work: v1::DeskWork::Discard.into(),
        selection: Some(v1::LetterSelection {
            ids: vec!["message-0-0".to_owned()],
            ..v1::LetterSelection::default()
        }),
        ..v1::BeginTaskRequest::default()
    }));
    let refused = desk.begin_task(begun).await.expect_err("only view");
    assert_eq!(refused.code(), Code::PermissionDenied);
}
