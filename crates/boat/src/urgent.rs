//! Sessions that are asserted at once, again and again until a station answers, instead of with the slow pass over all.
//!
//! Some were admitted while their part of the mailbox was away (T-R1): nobody is routed to them, and once registered they
//! synchronise what came meanwhile. Others have a ticket that ends: calls for them are about to be refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::Timestamp;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::boat::Boat;
use crate::connection::{Connection, State};
use crate::sweep::{Found, jittered, reassert};

/// The pause before the first assertion; each that gets no answer doubles it.
pub(crate) const FIRST: Duration = Duration::from_secs(1);
pub(crate) const LONGEST: Duration = Duration::from_secs(15);

/// Each connection once for each of the reasons at most: those that ended are left out at the next assertion.
#[derive(Default)]
pub(crate) struct UrgentAssertions {
    waiting: Mutex<Vec<Arc<Connection>>>,
    arrival: Notify,
}

impl UrgentAssertions {
    /// A connection that is about to be admitted.
    pub(crate) fn register(&self, connection: &Arc<Connection>) {
        {
            let mut state = connection.lock();
            // What is restored is synchronised.
            (state.unregistered, state.in_doubt) = (true, true);
        }
        self.push(connection);
    }

    /// A connection whose state is given, and which makes a call.
    pub(crate) fn renew_if_due(
        &self,
        connection: &Arc<Connection>,
        state: &mut State,
        now: Timestamp,
    ) {
        let is_due = state.ticket.is_some_and(|ticket| ticket.is_due(now));
        if is_due && !std::mem::replace(&mut state.renews, true) {
            self.push(connection);
        }
    }

    fn push(&self, connection: &Arc<Connection>) {
        self.waiting.lock().push(Arc::clone(connection));
        self.arrival.notify_one();
    }

    async fn next(&self) -> Vec<Arc<Connection>> {
        loop {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            if !waiting.is_empty() {
                return waiting;
            }
            self.arrival.notified().await;
        }
    }
}

/// Asserts them, until dropped.
pub(crate) async fn assert_urgent(boat: Arc<Boat>) {
    let mut pause = FIRST;
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            pause = FIRST;
            waiting.extend(boat.urgent.next().await);
        }
        sleep(jittered(&*boat.entropy, pause)).await;
        pause = match assert_each(&boat, &mut waiting).await {
            0 => (pause * 2).min(LONGEST),
            _ => FIRST,
        };
    }
}

/// Asserts each once; those who are to be asserted again stay. Answers how many were answered for.
async fn assert_each(boat: &Boat, waiting: &mut VecDeque<Arc<Connection>>) -> usize {
    let mut found = Found::default();
    let mut left = waiting.len();
    for lane in (0..boat.lanes.len()).cycle() {
        // The newest first: the others may wait for a part of the store that is away.
        for newcomer in std::mem::take(&mut *boat.urgent.waiting.lock()) {
            waiting.push_front(newcomer);
            left += 1;
        }
        if left == 0 {
            break;
        }
        let batch: Vec<_> = (waiting.drain(..left.min(boat.config.batch_items_max))).collect();
        left -= batch.len();
        reassert(boat, lane, &batch, &mut found).await;
        waiting.extend(batch.into_iter().filter(|connection| {
            let state = connection.lock();
            (state.unregistered || state.renews) && !state.session.is_closed()
        }));
    }
    found.answered
}
