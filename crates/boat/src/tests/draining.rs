//! Drains ordered by an operator, and the room of other boats.

use std::time::Duration;

use api::v1::drain_request::Order;
use api::v1::drain_response::State;
use api::v1::{DrainRequest, DrainResponse};
use backend::discovery::{Registration, Registry, Role};
use bytes::Bytes;
use protocol::Code;
use protocol::drain::{BoatLoad, BoatState};
use protocol::frame::ServerFrame;
use protocol::ticket::TICKET_BYTES;
use tokio::time::Instant;

use super::eventually;
use super::harbour::{Harbour, settle};

/// Sends the boat an order as a station's desk does.
async fn drain(harbour: &Harbour, order: Order, pace: u32) -> DrainResponse {
    let request = DrainRequest {
        life: Some(harbour.life()),
        order: order.into(),
        pace,
    };
    let mut boat = harbour.carrier();
    boat.drain(request).await.expect("an answer").into_inner()
}

/// Another boat with `free` seats.
async fn other_boat(harbour: &Harbour, free: usize) -> Registration {
    let request = harbour.registry.register(Role::Boat, "boat-2", "inproc:b");
    let registration = request.await.expect("registered");
    publish(&registration, free).await;
    registration
}

async fn publish(boat: &Registration, free: usize) {
    let load = BoatLoad {
        state: BoatState::Open,
        connections: 100,
        seats: 100 + free,
        accepts_per_second: 5000,
        ..BoatLoad::default()
    };
    boat.lease.publish(&load).await.expect("published");
}

#[tokio::test(start_paused = true)]
async fn a_boat_is_emptied_by_order_and_takes_clients_again() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut clients = harbour.crew(1..=20).await;
    let progress = drain(&harbour, Order::Unspecified, 0).await;
    assert_eq!((progress.state(), progress.connections), (State::Open, 20));
    let order_answer = drain(&harbour, Order::Drain, 0).await;
    assert_eq!(order_answer.state(), State::Draining);
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    drop(clients);
    assert!(!*harbour.handle.ready().borrow());
    // A newcomer gets a reason: a balancer may not have noticed yet.
    assert_eq!(harbour.tcp().await.closing().await, Some(Code::Draining));
    eventually("empty", || harbour.handle.connections() == 0).await;
    let drained_progress = drain(&harbour, Order::Unspecified, 0).await;
    assert_eq!(
        (drained_progress.state(), drained_progress.connections),
        (State::Draining, 0)
    );
    // The boat is still registered, and serves the calls of carriers.
    let boats = harbour.registry.watch(Role::Boat).await.expect("watches");
    assert_eq!(boats.borrow().len(), 1);
    // Its port still answers. No time passes: the kernel connects by itself.
    let answers = std::net::TcpStream::connect(harbour.handle.tcp());
    drop(answers.expect("listens"));

    drain(&harbour, Order::Cancel, 0).await;
    let mut ready = harbour.handle.ready();
    ready.wait_for(|ready| *ready).await.expect("alive");
    harbour.tcp().await.hello(1).await;
}

#[tokio::test(start_paused = true)]
async fn clients_wait_aboard_until_another_boat_has_room() {
    let harbour = Harbour::piped(|_| ()).await;
    let other = other_boat(&harbour, 0).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    drain(&harbour, Order::Drain, 0).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(12)).await;
        client.ping().await;
    }
    let progress = drain(&harbour, Order::Unspecified, 0).await;
    assert!(progress.waits && progress.connections == 1, "{progress:?}");
    publish(&other, 10).await;
    assert_eq!(client.closing().await, Some(Code::Draining));
    eventually("done", || harbour.handle.connections() == 0).await;
    assert!(!drain(&harbour, Order::Unspecified, 0).await.waits);
}

#[tokio::test(start_paused = true)]
async fn clients_waiting_for_room_stay_when_a_drain_is_cancelled() {
    let harbour = Harbour::piped(|_| ()).await;
    let _full = other_boat(&harbour, 0).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    drain(&harbour, Order::Drain, 0).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let progress = drain(&harbour, Order::Cancel, 0).await;
    settle().await;
    assert_eq!(progress.connections, 1);
    assert!(*harbour.handle.ready().borrow());
    client.ping().await;
}

// R18: the last frame reaches every client before the deadline, room or not.
#[tokio::test(start_paused = true)]
async fn a_boat_that_has_to_leave_sends_its_clients_away_at_last() {
    let harbour = Harbour::piped(|config| config.drain_deadline = Duration::from_secs(8)).await;
    let _full = other_boat(&harbour, 0).await;
    let mut clients = harbour.crew(1..=20).await;
    let start = Instant::now();
    harbour.handle.drain();
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    let took = start.elapsed();
    // A quarter of the time is for clients that finish something.
    let expected = Duration::from_millis(5500)..Duration::from_millis(6100);
    assert!(expected.contains(&took), "{took:?}");
    drop(clients);
    harbour.handle.drained().await;
    assert!(start.elapsed() < Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn clients_go_at_the_pace_of_the_order() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut clients = harbour.crew(1..=20).await;
    let start = Instant::now();
    drain(&harbour, Order::Drain, 4).await;
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    let took = start.elapsed().as_millis();
    assert!((4500..5500).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn balancers_have_time_to_notice() {
    let harbour = Harbour::piped(|config| config.drain_notice = Duration::from_secs(5)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    let start = Instant::now();
    harbour.handle.drain();
    settle().await;
    assert!(!*harbour.handle.ready().borrow());
    harbour.tcp().await.hello(2).await;
    assert_eq!(client.closing().await, Some(Code::Draining));
    let took = start.elapsed().as_millis();
    assert!((5000..5200).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn another_life_is_not_drained() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut life = harbour.life();
    life.incarnation += 1;
    let request = DrainRequest {
        life: Some(life),
        order: Order::Drain.into(),
        pace: 0,
    };
    let status = harbour.carrier().drain(request).await.expect_err("another");
    let refusal = api::status::to_refusal(&status);
    assert_eq!(refusal.code, Code::NotFound);
    assert!(*harbour.handle.ready().borrow());
}

#[tokio::test(start_paused = true)]
async fn a_boat_publishes_its_load() {
    let harbour = Harbour::piped(|config| {
        config.zone = Some("a".to_owned());
        config.public_url = Some("wss://boat-1.example".to_owned());
        config.connections_max = 50;
    })
    .await;
    let _clients = harbour.crew(1..=3).await;
    let start = Instant::now();
    let load = async |is_match: &dyn Fn(&BoatLoad) -> bool| {
        loop {
            let loads = harbour.registry.loads().await.expect("loads");
            if let Some(load) = loads.first().filter(|load| is_match(&load.load)) {
                return load.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let record = load(&|load| load.connections == 3).await;
    assert!(start.elapsed() <= Duration::from_secs(10));
    assert_eq!(api::v1::BoatLife::from(&record.life), harbour.life());
    let expected = BoatLoad {
        state: BoatState::Open,
        connections: 3,
        seats: 50,
        accepts_per_second: record.load.accepts_per_second,
        leaving: 0,
        zone: Some("a".to_owned()),
        url: Some("wss://boat-1.example".to_owned()),
    };
    assert_eq!(record.load, expected);
    // A change of state is published before the next turn.
    let start = Instant::now();
    drain(&harbour, Order::Drain, 0).await;
    load(&|load| load.state == BoatState::Draining).await;
    assert!(start.elapsed() <= Duration::from_millis(1100));
    let drained_record = load(&|load| load.connections == 0).await;
    assert_eq!(
        drained_record.load.leaving, 3,
        "others may not count them yet"
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    load(&|load| load.leaving == 0).await;
}

// Several batches of tickets are in flight at a time: a slow station costs no client its last
// frame.
#[tokio::test(start_paused = true)]
async fn a_station_that_is_slow_does_not_slow_a_drain_down() {
    let harbour = Harbour::piped(|config| {
        config.drain_deadline = Duration::from_secs(8);
        config.drain_batch = 1;
    })
    .await;
    *harbour.peer.ticket.lock() = Bytes::from_static(&[7; TICKET_BYTES]);
    let mut clients = harbour.crew(1..=100).await;
    *harbour.peer.pause.lock() = Duration::from_millis(300);
    let start = Instant::now();
    harbour.handle.drain();
    for client in &mut clients {
        let Some(ServerFrame::Closing { resume, .. }) = client.next().await else {
            panic!("no closing");
        };
        assert!(resume.is_some());
    }
    // In sequence they would take half a minute.
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_repeated_drain_order_does_not_change_the_notice() {
    let harbour = Harbour::piped(|config| config.drain_notice = Duration::from_secs(5)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    let start = Instant::now();
    for _ in 0..3 {
        drain(&harbour, Order::Drain, 0).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // Nor does the end of the process begin the notice anew.
    harbour.handle.drain();
    assert_eq!(client.closing().await, Some(Code::Draining));
    let took = start.elapsed().as_millis();
    assert!((5000..5200).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_ends_takes_no_orders() {
    let harbour = Harbour::piped(|config| config.drain_notice = Duration::from_secs(5)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.handle.drain();
    settle().await;
    let progress = drain(&harbour, Order::Unspecified, 0).await;
    assert_eq!(progress.state(), State::Draining);
    let cancel = DrainRequest {
        life: Some(harbour.life()),
        order: Order::Cancel.into(),
        pace: 0,
    };
    let status = harbour.carrier().drain(cancel).await.expect_err("it ends");
    assert_eq!(api::status::to_refusal(&status).code, Code::Forbidden);
    assert_eq!(client.closing().await, Some(Code::Draining));
}

// A regained lease sends a share of the clients away: not during a drain, and not at a pace of its
// own.
#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_back_changes_no_drain() {
    let harbour = Harbour::piped(|config| config.reconnect_percent = 100).await;
    let mut clients = harbour.crew(1..=20).await;
    let start = Instant::now();
    drain(&harbour, Order::Drain, 2).await;
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    let took = start.elapsed().as_millis();
    assert!((9000..10_500).contains(&took), "{took}");
}
