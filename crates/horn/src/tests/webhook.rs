//! Meaning of each answer of a webhook, over a real socket.

use std::collections::VecDeque;

use axum::Router;
use axum::body::Bytes as Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::Webhook;
use crate::provider::Secret;

/// Next answer of the webhook; once the script is used up, 200.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16),
    Throttle { seconds: u64 },
    Hang,
}

struct Call {
    called_at: Instant,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Call {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("text")
    }
}

#[derive(Default)]
struct Backend {
    script: Mutex<VecDeque<Answer>>,
    calls: Mutex<Vec<Call>>,
}

async fn answer(State(backend): State<Arc<Backend>>, headers: HeaderMap, body: Body) -> Response {
    backend.calls.lock().push(Call {
        called_at: Instant::now(),
        headers,
        body: body.to_vec(),
    });
    let next = backend.script.lock().pop_front();
    match next.unwrap_or(Answer::Status(200)) {
        Answer::Status(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            (status, "x".repeat(40_000)).into_response()
        }
        Answer::Throttle { seconds } => (
            StatusCode::TOO_MANY_REQUESTS,
            [(header::RETRY_AFTER, seconds.to_string())],
        )
            .into_response(),
        Answer::Hang => std::future::pending().await,
    }
}

/// A horn in front of an integrator's back end.
struct Scene {
    desk: Desk,
    backend: Arc<Backend>,
    horn: Horn,
}

impl Scene {
    async fn new(script: &[Answer]) -> Scene {
        Scene::with(script, None, TEST_TIMEOUT).await
    }

    async fn with(script: &[Answer], secret: Option<Secret>, timeout: Duration) -> Scene {
        let backend = Arc::new(Backend::default());
        backend.script.lock().extend(script);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let routes = Router::new()
            .route("/hook", post(answer))
            .with_state(backend.clone());
        tokio::spawn(axum::serve(listener, routes).into_future());
        let desk = Desk::new();
        let config = Config { timeout, ..quick() };
        let url = format!("http://{address}/hook");
        let webhook = Webhook::open(&url, secret, config.timeout, Arc::new(SystemClock));
        let horn = desk.horn(config, Arc::new(webhook.expect("opens"))).await;
        Scene {
            desk,
            backend,
            horn,
        }
    }

    /// Publishes one notification and waits for its outcome; returns whether the user was notified.
    async fn outcome(&self) -> bool {
        let notification = mail(1);
        let partition = self.desk.publish(notification).await;
        self.desk.wait_for_commit(partition, 1).await;
        let outcomes = self.desk.ledger_outcomes(notification).await;
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].0, "webhook");
        outcomes[0].1
    }

    fn calls(&self) -> usize {
        self.backend.calls.lock().len()
    }

    async fn letter_reasons(&self) -> Vec<String> {
        let letters = self.desk.letters().await;
        letters
            .into_iter()
            .map(|(_, headers)| headers["reason"].clone())
            .collect()
    }
}

#[tokio::test]
async fn a_call_says_who_and_where_and_not_what() {
    let secret = Secret::parse("hush").expect("a secret");
    let scene = Scene::with(&[], Some(secret.clone()), TEST_TIMEOUT).await;
    assert!(scene.outcome().await);
    let calls = scene.backend.calls.lock();
    let call = &calls[0];
    let json = call.json();
    let keys: Vec<_> = json.as_object().expect("an object").keys().collect();
    let expected = [
        "accepted_at",
        "attempt",
        "conversation",
        "from",
        "message",
        "platform",
        "type",
        "user",
    ];
    assert_eq!(keys, expected);
    assert_eq!(json["user"], "2");
    assert_eq!(json["platform"], "web");
    assert_eq!(json["conversation"], "p:1:2");
    let id = call.header("webhook-id");
    assert_eq!(
        id,
        format!("{}-2-web", json["message"].as_str().expect("text"))
    );
    let seconds: i64 = call.header("webhook-timestamp").parse().expect("a number");
    let timestamp = protocol::Timestamp::from_millis(seconds * 1000);
    assert_eq!(
        call.header("webhook-signature"),
        secret.sign(id, timestamp, &call.body)
    );
}

// proves S2-33 in part
#[tokio::test]
async fn a_server_in_trouble_is_asked_again() {
    let scene = Scene::new(&[Answer::Status(500), Answer::Status(503)]).await;
    assert!(scene.outcome().await);
    {
        let calls = scene.backend.calls.lock();
        let attempts: Vec<_> = calls
            .iter()
            .map(|call| call.json()["attempt"].clone())
            .collect();
        assert_eq!(attempts, [1, 2, 3]);
        assert_eq!(calls[0].header("webhook-id"), calls[2].header("webhook-id"));
        assert!(!calls[0].headers.contains_key("webhook-signature"));
    }
    assert_eq!(scene.letter_reasons().await, [] as [String; 0]);
    scene.horn.stop().await;
}

#[tokio::test]
async fn a_refusal_is_final() {
    let scene = Scene::new(&[Answer::Status(400)]).await;
    assert!(!scene.outcome().await);
    assert_eq!(scene.calls(), 1);
    let letters = scene.desk.letters().await;
    let headers = &letters[0].1;
    assert_eq!(headers["reason"], "refused");
    assert_eq!(
        headers["error-message"],
        "the webhook answered 400 Bad Request"
    );
    assert_eq!(headers["retry-count"], "0");
    assert_eq!(headers["platforms"], "2/web");
    assert_eq!(headers["carrier-id"], "horn/webhook");
    assert_eq!(headers["schema"], "packetboat.v1.NotificationTask");
    NotificationTask::decode(letters[0].0.value.clone()).expect("the original bytes");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let scene = Scene::new(&[Answer::Status(307)]).await;
    assert!(!scene.outcome().await);
    assert_eq!(scene.letter_reasons().await, ["refused"]);
}

#[tokio::test]
async fn nobody_there_is_no_dead_letter() {
    let scene = Scene::new(&[Answer::Status(410)]).await;
    assert!(!scene.outcome().await);
    assert_eq!(scene.calls(), 1);
    assert_eq!(scene.letter_reasons().await, [] as [String; 0]);
}

/// A throttled horn leaves the webhook alone, with all its notifications.
#[tokio::test]
async fn retry_after_is_kept_by_all() {
    let metrics = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&metrics);
    let scene = Scene::new(&[Answer::Throttle { seconds: 1 }]).await;
    let first = mail(1);
    let partition = scene.desk.publish(first).await;
    // The horn has the answer.
    while !metrics.handle().render().contains("horn_retries_total 1") {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    scene.desk.publish(mail(2)).await;
    scene.desk.wait_for_commit(partition, 2).await;
    {
        let calls = scene.backend.calls.lock();
        assert_eq!(calls.len(), 3);
        for call in &calls[1..] {
            assert!(call.called_at - calls[0].called_at >= Duration::from_secs(1));
        }
    }
    scene.horn.stop().await;
}

/// A hang costs its own notification some attempts, and the others nothing.
#[tokio::test]
async fn a_hanging_server_is_given_up() {
    let script = [Answer::Hang, Answer::Hang, Answer::Hang];
    let scene = Scene::with(&script, None, Duration::from_millis(300)).await;
    assert!(!scene.outcome().await);
    // A slow machine may give up a call before the server sees it: the horn's own count is exact.
    assert!(scene.calls() <= 3);
    let letters = scene.desk.letters().await;
    assert_eq!(letters.len(), 1);
    let headers = &letters[0].1;
    assert_eq!(headers["reason"], "max-retries");
    assert_eq!(headers["retry-count"], "2");
    let error = &headers["error-message"];
    assert!(error.contains("did not answer"), "{error}");
    scene.horn.stop().await;
}

#[tokio::test]
async fn a_server_that_is_away_is_tried_until_it_is_back() {
    let scene = Scene::new(&[]).await;
    let webhook =
        |url: &str| Webhook::open(url, None, Duration::from_secs(1), Arc::new(SystemClock));
    let unreachable = webhook("http://127.0.0.1:9/").expect("opens");
    let push = crate::ProviderPush {
        notification: mail(1),
        attempt: 1,
        trace: None,
    };
    let error = unreachable.send(&push).await.expect_err("nobody listens");
    assert_eq!(error.failure, protocol::notify::NotifyFailure::Unavailable);
    for no_webhook in ["ftp://127.0.0.1/", "hook", ""] {
        assert!(webhook(no_webhook).is_err(), "{no_webhook}");
    }
    scene.horn.stop().await;
}
