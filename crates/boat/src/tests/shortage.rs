//! A boat short of memory, and its recovery.

use std::sync::Arc;
use std::time::Duration;

use protocol::Code;
use protocol::frame::{ClientFrame, ServerFrame};
use tokio::time::timeout;

use super::client::{Client, hello};
use super::counting::{Counts, harbour_with_counts};
use super::delivering::pile_up;
use super::harbour::Harbour;
use super::listening::most_of_a_frame;
use super::{TEST_TIMEOUT, eventually};
use crate::door::memory::MemoryWatch;

#[tokio::test]
async fn where_memory_is_short_newcomers_go_elsewhere() {
    let harbour = Harbour::with(|config| config.memory_max = Some(1)).await;
    let mut ready = harbour.handle.ready();
    let wait = ready.wait_for(|ready| !ready);
    timeout(TEST_TIMEOUT, wait)
        .await
        .expect("not ready")
        .expect("runs");
    for mut client in harbour.both().await {
        client.send(&ClientFrame::Hello(hello(1))).await;
        assert_eq!(client.closing().await, Some(Code::Full));
    }
}

/// Limit of a thousand, so that samples are per mille of it.
const MAX: u64 = 1000;
const CLIENT_COUNT: i64 = 3;

async fn is_refused(mut client: Client) {
    client.send(&ClientFrame::Hello(hello(7))).await;
    let Some(ServerFrame::Closing { refusal, .. }) = client.next().await else {
        panic!("no reason");
    };
    assert_eq!(refusal.code, Code::Full);
    assert!(refusal.retry_after >= Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn where_memory_is_found_again_newcomers_are_welcome() {
    // The boat's own watch never finds a shortage.
    let harbour = Harbour::with(|config| config.memory_max = Some(u64::MAX)).await;
    let mut watch = MemoryWatch::new(Arc::clone(&harbour.handle.door.drivers), MAX);
    let ready = harbour.handle.ready();
    let mut admitted_clients = Vec::new();
    for user in 1..=CLIENT_COUNT {
        let mut client = harbour.tcp().await;
        client.hello(user).await;
        admitted_clients.push(client);
    }

    watch.sample(799);
    assert!(*ready.borrow());
    let [mut websocket, mut tcp] = harbour.both().await;
    eventually("arriving", || harbour.handle.connections() == 5).await;
    watch.sample(800);
    for newcomer in [&mut websocket, &mut tcp] {
        assert_eq!(newcomer.closing().await, Some(Code::Full));
    }
    let connects = harbour.peer.connects.lock().len();
    // Tight, shedding, and on the way back from both.
    for used_memory in [800, 949, 950, 901, 900, 751] {
        watch.sample(used_memory);
        assert!(!*ready.borrow(), "{used_memory}");
        for client in harbour.both().await {
            is_refused(client).await;
        }
    }
    assert_eq!(harbour.peer.connects.lock().len(), connects);

    watch.sample(750);
    assert!(*ready.borrow());
    for (user, mut client) in (10..).zip(harbour.both().await) {
        client.hello(user).await;
        client.ping().await;
    }
    // No bytes waited for the clients aboard: none of them was in the way.
    for client in &mut admitted_clients {
        client.ping().await;
    }
}

// Clients with the most outgoing bytes go first, at least one per second, and none without any.
#[tokio::test(start_paused = true)]
async fn in_severe_shortage_the_slowest_readers_are_closed() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |config| {
        config.memory_max = Some(u64::MAX);
        config.session.outgoing_bytes_max = u32::MAX;
    })
    .await;
    let harbour = harbour.through_pipes();
    let mut watch = MemoryWatch::new(Arc::clone(&harbour.handle.door.drivers), MAX);
    let [mut heavy, mut light, mut neighbour] = [
        harbour.tcp().await,
        harbour.tcp().await,
        harbour.websocket().await,
    ];
    neighbour.hello(1).await;
    for (user, client, mebibytes) in [(2, &mut light, 20), (3, &mut heavy, 40)] {
        let session = client.hello(user).await.session.get();
        pile_up(&harbour, session, mebibytes).await;
    }

    watch.sample(949);
    watch.sample(949);
    assert_eq!(counts.limit("memory"), 0);
    watch.sample(950);
    watch.sample(950);
    assert_eq!(counts.limit("memory"), 1);
    let last = loop {
        match heavy.next().await.expect("a reason comes last") {
            ServerFrame::Closing { refusal, .. } => break refusal,
            ServerFrame::Message(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(last.code, Code::Slow);
    assert!(last.retry_after >= Some(Duration::from_secs(1)));
    light.ping().await;
    neighbour.ping().await;

    // No bytes wait any more, so that nobody goes though memory is as short.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    watch.sample(950);
    assert_eq!(counts.limit("memory"), 1);
    neighbour.ping().await;
}

// They cost the same memory as bytes that wait to be read.
#[tokio::test(start_paused = true)]
async fn in_severe_shortage_senders_of_unfinished_frames_are_closed() {
    let harbour = Harbour::piped(|config| config.memory_max = Some(u64::MAX)).await;
    let mut watch = MemoryWatch::new(Arc::clone(&harbour.handle.door.drivers), MAX);
    let mut neighbour = harbour.websocket().await;
    neighbour.hello(1).await;
    let mut clients = harbour.both().await;
    for (user, client) in (2..).zip(&mut clients) {
        client.hello(user).await;
        client.send_raw(&most_of_a_frame(client)).await;
    }
    // One of so few sessions at a time.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        watch.sample(950);
    }
    for mut client in clients {
        assert_eq!(client.closing().await, Some(Code::Slow));
    }
    neighbour.ping().await;
}
