//! Ends sessions whose tokens were revoked. The boat polls a station, each time from a little
//! before the last point known for certain, which makes up for lost polls and lagging stations.

use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use protocol::revocation::{Endings, Follower, PageStart, QUERY_PAUSE, QUERY_TIMEOUT};
use protocol::{Code, Refusal};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::reregister::Reregistration;
use crate::connection::connections::Connections;
use crate::uplink::Uplink;

/// Polls until dropped, each time the station of another lane: a silent one keeps no revoked user
/// aboard.
pub(crate) async fn follow_revocations(reregistration: Arc<Reregistration>) {
    let (uplink, connections) = (&reregistration.uplink, &reregistration.connections);
    let (mut follower, mut lane, mut answered_at) = (Follower::default(), 0, Instant::now());
    loop {
        sleep(QUERY_PAUSE.draw(reregistration.entropy.next())).await;
        match poll_revocations(uplink, connections, &mut follower, lane).await {
            Ok(()) => answered_at = Instant::now(),
            Err(refusal) => debug!(%refusal, "cannot fetch revocations from any station"),
        }
        gauge!("boat_revocations_age_seconds").set(answered_at.elapsed().as_secs_f64());
        lane = (lane + 1) % uplink.queues.len();
    }
}

/// Polls once, and ends the sessions of each page before it reads the next.
pub(crate) async fn poll_revocations(
    uplink: &Uplink,
    connections: &Connections,
    follower: &mut Follower,
    lane: usize,
) -> Result<(), Refusal> {
    let mut from = Some(follower.start());
    // Each page may come from another station.
    let mut complete_until = None;
    let mut retention = None;
    while let Some(start) = from {
        let reply = timeout(QUERY_TIMEOUT, uplink.stations.revoked(lane, start));
        let page = reply
            .await
            .unwrap_or_else(|_| Err(timeout_refusal(QUERY_TIMEOUT)))?;
        end(uplink, connections, &uplink.revoked.insert(&page.users)).await;
        follower.handle_page(&page.users);
        let end = complete_until.get_or_insert(page.complete_until);
        *end = page.complete_until.min(*end);
        retention = page.retention;
        let last = page.users.last().filter(|_| page.more);
        from = last.map(|last| PageStart::behind(last.at, last.user));
    }
    follower.handle_end(complete_until.unwrap_or_default());
    if let Some(retention) = retention {
        // Lets sign-ins run between the steps.
        while uplink.revoked.forget(retention, connections.now()) {
            yield_now().await;
        }
    }
    Ok(())
}

fn timeout_refusal(limit: Duration) -> Refusal {
    let text = format!("no answer within {limit:?}");
    Refusal::new(Code::DeadlineExceeded, text)
}

async fn end(uplink: &Uplink, connections: &Connections, endings: &Endings) {
    if endings.is_empty() {
        return;
    }
    for shard in connections.by_shard() {
        for connection in shard {
            let is_revoked = {
                let state = connection.lock();
                let user = state.session.user().filter(|_| state.session.is_open());
                user.is_some_and(|user| endings.ends(user, state.issued_at()))
            };
            if is_revoked {
                uplink.revoked.end(&connection, connections.now());
            }
        }
        yield_now().await;
    }
}
