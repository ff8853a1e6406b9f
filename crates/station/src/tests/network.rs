//! The same station on a port.

use std::net::{Ipv4Addr, SocketAddr};

use super::world::*;
use crate::test_time::freeze_time;
use crate::{Config, StartError, start};

#[tokio::test]
async fn a_station_serves_a_port_and_gives_it_back() {
    let _frozen = freeze_time();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let world = world_with(Config {
        listen: Some(any),
        ..Config::default()
    })
    .await;
    let address = world.station.instance().address.clone();
    let local_address = address.strip_prefix("http://").expect("a network address");
    assert!(world.submit_one(item(1, send(2, 1, "far"))).await.is_ok());

    let config = Config {
        listen: Some(local_address.parse().expect("an address")),
        ..Config::default()
    };
    let second = start(
        config,
        world.backends.clone(),
        world.connector.clone(),
        <_>::default(),
    )
    .await;
    assert!(
        matches!(second, Err(StartError::Listen { .. })),
        "{second:?}"
    );

    world.shutdown.cancel();
    world.station.drained().await;
    let free = tokio::net::TcpListener::bind(local_address).await;
    free.expect("nobody listens there any more");
}

#[test]
fn settings_survive_their_file_and_unknown_ones_are_refused() {
    let json = serde_json::to_value(Config::default()).expect("writable");
    let config: Config = serde_json::from_value(json.clone()).expect("readable");
    assert_eq!(serde_json::to_value(config).expect("writable"), json);
    let typo = serde_json::json!({ "body_byte_max": 1 });
    assert!(serde_json::from_value::<Config>(typo).is_err());
}
