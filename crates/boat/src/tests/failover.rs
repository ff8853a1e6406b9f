//! Several stations, of which one is dead, or loses its answers, and is still registered.

use std::sync::atomic::Ordering;
use std::time::Duration;

use api::transport::Connector;
use backend::discovery::{EmbeddedRegistry, Registry, Role};
use backend::embedded::Engine;
use protocol::frame::ServerFrame;

use super::client::{Client, send_id, text_send};
use super::harbour::{Harbour, Peer, Station};
use crate::Config;
use crate::uplink::station_pool::StationPool;

/// Enough lanes that some prefer either of two stations, whatever the hash.
const LANES: usize = 16;

async fn sends_and_is_accepted(client: &mut Client, number: u8) {
    client.send(&text_send(99, number, "hello")).await;
    match client.next().await {
        Some(ServerFrame::Accepted(accepted)) => assert_eq!(accepted.send_id, send_id(number)),
        other => panic!("{other:?}"),
    }
}

// T-ST1
#[tokio::test]
async fn a_dead_station_is_not_noticed() {
    let harbour = Harbour::with(|config| config.lanes = LANES).await;
    let _dead_station = harbour.register_dead_station().await;
    for number in 1..=2 * LANES as u8 {
        let mut client = harbour.tcp().await;
        client.hello(i64::from(number)).await;
        sends_and_is_accepted(&mut client, number).await;
    }
}

/// The repeat at the other station marks sends that may have been published before; sends that were
/// not are unmarked.
#[tokio::test]
async fn possibly_accepted_sends_are_repeated_with_a_mark() {
    let harbour = Harbour::with(|config| config.lanes = LANES).await;
    let other = Station::start(&harbour.registry, &harbour.connector, "other").await;
    let mut clients = Vec::new();
    for number in 1..=2 * LANES as u8 {
        let mut client = harbour.tcp().await;
        client.hello(i64::from(number)).await;
        clients.push((client, number));
    }
    other.peer.drops_answers.store(true, Ordering::Relaxed);
    for (client, number) in &mut clients {
        sends_and_is_accepted(client, *number).await;
    }
    let other_sends = sends(&other.peer);
    assert!(!other_sends.is_empty(), "some lane prefers it");
    assert!(other_sends.iter().all(|(_, attempt)| *attempt == 0));
    for (send_id, attempt) in sends(&harbour.peer) {
        let is_repeat = other_sends
            .iter()
            .any(|(other_sends, _)| *other_sends == send_id);
        assert_eq!(attempt, u32::from(is_repeat));
    }
}

fn sends(peer: &Peer) -> Vec<(String, u32)> {
    let batches = peer.batches.lock();
    let sends = batches.iter().flatten().map(|item| {
        let send = item.send.as_ref().expect("a send");
        let message = send.message.as_ref().expect("a message");
        (message.send_id.clone(), send.attempt)
    });
    sends.collect()
}

/// A boat's side of the calls, and two stations.
struct Calls {
    stations: StationPool,
    one: Station,
    two: Station,
}

impl Calls {
    async fn to_two() -> Calls {
        let registry = EmbeddedRegistry::new(Engine::memory());
        let connector = Connector::default();
        let one = Station::start(&registry, &connector, "one").await;
        let two = Station::start(&registry, &connector, "two").await;
        let directory = registry.watch(Role::Station).await.expect("watches");
        let config = Config {
            lanes: LANES,
            ..Config::default()
        };
        Calls {
            stations: StationPool::new(directory, connector, &config),
            one,
            two,
        }
    }

    async fn make(&self, calls: usize) -> usize {
        let mut answer_count = 0;
        for _ in 0..calls {
            answer_count += usize::from(self.stations.probe().await.is_ok());
        }
        answer_count
    }

    fn call_counts(&self) -> [usize; 2] {
        [&self.one, &self.two].map(|station| station.peer.call_count.load(Ordering::Relaxed))
    }

    /// The station asked first, and the other one.
    async fn preferred(&self) -> [&Peer; 2] {
        assert_eq!(self.make(1).await, 1);
        let peers = [&*self.one.peer, &*self.two.peer];
        match self.call_counts() {
            [1, 0] => peers,
            [0, 1] => [peers[1], peers[0]],
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_station_is_tried_now_and_then() {
    let calls = Calls::to_two().await;
    let [first, second] = calls.preferred().await;
    first.is_down.store(true, Ordering::Relaxed);
    assert_eq!(calls.make(100).await, 100);
    let take_call_count = |peer: &Peer| peer.call_count.swap(0, Ordering::Relaxed);
    assert_eq!(
        (take_call_count(first), take_call_count(second)),
        (2, 100),
        "it failed once and rests"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(calls.make(100).await, 100);
    assert_eq!(
        (take_call_count(first), take_call_count(second)),
        (1, 100),
        "one call was its trial"
    );
    first.is_down.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(calls.make(100).await, 100);
    assert_eq!((take_call_count(first), take_call_count(second)), (100, 0));
}

// T-ST2
#[tokio::test(start_paused = true)]
async fn calls_made_once_more_have_a_budget() {
    let calls = Calls::to_two().await;
    for station in [&calls.one, &calls.two] {
        station.peer.is_down.store(true, Ordering::Relaxed);
    }
    assert_eq!(calls.make(1000).await, 0);
    let retry_count = calls.call_counts().iter().sum::<usize>() - 1000;
    // A fifth of the calls, and the minimum that ten seconds always allow.
    assert!((200..=260).contains(&retry_count), "{retry_count}");
}

/// The station hangs, but its transport answers: others are asked after a few calls.
#[tokio::test(start_paused = true)]
async fn a_station_that_says_nothing_rests_after_some_calls() {
    let calls = Calls::to_two().await;
    let [first, second] = calls.preferred().await;
    first.holds_calls.store(true, Ordering::Relaxed);
    assert_eq!(calls.make(20).await, 17, "three waited in vain");
    assert_eq!(second.call_count.load(Ordering::Relaxed), 17);
}
