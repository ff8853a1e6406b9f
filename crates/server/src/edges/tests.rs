use std::num::NonZeroU32;

use backend::discovery::{EmbeddedRegistry, Registration, Role};
use backend::embedded::Engine;
use backend::rate_limit::Rate;
use protocol::drain::{BoatLoad, BoatState};
use reqwest::header::HeaderMap;
use tokio::time::{advance, sleep};

use super::*;

fn registry() -> Arc<dyn Registry> {
    Arc::new(EmbeddedRegistry::new(Engine::memory()))
}

async fn boat(registry: &dyn Registry, name: &str, seats: usize) -> Registration {
    let registration = registry.register(Role::Boat, name, "http://boat").await;
    let registration = registration.expect("registered");
    let load = BoatLoad {
        state: BoatState::Open,
        seats,
        url: Some(format!("wss://{name}.example")),
        ..BoatLoad::default()
    };
    registration.lease.publish(&load).await.expect("published");
    registration
}

async fn port(config: Config, registry: Arc<dyn Registry>) -> (SocketAddr, EdgePort) {
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..config
    };
    let port = start(&config, registry).await.expect("binds");
    let port = port.expect("a port");
    (port.address, port)
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("text")
    }
}

fn client() -> reqwest::Client {
    // The first call installs the provider of the process; all of ours install the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    reqwest::Client::new()
}

async fn ask(port: SocketAddr, forwarded_for: Option<&str>) -> Answer {
    ask_over(&client(), port, forwarded_for).await
}

async fn ask_over(
    client: &reqwest::Client,
    port: SocketAddr,
    forwarded_for: Option<&str>,
) -> Answer {
    let url = format!("http://{port}/v1/edges");
    let mut request = client.get(url);
    if let Some(address) = forwarded_for {
        request = request.header("x-forwarded-for", address);
    }
    let response = request.send().await.expect("answered");
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.text().await.expect("text"),
    }
}

/// Asks until an answer has a list.
async fn wait_for_list(port: SocketAddr) -> Answer {
    loop {
        let answer = ask(port, None).await;
        if answer.status == 200 {
            return answer;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn boats_that_take_clients_are_listed_for_pages_of_every_origin() {
    let registry = registry();
    let _boats = [
        boat(&*registry, "a", 7).await,
        boat(&*registry, "b", 0).await,
    ];
    let (port, _stop) = port(Config::default(), registry).await;
    let answer = wait_for_list(port).await;
    let expected = r#"[{"url":"wss://a.example","weight":7},{"url":"wss://b.example","weight":0}]"#;
    assert_eq!(answer.text, expected);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("cache-control"), "public, max-age=5");
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    let other = client().get(format!("http://{port}/api/v1/boats"));
    let other = other.send().await;
    assert_eq!(other.expect("answered").status().as_u16(), 404);
}

#[tokio::test]
async fn no_port_is_opened_that_nobody_named() {
    let start_result = start(&Config::default(), registry()).await;
    assert!(start_result.expect("nothing to bind").is_none());
}

// T-B: one address may not keep others from their list.
#[tokio::test]
async fn an_address_has_twenty_requests_and_then_its_rate() {
    let config = Config {
        requests_per_address: Some(NonZeroU32::MIN),
        proxy_networks: vec!["127.0.0.0/8".parse().expect("a network")],
        ..Config::default()
    };
    let (port, _stop) = port(config, registry()).await;
    let client = client();
    let mut refused_count = 0;
    for _ in 0..60 {
        let answer = ask_over(&client, port, Some("192.0.2.1")).await;
        if answer.status == 429 {
            assert_eq!(answer.header("retry-after"), "1");
            assert_eq!(answer.header("access-control-allow-origin"), "*");
            refused_count += 1;
        }
    }
    assert!(
        (1..=40).contains(&refused_count),
        "{refused_count} of sixty were refused"
    );
    assert_ne!(ask_over(&client, port, Some("192.0.2.2")).await.status, 429);
    // A client of a balancer may write what it likes; the balancer writes last. Fewer requests than
    // the other address has, and more than this one has again by the time that they take.
    let mut answers = Vec::new();
    for _ in 0..18 {
        let answer = ask_over(&client, port, Some("192.0.2.2, 192.0.2.1")).await;
        answers.push(answer.status);
    }
    assert!(answers.contains(&429), "{answers:?}");
    let nameless_answer = ask_over(&client, port, None).await;
    assert_eq!(nameless_answer.status, 400);
    assert!(
        nameless_answer.text.contains("station.http.proxy_networks"),
        "{}",
        nameless_answer.text
    );
}

fn door(list: watch::Receiver<Option<List>>) -> Door {
    let rate = Rate::per_second(NonZeroU32::MAX, NonZeroU32::MAX);
    let counter = || counter!("station_edge_requests_total", "result" => "test");
    Door {
        list,
        balancers: TrustedNetworks::default(),
        requests: AddressLimit::new("edges_per_address", "test", rate),
        answers: RequestCounters {
            lists: counter(),
            unknown: counter(),
            refusals: counter(),
        },
    }
}

// A list from a minute ago may send clients to a boat that is gone.
#[tokio::test(start_paused = true)]
async fn a_list_is_good_for_a_minute_without_discovery() {
    let (lists, list) = watch::channel(None);
    let door = door(list);
    let ask = || door.answer([192, 0, 2, 1].into(), &axum::http::HeaderMap::new());
    let unknown = ask();
    assert_eq!(unknown.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unknown.headers()["retry-after"], "5");
    assert_eq!(unknown.headers()["cache-control"], "no-store");
    let (body, as_of) = (Bytes::from_static(b"[]"), Instant::now());
    lists.send_replace(Some(List { body, as_of }));
    advance(Duration::from_secs(60)).await;
    assert_eq!(ask().status(), StatusCode::OK);
    advance(Duration::from_millis(1)).await;
    assert_eq!(ask().status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_goes_is_gone_from_the_list_after_five_seconds() {
    let registry = registry();
    let (lists, mut list) = watch::channel(None);
    let (a, _b) = (
        boat(&*registry, "a", 1).await,
        boat(&*registry, "b", 1).await,
    );
    let _looks = tokio::spawn(look(registry.clone(), lists));
    let mut names_a = async || {
        let change = timeout(Duration::from_millis(5_001), list.changed()).await;
        change.expect("a look in time").expect("it looks");
        let list = list.borrow_and_update().clone().expect("a list");
        std::str::from_utf8(&list.body)
            .expect("text")
            .contains("wss://a.")
    };
    assert!(names_a().await);
    drop(a);
    assert!(!names_a().await);
}
