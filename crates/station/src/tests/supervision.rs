//! Parts that end by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::v1::station_service_client::StationServiceClient;
use async_trait::async_trait;
use backend::hook::{Hook, Op};
use protocol::access::Role;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::world::*;
use crate::{Config, StationHandle, start};

/// Panics in the calls of this name, once it is armed.
struct PanicHook {
    name: &'static str,
    is_armed: AtomicBool,
}

#[async_trait]
impl Hook for PanicHook {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        let panics = op.name == self.name && self.is_armed.load(Ordering::Relaxed);
        assert!(!panics, "on purpose");
        Ok(())
    }
}

/// A second station, whose calls of this name panic from now on.
async fn panicking_station(world: &mut World, name: &'static str) -> StationHandle {
    let hook = Arc::new(PanicHook {
        name,
        is_armed: AtomicBool::new(false),
    });
    let config = Config {
        name: "station-2".into(),
        ..Config::default()
    };
    let backends = world.backends.clone();
    let backends = backends.hooked(&(hook.clone() as Arc<dyn Hook>));
    let (connector, shutdown) = (world.connector.clone(), CancellationToken::new());
    let station = start(config, backends, connector, shutdown).await;
    let station = station.expect("a second station");
    hook.is_armed.store(true, Ordering::Relaxed);
    let address = &station.instance().address;
    world.client = StationServiceClient::new(world.connector.channel(Role::Station, address));
    station
}

// Revocations are read by one part, ids are reserved by another, keys of sends are settled by a worker.
#[tokio::test(start_paused = true)]
async fn a_part_that_panics_takes_the_station_with_it() {
    for name in ["page", "reserve_node", "dedupe_done"] {
        let mut world = world().await;
        let station = panicking_station(&mut world, name).await;
        let result = world.submit_one(item(1, send(2, 1, "hi"))).await;
        assert!(result.is_ok(), "{name}: {result:?}");
        let outcome = timeout(Duration::from_secs(60), station.drained()).await;
        assert!(outcome.is_ok(), "{name}: it goes on");
        assert!(!*station.ready().borrow(), "{name}");
        assert!(
            *world.station.ready().borrow(),
            "{name}: the other one goes on"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_station_whose_parts_go_on_stays() {
    let world = world().await;
    let outcome = timeout(Duration::from_secs(3600), world.station.drained()).await;
    assert!(outcome.is_err(), "it left");
}
