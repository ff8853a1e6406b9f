use std::time::Duration;

use api::status::from_refusal;
use api::transport::InProcess;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::{Router, response};
use backend::clock::{SeededEntropy, SystemClock};
use backend::discovery::Registration;
use backend::embedded::Engine;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::access::Caller;
use protocol::bounds::Bounds;
use tokio::time::sleep;
use tonic::service::Routes;

use super::*;
use crate::dead_letters::rules::OperatorAction;
use crate::in_memory::Environment;
use crate::port::operators::{Operators, Role as May};

/// A message whose first field is this number.
type KickReply = Result<u8, Status>;
type Says = Arc<dyn Fn(&str) -> KickReply + Send + Sync>;

/// A station that answers each method as a test says, once it may.
#[derive(Clone)]
struct Fake {
    says: Says,
    calls: Arc<Mutex<Vec<(String, Bytes)>>>,
    gate: Arc<Semaphore>,
}

impl Fake {
    fn new(says: impl Fn(&str) -> KickReply + Send + Sync + 'static) -> Fake {
        Fake {
            says: Arc::new(says),
            calls: Arc::default(),
            gate: Arc::new(Semaphore::new(1000)),
        }
    }

    fn refusing(code: Code) -> Fake {
        Fake::new(move |_| Err(from_refusal(&Refusal::new(code, "not now"))))
    }

    fn methods(&self) -> Vec<String> {
        let calls = self.calls.lock();
        calls.iter().map(|(method, _)| method.clone()).collect()
    }

    async fn answer(self, request: Request) -> response::Response {
        let path = request.uri().path().to_owned();
        let (_, method) = path.rsplit_once('/').expect("a path");
        let body = to_bytes(request.into_body(), 4096).await.expect("a body");
        self.calls.lock().push((method.to_owned(), body));
        self.gate.acquire().await.expect("open").forget();
        match (self.says)(method) {
            Ok(number) => {
                let headers = [("content-type", "application/grpc"), ("grpc-status", "0")];
                (headers, vec![0, 0, 0, 0, 2, 8, number]).into_response()
            }
            Err(status) => status.into_http(),
        }
    }
}

/// A desk and its stations.
struct World {
    desk: Arc<Desk>,
    _stations: Vec<(InProcess, Registration)>,
}

impl World {
    async fn of(stations: &[Fake]) -> World {
        World::called_by(stations, None).await
    }

    async fn called_by(stations: &[Fake], caller: Option<Caller>) -> World {
        // Which station is asked first is by chance, and the same in every run.
        let entropy = Arc::new(SeededEntropy::new(1));
        let environment = Environment::over(Engine::memory(), Arc::new(SystemClock), entropy);
        let environment = environment.expect("stores in memory");
        let mut services = Vec::new();
        for (number, fake) in stations.iter().cloned().enumerate() {
            let name = format!("station-{number}");
            let router = Router::new().fallback(move |request| fake.clone().answer(request));
            let server = environment
                .connector
                .serve_in_process(&name, Routes::from(router));
            let address = format!("inproc:{name}");
            let registration =
                (environment.backends.registry).register(Service::Station, &name, &address);
            services.push((server, registration.await.expect("registered")));
        }
        let (backends, connector) = (&environment.backends, &environment.connector);
        let operators = Operators::default();
        let mut desk = Desk::new(backends, connector, Bounds::default(), operators);
        if let Some(caller) = caller {
            let connector = environment.connector.clone().with_caller(caller);
            desk.stations = Stations::new(
                environment.backends.registry.clone(),
                connector,
                environment.backends.entropy.clone(),
            );
        }
        World {
            desk: Arc::new(desk),
            _stations: services,
        }
    }

    fn kick(
        &self,
        operator: Operator,
        user: &str,
        question: KickQuestion,
    ) -> impl Future<Output = Answer<KickAnswer>> {
        kick(
            State(self.desk.clone()),
            Extension(operator),
            Path(user.to_owned()),
            Json(question),
        )
    }

    async fn try_kick(&self, question: KickQuestion) -> Result<KickAnswer, DeskRefusal> {
        self.kick(bob(), "7", question).await.map(|Json(it)| it)
    }

    async fn status(&self, operator: Operator, user: &str, question: KickQuestion) -> StatusCode {
        let answer = self.kick(operator, user, question).await;
        answer.expect_err("refused").status
    }

    /// Outcomes in the log of operations, the oldest first; none before anything is done.
    async fn log(&self) -> Vec<Option<String>> {
        let page = self.desk.letters.log(100, false, None).await;
        let entries = page.expect("a log").entries.into_iter().rev();
        let outcome = |act| match act {
            OperatorAction::SignedOut { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        };
        entries.map(|entry| outcome(entry.act)).collect()
    }
}

fn bob() -> Operator {
    Operator::with("bob", &[May::View, May::SignOut])
}

fn because(reason: &str) -> KickQuestion {
    KickQuestion {
        why: reason.to_owned(),
        ..KickQuestion::default()
    }
}

fn theft() -> KickQuestion {
    because("a phone was stolen")
}

fn revoking() -> KickQuestion {
    KickQuestion {
        revoke: true,
        ..theft()
    }
}

async fn wait_until<F: Future<Output = bool>>(is_done: impl Fn() -> F) {
    for _ in 0..500 {
        if is_done().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("not in time");
}

#[tokio::test(start_paused = true)]
async fn a_kick_needs_its_role_and_a_reason() {
    let world = World::of(&[]).await;
    let viewer = || Operator::with("ann", &[May::View, May::Repair]);
    let status = world.status(viewer(), "7", theft()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let on = |platform: &str, revoke| KickQuestion {
        platform: Some(platform.to_owned()),
        revoke,
        ..theft()
    };
    for (user, question) in [
        ("7", because(" ")),
        ("-7", theft()),
        ("7", on("fax", false)),
        ("7", on("ios", true)),
        // Refused as a station would, before anything is written down.
        ("7", because(&"x".repeat(1025))),
    ] {
        let status = world.status(bob(), user, question.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{user} {question:?}");
    }
    let endless = Operator::with(&"b".repeat(257), &[May::View, May::SignOut]);
    let status = world.status(endless, "7", theft()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(world.log().await, []);
    // No station is there to kick, and the log does not say that it was done.
    let status = world.status(bob(), "7", theft()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let log = world.log().await;
    assert_eq!(log.len(), 2, "{log:?}");
    let outcome = log[1].as_ref().expect("an outcome");
    assert!(outcome.contains("no station is registered"), "{outcome}");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_revoked_by_the_clock_of_the_station() {
    let station = Fake::new(|method| match method {
        "Revoke" => Ok(42),
        _ => Ok(3),
    });
    let world = World::of(std::slice::from_ref(&station)).await;
    let answer = world.try_kick(revoking()).await.expect("signed out");
    let cutoff = Some(Time::from_ms(42));
    assert_eq!((answer.sessions, answer.revoked_before), (3, cutoff));
    assert_eq!(station.methods(), ["Revoke", "Kickout"]);
    let (_, revoke) = station.calls.lock()[0].clone();
    // User 7, and behind it the reason: a time would stand between.
    assert_eq!(revoke[5..8], [8, 7, 0x1a]);
    let log = world.log().await;
    let words =
        "3 sessions end, and tokens that were issued before 1970-01-01T00:00:00Z are refused";
    assert_eq!(log, [None, Some(words.to_owned())]);
}

// The log said that the user was signed out, and the sessions stayed.
#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_off_is_done_all_the_same() {
    let station = Fake {
        gate: Arc::new(Semaphore::new(0)),
        ..Fake::new(|_| Ok(1))
    };
    let world = World::of(std::slice::from_ref(&station)).await;
    let mut request = Box::pin(world.kick(bob(), "7", revoking()));
    let start = Instant::now();
    while station.methods().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5), "no call");
        let _ = timeout(Duration::from_millis(10), &mut request).await;
    }
    drop(request);
    station.gate.add_permits(2);
    wait_until(async || world.log().await.len() == 2).await;
    assert_eq!(station.methods(), ["Revoke", "Kickout"]);
    let log = world.log().await;
    let outcome = log[1].as_ref().expect("an outcome");
    assert!(outcome.starts_with("1 sessions end"), "{outcome}");
}

#[tokio::test(start_paused = true)]
async fn users_that_are_signed_out_at_a_time_are_bounded() {
    let station = Fake {
        gate: Arc::new(Semaphore::new(0)),
        ..Fake::new(|_| Ok(1))
    };
    let world = World::of(std::slice::from_ref(&station)).await;
    let mut requests: Vec<_> = (0..MAX_CONCURRENT_SIGN_OUTS)
        .map(|_| Box::pin(world.kick(bob(), "7", theft())))
        .collect();
    for request in &mut requests {
        let _ = timeout(Duration::from_millis(1), request).await;
    }
    let status = world.status(bob(), "8", theft()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    station.gate.add_permits(100);
    for request in requests {
        let Json(answer) = request.await.expect("signed out");
        assert_eq!(answer.sessions, 1);
    }
    world.try_kick(theft()).await.expect("room again");
}

// A station without its store, one that drains, an older one: each stopped the search for another.
#[tokio::test(start_paused = true)]
async fn another_station_is_asked_where_one_cannot() {
    let old = Fake::new(|_| Err(Status::unimplemented("an older version")));
    let well = Fake::new(|_| Ok(2));
    let (unavailable, drains) = (
        Fake::refusing(Code::Unavailable),
        Fake::refusing(Code::Draining),
    );
    let world = World::of(&[unavailable.clone(), drains, old, well]).await;
    for _ in 0..20 {
        let answer = world.try_kick(theft()).await.expect("signed out");
        assert_eq!(answer.sessions, 2);
    }
    let first = unavailable.methods().len();
    assert!((1..20).contains(&first), "not always the same: {first}");
    // A question that is wrong is wrong everywhere.
    let wrong = Fake::refusing(Code::InvalidArgument);
    let world = World::of(&[wrong.clone(), wrong.clone()]).await;
    let refusal = world.try_kick(theft()).await.expect_err("refused");
    assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
    assert_eq!(refusal.error.code, "invalid_argument");
    assert_eq!(wrong.methods().len(), 1);
}

// A boat that leaves takes no order: its `forbidden` came with 409.
#[test]
fn forbidden_by_another_service_is_a_conflict() {
    let refusal = refused(Refusal::new(Code::Forbidden, "this boat ends"));
    assert_eq!(refusal.status, StatusCode::CONFLICT);
    assert_eq!(refusal.error.code, "conflict");
    assert_eq!(refusal.error.message, "this boat ends");
    assert!(!refusal.error.retry);
}

#[tokio::test(start_paused = true)]
async fn a_desk_of_a_carrier_says_where_to_ask() {
    let carrier = Caller::new(Role::Carrier, "carrier-1");
    let world = World::called_by(&[Fake::new(|_| Ok(1))], Some(carrier)).await;
    for question in [theft(), revoking()] {
        let refusal = world.try_kick(question).await.expect_err("refused");
        assert_eq!(refusal.status, StatusCode::FORBIDDEN);
        let text = refusal.error.message;
        assert!(text.contains("use the admin port of a station"), "{text}");
        assert!(text.contains("carrier carrier-1"), "{text}");
    }
}
