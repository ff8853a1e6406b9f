//! Rules that hold for every route of the admin port.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Method, Request, StatusCode};
use backend::clock::{SystemClock, SystemEntropy};
use backend::embedded::{Engine, ScanOrder, Table};
use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusBuilder;
use protocol::bounds::Bounds;
use tokio::time::{Instant, advance};
use tonic::codegen::Service;

use super::operators::Role;
use super::tests::dead_letter;
use super::*;
use crate::Access;
use crate::in_memory::Environment;
use crate::lifecycle::Phases;

const HOST: &str = "127.0.0.1:9190";
const TOKEN: &str = "Bearer a-token-of-some-ann";

/// A key and its value.
type Pair = (Bytes, Bytes);

/// The whole port over a store in memory, and access to the store.
struct Port {
    router: Router,
    engine: Engine,
    operators: Operators,
    configs: Vec<OperatorConfig>,
    _token: tempfile::TempDir,
}

impl Port {
    /// Port with three letters, and an operator with all roles. Nothing works in the background.
    async fn new() -> Port {
        Port::of(&[("ann", &Role::ALL)]).await
    }

    /// Port with these operators: the token of ann is `a-token-of-some-ann`.
    async fn of(names: &[(&str, &[Role])]) -> Port {
        let engine = Engine::memory();
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let environment = Environment::over(engine.clone(), clock, entropy);
        let environment = environment.expect("stores in memory");
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
        let dir = tempfile::tempdir().expect("a directory");
        let configs: Vec<OperatorConfig> = (names.iter())
            .map(|(name, roles)| {
                let token_file = dir.path().join(name);
                std::fs::write(&token_file, format!("a-token-of-some-{name}\n")).expect("written");
                OperatorConfig {
                    name: (*name).to_owned(),
                    token_file,
                    roles: roles.to_vec(),
                }
            })
            .collect();
        let operators = Operators::load(&configs);
        let operators = operators.expect("an operator");
        let (backends, connector) = (&environment.backends, &environment.connector);
        let desk = Desk::new(backends, connector, Bounds::default(), operators.clone());
        let desk = Arc::new(desk);
        let doctor = Doctor::new(doctor::Parts {
            settings: doctor::DoctorSettings::default(),
            role: None,
            stores: doctor::Stores::Memory,
            access: Access::from(&environment.backends),
            phases: Phases::default(),
            operators: operators.clone(),
            desk: Some(desk.clone()),
            certificates: None,
        });
        let parts = Parts {
            health: Health::silent(),
            desk: Some(desk),
            doctor: Some(Arc::new(doctor)),
            certificates: None,
        };
        let bound = HOST.parse().expect("an address");
        Port {
            router: routes(&Config::default(), bound, parts),
            engine,
            operators,
            configs,
            _token: dir,
        }
    }

    /// Removes an operator.
    fn remove(&mut self, name: &str) {
        self.configs.retain(|config| config.name != name);
        self.operators
            .renew(&self.configs)
            .expect("others are left");
    }

    /// Every path that the router knows, from its own table.
    fn paths(&self) -> Vec<String> {
        let table = format!("{:?}", self.router);
        let paths = table.split("paths: {").nth(1).expect("a table of paths");
        let paths = paths.split('}').next().map(|_| paths).unwrap_or_default();
        let routes = paths.split("RouteId(").skip(1).filter_map(|route| {
            let (_, path) = route.split_once("): \"")?;
            Some(path.split_once('"')?.0.to_owned())
        });
        routes.filter(|path| path.starts_with('/')).collect()
    }

    async fn call(
        &mut self,
        method: &Method,
        path: &str,
        more: &[(&str, &str)],
    ) -> (StatusCode, String) {
        let answer = self.answer(method, path, more).await;
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.expect("read");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    async fn answer(&mut self, method: &Method, path: &str, more: &[(&str, &str)]) -> Response {
        self.answer_to(method, path, more, Body::from("{}")).await
    }

    async fn answer_to(
        &mut self,
        method: &Method,
        path: &str,
        more: &[(&str, &str)],
        body: Body,
    ) -> Response {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", HOST);
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let mut request = request.body(body).expect("a request");
        let peer: SocketAddr = "127.0.0.1:40000".parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(peer));
        self.router.call(request).await.expect("infallible")
    }

    /// All rows of the stores.
    fn state(&self) -> BTreeMap<Table, Vec<Pair>> {
        let all = |table: &Table| {
            let pairs = self
                .engine
                .range(*table, .., ScanOrder::Forward, usize::MAX);
            pairs.expect("readable")
        };
        Table::ALL
            .iter()
            .map(|table| (*table, all(table)))
            .collect()
    }
}

/// Path with a value in the place of each parameter.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{user}" => "7",
        "{*path}" => "assets/index.js",
        "{*call}" => "ListTasks",
        "{id}" if path.contains("tasks") => "t1790000000000-0000002a",
        "{id}" => "message-0-0",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn the_table_of_routes_is_seen_whole() {
    let paths = Port::new().await.paths();
    for known in [
        "/",
        "/livez",
        "/readyz",
        "/metrics",
        "/{*path}",
        "/api/v1/me",
        "/api/v1/doctor/user/{user}/repair",
        "/api/v1/dead-letters/{id}",
        "/api/v1/dead-letters/tasks/{id}/cancel",
        "/packetboat.v1.DeskService/{*call}",
    ] {
        assert!(
            paths.iter().any(|path| path == known),
            "{known} in {paths:?}"
        );
    }
    assert!(paths.len() >= 30, "{paths:?}");
}

// A look at a letter's body was a GET, and wrote a line into the log of operations.
#[tokio::test]
async fn no_get_changes_anything() {
    let mut port = Port::new().await;
    let mut answered = 0;
    for path in port.paths() {
        for query in ["", "?body=true&why=curious", "?all=true&deep=true"] {
            let before = port.state();
            let asked = format!("{}{query}", filled(&path));
            let (status, text) = port
                .call(&Method::GET, &asked, &[("authorization", TOKEN)])
                .await;
            assert!(status != StatusCode::UNAUTHORIZED, "{asked}: {text}");
            answered += usize::from(status == StatusCode::OK);
            assert!(before == port.state(), "GET {asked} changed something");
        }
    }
    assert!(answered >= 30, "{answered} questions were answered");
}

#[tokio::test]
async fn whatever_changes_something_needs_json_or_our_header_and_a_page_of_ours() {
    let mut port = Port::new().await;
    let json = ("content-type", "application/json");
    let (ours, own) = (("x-packetboat", "1"), ("origin", "http://127.0.0.1:9190"));
    let foreign = ("origin", "http://evil.example");
    let (token, site) = (("authorization", TOKEN), ("sec-fetch-site", "cross-site"));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let mut passed = 0;
    for path in port.paths() {
        let path = filled(&path);
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            for refused in [
                &[token][..],
                &[token, form],
                &[token, own],
                &[token, json, foreign],
                &[token, ours, foreign],
                &[token, json, site],
                &[token, json, ("origin", "null")],
            ] {
                let (status, text) = port.call(&method, &path, refused).await;
                assert_eq!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {path} {refused:?}: {text}"
                );
            }
        }
        // Only the guard refused: with all that it asks for, the desk answers.
        for welcome in [&[token, json, own][..], &[token, ours]] {
            let (status, text) = port.call(&Method::POST, &path, welcome).await;
            assert_ne!(status, StatusCode::FORBIDDEN, "POST {path}: {text}");
            passed += usize::from(status != StatusCode::METHOD_NOT_ALLOWED);
        }
    }
    assert!(passed >= 20, "{passed} reached a route");
}

/// Every route of the desk requires a sign-in; probes, metrics and the page itself do not.
#[tokio::test]
async fn nobody_without_a_token_reaches_the_desk() {
    let mut port = Port::new().await;
    let open = ["/", "/livez", "/readyz", "/metrics", "/{*path}"];
    for path in port.paths() {
        if open.contains(&path.as_str()) {
            continue;
        }
        for method in [Method::GET, Method::POST] {
            let more = [("content-type", "application/json")];
            let (status, text) = port.call(&method, &filled(&path), &more).await;
            // gRPC has its status in a header of its own.
            let unknown = [
                StatusCode::UNAUTHORIZED,
                StatusCode::OK,
                StatusCode::METHOD_NOT_ALLOWED,
            ];
            assert!(
                unknown.contains(&status),
                "{method} {path}: {status} {text}"
            );
            let said = status == StatusCode::OK && !path.starts_with("/packetboat.");
            assert!(!said, "{method} {path}: {text}");
        }
    }
}

// Three hundred wrong tokens took three seconds, and left no trace.
#[tokio::test(start_paused = true)]
async fn who_guesses_tokens_is_counted_slowed_and_then_not_heard() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let mut port = Port::new().await;
    let (right, wrong) = (
        ("authorization", TOKEN),
        ("authorization", "Bearer a-guess"),
    );
    let (status, _) = port.call(&Method::GET, "/api/v1/me", &[right]).await;
    assert_eq!(status, StatusCode::OK);
    let grpc = "/packetboat.v1.DeskService/ListTasks";
    let is_grpc = ("content-type", "application/grpc");
    let began = Instant::now();
    for guess in 0..20 {
        // Three doors, one count.
        let code = match guess % 3 {
            0 => port.call(&Method::GET, "/api/v1/me", &[wrong]).await.0,
            1 => port.call(&Method::GET, "/api/v1/doctor", &[wrong]).await.0,
            _ => {
                let refused = port.answer(&Method::POST, grpc, &[wrong, is_grpc]).await;
                assert_eq!(refused.headers()["grpc-status"], "16", "UNAUTHENTICATED");
                StatusCode::UNAUTHORIZED
            }
        };
        assert_eq!(code, StatusCode::UNAUTHORIZED, "guess {guess}");
    }
    assert_eq!(began.elapsed(), Duration::from_secs(15), "five were prompt");
    let (status, text) = port.call(&Method::GET, "/api/v1/me", &[wrong]).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    let refused = port.answer(&Method::POST, grpc, &[wrong, is_grpc]).await;
    assert_eq!(refused.headers()["grpc-status"], "8", "RESOURCE_EXHAUSTED");
    assert_eq!(
        began.elapsed(),
        Duration::from_secs(17),
        "not faster than before"
    );
    // Operators behind the same proxy work on.
    let (status, _) = port.call(&Method::GET, "/api/v1/me", &[right]).await;
    assert_eq!(status, StatusCode::OK);
    let scrape = recorder.handle().render();
    for line in [
        "admin_sign_ins_total{result=\"refused\"} 20",
        "admin_sign_ins_total{result=\"ignored\"} 2",
        "admin_sign_ins_total{result=\"accepted\"} 2",
    ] {
        assert!(scrape.contains(line), "{scrape}");
    }
    advance(Duration::from_secs(46)).await;
    let (status, _) = port.call(&Method::GET, "/api/v1/me", &[wrong]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "a minute is over");
}

/// Right that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Nobody signs in: probes, metrics, and the console's own files.
    Nothing,
    View,
    /// A role beside `view`.
    More,
}

/// Every route of the desk that answers, with a body that it takes.
const ROUTES: [(&str, &str, Needs, &str); 35] = [
    ("GET", "/", Needs::Nothing, ""),
    ("GET", "/{*path}", Needs::Nothing, ""),
    ("GET", "/livez", Needs::Nothing, ""),
    ("GET", "/metrics", Needs::Nothing, ""),
    ("GET", "/readyz", Needs::Nothing, ""),
    ("GET", "/api/v1/audit", Needs::View, ""),
    ("GET", "/api/v1/audit/verify", Needs::View, ""),
    ("GET", "/api/v1/boats", Needs::View, ""),
    ("GET", "/api/v1/boats/{boat}", Needs::View, ""),
    ("POST", "/api/v1/boats/{boat}/drain", Needs::More, "{}"),
    ("GET", "/api/v1/dead-letters", Needs::View, ""),
    ("POST", "/api/v1/dead-letters/count", Needs::View, IDS),
    ("POST", "/api/v1/dead-letters/export", Needs::More, WHY),
    ("POST", "/api/v1/dead-letters/import", Needs::More, WHY),
    ("GET", "/api/v1/dead-letters/log", Needs::View, ""),
    ("POST", "/api/v1/dead-letters/plan", Needs::View, IDS),
    ("POST", "/api/v1/dead-letters/redrive", Needs::More, IDS),
    ("GET", "/api/v1/dead-letters/stats", Needs::View, ""),
    ("GET", "/api/v1/dead-letters/tasks", Needs::View, ""),
    ("POST", "/api/v1/dead-letters/tasks", Needs::More, DISCARD),
    ("GET", "/api/v1/dead-letters/tasks/{id}", Needs::View, ""),
    (
        "POST",
        "/api/v1/dead-letters/tasks/{id}/cancel",
        Needs::More,
        "{}",
    ),
    (
        "POST",
        "/api/v1/dead-letters/tasks/{id}/pause",
        Needs::More,
        WHY,
    ),
    (
        "POST",
        "/api/v1/dead-letters/tasks/{id}/resume",
        Needs::More,
        "{}",
    ),
    ("GET", "/api/v1/dead-letters/{id}", Needs::View, ""),
    ("POST", "/api/v1/dead-letters/{id}/edit", Needs::More, EDIT),
    (
        "POST",
        "/api/v1/dead-letters/{id}/envelope",
        Needs::More,
        WHY,
    ),
    ("POST", "/api/v1/dead-letters/{id}/read", Needs::More, WHY),
    ("GET", "/api/v1/me", Needs::View, ""),
    ("GET", "/api/v1/trace/{id}", Needs::View, ""),
    ("GET", "/api/v1/doctor", Needs::View, ""),
    ("GET", "/api/v1/doctor/clock", Needs::View, ""),
    ("GET", "/api/v1/doctor/user/{user}", Needs::View, ""),
    (
        "POST",
        "/api/v1/doctor/user/{user}/repair",
        Needs::More,
        WHY,
    ),
    ("POST", "/api/v1/users/{user}/kick", Needs::More, KICK),
];
/// Calls of the desk over gRPC, each with a message in JSON.
const DESK_CALLS: [(&str, Needs, &str); 14] = [
    ("BeginTask", Needs::More, BEGIN_TASK),
    ("CancelTask", Needs::More, TASK_OF),
    ("CountLetters", Needs::View, "{}"),
    ("CountSelection", Needs::View, SELECTION),
    ("EditLetter", Needs::More, EDIT_LETTER),
    ("GetEnvelope", Needs::More, LETTER),
    ("ListLetters", Needs::View, "{}"),
    ("ListTasks", Needs::View, "{}"),
    ("PauseTask", Needs::More, TASK_OF),
    ("PlanRedrive", Needs::View, SELECTION),
    ("ResumeTask", Needs::More, TASK_OF),
    ("ShowLetter", Needs::More, BODY),
    ("Trace", Needs::View, r#"{"name": "1"}"#),
    ("WatchTask", Needs::View, TASK_OF),
];
const GRPC: &str = "/packetboat.v1.DeskService/{*call}";
/// Task that [`filled`] names.
const TASK_OF: &str = r#"{"task": "t1790000000000-0000002a"}"#;
const BEGIN_TASK: &str =
    r#"{"work": "DESK_WORK_DISCARD", "selection": {"ids": ["message-0-0"]}, "why": "curious"}"#;
const SELECTION: &str = r#"{"selection": {"ids": ["message-0-0"]}}"#;
const EDIT_LETTER: &str =
    r#"{"id": "message-0-0", "base": "0123456789abcdef", "why": "curious", "envelope": "{}"}"#;
const LETTER: &str = r#"{"id": "message-0-0", "why": "curious"}"#;
const BODY: &str = r#"{"id": "message-0-0", "body": true, "why": "curious"}"#;
const WHY: &str = r#"{"why": "curious"}"#;
const KICK: &str = r#"{"reason": "curious", "revoke": true}"#;
const IDS: &str = r#"{"ids": ["message-0-0"]}"#;
const DISCARD: &str =
    r#"{"work": "discard", "selection": {"ids": ["message-0-0"]}, "why": "curious"}"#;
const EDIT: &str = r#"{"base": "0123456789abcdef", "why": "curious", "envelope": "{}"}"#;

/// Askers at the desk, by the credentials that they send.
const ASKERS: [(&str, Option<&str>); 5] = [
    ("nobody", None),
    ("a token of no operator", Some("Bearer a-token-of-some-eve")),
    ("an operator of before", Some("Bearer a-token-of-some-bob")),
    (
        "an operator who may not look",
        Some("Bearer a-token-of-some-dan"),
    ),
    (
        "an operator who may look",
        Some("Bearer a-token-of-some-vic"),
    ),
];

/// Codes of HTTP and gRPC that an asker is refused with; `None` for an asker who is heard.
fn refusal_of(asker: &str, needs: Needs) -> Option<(StatusCode, &'static str)> {
    match (asker, needs) {
        (_, Needs::Nothing) | ("an operator who may look", Needs::View) => None,
        ("an operator who may look" | "an operator who may not look", _) => {
            Some((StatusCode::FORBIDDEN, "7"))
        }
        _ => Some((StatusCode::UNAUTHORIZED, "16")),
    }
}

/// A desk with operators of several rights, a letter, and a task that nobody works on.
async fn staffed() -> Port {
    let every_other: Vec<Role> = (Role::ALL.into_iter())
        .filter(|role| *role != Role::View)
        .collect();
    let names: [(&str, &[Role]); 4] = [
        ("ann", &Role::ALL),
        ("bob", &Role::ALL),
        ("dan", &every_other),
        ("vic", &[Role::View]),
    ];
    let mut port = Port::of(&names).await;
    port.remove("bob");
    let task = DISCARD.replacen('{', r#"{"task": "t1790000000000-0000002a", "#, 1);
    let headers = [
        ("authorization", TOKEN),
        ("content-type", "application/json"),
    ];
    let path = "/api/v1/dead-letters/tasks";
    let begun = port
        .answer_to(&Method::POST, path, &headers, Body::from(task))
        .await;
    assert_eq!(begun.status(), StatusCode::OK);
    port
}

// A new route, or a new method of one, needs a row with its right.
#[tokio::test]
async fn every_route_of_the_desk_says_what_it_needs() {
    let mut port = staffed().await;
    let headers = [
        ("authorization", TOKEN),
        ("content-type", "application/json"),
    ];
    for path in port.paths() {
        if path == GRPC {
            continue;
        }
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ] {
            let (status, _) = port.call(&method, &filled(&path), &headers).await;
            let is_row = ROUTES
                .iter()
                .any(|(of, at, ..)| *of == method.as_str() && *at == path);
            assert_eq!(
                status != StatusCode::METHOD_NOT_ALLOWED,
                is_row,
                "{method} {path}: {status}"
            );
        }
    }
    let paths = port.paths();
    for (_, path, ..) in ROUTES {
        assert!(
            paths.iter().any(|known| known == path),
            "{path} is no route"
        );
    }
    let pool = prost_reflect::DescriptorPool::decode(::api::envelope::DESCRIPTORS);
    let pool = pool.expect("descriptors");
    let desk = pool
        .get_service_by_name("packetboat.v1.DeskService")
        .expect("a service");
    let mut calls: Vec<String> = desk.methods().map(|call| call.name().to_owned()).collect();
    calls.sort();
    assert_eq!(calls, DESK_CALLS.map(|(name, ..)| name));
}

// Threat 5, at the desk: no route and no call does anything for an asker without the right, and no
// refusal is written or shows a letter.
#[tokio::test(start_paused = true)]
async fn no_route_of_the_desk_is_open_to_who_may_not() {
    let mut port = staffed().await;
    for (method, path, needs, body) in ROUTES {
        let method = method.parse().expect("a method");
        for (asker, token) in ASKERS {
            // Guesses of an address count by the minute.
            advance(Duration::from_secs(61)).await;
            let mut headers = vec![("content-type", "application/json")];
            headers.extend(token.map(|token| ("authorization", token)));
            let before = port.state();
            let body = Body::from(body);
            let answer = port.answer_to(&method, &filled(path), &headers, body).await;
            let status = answer.status();
            match refusal_of(asker, needs) {
                Some((expected, _)) => assert_eq!(status, expected, "{method} {path}: {asker}"),
                None => assert!(
                    ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
                    "{method} {path}: {asker}: {status}"
                ),
            }
            assert!(
                before == port.state(),
                "{method} {path} changed something for {asker}"
            );
        }
        // Only their rights refused the others.
        let headers = [
            ("authorization", TOKEN),
            ("content-type", "application/json"),
        ];
        let answer = port
            .answer_to(&method, &filled(path), &headers, Body::from(body))
            .await;
        let status = answer.status();
        assert!(
            ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
            "{method} {path}: {status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_of_the_desk_is_open_to_who_may_not() {
    let mut port = staffed().await;
    for (call, needs, json) in DESK_CALLS {
        let schema = format!("packetboat.v1.{call}Request");
        let message = ::api::envelope::from_json(&schema, json).expect(call);
        let mut body = vec![0];
        body.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
        body.extend_from_slice(&message);
        let path = format!("/packetboat.v1.DeskService/{call}");
        let everybody = ASKERS.into_iter().chain([("ann", Some(TOKEN))]);
        for (asker, token) in everybody {
            advance(Duration::from_secs(61)).await;
            let mut headers = vec![("content-type", "application/grpc"), ("te", "trailers")];
            headers.extend(token.map(|token| ("authorization", token)));
            let before = port.state();
            let body = Body::from(body.clone());
            let answer = port.answer_to(&Method::POST, &path, &headers, body).await;
            let status = answer.headers().get("grpc-status");
            let status = status.map_or("0", |status| status.to_str().expect("a number"));
            let expected = match asker {
                "ann" => None,
                asker => refusal_of(asker, needs),
            };
            match expected {
                Some((_, expected)) => assert_eq!(status, expected, "{call}: {asker}"),
                None => assert!(!["7", "16"].contains(&status), "{call}: {asker}: {status}"),
            }
            if asker != "ann" {
                assert!(
                    before == port.state(),
                    "{call} changed something for {asker}"
                );
            }
        }
    }
}
