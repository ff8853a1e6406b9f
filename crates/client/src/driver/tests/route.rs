//! Edges, their stored list, and routes without one.

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::Refusal;
use protocol::edges::Edge;

use super::*;

/// Source that answers as the test says. `None`: it never answers.
struct Station(Mutex<Option<Result<Vec<Edge>, Refusal>>>);

#[async_trait]
impl EdgeSource for Station {
    async fn edges(&self) -> Result<Vec<Edge>, Refusal> {
        let answer = self.0.lock().clone();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

fn station(answer: Option<Result<Vec<Edge>, Refusal>>) -> Arc<Station> {
    Arc::new(Station(Mutex::new(answer)))
}

fn away() -> Arc<Station> {
    station(Some(Err(Refusal::new(Code::Unavailable, "away"))))
}

fn edge(boat: &Boat, zone: &str, weight: u64) -> Edge {
    Edge {
        url: format!("ws://{}", boat.websocket),
        zone: Some(zone.to_owned()),
        weight,
    }
}

/// Client of the zone `west` without an address of its own.
fn over(source: Arc<Station>, user: i64) -> ClientConfig {
    let zone = Some("west".to_owned());
    ClientConfig {
        edges: Some(EdgeConfig {
            source,
            zone,
            tls_only: false,
        }),
        ..config(String::new(), user)
    }
}

#[tokio::test]
async fn an_edge_that_sends_a_client_away_is_left_for_another() {
    let (near, far) = (Boat::start().await, Boat::start().await);
    let list = vec![edge(&near, "west", 1), edge(&far, "east", 1000)];
    let station = station(Some(Ok(list)));
    let (client, _events) = start(over(station, 1)).await;
    assert_eq!((near.hellos(), far.hellos()), (1, 0));
    // A broken socket says nothing about the boat.
    near.drop_connections();
    until("it comes back", || near.hellos() == 2).await;
    timeout(TEST_TIMEOUT, client.ready())
        .await
        .expect("in time")
        .expect("ready");
    near.close_connections(Code::Reconnect);
    until("it comes to the other edge", || far.hellos() == 1).await;
    timeout(TEST_TIMEOUT, client.ready())
        .await
        .expect("in time")
        .expect("ready");
    assert_eq!(near.hellos(), 2);
}

// A client that starts while no station answers knows the boats of yesterday.
#[tokio::test]
async fn the_list_outlives_its_process() {
    let (boat, folder) = (Boat::start().await, tempfile::tempdir().expect("a folder"));
    let station = station(Some(Ok(vec![edge(&boat, "west", 1)])));
    let (client, events) = start(with_store(over(station, 1), folder.path())).await;
    client.close().await;
    drop((client, events));
    let (client, _events) = start(with_store(over(away(), 1), folder.path())).await;
    assert_eq!(boat.hellos(), 2);
    client.close().await;
    let file = folder.path().join("state.db.edges");
    std::fs::write(file, "torn").expect("written");
    let lost = with_store(over(away(), 1), folder.path());
    assert!(reason(lost).await.contains("no station names"));
}

/// Reason of a connection that did not come about.
async fn reason(config: ClientConfig) -> String {
    let (client, _events) = Client::connect(config).await.expect("started");
    let mut state = client.state();
    let state_change =
        state.wait_for(|state| matches!(state, ConnectionState::Reconnecting { .. }));
    let state_change = timeout(TEST_TIMEOUT, state_change).await.expect("in time");
    match &*state_change.expect("the client lives") {
        ConnectionState::Reconnecting { why, .. } => why.text.clone(),
        state => panic!("{state:?}"),
    }
}

#[tokio::test]
async fn an_own_address_is_for_a_client_without_a_list() {
    let boat = Boat::start().await;
    let url = format!("tcp://{}", boat.tcp);
    for silent in [away(), station(None), station(Some(Ok(vec![])))] {
        let config = ClientConfig {
            url: url.clone(),
            connect_timeout: Duration::from_millis(500),
            ..over(silent, 1)
        };
        let (client, _events) = start(config).await;
        client.close().await;
    }
    assert!(reason(over(away(), 1)).await.contains("no station names"));
    // The boats have moved, and no station says so.
    let dead_edge = Edge {
        url: "ws://127.0.0.1:9".to_owned(),
        zone: None,
        weight: 1,
    };
    let config = ClientConfig {
        url,
        ..over(station(Some(Ok(vec![dead_edge]))), 1)
    };
    start(config).await;
}

// A list tampered with on its way could ask for tokens in the clear.
#[tokio::test]
async fn no_edge_takes_tls_away() {
    let boat = Boat::start().await;
    let list = vec![edge(&boat, "west", 1)];
    let mut config = over(station(Some(Ok(list.clone()))), 1);
    let roots = rustls::RootCertStore::empty();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let trust = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.tls = Some(Arc::new(trust));
    if let Some(edges) = &mut config.edges {
        edges.tls_only = true;
    }
    let fixed = ClientConfig {
        url: format!("tcp://{}", boat.tcp),
        ..config.clone()
    };
    let error = Client::connect(fixed)
        .await
        .expect_err("an own address without TLS");
    assert!(matches!(error, ConnectError::Plain(_)), "{error}");
    assert!(reason(config).await.contains("refused an edge without TLS"));
    assert_eq!(boat.hellos(), 0);
    let wrong = Edge {
        url: "https://boat.example".to_owned(),
        ..list[0].clone()
    };
    let config = over(station(Some(Ok(vec![wrong]))), 1);
    assert!(reason(config).await.contains("is not a boat address"));
}
