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
    let registering = harbour.registry.register(Role::Boat, "boat-2", "inproc:b");
    let other = registering.await.expect("registered");
    publish(&other, free).await;
    other
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
    let asked = drain(&harbour, Order::Unspecified, 0).await;
    assert_eq!((asked.state(), asked.connections), (State::Open, 20));
    let ordered = drain(&harbour, Order::Drain, 0).await;
    assert_eq!(ordered.state(), State::Draining);
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    drop(clients);
    assert!(!*harbour.running.ready().borrow());
    // A newcomer gets a reason: a balancer may not have noticed yet.
    assert_eq!(harbour.tcp().await.closing().await, Some(Code::Draining));
    eventually("empty", || harbour.running.connections() == 0).await;
    let stays = drain(&harbour, Order::Unspecified, 0).await;
    assert_eq!((stays.state(), stays.connections), (State::Draining, 0));
    // The boat is still registered, and serves the calls of carriers.
    let boats = harbour.registry.watch(Role::Boat).await.expect("watches");
    assert_eq!(boats.borrow().len(), 1);
    // Its port still answers. No time passes: the kernel connects by itself.
    let answers = std::net::TcpStream::connect(harbour.running.tcp());
    drop(answers.expect("listens"));

    drain(&harbour, Order::Cancel, 0).await;
    let mut ready = harbour.running.ready();
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
    let waits = drain(&harbour, Order::Unspecified, 0).await;
    assert!(waits.waits && waits.connections == 1, "{waits:?}");
    publish(&other, 10).await;
    assert_eq!(client.closing().await, Some(Code::Draining));
    eventually("done", || harbour.running.connections() == 0).await;
    assert!(!drain(&harbour, Order::Unspecified, 0).await.waits);
}

#[tokio::test(start_paused = true)]
async fn who_waits_aboard_stays_when_the_order_is_cancelled() {
    let harbour = Harbour::piped(|_| ()).await;
    let _full = other_boat(&harbour, 0).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    drain(&harbour, Order::Drain, 0).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let cancelled = drain(&harbour, Order::Cancel, 0).await;
    settle().await;
    assert_eq!(cancelled.connections, 1);
    assert!(*harbour.running.ready().borrow());
    client.ping().await;
}

// R18: the last frame reaches every client before the deadline, room or not.
#[tokio::test(start_paused = true)]
async fn a_boat_that_has_to_leave_sends_its_clients_away_at_last() {
    let harbour = Harbour::piped(|config| config.drain_deadline = Duration::from_secs(8)).await;
    let _full = other_boat(&harbour, 0).await;
    let mut clients = harbour.crew(1..=20).await;
    let began = Instant::now();
    harbour.running.drain();
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    let took = began.elapsed();
    // A quarter of the time is for clients that finish something.
    let expected = Duration::from_millis(5500)..Duration::from_millis(6100);
    assert!(expected.contains(&took), "{took:?}");
    drop(clients);
    harbour.running.drained().await;
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn clients_go_at_the_pace_of_the_order() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut clients = harbour.crew(1..=20).await;
    let began = Instant::now();
    drain(&harbour, Order::Drain, 4).await;
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    let took = began.elapsed().as_millis();
    assert!((4500..5500).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn balancers_have_time_to_notice() {
    let harbour = Harbour::piped(|config| config.drain_notice = Duration::from_secs(5)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    let began = Instant::now();
    harbour.running.drain();
    settle().await;
    assert!(!*harbour.running.ready().borrow());
    harbour.tcp().await.hello(2).await;
    assert_eq!(client.closing().await, Some(Code::Draining));
    let took = began.elapsed().as_millis();
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
    let refused = harbour.carrier().drain(request).await.expect_err("another");
    let refusal = api::status::to_refusal(&refused);
    assert_eq!(refusal.code, Code::NotFound);
    assert!(*harbour.running.ready().borrow());
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
    let began = Instant::now();
    let load = async |wanted: &dyn Fn(&BoatLoad) -> bool| {
        loop {
            let loads = harbour.registry.loads().await.expect("loads");
            if let Some(load) = loads.first().filter(|load| wanted(&load.load)) {
                return load.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let published = load(&|load| load.connections == 3).await;
    assert!(began.elapsed() <= Duration::from_secs(10));
    assert_eq!(api::v1::BoatLife::from(&published.life), harbour.life());
    let expected = BoatLoad {
        state: BoatState::Open,
        connections: 3,
        seats: 50,
        accepts_per_second: published.load.accepts_per_second,
        leaving: 0,
        zone: Some("a".to_owned()),
        url: Some("wss://boat-1.example".to_owned()),
    };
    assert_eq!(published.load, expected);
    // A change of state is published before the next turn.
    let began = Instant::now();
    drain(&harbour, Order::Drain, 0).await;
    load(&|load| load.state == BoatState::Draining).await;
    assert!(began.elapsed() <= Duration::from_millis(1100));
    let gone = load(&|load| load.connections == 0).await;
    assert_eq!(gone.load.leaving, 3, "others may not count them yet");
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
    let began = Instant::now();
    harbour.running.drain();
    for client in &mut clients {
        let Some(ServerFrame::Closing { resume, .. }) = client.next().await else {
            panic!("no closing");
        };
        assert!(resume.is_some());
    }
    // In sequence they would take half a minute.
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_order_said_twice_neither_shortens_the_notice_nor_begins_anew() {
    let harbour = Harbour::piped(|config| config.drain_notice = Duration::from_secs(5)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    let began = Instant::now();
    for _ in 0..3 {
        drain(&harbour, Order::Drain, 0).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // Nor does the end of the process begin the notice anew.
    harbour.running.drain();
    assert_eq!(client.closing().await, Some(Code::Draining));
    let took = began.elapsed().as_millis();
    assert!((5000..5200).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_ends_takes_no_orders() {
    let harbour = Harbour::piped(|config| config.drain_notice = Duration::from_secs(5)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.running.drain();
    settle().await;
    let asked = drain(&harbour, Order::Unspecified, 0).await;
    assert_eq!(asked.state(), State::Draining);
    let cancel = DrainRequest {
        life: Some(harbour.life()),
        order: Order::Cancel.into(),
        pace: 0,
    };
    let refused = harbour.carrier().drain(cancel).await.expect_err("it ends");
    assert_eq!(api::status::to_refusal(&refused).code, Code::Forbidden);
    assert_eq!(client.closing().await, Some(Code::Draining));
}

// A regained lease sends a share of the clients away: not during a drain, and not at a pace of its
// own.
#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_back_changes_no_drain() {
    let harbour = Harbour::piped(|config| config.reconnect_percent = 100).await;
    let mut clients = harbour.crew(1..=20).await;
    let began = Instant::now();
    drain(&harbour, Order::Drain, 2).await;
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    for client in &mut clients {
        assert_eq!(client.closing().await, Some(Code::Draining));
    }
    let took = began.elapsed().as_millis();
    assert!((9000..10_500).contains(&took), "{took}");
}
