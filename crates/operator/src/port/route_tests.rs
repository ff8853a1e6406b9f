//! Rules that hold for every route of the admin port.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Method, Request, StatusCode};
use backend::Backends;
use backend::clock::{SystemClock, SystemEntropy};
use backend::embedded::{Engine, ScanOrder, Table};
use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusBuilder;
use protocol::bounds::Bounds;
use tokio::time::{Instant, advance};
use tonic::codegen::Service;

use super::operators::Role;
use super::routes::{OTHERS, Place, ROUTES, Route, roots};
use super::*;
use crate::Access;
use crate::answer::ErrorAnswer;
use crate::audit::tests::dead_letter;
use crate::doctor;
use crate::in_memory::Environment;
use crate::lifecycle::Phases;

const HOST: &str = "127.0.0.1:9190";
const TOKEN: &str = "Bearer a-token-of-some-ann";
/// Headers of ann.
pub(super) const HEADERS: [(&str, &str); 2] = [
    ("authorization", TOKEN),
    ("content-type", "application/json"),
];
/// Paths that need no sign-in: probes, metrics, and the console's own files.
const OPEN: [&str; 5] = ["/", "/{*path}", "/livez", "/metrics", "/readyz"];
/// Task of [`staffed_port`].
const STARTED: &str = "t1790000000000-0000002a";

/// A key and its value.
type Pair = (Bytes, Bytes);

/// The whole port over a store in memory, and access to the store.
pub(super) struct Port {
    router: Router,
    engine: Engine,
    pub(super) backends: Backends,
    pub(super) desk: Arc<Desk>,
    operators: Operators,
    configs: Vec<OperatorConfig>,
    _token: tempfile::TempDir,
}

impl Port {
    /// Port with three letters, and an operator with all roles. Nothing works in the background.
    pub(super) async fn new() -> Port {
        Port::of(&[("ann", &Role::ALL)]).await
    }

    /// Port with these operators: the token of ann is `a-token-of-some-ann`.
    async fn of(names: &[(&str, &[Role])]) -> Port {
        let engine = Engine::memory();
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let environment = Environment::over(engine.clone(), clock, entropy);
        let environment = environment.expect("stores in memory");
        let letters = (0..3).map(|offset| dead_letter(offset, environment.backends.clock.now()));
        for answer in environment
            .backends
            .queue
            .producer()
            .publish(letters.collect())
            .await
        {
            answer.expect("published");
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
            desk: Some(desk.clone()),
            doctor: Some(Arc::new(doctor)),
            certificates: None,
        };
        let address = HOST.parse().expect("an address");
        Port {
            router: super::routes(&Config::default(), address, parts),
            engine,
            backends: environment.backends,
            desk,
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
        self.ask(method, path, more, "{}").await
    }

    pub(super) async fn ask(
        &mut self,
        method: &Method,
        path: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, String) {
        let body = Body::from(body.to_owned());
        let answer = self.answer_to(method, path, more, body).await;
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.expect("read");
        (status, String::from_utf8_lossy(&body).into_owned())
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
    pub(super) fn state(&self) -> BTreeMap<Table, Vec<Pair>> {
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
pub(super) fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{user}" => "7",
        "{boat}" => "boat-1",
        "{*path}" => "assets/index.js",
        "{id}" if path.contains("tasks") => STARTED,
        "{id}" if path.contains("trace") => "12",
        "{id}" => "message-0-0",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test(start_paused = true)]
async fn the_table_of_routes_is_seen_whole() {
    let paths = Port::new().await.paths();
    for expected in [
        "/",
        "/livez",
        "/readyz",
        "/metrics",
        "/{*path}",
        "/api/v1/{*path}",
        "/api/v1/me",
        "/api/v1/doctor/user/{user}/repair",
        "/api/v1/dead-letters/{id}",
        "/api/v1/dead-letters/tasks/{id}/cancel",
    ] {
        assert!(
            paths.iter().any(|path| path == expected),
            "{expected} in {paths:?}"
        );
    }
    assert!(paths.len() >= 30, "{paths:?}");
}

// A look at a letter's body was a GET, and wrote a line into the log of operations.
#[tokio::test(start_paused = true)]
async fn no_get_changes_anything() {
    let mut port = Port::new().await;
    let mut answer_count = 0;
    for path in port.paths() {
        for query in ["", "?body=true&why=curious", "?all=true&deep=true"] {
            let state_before = port.state();
            let path_and_query = format!("{}{query}", filled(&path));
            let (status, text) = port
                .call(&Method::GET, &path_and_query, &[("authorization", TOKEN)])
                .await;
            assert!(
                status != StatusCode::UNAUTHORIZED,
                "{path_and_query}: {text}"
            );
            answer_count += usize::from(status == StatusCode::OK);
            assert!(
                state_before == port.state(),
                "GET {path_and_query} changed something"
            );
        }
    }
    assert!(answer_count >= 30, "{answer_count} questions were answered");
}

#[tokio::test(start_paused = true)]
async fn mutations_require_json_or_header_and_same_origin() {
    let mut port = Port::new().await;
    let json = ("content-type", "application/json");
    let (ours, own) = (("x-packetboat", "1"), ("origin", "http://127.0.0.1:9190"));
    let foreign = ("origin", "http://evil.example");
    let (token, site) = (("authorization", TOKEN), ("sec-fetch-site", "cross-site"));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let mut passed_count = 0;
    for path in port.paths() {
        let path = filled(&path);
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            for bad_headers in [
                &[token][..],
                &[token, form],
                &[token, own],
                &[token, json, foreign],
                &[token, ours, foreign],
                &[token, json, site],
                &[token, json, ("origin", "null")],
            ] {
                let (status, text) = port.call(&method, &path, bad_headers).await;
                assert_eq!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {path} {bad_headers:?}: {text}"
                );
            }
        }
        // Only the guard refused: with all that it asks for, the desk answers.
        for welcome in [&[token, json, own][..], &[token, ours]] {
            let (status, text) = port.call(&Method::POST, &path, welcome).await;
            assert_ne!(status, StatusCode::FORBIDDEN, "POST {path}: {text}");
            passed_count += usize::from(status != StatusCode::METHOD_NOT_ALLOWED);
        }
    }
    assert!(passed_count >= 20, "{passed_count} reached a route");
}

/// Every route of the desk requires a sign-in; probes, metrics and the page itself do not.
#[tokio::test(start_paused = true)]
async fn requests_without_a_token_are_refused() {
    let mut port = Port::new().await;
    for path in port.paths() {
        if OPEN.contains(&path.as_str()) {
            continue;
        }
        for method in [Method::GET, Method::POST] {
            let more = [("content-type", "application/json")];
            let (status, text) = port.call(&method, &filled(&path), &more).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}: {text}");
        }
    }
}

// Three hundred wrong tokens took three seconds, and left no trace.
#[tokio::test(start_paused = true)]
async fn token_guesses_are_counted_delayed_and_then_ignored() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let mut port = Port::new().await;
    let (right, wrong) = (
        ("authorization", TOKEN),
        ("authorization", "Bearer a-guess"),
    );
    let (status, _) = port.call(&Method::GET, "/api/v1/me", &[right]).await;
    assert_eq!(status, StatusCode::OK);
    let start = Instant::now();
    for guess in 0..20 {
        // Both paths share one count.
        let path = match guess % 2 {
            0 => "/api/v1/me",
            _ => "/api/v1/doctor",
        };
        let (status, _) = port.call(&Method::GET, path, &[wrong]).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "guess {guess}");
    }
    assert_eq!(start.elapsed(), Duration::from_secs(15), "five were prompt");
    for path in ["/api/v1/me", "/api/v1/doctor"] {
        let (status, text) = port.call(&Method::GET, path, &[wrong]).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    }
    assert_eq!(
        start.elapsed(),
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

/// Right that a request requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// Nobody signs in.
    Nothing,
    View,
    /// A role beside `view`.
    More,
}

impl Right {
    fn of(route: &Route) -> Right {
        match route.needs {
            super::routes::Needs::View => Right::View,
            super::routes::Needs::Also(_) | super::routes::Needs::Either(_) => Right::More,
        }
    }
}

/// A request that the port answers.
struct Row {
    method: Method,
    path: String,
    right: Right,
    body: &'static str,
}

/// Every request that the port answers: those of the API, and the open ones.
fn rows() -> Vec<Row> {
    let open = OPEN.map(|path| Row {
        method: Method::GET,
        path: path.to_owned(),
        right: Right::Nothing,
        body: "",
    });
    let of_api = ROUTES.iter().map(|route| Row {
        method: route.method.clone(),
        path: format!("{PREFIX}{}", route.path),
        right: Right::of(route),
        body: request_body(route),
    });
    open.into_iter().chain(of_api).collect()
}

/// A body that a route takes.
pub(super) fn request_body(route: &Route) -> &'static str {
    match &route.input {
        Some(input) if input.place == Place::Body => input.example,
        _ => "{}",
    }
}

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

/// Status that an asker is refused with; `None` for an asker who is heard.
fn expected_refusal(asker: &str, right: Right) -> Option<StatusCode> {
    match (asker, right) {
        (_, Right::Nothing) | ("an operator who may look", Right::View) => None,
        ("an operator who may look" | "an operator who may not look", _) => {
            Some(StatusCode::FORBIDDEN)
        }
        _ => Some(StatusCode::UNAUTHORIZED),
    }
}

/// A desk with operators of several rights, a letter, and a task that nobody works on.
pub(super) async fn staffed_port() -> Port {
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
    let path = "/dead-letters/tasks";
    let mut begin = ROUTES.iter();
    let begin = begin.find(|route| route.path == path && route.method == Method::POST);
    let task = request_body(begin.expect("a route"));
    let task = task.replacen('{', &format!(r#"{{"task": "{STARTED}", "#), 1);
    let path = format!("{PREFIX}{path}");
    let (status, text) = port.ask(&Method::POST, &path, &HEADERS, &task).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    port
}

// A new route, or a new method of one, needs a row with its right.
#[tokio::test(start_paused = true)]
async fn every_route_of_the_desk_says_what_it_needs() {
    let mut port = staffed_port().await;
    let rows = rows();
    for path in port.paths() {
        if path == format!("{PREFIX}{OTHERS}") || roots().contains(&path) {
            continue;
        }
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ] {
            let (status, _) = port.call(&method, &filled(&path), &HEADERS).await;
            let is_row = rows
                .iter()
                .any(|row| row.method == method && row.path == path);
            assert_eq!(
                status != StatusCode::METHOD_NOT_ALLOWED,
                is_row,
                "{method} {path}: {status}"
            );
        }
    }
    let paths = port.paths();
    for Row { path, .. } in rows {
        assert!(paths.contains(&path), "{path} is no route");
    }
}

// The console answered for them, with a text.
#[tokio::test(start_paused = true)]
async fn the_paths_of_the_whole_api_are_refused_in_its_form() {
    let mut port = Port::new().await;
    for path in roots() {
        for method in [Method::GET, Method::POST] {
            let (status, text) = port.call(&method, &path, &HEADERS).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {text}");
            let error_answer: ErrorAnswer = serde_json::from_str(&text).expect(&text);
            assert_eq!(error_answer.error.code, "not_found", "{method} {path}");
        }
    }
}

// Threat 5, at the desk: no route does anything for an asker without the right, and no refusal is
// written or shows a letter.
#[tokio::test(start_paused = true)]
async fn no_route_of_the_desk_is_open_to_who_may_not() {
    let mut port = staffed_port().await;
    for row in rows() {
        let Row {
            method,
            path,
            right,
            body,
        } = row;
        for (asker, token) in ASKERS {
            // Guesses of an address count by the minute.
            advance(Duration::from_secs(61)).await;
            let mut headers = vec![("content-type", "application/json")];
            headers.extend(token.map(|token| ("authorization", token)));
            let state_before = port.state();
            let (status, _) = port.ask(&method, &filled(&path), &headers, body).await;
            match expected_refusal(asker, right) {
                Some(expected) => assert_eq!(status, expected, "{method} {path}: {asker}"),
                None => assert!(
                    ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
                    "{method} {path}: {asker}: {status}"
                ),
            }
            assert!(
                state_before == port.state(),
                "{method} {path} changed something for {asker}"
            );
        }
        // Only their rights refused the others.
        let (status, _) = port.ask(&method, &filled(&path), &HEADERS, body).await;
        assert!(
            ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
            "{method} {path}: {status}"
        );
    }
}
