use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::station::{Disconnect, MailAck};
use api::v1::reassert_result::Outcome;
use backend::discovery::{Registry, Role};
use bytes::Bytes;
use protocol::frame::{ClientFrame, Hello, Refresh, ServerFrame};
use protocol::presence::SessionKey;
use protocol::ticket::{RESUME_TICKET_BYTES, ResumeTicket, TICKET_BYTES};
use protocol::{Code, Platform, SessionId};
use tokio::net::TcpStream;
use tokio::time::{Instant, advance, sleep_until, timeout};

use super::client::{hello, message, text_send, user};
use super::harbour::{Harbour, message_frame, settle};
use super::{TEST_TIMEOUT, eventually};
use crate::StartError;

// R18, T-U1: clients aboard get answers, a reason and a delay; then everything is signed off and
// the lease given up.
#[tokio::test]
async fn a_boat_leaves_in_order() {
    let harbour = Harbour::with(|config| {
        // Nobody else takes these ports once they are free.
        let unshared_address = SocketAddr::from(([127, 0, 0, 77], 0));
        (config.websocket, config.tcp) = (unshared_address, unshared_address);
    })
    .await;
    let (websocket, tcp) = (harbour.handle.websocket(), harbour.handle.tcp());
    let mut ready = harbour.handle.ready();
    assert!(*ready.borrow_and_update());
    let [mut busy, mut idle] = harbour.both().await;
    busy.hello(1).await;
    idle.hello(2).await;
    let mut early = harbour.tcp().await;
    eventually("arrived", || harbour.handle.connections() == 3).await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    busy.send(&text_send(9, 1, "under way")).await;
    let held_count = || harbour.peer.held_count.load(Ordering::Relaxed);
    eventually("under way", || held_count() == 1).await;

    harbour.handle.drain();
    assert_eq!(idle.closing().await, Some(Code::Draining));
    assert_eq!(early.closing().await, Some(Code::Draining));
    assert!(!*ready.borrow_and_update());
    let ports_closed = async {
        while TcpStream::connect(tcp).await.is_ok() || TcpStream::connect(websocket).await.is_ok() {
            settle().await;
        }
    };
    timeout(TEST_TIMEOUT, ports_closed)
        .await
        .expect("nobody listens");
    harbour.peer.permits.add_permits(1);
    assert!(matches!(busy.next().await, Some(ServerFrame::Accepted(_))));
    match busy.next().await {
        Some(ServerFrame::Closing { refusal, .. }) => {
            assert_eq!(refusal.code, Code::Draining);
            // Time over which all clients return: each picks a random moment within it.
            assert_eq!(refusal.retry_after, Some(Duration::from_millis(6)));
        }
        other => panic!("{other:?}"),
    }
    drop((busy, idle, early));
    harbour.handle.drained().await;
    assert_eq!(harbour.peer.disconnects.lock().len(), 2);
    let boats = harbour.registry.watch(Role::Boat).await.expect("watches");
    assert!(boats.borrow().is_empty());
}

// R18: the token provider gets no request for clients that have to leave.
#[tokio::test(start_paused = true)]
async fn a_client_leaves_with_a_ticket_to_resume_with() {
    let harbour = Harbour::piped(|_| ()).await;
    *harbour.peer.ticket.lock() = Bytes::from_static(&[7; TICKET_BYTES]);
    let mut client = harbour.tcp().await;
    let session = client.hello(1).await.session;
    let mut early = harbour.tcp().await;
    settle().await;
    harbour.handle.drain();
    let Some(ServerFrame::Closing { refusal, resume }) = client.next().await else {
        panic!("no closing");
    };
    assert_eq!(refusal.code, Code::Draining);
    let expected = session.get().to_be_bytes().repeat(6);
    let ticket = resume.expect("a ticket");
    assert_eq!(ticket.as_bytes().as_slice(), expected);
    let Some(ServerFrame::Closing { resume, .. }) = early.next().await else {
        panic!("no closing");
    };
    assert_eq!(resume, None, "nobody knows it yet");
}

// Clients have their tokens: a leave does not wait long for stations.
#[tokio::test(start_paused = true)]
async fn a_boat_leaves_without_tickets_where_stations_are_silent() {
    let harbour = Harbour::piped(|config| config.drain_batch = 1).await;
    *harbour.peer.ticket.lock() = Bytes::from_static(&[7; TICKET_BYTES]);
    let mut clients = harbour.crew(1..=60).await;
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    let start = Instant::now();
    harbour.handle.drain();
    for client in &mut clients {
        let Some(ServerFrame::Closing { refusal, resume }) = client.next().await else {
            panic!("no closing");
        };
        assert_eq!((refusal.code, resume), (Code::Draining, None));
    }
    // Each lane is asked once.
    let pace = Duration::from_secs(1);
    assert!(start.elapsed() < Duration::from_secs(3) + pace);
}

// Threat 12: the proof goes to a station as it is.
#[tokio::test(start_paused = true)]
async fn a_client_resumes_with_its_ticket() {
    let harbour = Harbour::piped(|_| ()).await;
    let ticket = ResumeTicket::from_bytes([9; RESUME_TICKET_BYTES]);
    let mut client = harbour.tcp().await;
    let hello = Hello {
        resume: Some(ticket),
        ..hello(1)
    };
    client.send(&ClientFrame::Hello(hello)).await;
    let welcome = client.next().await;
    assert!(matches!(welcome, Some(ServerFrame::Welcome(_))));
    let connects = harbour.peer.connects.lock();
    assert_eq!(connects[0].resume_ticket, ticket.as_bytes().as_slice());
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_with_a_new_token() {
    let harbour = Harbour::piped(|_| ()).await;
    *harbour.peer.ticket.lock() = Bytes::from_static(&[7; TICKET_BYTES]);
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    *harbour.peer.ticket.lock() = Bytes::from_static(&[8; TICKET_BYTES]);
    let token_expiry = harbour.handle.door.drivers.connections.now() + Duration::from_millis(600);
    let token = format!("until-{}", token_expiry.millis());
    client.send(&ClientFrame::Refresh(Refresh { token })).await;
    let expected_frame = ServerFrame::Refreshed {
        expires_at: token_expiry,
    };
    assert_eq!(client.next().await, Some(expected_frame));
    client.send(&text_send(2, 1, "a")).await;
    assert!(matches!(
        client.next().await,
        Some(ServerFrame::Accepted(_))
    ));
    let shown_tickets = std::mem::take(&mut *harbour.peer.shown_tickets.lock());
    let ticket = |number| Bytes::copy_from_slice(&[number; TICKET_BYTES]);
    assert!(shown_tickets.contains(&("refresh", ticket(7))));
    assert!(
        shown_tickets.contains(&("send", ticket(8))),
        "of the new token"
    );
    assert_eq!(
        client.closing().await,
        Some(Code::TokenExpired),
        "the new one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_ends_does_not_hold_the_boat() {
    let harbour = Harbour::piped(|config| {
        config.drain_deadline = Duration::from_millis(300);
        config.close_grace = Duration::from_secs(60);
    })
    .await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.handle.drain();
    harbour.handle.drained().await;
    assert_eq!(client.closing().await, Some(Code::Draining));
}

// R5, T-E3: without a lease the boat sends no client away and admits no new one; with a new lease
// it asserts all sessions anew.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_taken_again_and_everything_is_said_anew() {
    let harbour = Harbour::piped(|config| config.reconnect_percent = 0).await;
    let mut client = harbour.websocket().await;
    let session = client.hello(1).await.session.get();
    let old_life = harbour.life();
    let mut ready = harbour.handle.ready();
    ready.mark_unchanged();
    *harbour.peer.reassert_as.lock() = Outcome::Restored;
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    ready.changed().await.expect("alive");
    ready.wait_for(|ready| *ready).await.expect("alive");
    assert!(harbour.life().incarnation > old_life.incarnation);
    assert_eq!(client.next().await, Some(ServerFrame::Resync));
    let reassertion = harbour.peer.reassertions.lock()[0].clone();
    assert_eq!(reassertion.login, 1, "what the admission said");
    let reassertion = reassertion.key.expect("a key");
    assert_eq!(
        (reassertion.session, reassertion.life),
        (session, Some(harbour.life()))
    );
    client.ping().await;
    // A caller that still knows the earlier life reaches the same sessions.
    let probe = api::v1::ProbeRequest {
        life: Some(old_life),
    };
    assert!(
        harbour
            .carrier()
            .probe(probe)
            .await
            .expect("answers")
            .into_inner()
            .alive
    );
}

// proves S0-27: the boat sends a configured share away.
#[tokio::test(start_paused = true)]
async fn after_a_lost_lease_a_share_of_the_clients_is_sent_away() {
    let harbour = Harbour::piped(|config| config.reconnect_percent = 100).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    assert_eq!(client.closing().await, Some(Code::Reconnect));
}

/// Number of clients out of a hundred that are sent away because of `cause`.
async fn count_sent_away(harbour: &Harbour, cause: impl AsyncFnOnce(&Harbour)) -> usize {
    let mut clients = harbour.crew(1..=100).await;
    settle().await;
    cause(harbour).await;
    // Assertions finish after the share to send away has been picked.
    let assertion_count = || harbour.peer.reassertions.lock().len();
    let connection_count = || harbour.handle.connections();
    eventually("asserted", || assertion_count() >= connection_count()).await;
    settle().await;
    let mut sent_away_count = 0;
    for client in &mut clients {
        // A client that stays gets another frame, or none.
        if let Ok(code) = timeout(Duration::from_millis(20), client.closing()).await {
            assert_eq!(code, Some(Code::Reconnect));
            sent_away_count += 1;
        }
    }
    sent_away_count
}

// proves S0-27: of a hundred clients the default share of ten percent leaves, give or take chance.
#[tokio::test(start_paused = true)]
async fn after_a_lost_lease_one_client_of_ten_is_sent_away() {
    let harbour = Harbour::piped(|config| config.name = "boat-1".into()).await;
    let lose = async |harbour: &Harbour| assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    let sent_away_count = count_sent_away(&harbour, lose).await;
    assert!(
        (2..=24).contains(&sent_away_count),
        "{sent_away_count} of 100"
    );
}

// proves S0-27: the same where the process stood still.
#[tokio::test(start_paused = true)]
async fn after_a_standstill_one_client_of_ten_is_sent_away() {
    let harbour = Harbour::piped(|config| config.pause_max = Duration::from_millis(400)).await;
    let stand = async |_: &Harbour| advance(Duration::from_millis(1200)).await;
    let sent_away_count = count_sent_away(&harbour, stand).await;
    assert!(
        (2..=24).contains(&sent_away_count),
        "{sent_away_count} of 100"
    );
}

// Without a lease the boat counts as gone, so that its sessions are forgotten again and again: they
// are asserted, and no client is told to sync. A store that lost its data has another marker, and
// then every client is.
#[tokio::test(start_paused = true)]
async fn without_a_lease_forgotten_sessions_do_not_sync() {
    let harbour = Harbour::piped(|config| {
        config.sweep_interval = Duration::from_millis(300);
        config.reconnect_percent = 0;
    })
    .await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.engine.fail_syncs();
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    settle().await;
    *harbour.peer.reassert_as.lock() = Outcome::Restored;
    let old_count = harbour.peer.reassertions.lock().len();
    eventually("asserted", || {
        harbour.peer.reassertions.lock().len() > old_count + 2
    })
    .await;
    client.send(&ClientFrame::Ping { nonce: 1 }).await;
    let next = client.next().await;
    assert!(
        matches!(next, Some(ServerFrame::Pong { .. })),
        "not {next:?}"
    );
    harbour.peer.marker.store(8, Ordering::Relaxed);
    assert_eq!(client.next().await, Some(ServerFrame::Resync));
    client.ping().await;
}

// The boat re-registers sessions that the store forgot, and their clients sync.
#[tokio::test(start_paused = true)]
async fn the_sweep_restores_and_displaces() {
    let harbour = Harbour::piped(|config| {
        config.sweep_interval = Duration::from_millis(300);
    })
    .await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    eventually("asserted", || !harbour.peer.reassertions.lock().is_empty()).await;
    *harbour.peer.reassert_as.lock() = Outcome::Restored;
    assert_eq!(client.next().await, Some(ServerFrame::Resync));
    for (outcome, code) in [
        (Outcome::Displaced, Code::Displaced),
        (Outcome::Replaced, Code::Replaced),
    ] {
        let mut client = harbour.tcp().await;
        client.hello(1).await;
        *harbour.peer.reassert_as.lock() = outcome;
        assert_eq!(client.closing().await, Some(code));
        *harbour.peer.reassert_as.lock() = Outcome::Known;
    }
}

// R3: one lost session hints at the others, which the slow pass would reach in five minutes.
#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_sessions_has_them_again_soon() {
    let harbour = Harbour::piped(|config| {
        config.sweep_pause_max = Duration::from_millis(300);
        config.restore_spread = Duration::from_millis(300);
    })
    .await;
    *harbour.peer.reassert_as.lock() = Outcome::Restored;
    let mut clients = harbour.crew(1..=40).await;
    let start = Instant::now();
    for client in &mut clients {
        assert_eq!(client.next().await, Some(ServerFrame::Resync));
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

// R3: on a boat with few sessions, each is asserted at once after the first loss.
#[tokio::test(start_paused = true)]
async fn a_small_boat_restores_its_lost_sessions_at_once() {
    let harbour = Harbour::piped(|config| {
        // One after the other they would take forty seconds, and more.
        config.sweep_interval = Duration::from_secs(60);
        config.sweep_pause_max = Duration::from_secs(2);
        config.restore_spread = Duration::from_millis(300);
    })
    .await;
    let mut clients = harbour.crew(1..=20).await;
    *harbour.peer.reassert_as.lock() = Outcome::Restored;
    let resyncs = async {
        for client in &mut clients {
            assert_eq!(client.next().await, Some(ServerFrame::Resync));
        }
    };
    let in_time = timeout(Duration::from_secs(10), resyncs).await;
    in_time.expect("within seconds");
}

// An unavailable mailbox server delays no sign-off of another server's users, however many of its
// own wait.
#[tokio::test(start_paused = true)]
async fn an_unavailable_mailbox_part_delays_no_other_sign_off() {
    let harbour = Harbour::piped(|config| {
        config.lanes = 1;
        config.batch_items_max = 2;
        config.retry_pause = Duration::from_millis(20);
    })
    .await;
    harbour.peer.unavailable_users.lock().extend([1, 2, 3]);
    let unavailable_clients = harbour.crew(1..=3).await;
    let available_clients = harbour.crew(4..=4).await;
    drop(unavailable_clients);
    eventually("gone", || harbour.handle.connections() == 1).await;
    drop(available_clients);
    eventually("signed off", || harbour.peer.disconnects.lock().len() == 1).await;
    assert_eq!(harbour.peer.disconnects.lock()[0].user, 4);
    harbour.peer.unavailable_users.lock().clear();
    eventually("all", || harbour.peer.disconnects.lock().len() == 4).await;
}

/// Queues the removal of one message and the sign-off of a user.
fn end_session(harbour: &Harbour, number: i64) {
    let session = SessionId::new(number).expect("positive");
    let lane = harbour.handle.door.drivers.uplink.queues.get(0);
    let removal = MailAck {
        user: user(number),
        platform: Platform::Desktop,
        session,
        ids: vec![message(number)],
        ticket: None,
    };
    assert!(lane.mail_acks.push(removal).is_ok(), "{number}");
    let key = SessionKey {
        user: user(number),
        session,
        life: harbour.handle.life().expect("registered"),
    };
    let leave = Disconnect { key, ticket: None };
    assert!(lane.leaves.push(leave).is_ok(), "{number}");
}

// Each second one session of a part that is away ends, and one of another part. Once, the lane
// paused a second after each call that named an unanswered item, with more of them in the lane each
// time, and dropped others' items in the end.
#[tokio::test(start_paused = true)]
async fn a_part_of_the_mailbox_that_is_away_slows_nobody_else() {
    const SECONDS: usize = 180;
    const LANE_ITEMS_MAX: usize = 64;
    let harbour = Harbour::piped(|config| {
        config.lanes = 1;
        config.batch_items_max = 8;
        config.lane_items_max = LANE_ITEMS_MAX;
    })
    .await;
    let peer = &harbour.peer;
    peer.unavailable_users.lock().extend(1..=SECONDS as i64);
    // More than a lane calls beside the others, one after the other.
    *peer.unavailable_delay.lock() = Duration::from_secs(2);
    let end_counts = || (peer.disconnects.lock().len(), peer.removed_ids.lock().len());
    let mut slowest = Duration::ZERO;
    for number in 1..=SECONDS {
        let start = Instant::now();
        end_session(&harbour, number as i64);
        end_session(&harbour, (1_000 + number) as i64);
        eventually("ended", || end_counts() == (number, number)).await;
        slowest = slowest.max(start.elapsed());
        sleep_until(start + Duration::from_secs(1)).await;
    }
    assert!(slowest < Duration::from_millis(200), "{slowest:?}");
    // A first call for each second, and a repeat each three seconds, of each kind.
    let calls = peer.mailbox_calls.load(Ordering::Relaxed);
    let expected = 2 * (SECONDS + SECONDS / 3);
    assert!((expected - 10..=expected).contains(&calls), "{calls}");
    assert!(!harbour.handle.door.drivers.uplink.queues.are_idle());

    peer.unavailable_users.lock().clear();
    *peer.unavailable_delay.lock() = Duration::ZERO;
    eventually("all", || {
        harbour.handle.door.drivers.uplink.queues.are_idle()
    })
    .await;
    let (signed_off, removed_count) = end_counts();
    // As many as waited; those that did not fit are not repeated.
    let expected_counts = LANE_ITEMS_MAX - 2..=LANE_ITEMS_MAX;
    assert!(
        expected_counts.contains(&(signed_off - SECONDS)),
        "{signed_off}"
    );
    assert!(
        expected_counts.contains(&(removed_count - SECONDS)),
        "{removed_count}"
    );
}

/// Time that a boat with one session takes to leave whose part of the mailbox comes back after so
/// long, and the number of sessions signed off.
async fn leave_during_outage(back_after: Duration) -> (Duration, usize) {
    let harbour = Harbour::piped(|config| config.drain_deadline = Duration::from_secs(10)).await;
    harbour.peer.unavailable_users.lock().push(1);
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    let start = Instant::now();
    harbour.handle.drain();
    assert_eq!(client.closing().await, Some(Code::Draining));
    drop(client);
    let mailbox_return = async {
        sleep_until(start + back_after).await;
        harbour.peer.unavailable_users.lock().clear();
    };
    let leave_time = async {
        harbour.handle.drained().await;
        start.elapsed()
    };
    let (leave_time, ()) = tokio::join!(leave_time, mailbox_return);
    let signed_off = harbour.peer.disconnects.lock().len();
    (leave_time, signed_off)
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_leaves_waits_for_a_part_until_its_deadline() {
    let short_outage = Duration::from_secs(3);
    let (leave_time, signed_off) = leave_during_outage(short_outage).await;
    assert_eq!(signed_off, 1);
    let expected_time = short_outage..short_outage + Duration::from_secs(2);
    assert!(expected_time.contains(&leave_time), "{leave_time:?}");
    let (leave_time, signed_off) = leave_during_outage(Duration::from_secs(20)).await;
    assert_eq!(signed_off, 0);
    let deadline = Duration::from_secs(10);
    let expected_time = deadline..deadline + Duration::from_secs(1);
    assert!(expected_time.contains(&leave_time), "{leave_time:?}");
}

#[tokio::test(start_paused = true)]
async fn sign_offs_wait_for_the_stations() {
    let harbour = Harbour::piped(|config| config.retry_pause = Duration::from_millis(20)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.peer.is_down.store(true, Ordering::Relaxed);
    drop(client);
    eventually("gone", || harbour.handle.connections() == 0).await;
    settle().await;
    assert!(harbour.peer.disconnects.lock().is_empty());
    harbour.peer.is_down.store(false, Ordering::Relaxed);
    eventually("signed off", || harbour.peer.disconnects.lock().len() == 1).await;
}

/// Time from the first few of `total` to the last.
async fn arrival_span(total: usize, count: impl Fn() -> usize) -> Duration {
    eventually("the first", || count() > 0).await;
    let first = Instant::now();
    eventually("all", || count() >= total).await;
    first.elapsed()
}

// proves S1-08 in part: of a wave that leaves, so many are signed off in a second, several in a call.
#[tokio::test(start_paused = true)]
async fn a_wave_that_leaves_is_signed_off_at_a_bounded_rate() {
    let harbour = Harbour::piped(|config| {
        config.lanes = 2;
        config.batch_items_max = 5;
        config.presence_writes_per_second = NonZeroU32::new(40).expect("some");
    })
    .await;
    let clients = harbour.crew(1..=40).await;
    let call_count = || harbour.peer.call_count.load(Ordering::Relaxed);
    let old_count = call_count();
    drop(clients);
    let signed_off = || harbour.peer.disconnects.lock().len();
    let took = arrival_span(40, signed_off).await;
    // The first five of each lane pass at once.
    assert!(took >= Duration::from_millis(500), "{took:?}");
    // Five in each call but the first and the last of a lane.
    let calls = call_count() - old_count;
    assert!(calls < 20, "{calls} calls for 40");
    // Newcomers do not wait for clients that leave.
    harbour.tcp().await.hello(50).await;
}

#[tokio::test(start_paused = true)]
async fn sessions_are_asserted_at_a_bounded_rate_after_a_lost_lease() {
    let harbour = Harbour::piped(|config| {
        config.reconnect_percent = 0;
        config.presence_writes_per_second = NonZeroU32::new(10).expect("some");
    })
    .await;
    let _clients = harbour.crew(1..=40).await;
    settle().await;
    harbour.peer.reassertions.lock().clear();
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    let took = arrival_span(40, || harbour.peer.reassertions.lock().len()).await;
    assert!(took >= Duration::from_millis(3500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn permanently_refused_calls_are_not_repeated() {
    let harbour = Harbour::piped(|config| {
        config.retry_pause = Duration::from_millis(20);
        config.lanes = 1;
    })
    .await;
    harbour.peer.mail.lock().push_back(api::v1::MailItem {
        msg_id: 1,
        frame: message_frame(1),
    });
    harbour.peer.refuses_removals.store(true, Ordering::Relaxed);
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    assert!(matches!(client.next().await, Some(ServerFrame::Message(_))));
    client.received(1).await;
    client.ping().await;
    drop(client);
    let refusal_count = || harbour.peer.refusal_count.load(Ordering::Relaxed);
    eventually("a removal and a sign-off", || refusal_count() == 2).await;
    settle().await;
    assert_eq!(refusal_count(), 2);
    // The lanes keep working.
    harbour
        .peer
        .refuses_removals
        .store(false, Ordering::Relaxed);
    let mut next = harbour.tcp().await;
    next.hello(2).await;
    drop(next);
    eventually("signed off", || harbour.peer.disconnects.lock().len() == 1).await;
}

// R5, S1-10: without a lease the boat serves on; cut off from the stations as well, for longer than
// the fence, it sends every client away.
// proves S1-10
#[tokio::test(start_paused = true)]
async fn only_a_boat_that_is_fully_cut_off_sends_its_clients_away() {
    let harbour = Harbour::piped(|config| config.fence = Duration::from_millis(1500)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    harbour.engine.fail_syncs();
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    client.ping().await;
    assert!(!*harbour.handle.ready().borrow());
    harbour.peer.is_down.store(true, Ordering::Relaxed);
    assert_eq!(client.closing().await, Some(Code::Reconnect));
}

// A registry that hangs blocks nothing else, and is retried.
#[tokio::test(start_paused = true)]
async fn a_registry_that_hangs_is_asked_again() {
    let harbour = Harbour::piped(|config| {
        config.registry_timeout = Duration::from_millis(100);
        config.fence = Duration::from_millis(500);
        config.reconnect_percent = 0;
    })
    .await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    let old_life = harbour.life();
    harbour.engine.hold_syncs();
    assert!(harbour.registry.revoke(Role::Boat, "boat-1"));
    harbour.peer.is_down.store(true, Ordering::Relaxed);
    // Being cut off is noticed meanwhile.
    assert_eq!(client.closing().await, Some(Code::Reconnect));
    harbour.peer.is_down.store(false, Ordering::Relaxed);
    harbour.engine.release_syncs();
    let mut ready = harbour.handle.ready();
    ready.wait_for(|ready| *ready).await.expect("alive");
    assert!(harbour.life().incarnation > old_life.incarnation + 1);
}

#[tokio::test(start_paused = true)]
async fn a_boat_does_not_wait_for_a_silent_registry_for_ever() {
    let harbour = Harbour::open().await;
    harbour.engine.hold_syncs();
    let other = harbour.start_another(|config| {
        config.name = "boat-2".into();
        config.registry_timeout = Duration::from_millis(100);
    });
    let result = timeout(Duration::from_secs(5), other)
        .await
        .expect("in time");
    assert!(matches!(result, Err(StartError::Registry(_))));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_panics_takes_the_boat_with_it() {
    let harbour = Harbour::piped(|config| config.sweep_interval = Duration::from_secs(1)).await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    // The sweep draws from it, sixty times a second.
    harbour.chance.fails.store(true, Ordering::Relaxed);
    assert_eq!(client.closing().await, Some(Code::Draining));
    drop(client);
    timeout(Duration::from_secs(5), harbour.handle.left())
        .await
        .expect("left");
    assert!(!*harbour.handle.ready().borrow());
}

// T-B2
// proves S0-26, S0-28
#[tokio::test(start_paused = true)]
async fn a_boat_that_stood_still_says_everything_anew() {
    let harbour = Harbour::piped(|config| {
        config.pause_max = Duration::from_millis(200);
        config.reconnect_percent = 0;
    })
    .await;
    let mut client = harbour.tcp().await;
    client.hello(1).await;
    settle().await;
    // Time goes on, and no task of the process does.
    advance(Duration::from_millis(600)).await;
    assert_eq!(client.next().await, Some(ServerFrame::Resync));
    eventually("asserted", || !harbour.peer.reassertions.lock().is_empty()).await;
    client.ping().await;
}
