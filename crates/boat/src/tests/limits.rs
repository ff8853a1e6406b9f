//! Limits of a boat, each hit once: its code, its counter, and a neighbour that is not affected.
//! Further limits are tested beside their subject: arrivals (`arriving`), sessions and their
//! reading (`listening`), memory (`shortage`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use metrics::LocalRecorderGuard;
use protocol::frame::{ClientFrame, Hello, ServerFrame};
use protocol::ticket::{RESUME_TICKET_BYTES, ResumeTicket};
use protocol::{Code, Refusal};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::{Client, hello, question, send_id, text_send};
use super::counting::{Counts, harbour_with_counts};
use super::harbour::Harbour;
use crate::Config;

/// Time for a station to answer: calls wait no longer for a slot.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A boat with counters, and a neighbour aboard.
async fn with_neighbour(
    counts: &Counts,
    configure: impl FnOnce(&mut Config),
) -> (Harbour, Client, LocalRecorderGuard<'_>) {
    let (harbour, recorder) = harbour_with_counts(counts, configure).await;
    let mut neighbour = harbour.websocket().await;
    neighbour.hello(9).await;
    (harbour, neighbour, recorder)
}

/// The same, where clients come through pipes.
async fn piped_with_neighbour(
    counts: &Counts,
    configure: impl FnOnce(&mut Config),
) -> (Harbour, Client, LocalRecorderGuard<'_>) {
    let (harbour, recorder) = harbour_with_counts(counts, configure).await;
    let harbour = harbour.through_pipes();
    let mut neighbour = harbour.websocket().await;
    neighbour.hello(9).await;
    (harbour, neighbour, recorder)
}

async fn connect_three(harbour: &Harbour) -> [Client; 3] {
    let [websocket, tcp] = harbour.both().await;
    [websocket, tcp, harbour.tcp().await]
}

impl Client {
    async fn send_accepted(&mut self, number: u8) {
        self.send(&text_send(8, number, "hi")).await;
        let answer = self.next().await;
        assert!(
            matches!(answer, Some(ServerFrame::Accepted(_))),
            "{answer:?}"
        );
    }

    async fn expect_page(&mut self) {
        let answer = self.next().await;
        assert!(matches!(answer, Some(ServerFrame::Page(_))), "{answer:?}");
    }

    async fn expect_welcome(&mut self) {
        let answer = self.next().await;
        assert!(
            matches!(answer, Some(ServerFrame::Welcome(_))),
            "{answer:?}"
        );
    }

    /// The refusal of a question.
    async fn refusal(&mut self) -> (Option<u32>, Refusal) {
        match self.next().await {
            Some(ServerFrame::Error { request, refusal }) => (request, refusal),
            other => panic!("{other:?}"),
        }
    }
}

// Clients that resume have slots and a counter of their own.
#[tokio::test(start_paused = true)]
async fn sign_ins_that_wait_keep_nobody_from_resuming() {
    let counts = Counts::default();
    let (harbour, _neighbour, _recorder) = piped_with_neighbour(&counts, |config| {
        config.sign_in_calls_max = 1;
        config.station_timeout = ANSWER_TIMEOUT;
    })
    .await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    let ticket = ResumeTicket::from_bytes([7; RESUME_TICKET_BYTES]);
    let mut clients = connect_three(&harbour).await;
    for (user, client) in (1..).zip(&mut clients) {
        let resume_hello = Hello {
            token: String::new(),
            resume: Some(ticket),
            ..hello(user)
        };
        client.send(&ClientFrame::Hello(resume_hello)).await;
        sleep(ANSWER_TIMEOUT / 4).await;
    }
    // A sign-in finds a free slot of its kind: the station is what does not answer.
    let mut stranger = harbour.tcp().await;
    stranger.send(&ClientFrame::Hello(hello(4))).await;
    let [_, _, mut third] = clients;
    let last = third.closing().await;
    assert_eq!(last, Some(Code::Unavailable));
    assert_eq!(stranger.closing().await, Some(Code::DeadlineExceeded));
    assert_eq!(counts.limit("resume_calls"), 1);
    assert_eq!(counts.limit("sign_in_calls"), 0);
    harbour.peer.holds_calls.store(false, Ordering::Relaxed);
    harbour.peer.permits.add_permits(4);
}

// proves S1-05 in part: sign-ins that a slow station leaves without an answer hold places of their own.
#[tokio::test(start_paused = true)]
async fn sign_ins_wait_for_a_slot_without_disturbing_others() {
    let counts = Counts::default();
    let (harbour, mut neighbour, _recorder) = piped_with_neighbour(&counts, |config| {
        config.sign_in_calls_max = 1;
        config.station_timeout = ANSWER_TIMEOUT;
    })
    .await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    // The second client's turn comes once the first one's call has failed, too late for the third.
    let mut clients = connect_three(&harbour).await;
    for (user, client) in (1..).zip(&mut clients) {
        client.send(&ClientFrame::Hello(hello(user))).await;
        sleep(ANSWER_TIMEOUT / 4).await;
    }
    let [mut first, mut second, mut third] = clients;
    neighbour.send(&question(12)).await;
    neighbour.expect_page().await;
    assert_eq!(first.closing().await, Some(Code::DeadlineExceeded));
    let last = third.next().await;
    let Some(ServerFrame::Closing { refusal, .. }) = last else {
        panic!("{last:?}");
    };
    assert_eq!(refusal.code, Code::Unavailable);
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    assert_eq!(counts.limit("sign_in_calls"), 1);
    harbour.peer.holds_calls.store(false, Ordering::Relaxed);
    harbour.peer.permits.add_permits(3);
    second.expect_welcome().await;
    neighbour.ping().await;
}

#[tokio::test(start_paused = true)]
async fn questions_wait_for_a_place_and_sends_and_sign_ins_go_on() {
    let counts = Counts::default();
    let (harbour, mut neighbour, _recorder) = piped_with_neighbour(&counts, |config| {
        config.calls_max = 1;
        config.station_timeout = ANSWER_TIMEOUT;
    })
    .await;
    harbour.peer.holds_questions.store(true, Ordering::Relaxed);
    let mut clients = connect_three(&harbour).await;
    for (user, client) in (1..).zip(&mut clients) {
        client.hello(user).await;
    }
    for (number, client) in (1..).zip(&mut clients) {
        client.send(&question(number)).await;
        sleep(ANSWER_TIMEOUT / 4).await;
    }
    let [mut first, mut second, mut third] = clients;
    neighbour.send_accepted(1).await;
    harbour.tcp().await.hello(4).await;
    let (_, refusal) = first.refusal().await;
    assert_eq!(refusal.code, Code::DeadlineExceeded);
    let (request, refusal) = third.refusal().await;
    assert_eq!((request, refusal.code), (Some(3), Code::Unavailable));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    assert_eq!(counts.limit("calls"), 1);
    harbour.peer.holds_questions.store(false, Ordering::Relaxed);
    harbour.peer.permits.add_permits(3);
    second.expect_page().await;
    neighbour.ping().await;
}

#[tokio::test]
async fn a_session_has_so_many_questions_without_an_answer() {
    let counts = Counts::default();
    let two = |config: &mut Config| config.session.questions_max = 2;
    let (harbour, mut neighbour, _recorder) = with_neighbour(&counts, two).await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        client.hello(user).await;
        harbour.peer.holds_questions.store(true, Ordering::Relaxed);
        for number in 1..=3 {
            client.send(&question(number)).await;
        }
        let (request, refusal) = client.refusal().await;
        assert_eq!((request, refusal.code), (Some(3), Code::RateLimited));
        assert_eq!(counts.limit("session_questions"), user as u64);
        // The session itself goes on, and so do those of others.
        client.send_accepted(1).await;
        harbour.peer.holds_questions.store(false, Ordering::Relaxed);
        neighbour.send(&question(1)).await;
        neighbour.expect_page().await;
        harbour.peer.permits.add_permits(2);
        for _ in 0..2 {
            client.expect_page().await;
        }
    }
}

#[tokio::test]
async fn a_session_sends_so_many_frames_in_a_second() {
    let counts = Counts::default();
    let ten = |config: &mut Config| config.session.frames_per_second = 10;
    let (harbour, mut neighbour, _recorder) = with_neighbour(&counts, ten).await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        client.hello(user).await;
        let pings = (0..20).map(|nonce| ClientFrame::Ping { nonce });
        client.send_together(pings.collect()).await;
        assert_eq!(client.closing().await, Some(Code::RateLimited));
        assert_eq!(counts.limit("session_frames"), user as u64);
        neighbour.ping().await;
    }
}

#[tokio::test]
async fn a_frame_and_a_body_have_so_many_bytes() {
    let counts = Counts::default();
    let (harbour, mut neighbour, _recorder) = with_neighbour(&counts, |config| {
        config.session.body_bytes_max = 1_000;
        config.session.frame_bytes_max = 2_000;
    })
    .await;
    for (user, mut client) in (1..).zip(harbour.both().await) {
        client.hello(user).await;
        client.send(&text_send(9, 1, &"a".repeat(1_001))).await;
        match client.next().await {
            Some(ServerFrame::Refused {
                send_id: id,
                refusal,
            }) => assert_eq!((id, refusal.code), (send_id(1), Code::TooLarge)),
            other => panic!("{other:?}"),
        }
        assert_eq!(counts.limit("body_bytes"), user as u64);
        assert_eq!(counts.limit("frame_bytes"), user as u64 - 1);
        client.send_accepted(2).await;
        client.send_bytes(Bytes::from(vec![0; 2_001])).await;
        assert_eq!(client.closing().await, Some(Code::TooLarge));
        assert_eq!(counts.limit("frame_bytes"), user as u64);
        neighbour.ping().await;
    }
}

// Nobody is refused: newcomers queue in the kernel, and clients aboard are served meanwhile.
#[tokio::test]
async fn arrivals_have_a_pace() {
    let counts = Counts::default();
    let five = |config: &mut Config| config.accepts_per_second = 5;
    let (harbour, mut neighbour, _recorder) = with_neighbour(&counts, five).await;
    let wait_count = counts.limit("arrivals");
    let start = Instant::now();
    // All of them are in the kernel's queue before the boat sees the first.
    let connect = |_| std::net::TcpStream::connect(harbour.handle.tcp()).expect("listens");
    let streams: Vec<_> = (0..12).map(connect).collect();
    neighbour.ping().await;
    assert!(harbour.handle.connections() < 13, "the last one waits yet");
    for (user, stream) in (10..).zip(streams) {
        stream.set_nonblocking(true).expect("a socket");
        let stream = TcpStream::from_std(stream).expect("a socket");
        Client::tcp_over(stream).hello(user).await;
    }
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1800), "{took:?}");
    // One who comes late, on a busy machine, may find the next turn free.
    assert!(counts.limit("arrivals") > wait_count);
}
