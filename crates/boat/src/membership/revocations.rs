//! Ends sessions whose tokens were revoked. The boat polls a station, each time from a little
//! before the last point known for certain, which makes up for lost polls and lagging stations.

use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use parking_lot::RwLock;
use protocol::Refusal;
use protocol::revocation::{
    Endings, Follower, Insertion, PageStart, QUERY_PAUSE, QUERY_TIMEOUT, Revocations,
    UserRevocation, closing,
};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use crate::boat::Boat;
use crate::connection::Connection;

/// Revocations known to this boat: a station that has not read one yet may admit a user it
/// concerns.
#[derive(Default)]
pub(crate) struct RevokedUsers(RwLock<Revocations>);

impl RevokedUsers {
    /// Inserts a page and returns the endings that are new.
    fn insert(&self, page: &[UserRevocation]) -> Endings {
        let mut revocations = self.0.write();
        let mut is_news =
            |revocation: &&UserRevocation| revocations.insert(**revocation) == Insertion::Changed;
        Endings::of(page.iter().filter(&mut is_news).copied())
    }

    async fn forget(&self, boat: &Boat, retention: Option<Duration>) {
        let Some(retention) = retention else {
            return;
        };
        // Lets sign-ins run between the steps.
        while self.0.write().forget(boat.now(), retention) {
            yield_now().await;
        }
    }

    /// Ends a session just admitted if its token is revoked already; later revocations end it by
    /// themselves.
    pub(crate) fn end_if_revoked(&self, boat: &Boat, connection: &Connection) {
        let issued_by = {
            let state = connection.lock();
            state.session.user().zip(state.issued_at())
        };
        let is_revoked =
            issued_by.is_some_and(|(user, issued_at)| self.0.read().refuses(user, issued_at));
        if is_revoked {
            end_one(boat, connection);
        }
    }
}

/// Polls until dropped, each time the station of another lane: a silent one keeps no revoked user
/// aboard.
pub(crate) async fn follow_revocations(boat: Arc<Boat>) {
    let (mut follower, mut lane, mut answered_at) = (Follower::default(), 0, Instant::now());
    loop {
        sleep(QUERY_PAUSE.draw(boat.entropy.next())).await;
        match poll_revocations(&boat, &mut follower, lane).await {
            Ok(()) => answered_at = Instant::now(),
            Err(refusal) => debug!(%refusal, "cannot fetch revocations from any station"),
        }
        gauge!("boat_revocations_age_seconds").set(answered_at.elapsed().as_secs_f64());
        lane = (lane + 1) % boat.lanes.len();
    }
}

/// Polls once, and ends the sessions of each page before it reads the next.
pub(crate) async fn poll_revocations(
    boat: &Boat,
    follower: &mut Follower,
    lane: usize,
) -> Result<(), Refusal> {
    let mut from = Some(follower.start());
    // Each page may come from another station.
    let mut complete_until = None;
    let mut retention = None;
    while let Some(start) = from {
        let reply = timeout(QUERY_TIMEOUT, boat.stations.revoked(lane, start));
        let page = reply
            .await
            .unwrap_or_else(|_| Err(timeout_refusal(QUERY_TIMEOUT)))?;
        end(boat, &boat.revocations.insert(&page.users)).await;
        follower.handle_page(&page.users);
        let end = complete_until.get_or_insert(page.complete_until);
        *end = page.complete_until.min(*end);
        retention = page.retention;
        let last = page.users.last().filter(|_| page.more);
        from = last.map(|last| PageStart::behind(last.at, last.user));
    }
    follower.handle_end(complete_until.unwrap_or_default());
    boat.revocations.forget(boat, retention).await;
    Ok(())
}

fn timeout_refusal(limit: Duration) -> Refusal {
    let text = format!("no answer within {limit:?}");
    Refusal::new(protocol::Code::DeadlineExceeded, text)
}

async fn end(boat: &Boat, endings: &Endings) {
    if endings.is_empty() {
        return;
    }
    for connections in boat.connections.by_shard() {
        for connection in connections {
            let is_revoked = {
                let state = connection.lock();
                let user = state.session.user().filter(|_| state.session.is_open());
                user.is_some_and(|user| endings.ends(user, state.issued_at()))
            };
            if is_revoked {
                end_one(boat, &connection);
            }
        }
        yield_now().await;
    }
}

fn end_one(boat: &Boat, connection: &Connection) {
    info!(
        session = connection.id().get(),
        "session ended: its token was revoked"
    );
    boat.metrics.sessions_revoked.increment(1);
    connection.update(|session| session.close(closing(), boat.now()));
}
