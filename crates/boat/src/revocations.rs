//! Ends sessions whose tokens were revoked: a station is asked again and again, each time from a little before the last
//! revocation that is known, so that a question that is lost or a station that lags is made up for.

use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use protocol::Refusal;
use protocol::revocation::{ASK, ASK_WITHIN, Endings, Follower, PageStart, closing};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use crate::boat::Boat;

/// Asks until dropped. Each time another lane's station: one that is silent keeps nobody aboard.
pub(crate) async fn follow(boat: Arc<Boat>) {
    let (mut follower, mut lane, mut answered_at) = (Follower::default(), 0, Instant::now());
    loop {
        sleep(ASK.draw(boat.entropy.next())).await;
        match ask(&boat, &mut follower, lane).await {
            Ok(()) => answered_at = Instant::now(),
            Err(refusal) => debug!(%refusal, "no station says who was revoked"),
        }
        gauge!("boat_revocations_age_seconds").set(answered_at.elapsed().as_secs_f64());
        lane = (lane + 1) % boat.lanes.len();
    }
}

/// Asks once, and ends the sessions of each page before the next is read.
pub(crate) async fn ask(boat: &Boat, follower: &mut Follower, lane: usize) -> Result<(), Refusal> {
    let mut from = Some(follower.start());
    while let Some(start) = from {
        let asked = timeout(ASK_WITHIN, boat.stations.revoked(lane, start));
        let page = asked.await.unwrap_or_else(|_| Err(silence(ASK_WITHIN)))?;
        end(boat, &Endings::of(&page.users)).await;
        follower.handle_page(&page.users);
        let last = page.users.last().filter(|_| page.more);
        from = last.map(|last| PageStart::behind(last.at, last.user));
    }
    Ok(())
}

fn silence(within: Duration) -> Refusal {
    let text = format!("no answer within {within:?}");
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
                info!(session = connection.id().get(), "its token was revoked");
                boat.metrics.revoked.increment(1);
                connection.update(|session| session.close(closing(), boat.now()));
            }
        }
        yield_now().await;
    }
}
