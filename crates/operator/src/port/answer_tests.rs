//! Rules that hold for every answer of the operators' API.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use backend::queue::{NewRecord, Partition};
use bytes::Bytes;
use protocol::keys::Topic;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::{MessageId, Timestamp, UserId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::route_tests::{HEADERS, Port, filled, request_body, staffed_port};
use super::routes::{ROUTES, Route};
use super::{PREFIX, openapi};
use crate::answer::{ErrorAnswer, List, Page, Time};
use crate::audit::verify::{self, MinuteFlaw};
use crate::audit::{self, Contradiction, Minute, auditor};
use crate::boats::{BoatProgress, BoatRow};
use crate::dead_letters::rules::{
    OperationEntry, OperatorAction, OperatorWork, Pace, Progress, StartedTask, TaskOutcome,
};
use crate::dead_letters::task_view::Task;
use crate::dead_letters::{Envelope, Forecast, Letter, LetterPackage, Plan, SelectionCount, Stats};
use crate::doctor::rules::CheckVerdict;
use crate::doctor::{RepairReport, RepairStep, UserFinding, UserReport};
use crate::users::KickAnswer;

/// Path of an answer that is a schema, whose keys are names of fields and types.
const SCHEMA: &str = "/openapi.json";
/// Fields whose values are names of enums, if they are text.
const NAMES: [&str; 8] = [
    "check", "code", "kind", "reason", "state", "type", "verdict", "work",
];

fn is_snake(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !name.is_empty() && name.chars().all(fits)
}

/// Keys, and names of enums, that are not in snake_case.
fn misnamed(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let mut wrong = Vec::new();
            for (key, value) in fields {
                let name = value.as_str().filter(|_| NAMES.contains(&key.as_str()));
                let names = [Some(key.as_str()), name].into_iter().flatten();
                wrong.extend(names.filter(|name| !is_snake(name)).map(str::to_owned));
                wrong.extend(misnamed(value));
            }
            wrong
        }
        Value::Array(items) => items.iter().flat_map(misnamed).collect(),
        _ => Vec::new(),
    }
}

fn check(route: &Route, answer: &Value) {
    let name = format!("{} {}", route.method, route.path);
    if route.path != SCHEMA {
        assert_eq!(misnamed(answer), [""; 0], "{name}: {answer}");
    }
    let round_trip = (route.answer.round_trip)(answer.clone());
    assert_eq!(round_trip.expect(&name), *answer, "{name}");
}

async fn request_json(
    port: &mut Port,
    method: &Method,
    path: &str,
    body: &str,
) -> (StatusCode, Value) {
    let path = format!("{PREFIX}{path}");
    let (status, text) = port.ask(method, &path, &HEADERS, body).await;
    let answer = serde_json::from_str(&text);
    (status, answer.expect(&text))
}

async fn get_json<T: DeserializeOwned>(port: &mut Port, path: &str) -> T {
    let (status, answer) = request_json(port, &Method::GET, path, "").await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    serde_json::from_value(answer).expect(path)
}

async fn post_json<T: DeserializeOwned>(port: &mut Port, path: &str, body: &Value) -> T {
    let (status, answer) = request_json(port, &Method::POST, path, &body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    serde_json::from_value(answer).expect(path)
}

/// Path and body of a request that succeeds. An edit is of a letter as it is, and an import of
/// letters that were exported.
async fn request(port: &mut Port, route: &Route) -> (String, String) {
    let reason = json!({ "why": "a test" });
    match route.path {
        "/dead-letters/{id}/edit" => {
            // No task has this one.
            let letter = "/dead-letters/message-0-2";
            let envelope: Envelope = post_json(port, &format!("{letter}/envelope"), &reason).await;
            let edit = json!({
                "base": envelope.version,
                "envelope": "{}",
                "why": "a test",
                "dry_run": true,
            });
            (format!("{letter}/edit"), edit.to_string())
        }
        "/dead-letters/import" => {
            let package_page: Page<LetterPackage> =
                post_json(port, "/dead-letters/export", &reason).await;
            assert_eq!(package_page.items.len(), 3);
            let import = json!({ "letters": package_page.items, "why": "a test" });
            (route.path.to_owned(), import.to_string())
        }
        path => (filled(path), request_body(route).to_owned()),
    }
}

/// Answers of routes that ask other services; nobody is there in these tests.
fn samples() -> Vec<(&'static str, Value)> {
    fn sample(answer: impl Serialize) -> Value {
        serde_json::to_value(answer).expect("JSON")
    }
    let kick_answer = KickAnswer {
        sessions: 2,
        revoked_before: Some(Time::from_ms(7)),
    };
    let progress = BoatProgress {
        name: "boat-1".to_owned(),
        state: "draining".to_owned(),
        connections: 9,
        waits: true,
    };
    vec![
        ("/users/{user}/kick", sample(kick_answer)),
        ("/boats/{boat}", sample(progress.clone())),
        ("/boats/{boat}/drain", sample(progress)),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_answer_is_in_snake_case_and_comes_back() {
    let mut port = staffed_port().await;
    let claim = port.backends.registry.claim_cluster(1).await;
    claim.expect("claimed");
    let message = MessageId::new(12).expect("positive");
    let settled_entry = LedgerEntry {
        message,
        at: message.timestamp(),
        target: None,
        event: LedgerEvent::Settled,
    };
    let append_outcome = port.backends.ledger.append(vec![settled_entry]).await;
    append_outcome.expect("appended");
    let config = auditor::Config::default();
    let start = port.desk.auditor(1, config).round().await;
    start.expect("a chain");
    let samples = samples();
    let stop = CancellationToken::new();
    for route in &ROUTES {
        if let Some((_, sample)) = samples.iter().find(|(path, _)| *path == route.path) {
            check(route, sample);
            continue;
        }
        // A redrive waits for its outcomes.
        if route.path == "/dead-letters/redrive" {
            port.desk.employ("worker", stop.clone());
        }
        let (path, body) = request(&mut port, route).await;
        let (status, answer) = request_json(&mut port, &route.method, &path, &body).await;
        assert_eq!(status, StatusCode::OK, "{} {path}: {answer}", route.method);
        check(route, &answer);
    }
    stop.cancel();
}

/// Answers with contents that a quiet desk does not have.
#[test]
fn every_possible_answer_is_in_snake_case_and_round_trips() {
    let user = UserId::new(i64::MAX).expect("positive");
    let message = MessageId::new(i64::MAX).expect("positive");
    let at = Time::from_ms(1_795_799_137_123);
    let audit_report = audit::Report {
        balanced: false,
        since: at,
        until: Some(at),
        accepted: 3,
        settled: 1,
        in_flight: 1,
        missing: List::of([message.to_string()], 9),
        contradictions: vec![
            Contradiction::PlacedTwice { message },
            Contradiction::SeqReused {
                conversation: "p:1:2".to_owned(),
                seq: 4,
                messages: ["7".to_owned(), "8".to_owned()],
            },
        ]
        .into(),
        unreadable: 1,
        minutes: vec![Minute {
            at,
            accepted: 3,
            settled: 1,
            in_flight: 1,
            missing: 1,
        }]
        .into(),
        truncated: 5,
        next: Some(at),
        closed_minutes: 1,
    };
    let verify_report = verify::Report {
        intact: false,
        since: at,
        until: at,
        minutes: 1,
        minutes_in_log: 1,
        link: 1,
        digest: "ab".to_owned(),
        flaws: vec![MinuteFlaw {
            minute: at,
            flaw: "link 1 was removed".to_owned(),
        }]
        .into(),
    };
    let boats = List::from(vec![BoatRow {
        name: "boat-1".to_owned(),
        state: "open".to_owned(),
        connections: Some(3),
        seats: Some(9),
        zone: None,
        url: None,
    }]);
    let user_report = UserReport {
        user,
        verdict: CheckVerdict::Failure,
        differences: vec![UserFinding {
            kind: "list_behind".to_owned(),
            verdict: CheckVerdict::Failure,
            observation: "the list ends before the conversation".to_owned(),
            repair: Some("write the list".to_owned()),
            advice: None,
        }]
        .into(),
        sessions: 1,
        mails: 2,
        conversations: 3,
        rows: 4,
        omissions: vec!["positions up to 7 of g:1".to_owned()],
    };
    let repair_report = RepairReport {
        before: user_report.clone(),
        steps: vec![RepairStep {
            step: "write the list".to_owned(),
            error: Some("no answer".to_owned()),
        }],
        after: user_report.clone(),
    };
    for (path, method, answer) in [
        ("/audit", Method::GET, serde_json::to_value(audit_report)),
        (
            "/audit/verify",
            Method::GET,
            serde_json::to_value(verify_report),
        ),
        ("/boats", Method::GET, serde_json::to_value(boats)),
        (
            "/doctor/user/{user}",
            Method::GET,
            serde_json::to_value(user_report),
        ),
        (
            "/doctor/user/{user}/repair",
            Method::POST,
            serde_json::to_value(repair_report),
        ),
    ] {
        let mut routes = ROUTES.iter();
        let route = routes.find(|route| route.path == path && route.method == method);
        check(route.expect(path), &answer.expect("JSON"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_looks_plans_and_discards() {
    let mut port = Port::new().await;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    port.desk.employ("worker", stop);
    let page: Page<Letter> = get_json(&mut port, "/dead-letters?limit=2").await;
    let names: Vec<&str> = page.items.iter().map(|letter| letter.id.as_str()).collect();
    assert_eq!(names, ["message-0-0", "message-0-1"]);
    assert_eq!(page.next.as_deref(), Some("message-0-1"));
    let rest: Page<Letter> = get_json(&mut port, "/dead-letters?limit=2&after=message-0-1").await;
    assert_eq!((rest.items.len(), rest.next), (1, None));
    let stats: Stats = get_json(&mut port, "/dead-letters/stats").await;
    assert_eq!(stats.reasons[0].reason.name(), "undecodable");
    assert_eq!(stats.causes.items[0].summary.letters, 3);

    let all = json!({ "type": "filter", "filter": { "kind": "message" }, "limit": 10 });
    let count: SelectionCount = post_json(&mut port, "/dead-letters/count", &all).await;
    assert_eq!((count.letters, count.more), (3, false));
    let plan: Plan = post_json(&mut port, "/dead-letters/plan", &all).await;
    assert_eq!(plan.letters, 3);
    let forecast = &plan.forecasts[0].forecast;
    assert!(
        matches!(forecast, Forecast::FailAgain { .. }),
        "{forecast:?}"
    );

    let task_request = json!({
        "task": "garbage",
        "work": "discard",
        "selection": all,
        "why": "garbage of a night",
    });
    let mut task: Task = post_json(&mut port, "/dead-letters/tasks", &task_request).await;
    for _ in 0..1000 {
        if task.state == Progress::Over {
            break;
        }
        sleep(Duration::from_millis(10)).await;
        task = get_json(&mut port, "/dead-letters/tasks/garbage").await;
    }
    assert_eq!(task.state, Progress::Over);
    assert_eq!(task.outcomes[&TaskOutcome::Discarded], 3);
    assert_eq!(task.why, "garbage of a night");
    assert_eq!(task.results.items.len(), 3);
    let tasks: List<Task> = get_json(&mut port, "/dead-letters/tasks").await;
    assert_eq!(tasks.items, [task.summary()]);
}

/// Logs the start of a task that was broken off before its letters were named.
async fn break_off(port: &Port, task: &str, work: OperatorWork, letter: &str) {
    let started_task = StartedTask {
        task: task.parse().expect("a name"),
        work,
        letters: 1,
        pace: Pace::default(),
        about: letter.to_owned(),
        why: "a test".to_owned(),
        batch: None,
    };
    let entry = OperationEntry {
        at: Timestamp::from_millis(7),
        by: "bob".to_owned(),
        act: OperatorAction::Begun(started_task),
    };
    let record = NewRecord {
        partition: Partition {
            topic: Topic::Operation,
            number: 0,
        },
        key: Bytes::from(task.to_owned()),
        headers: Vec::new(),
        value: serde_json::to_vec(&entry).expect("JSON").into(),
    };
    let answers = port.backends.queue.producer().publish(vec![record]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

// A redrive under the name of a discard named letters for the discard.
#[tokio::test(start_paused = true)]
async fn the_name_of_a_task_begins_no_other_work() {
    let mut port = Port::new().await;
    break_off(&port, "night", OperatorWork::Discard, "message-0-0").await;
    let path = "/dead-letters/tasks";
    let task_request = |work: &str, letter: &str| {
        let selection = json!({ "type": "ids", "ids": [letter] });
        json!({ "task": "night", "work": work, "selection": selection, "why": "a test" })
    };
    let same = task_request("discard", "message-0-0");
    // While it is choosing, and once it runs.
    for _ in 0..2 {
        let state_before = port.state();
        for other in [
            task_request("redrive", "message-0-0"),
            task_request("discard", "message-0-1"),
        ] {
            let body = other.to_string();
            let (status, answer) = request_json(&mut port, &Method::POST, path, &body).await;
            assert_eq!(status, StatusCode::CONFLICT, "{other}: {answer}");
            assert_eq!(answer["error"]["code"], "conflict");
            assert!(state_before == port.state(), "{other} wrote something");
        }
        let task: Task = post_json(&mut port, path, &same).await;
        assert_eq!(task.work, OperatorWork::Discard);
        assert_eq!(task.state, Progress::Running);
    }
}

/// A request that is refused: method, path, body, status, and code.
type Refusal = (Method, &'static str, &'static str, u16, &'static str);

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_refused_with_a_code() {
    let mut port = Port::new().await;
    let nothing = r#"{"type":"ids"}"#;
    let untyped_selection = r#"{"ids":["message-0-0"]}"#;
    let stale = r#"{"base":"0123456789abcdef","envelope":"{}","why":"a slip"}"#;
    let refusals: [Refusal; 14] = [
        (Method::GET, "/nothing", "", 404, "not_found"),
        (Method::PUT, "/me", "{}", 405, "unsupported"),
        (Method::GET, "/trace/hello", "", 400, "invalid_argument"),
        (
            Method::GET,
            "/dead-letters?colour=blue",
            "",
            400,
            "invalid_argument",
        ),
        (
            Method::GET,
            "/dead-letters?reason=boredom",
            "",
            400,
            "invalid_argument",
        ),
        (
            Method::GET,
            "/audit?since=yesterday",
            "",
            400,
            "invalid_argument",
        ),
        (Method::GET, "/dead-letters/none", "", 404, "not_found"),
        (
            Method::GET,
            "/dead-letters/tasks/nobody",
            "",
            404,
            "not_found",
        ),
        (
            Method::POST,
            "/dead-letters/count",
            "{",
            400,
            "invalid_argument",
        ),
        (
            Method::POST,
            "/dead-letters/plan",
            nothing,
            422,
            "invalid_argument",
        ),
        (
            Method::POST,
            "/dead-letters/plan",
            untyped_selection,
            422,
            "invalid_argument",
        ),
        (
            Method::POST,
            "/dead-letters/message-0-0/edit",
            stale,
            409,
            "conflict",
        ),
        (Method::POST, "/users/7/kick", "{}", 400, "invalid_argument"),
        (Method::POST, "/boats/boat-1/drain", "{}", 404, "not_found"),
    ];
    for (method, path, body, status, code) in refusals {
        let (actual_status, answer) = request_json(&mut port, &method, path, body).await;
        assert_eq!(actual_status, status, "{method} {path}: {answer}");
        let error_answer: ErrorAnswer = serde_json::from_value(answer).expect(path);
        assert_eq!(
            error_answer.error.code, code,
            "{method} {path}: {error_answer:?}"
        );
        assert!(!error_answer.error.message.is_empty(), "{method} {path}");
        assert!(!error_answer.error.retry, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn unheard_callers_get_the_same_form_of_refusal() {
    let mut port = staffed_port().await;
    let json = ("content-type", "application/json");
    let vic = ("authorization", "Bearer a-token-of-some-vic");
    let (ours, stranger) = (("x-packetboat", "1"), ("origin", "http://evil.example"));
    let redrive = r#"{"type":"ids","ids":["message-0-0"]}"#;
    let large = format!(r#"{{"ids":["{}"]}}"#, "a".repeat(3 << 20));
    for (headers, body, status, code) in [
        (&[json][..], redrive, 401, "unauthenticated"),
        (&[json, vic][..], redrive, 403, "forbidden"),
        (&[json, vic, stranger][..], redrive, 403, "forbidden"),
        (&[vic, ours][..], redrive, 415, "unsupported"),
        (&[json, vic][..], &*large, 413, "too_large"),
    ] {
        let path = format!("{PREFIX}/dead-letters/redrive");
        let (actual_status, text) = port.ask(&Method::POST, &path, headers, body).await;
        assert_eq!(actual_status, status, "{headers:?}: {text}");
        let error_answer: ErrorAnswer = serde_json::from_str(&text).expect(&text);
        assert_eq!(error_answer.error.code, code, "{headers:?}");
    }
}

// The guard refused what the schema described: a resume and a cancel have no body.
#[tokio::test(start_paused = true)]
async fn requests_without_a_body_have_the_headers_of_the_schema() {
    let mut port = staffed_port().await;
    let document = openapi::document();
    let mut request_count = 0;
    for route in &ROUTES {
        if route.method != Method::POST || route.input.is_some() {
            continue;
        }
        let path = format!("{PREFIX}{}", route.path);
        let parameters = document["paths"][&path]["post"]["parameters"].as_array();
        let header_parameters = parameters.into_iter().flatten();
        let header_parameters = header_parameters.filter(|parameter| parameter["in"] == "header");
        let headers = header_parameters.map(|parameter| {
            let (name, value) = (&parameter["name"], &parameter["example"]);
            (name.as_str().expect("text"), value.as_str().expect("text"))
        });
        let headers: Vec<_> = std::iter::once(HEADERS[0]).chain(headers).collect();
        let (status, text) = port.ask(&Method::POST, &filled(&path), &headers, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        request_count += 1;
    }
    assert!(request_count >= 2, "{request_count} requests have no body");
}

#[tokio::test(start_paused = true)]
async fn times_of_a_question_have_two_forms() {
    let mut port = Port::new().await;
    let (first, text) = (1_709_283_600_500_i64, "2024-03-01T09:00:00.500Z");
    let (last, end) = (first + 3_600_000, "2024-03-01T10:00:00.500Z");
    for (since, until) in [
        (&*first.to_string(), &*last.to_string()),
        (text, end),
        (
            "2024-03-01T10:00:00.500%2B01:00",
            "2024-03-01T11:00:00.500%2B01:00",
        ),
    ] {
        let path = format!("/audit?since={since}&until={until}");
        let (status, answer) = request_json(&mut port, &Method::GET, &path, "").await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["since"], json!({ "utc": text, "ms": first }));
        assert_eq!(answer["until"], json!({ "utc": end, "ms": last }));
    }
    for since in [
        "4928029200500",
        "2126-03-01T09:00:00.500Z",
        "2126-03-01T10:00:00.500%2B01:00",
    ] {
        let path = format!("/dead-letters?since={since}");
        let page: Page<Letter> = get_json(&mut port, &path).await;
        assert_eq!(page.items, [], "all died before");
    }
    let page: Page<Letter> = get_json(&mut port, "/dead-letters?since=0").await;
    assert_eq!(page.items.len(), 3);
}

// A window that ends before it begins was balanced, and its chain intact.
#[tokio::test(start_paused = true)]
async fn a_window_without_a_time_is_refused() {
    let mut port = Port::new().await;
    let config = auditor::Config::default();
    let start = port.desk.auditor(1, config).round().await;
    start.expect("a chain");
    for path in [
        "/audit?since=2000&until=2000",
        "/audit?since=2000&until=1000&deep=true",
        "/audit?since=2126-03-01T09:00:00Z",
        "/audit?since=2126-03-01T09:00:00Z&until=2126-03-02T09:00:00Z",
        "/audit?since=9223372036854775807",
        "/audit/verify?since=2126-03-01T09:00:00Z",
    ] {
        let (status, answer) = request_json(&mut port, &Method::GET, path, "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {answer}");
        assert_eq!(answer["error"]["code"], "invalid_argument", "{path}");
    }
    for path in [
        "/audit?since=1000&until=2000",
        "/audit?since=-9223372036854775808",
        "/audit/verify?since=-9223372036854775808",
    ] {
        let (status, answer) = request_json(&mut port, &Method::GET, path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    }
}
