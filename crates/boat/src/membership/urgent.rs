//! Sessions that are asserted at once, and retried until a station answers, instead of with the
//! slow pass over all.
//!
//! Some were admitted while their part of the mailbox was away (T-R1): no delivery is routed to
//! them, and once registered they sync what came meanwhile. Others have a ticket about to expire:
//! calls for them would soon be refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use protocol::pause::Backoff;
use tokio::time::sleep;

use super::reregister::{ReregisterResult, Reregistration, jittered};
use crate::connection::Connection;

/// Pause before the first assertion; each round without an answer doubles it, up to `MAX_PAUSE`.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Asserts queued connections, until dropped.
pub(crate) async fn assert_urgent(reregistration: Arc<Reregistration>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, MAX_PAUSE);
    let mut queue = VecDeque::new();
    loop {
        if queue.is_empty() {
            backoff.succeeded();
            queue.extend(reregistration.uplink.urgent.next().await);
        }
        sleep(jittered(&*reregistration.entropy, backoff.failed())).await;
        if assert_each(&reregistration, &mut queue).await > 0 {
            backoff.succeeded();
        }
    }
}

/// Asserts each connection once; those without an answer stay queued. Returns the number answered.
async fn assert_each(
    reregistration: &Reregistration,
    queue: &mut VecDeque<Arc<Connection>>,
) -> usize {
    let mut tally = ReregisterResult::default();
    let mut rest = queue.len();
    for lane in (0..reregistration.uplink.queues.len()).cycle() {
        // Newest first: older ones may wait for a part of the store that is away.
        for newcomer in reregistration.uplink.urgent.take() {
            queue.push_front(newcomer);
            rest += 1;
        }
        if rest == 0 {
            break;
        }
        let batch: Vec<_> =
            (queue.drain(..rest.min(reregistration.uplink.queues.batch_items_max))).collect();
        rest -= batch.len();
        reregistration.reassert(lane, &batch, &mut tally).await;
        queue.extend(batch.into_iter().filter(|connection| {
            let state = connection.lock();
            (state.is_unregistered || state.is_renewing) && !state.session.is_closed()
        }));
    }
    tally.answered_count
}
