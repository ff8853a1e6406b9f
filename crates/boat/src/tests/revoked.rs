//! Revoked tokens end their sessions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use api::v1;
use api::v1::reassert_result::Outcome;
use protocol::revocation::{Follower, MAX_CLOCK_SKEW, QUERY_PAUSE};
use protocol::{Code, Refusal, Timestamp};

use super::client::Client;
use super::harbour::Harbour;
use crate::membership::revocations::poll_revocations;

fn revoked(user: i64, issued_before: i64) -> v1::RevokedUser {
    let at = issued_before;
    v1::RevokedUser {
        user,
        before: issued_before,
        at,
    }
}

impl Harbour {
    /// A session whose token was issued at `issued_at`; 0: its station does not report it.
    async fn signed_in(&self, user: i64, issued_at: i64) -> Client {
        self.peer.issued_at.store(issued_at, Ordering::Relaxed);
        let mut client = self.tcp().await;
        client.hello(user).await;
        client
    }

    async fn poll_revocations(&self, follower: &mut Follower) -> Result<(), Refusal> {
        let drivers = &self.handle.door.drivers;
        poll_revocations(&drivers.uplink, &drivers.connections, follower, 0).await
    }
}

#[tokio::test(start_paused = true)]
async fn older_sessions_of_a_user_end_and_no_others() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut older = harbour.signed_in(1, 4_999).await;
    let mut newer = harbour.signed_in(1, 5_000).await;
    let mut unknown = harbour.signed_in(1, 0).await;
    let mut other = harbour.signed_in(2, 4_999).await;
    let mut follower = Follower::default();
    harbour
        .poll_revocations(&mut follower)
        .await
        .expect("answered");
    older.ping().await;
    *harbour.peer.revocations.lock() = vec![revoked(1, 5_000)];
    harbour
        .poll_revocations(&mut follower)
        .await
        .expect("answered");
    assert_eq!(older.closing().await, Some(Code::KickedOut));
    for client in [&mut newer, &mut unknown, &mut other] {
        client.ping().await;
    }
}

// The last page is read as well, and the next poll begins a minute before it.
#[tokio::test(start_paused = true)]
async fn all_pages_are_read() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut last = harbour.signed_in(5, 1).await;
    *harbour.peer.revocations.lock() = (1..=5).map(|user| revoked(user, 100_000 * user)).collect();
    let mut follower = Follower::default();
    harbour
        .poll_revocations(&mut follower)
        .await
        .expect("answered");
    assert_eq!(last.closing().await, Some(Code::KickedOut));
    harbour
        .poll_revocations(&mut follower)
        .await
        .expect("answered");
    let next = follower.start();
    assert_eq!(next.start, Timestamp::from_millis(500_000) - MAX_CLOCK_SKEW);
}

// Revocations that the station may have missed are polled again.
#[tokio::test(start_paused = true)]
async fn a_station_that_lags_says_how_far_it_has_read() {
    let harbour = Harbour::piped(|_| ()).await;
    *harbour.peer.revocations.lock() = vec![revoked(1, 900_000)];
    let set_complete_until = |millis| harbour.peer.complete_until.store(millis, Ordering::Relaxed);
    let mut follower = Follower::default();
    set_complete_until(300_000);
    for _ in 0..2 {
        harbour
            .poll_revocations(&mut follower)
            .await
            .expect("answered");
    }
    let next = follower.start();
    assert_eq!(next.start, Timestamp::from_millis(300_000) - MAX_CLOCK_SKEW);
}

// The station has not read a revocation that the boat got from another one.
#[tokio::test(start_paused = true)]
async fn a_revoked_token_that_a_station_lets_in_ends_at_once() {
    let harbour = Harbour::piped(|_| ()).await;
    *harbour.peer.revocations.lock() = vec![revoked(1, 5_000)];
    let mut follower = Follower::default();
    harbour
        .poll_revocations(&mut follower)
        .await
        .expect("answered");
    harbour.peer.revocations.lock().clear();
    let mut newer = harbour.signed_in(1, 5_000).await;
    harbour.peer.issued_at.store(4_999, Ordering::Relaxed);
    let mut older = harbour.tcp().await;
    older.hello(1).await;
    assert_eq!(older.closing().await, Some(Code::KickedOut));
    newer.ping().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_lost_is_made_up_for() {
    let harbour = Harbour::piped(|_| ()).await;
    let mut client = harbour.signed_in(1, 1).await;
    *harbour.peer.revocations.lock() = vec![revoked(1, 5_000)];
    let mut follower = Follower::default();
    harbour.peer.is_down.store(true, Ordering::Relaxed);
    assert!(harbour.poll_revocations(&mut follower).await.is_err());
    harbour.peer.is_down.store(false, Ordering::Relaxed);
    // A silent station keeps nobody waiting.
    harbour.peer.holds_calls.store(true, Ordering::Relaxed);
    let refusal = harbour
        .poll_revocations(&mut follower)
        .await
        .expect_err("no answer");
    assert_eq!(refusal.code, Code::DeadlineExceeded);
    client.ping().await;
    harbour.peer.holds_calls.store(false, Ordering::Relaxed);
    harbour
        .poll_revocations(&mut follower)
        .await
        .expect("answered");
    assert_eq!(client.closing().await, Some(Code::KickedOut));
}

#[tokio::test(start_paused = true)]
async fn a_reassertion_carries_the_issue_time_and_ends_the_session() {
    let harbour = Harbour::piped(|config| config.sweep_interval = Duration::from_millis(300)).await;
    let mut client = harbour.signed_in(1, 4_999).await;
    *harbour.peer.reassert_as.lock() = Outcome::Revoked;
    assert_eq!(client.closing().await, Some(Code::KickedOut));
    let reassertions = harbour.peer.reassertions.lock();
    assert!(
        reassertions
            .iter()
            .all(|session| session.issued_at == 4_999)
    );
}

#[tokio::test(start_paused = true)]
async fn a_boat_asks_by_itself() {
    let harbour = Harbour::piped(|_| ()).await;
    let _client = harbour.signed_in(1, 4_999).await;
    *harbour.peer.revocations.lock() = vec![revoked(1, 5_000)];
    for _ in 0..(QUERY_PAUSE.longest() * 2).as_secs() {
        if harbour.handle.sessions() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("nobody asked");
}
