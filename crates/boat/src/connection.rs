//! A connection as the rest of the boat sees it: a session, and the loop that drives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::task::ArcWake;
use parking_lot::{Mutex, MutexGuard};
use protocol::session::{Limits, Session};
use protocol::ticket::Ticket;
use protocol::{SessionId, Timestamp};

use crate::connection_loop::ReadyQueue;

/// Shared by the loop that drives it and by all who push to it. No channel and no task: whoever has something for the
/// session tells it under the lock, then has the loop turn to it. It is the waker of its socket, too.
#[derive(Debug)]
pub(crate) struct Connection {
    id: SessionId,
    state: Mutex<State>,
    /// The loop will turn to it, and looks at all that came before.
    is_ready: AtomicBool,
    slot: AtomicU32,
    queue: Arc<ReadyQueue>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) session: Session,
    /// The last assertion got no answer: whether it registered the session anew is not known.
    pub(crate) in_doubt: bool,
    /// Admitted while the mailbox was away, and not registered since.
    pub(crate) unregistered: bool,
    /// Its ticket ends, and an assertion is to bring a new one.
    pub(crate) renews: bool,
    /// Issue of its token; zero where the station did not say.
    issued_at: Timestamp,
    /// Shown to stations with every call for the session, and renewed by each assertion.
    pub(crate) ticket: Option<Ticket>,
}

impl State {
    pub(crate) fn issued_at(&self) -> Option<Timestamp> {
        (self.issued_at != Timestamp::ZERO).then_some(self.issued_at)
    }

    /// An assertion was answered, or a token refreshed.
    pub(crate) fn replace_ticket(&mut self, next: Ticket) {
        let ticket = self.ticket.map_or(next, |ticket| ticket.replaced_by(next));
        (self.ticket, self.renews) = (Some(ticket), false);
    }

    pub(crate) fn set_issued_at(&mut self, issued_at: Option<Timestamp>) {
        self.issued_at = issued_at.unwrap_or_default();
    }
}

impl Connection {
    /// The loop turns to it when it has a slot.
    pub(crate) fn new(
        id: SessionId,
        limits: Arc<Limits>,
        queue: Arc<ReadyQueue>,
        now: Timestamp,
    ) -> Arc<Connection> {
        Arc::new(Connection {
            id,
            state: Mutex::new(State {
                session: Session::new(id, limits, now),
                in_doubt: false,
                unregistered: false,
                renews: false,
                issued_at: Timestamp::ZERO,
                ticket: None,
            }),
            is_ready: AtomicBool::new(true),
            slot: AtomicU32::new(0),
            queue,
        })
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// Tells the session something, and has the loop do what follows.
    pub(crate) fn update<T>(&self, tell: impl FnOnce(&mut Session) -> T) -> T {
        let answer = tell(&mut self.state.lock().session);
        Connection::wake(self);
        answer
    }

    /// For a look without consequences, and for the loop itself.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Has the loop turn to it once more.
    pub(crate) fn wake(&self) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            self.queue.push(self.slot.load(Ordering::Relaxed));
        }
    }

    /// Its place in the loop; before that it cannot be woken.
    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// The loop looks at it now: what comes from here on wakes it again.
    pub(crate) fn begin_turn(&self) {
        self.is_ready.swap(false, Ordering::AcqRel);
    }
}

impl ArcWake for Connection {
    fn wake_by_ref(connection: &Arc<Self>) {
        Connection::wake(connection);
    }
}
