//! System calls and turns, as the boat counts them for known work.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString,
    Unit,
};
use parking_lot::Mutex;
use protocol::frame::{ClientFrame, ServerFrame};

use super::client::{Client, hello, text_send};
use super::delivering::{Stream, delivery};
use super::eventually;
use super::harbour::{Harbour, settle};
use crate::Config;

/// Counters by name and labels.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(Arc<Mutex<HashMap<String, Arc<AtomicU64>>>>);

/// Turns, reads and writes.
type Calls = (u64, u64, u64);

impl Counts {
    fn value(&self, name: &str) -> u64 {
        self.0.lock()[name].load(Ordering::Relaxed)
    }

    /// Number of times a limit was reached.
    pub(super) fn limit(&self, limit: &str) -> u64 {
        self.value(&format!("limits_total{{{limit}}}"))
    }

    fn calls(&self) -> Calls {
        (
            self.value("boat_connection_turns_total"),
            self.value("boat_socket_reads_total"),
            self.value("boat_socket_writes_total"),
        )
    }

    /// Reads and writes of the boat during `action`.
    async fn count_calls(&self, action: impl Future) -> (u64, u64) {
        let (_, reads, writes) = self.calls();
        action.await;
        let (_, reads_now, writes_now) = self.calls();
        (reads_now - reads, writes_now - writes)
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut series = key.name().to_owned();
        for label in key.labels() {
            let _ = write!(series, "{{{}}}", label.value());
        }
        let mut counts = self.0.lock();
        Counter::from_arc(Arc::clone(counts.entry(series).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// A boat on this thread alone, and its counters.
pub(super) async fn harbour_with_counts(
    counts: &Counts,
    configure: impl FnOnce(&mut Config),
) -> (Harbour, LocalRecorderGuard<'_>) {
    let recorder = metrics::set_default_local_recorder(counts);
    (Harbour::with(configure).await, recorder)
}

/// Frames per write of the client.
const FRAMES: usize = 40;

fn ping(nonce: u64) -> ClientFrame {
    ClientFrame::Ping { nonce }
}

async fn expect_pongs(client: &mut Client, pongs: usize) {
    for _ in 0..pongs {
        let frame = client.next().await;
        assert!(matches!(frame, Some(ServerFrame::Pong { .. })), "{frame:?}");
    }
}

#[tokio::test]
async fn a_frame_and_its_answer_are_one_read_and_one_write() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |_| ()).await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        client.hello(user).await;
        for nonce in 0..10 {
            let ping_calls = counts.count_calls(async {
                client.send(&ping(nonce)).await;
                expect_pongs(&mut client, 1).await;
            });
            assert_eq!(ping_calls.await, (1, 1));
        }
        // A station's answer comes in a turn of its own.
        for number in 0..10 {
            let send_calls = counts.count_calls(async {
                client.send(&text_send(9, number, "one of ten")).await;
                let answer = client.next().await;
                assert!(
                    matches!(answer, Some(ServerFrame::Accepted(_))),
                    "{answer:?}"
                );
            });
            assert_eq!(send_calls.await, (1, 1));
        }
    }
}

#[tokio::test]
async fn frames_that_are_ready_together_share_a_read_and_a_write() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |_| ()).await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        let session = client.hello(user).await.session.get();
        let pings = (0..FRAMES as u64).map(ping).collect();
        let ping_calls = counts.count_calls(async {
            client.send_together(pings).await;
            expect_pongs(&mut client, FRAMES).await;
        });
        assert_eq!(ping_calls.await, (1, 1));

        let stream = Stream::open(&harbour).await;
        let deliveries = (1..=20).map(|id| delivery(session, id)).collect();
        let push_calls = counts.count_calls(async {
            stream.deliver(deliveries).await;
            for _ in 0..20 {
                let frame = client.next().await;
                assert!(matches!(frame, Some(ServerFrame::Message(_))), "{frame:?}");
            }
        });
        assert_eq!(push_calls.await, (0, 1));
    }
}

/// A client that goes while a station admits it leaves a session that cannot settle yet.
#[tokio::test]
async fn a_connection_that_is_gone_takes_no_turns() {
    let counts = Counts::default();
    let (harbour, _recorder) = harbour_with_counts(&counts, |_| ()).await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    for (user, mut client) in (1..).zip(harbour.both().await) {
        client.send(&ClientFrame::Hello(hello(user))).await;
        let is_asked = || harbour.peer.held_count.load(Ordering::Relaxed) == user as usize;
        eventually("asked", is_asked).await;
        // More frames than one turn handles, with the end behind them.
        client.send_together((0..200).map(ping).collect()).await;
    }
    eventually("gone", || harbour.handle.connections() == 0).await;
    settle().await;
    let (turns, ..) = counts.calls();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (turns_now, ..) = counts.calls();
    assert_eq!(turns_now, turns, "turns of nobody");
    harbour.peer.permits.add_permits(2);
    eventually("signed off", || harbour.peer.disconnects.lock().len() == 2).await;
    let (turns_now, ..) = counts.calls();
    assert!(turns_now - turns <= 6, "{}", turns_now - turns);
}
