//! The same station on a port.

use std::net::{Ipv4Addr, SocketAddr};

use super::world::*;
use crate::test_time::still;
use crate::{Config, StartError, start};

#[tokio::test]
async fn a_station_serves_a_port_and_gives_it_back() {
    let _still = still();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let world = world_with(Config {
        listen: Some(any),
        ..Config::default()
    })
    .await;
    let address = world.running.instance().address.clone();
    let bound = address.strip_prefix("http://").expect("a network address");
    assert!(world.submit_one(item(1, send(2, 1, "far"))).await.is_ok());

    let taken = Config {
        listen: Some(bound.parse().expect("an address")),
        ..Config::default()
    };
    let second = start(
        taken,
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
    world.running.drained().await;
    let free = tokio::net::TcpListener::bind(bound).await;
    free.expect("nobody listens there any more");
}

#[test]
fn settings_survive_their_file_and_unknown_ones_are_refused() {
    let written = serde_json::to_value(Config::default()).expect("writable");
    let read: Config = serde_json::from_value(written.clone()).expect("readable");
    assert_eq!(serde_json::to_value(read).expect("writable"), written);
    let typo = serde_json::json!({ "body_byte_max": 1 });
    assert!(serde_json::from_value::<Config>(typo).is_err());
}
