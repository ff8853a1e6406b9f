//! What holds for every route of the admin port, whatever it does.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Method, Request, StatusCode};
use backend::clock::{SystemClock, SystemEntropy};
use backend::embedded::{Engine, Order, Table};
use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusBuilder;
use protocol::mailbox::SessionCapacity;
use tokio::time::{Instant, advance};
use tonic::codegen::Service;

use super::operators::Role;
use super::tests::dead_letter;
use super::*;
use crate::compose::{Access, Seams, embedded};
use crate::phase::Phases;
use crate::settings::Settings;

const HOST: &str = "127.0.0.1:9190";
const TOKEN: &str = "Bearer a-token-of-some-length";

/// A key and its value.
type Pair = (Bytes, Bytes);

/// The whole port over a store in memory, and what is in the store.
struct Port {
    router: Router,
    engine: Engine,
    _token: tempfile::TempDir,
}

impl Port {
    /// With three letters, and an operator who may do everything. Nothing works in the background.
    async fn new() -> Port {
        let engine = Engine::memory();
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let seams = Seams::over(
            engine.clone(),
            &embedded::Config::default(),
            SessionCapacity::default(),
            clock,
            entropy,
        );
        let seams = seams.expect("stores in memory");
        let letters = (0..3).map(|offset| dead_letter(offset, seams.clock.now()));
        for published in seams.queue.producer().publish(letters.collect()).await {
            published.expect("published");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let token_file = dir.path().join("ann");
        std::fs::write(&token_file, "a-token-of-some-length\n").expect("written");
        let operators = Operators::load(&[OperatorConfig {
            name: "ann".to_owned(),
            token_file,
            roles: Role::ALL.to_vec(),
        }]);
        let operators = operators.expect("an operator");
        let desk = Desk::new(&seams, &station::Config::default(), operators.clone());
        let desk = Arc::new(desk);
        let doctor = Doctor::new(doctor::Parts {
            settings: Settings::default(),
            role: None,
            stores: doctor::Stores::Memory,
            access: Access::from(&seams),
            phases: Phases::default(),
            operators,
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
            _token: dir,
        }
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
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", HOST);
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from("{}")).expect("a request");
        let peer: SocketAddr = "127.0.0.1:40000".parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(peer));
        self.router.call(request).await.expect("infallible")
    }

    /// All that the stores keep.
    fn state(&self) -> BTreeMap<Table, Vec<Pair>> {
        let all = |table: &Table| {
            let pairs = self.engine.range(*table, .., Order::Forward, usize::MAX);
            pairs.expect("readable")
        };
        Table::ALL
            .iter()
            .map(|table| (*table, all(table)))
            .collect()
    }
}

/// With something in the place of each parameter that is there.
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

// Looking at what a letter holds was a GET, and wrote a line into the log of operations.
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
        // The guard is what refused: with all that it asks for, the desk answers.
        for welcome in [&[token, json, own][..], &[token, ours]] {
            let (status, text) = port.call(&Method::POST, &path, welcome).await;
            assert_ne!(status, StatusCode::FORBIDDEN, "POST {path}: {text}");
            passed += usize::from(status != StatusCode::METHOD_NOT_ALLOWED);
        }
    }
    assert!(passed >= 20, "{passed} reached a route");
}

/// Every route of the desk asks who is there; probes, metrics and the page itself do not.
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
            // gRPC says it in a header of its own.
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
