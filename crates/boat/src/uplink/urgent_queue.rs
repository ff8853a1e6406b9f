//! Connections whose sessions are to be asserted at once.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::Timestamp;
use tokio::sync::Notify;

use crate::connection::{Connection, ConnectionState};

/// Queue with each connection at most once per reason; closed ones are skipped at the next
/// assertion.
#[derive(Default)]
pub(crate) struct UrgentQueue {
    queue: Mutex<Vec<Arc<Connection>>>,
    arrival: Notify,
}

impl UrgentQueue {
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

    /// Takes what is queued now.
    pub(crate) fn take(&self) -> Vec<Arc<Connection>> {
        std::mem::take(&mut *self.queue.lock())
    }

    pub(crate) async fn next(&self) -> Vec<Arc<Connection>> {
        loop {
            let batch = self.take();
            if !batch.is_empty() {
                return batch;
            }
            self.arrival.notified().await;
        }
    }
}
