//! Sessions that are asserted at once, and retried until a station answers, instead of with the
//! slow pass over all.
//!
//! Some were admitted while their part of the mailbox was away (T-R1): no delivery is routed to
//! them, and once registered they sync what came meanwhile. Others have a ticket about to expire:
//! calls for them would soon be refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::pause::Backoff;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::boat::Boat;
use crate::connection::{Connection, ConnectionState};
use crate::membership::reregister::{ReregisterResult, jittered, reassert};

/// Pause before the first assertion; each round without an answer doubles it, up to `MAX_PAUSE`.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Queue with each connection at most once per reason; closed ones are skipped at the next
/// assertion.
#[derive(Default)]
pub(crate) struct UrgentAssertions {
    queue: Mutex<Vec<Arc<Connection>>>,
    arrival: Notify,
}

impl UrgentAssertions {
    /// Queues a connection that is about to be admitted unregistered.
    pub(crate) fn register(&self, connection: &Arc<Connection>) {
        {
            let mut state = connection.lock();
            // A doubt makes the client sync once restored.
            (state.is_unregistered, state.in_doubt) = (true, true);
        }
        self.push(connection);
    }

    /// Queues a connection that makes a call, if its ticket is due. The caller holds its state.
    pub(crate) fn renew_if_due(
        &self,
        connection: &Arc<Connection>,
        state: &mut ConnectionState,
        now: Timestamp,
    ) {
        let is_due = state.ticket.is_some_and(|ticket| ticket.is_due(now));
        if is_due && !std::mem::replace(&mut state.is_renewing, true) {
            self.push(connection);
        }
    }

    fn push(&self, connection: &Arc<Connection>) {
        self.queue.lock().push(Arc::clone(connection));
        self.arrival.notify_one();
    }

    async fn next(&self) -> Vec<Arc<Connection>> {
        loop {
            let batch = std::mem::take(&mut *self.queue.lock());
            if !batch.is_empty() {
                return batch;
            }
            self.arrival.notified().await;
        }
    }
}

/// Asserts queued connections, until dropped.
pub(crate) async fn assert_urgent(boat: Arc<Boat>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, MAX_PAUSE);
    let mut queue = VecDeque::new();
    loop {
        if queue.is_empty() {
            backoff.succeeded();
            queue.extend(boat.urgent.next().await);
        }
        sleep(jittered(&*boat.entropy, backoff.failed())).await;
        if assert_each(&boat, &mut queue).await > 0 {
            backoff.succeeded();
        }
    }
}

/// Asserts each connection once; those without an answer stay queued. Returns the number answered.
async fn assert_each(boat: &Boat, queue: &mut VecDeque<Arc<Connection>>) -> usize {
    let mut tally = ReregisterResult::default();
    let mut rest = queue.len();
    for lane in (0..boat.lanes.len()).cycle() {
        // Newest first: older ones may wait for a part of the store that is away.
        for newcomer in std::mem::take(&mut *boat.urgent.queue.lock()) {
            queue.push_front(newcomer);
            rest += 1;
        }
        if rest == 0 {
            break;
        }
        let batch: Vec<_> = (queue.drain(..rest.min(boat.config.batch_items_max))).collect();
        rest -= batch.len();
        reassert(boat, lane, &batch, &mut tally).await;
        queue.extend(batch.into_iter().filter(|connection| {
            let state = connection.lock();
            (state.is_unregistered || state.is_renewing) && !state.session.is_closed()
        }));
    }
    tally.answered_count
}
