//! Sessions that were admitted while their part of the mailbox was away (T-R1): nobody is routed to them. They are
//! asserted until they are registered, and then synchronise what came meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::boat::Boat;
use crate::connection::Connection;
use crate::sweep::{Found, jittered, reassert};

/// The pause before the first assertion; each that gets no answer doubles it.
pub(crate) const FIRST: Duration = Duration::from_secs(1);
pub(crate) const LONGEST: Duration = Duration::from_secs(15);

/// As many as there are connections at most: those that ended are left out at the next assertion.
#[derive(Default)]
pub(crate) struct Unregistered {
    waiting: Mutex<Vec<Arc<Connection>>>,
    came: Notify,
}

impl Unregistered {
    /// A connection that is about to be admitted.
    pub(crate) fn add(&self, connection: &Arc<Connection>) {
        {
            let mut state = connection.lock();
            // What is restored is synchronised.
            (state.unregistered, state.in_doubt) = (true, true);
        }
        self.waiting.lock().push(Arc::clone(connection));
        self.came.notify_one();
    }

    async fn next(&self) -> Vec<Arc<Connection>> {
        loop {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            if !waiting.is_empty() {
                return waiting;
            }
            self.came.notified().await;
        }
    }
}

/// Registers them, until dropped.
pub(crate) async fn register(boat: Arc<Boat>) {
    let mut pause = FIRST;
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            pause = FIRST;
            waiting.extend(boat.unregistered.next().await);
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
        for newcomer in std::mem::take(&mut *boat.unregistered.waiting.lock()) {
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
            state.unregistered && !state.session.is_closed()
        }));
    }
    found.answered
}
