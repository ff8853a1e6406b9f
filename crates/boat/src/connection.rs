//! A connection as the rest of the boat sees it: its session, and the loop that drives it.

pub(crate) mod connection_loop;
pub(crate) mod connections;
pub(crate) mod driver;
mod read_pace;
pub(crate) mod ready_queue;
mod timer_wheel;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::task::ArcWake;
use parking_lot::{Mutex, MutexGuard};
use protocol::session::{Session, SessionLimits};
use protocol::ticket::Ticket;
use protocol::{SessionId, Timestamp};

use self::ready_queue::ReadyQueue;

/// Shared by the loop that drives the connection and by every task that pushes to it. There is no
/// channel and no task: a caller updates the session under the lock, then wakes the loop. Doubles
/// as the waker of its socket.
#[derive(Debug)]
pub(crate) struct Connection {
    id: SessionId,
    state: Mutex<ConnectionState>,
    /// True while the loop is due to take a turn and will see all earlier updates.
    is_ready: AtomicBool,
    slot: AtomicU32,
    queue: Arc<ReadyQueue>,
}

#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) session: Session,
    /// Whether the last assertion got no answer: it may or may not have registered the session
    /// anew.
    pub(crate) in_doubt: bool,
    /// Whether admitted while the mailbox was away, and not registered since.
    pub(crate) is_unregistered: bool,
    /// True while the ticket is about to expire and an assertion is to renew it.
    pub(crate) is_renewing: bool,
    /// Number of the session's login; zero if it was admitted without a mailbox.
    pub(crate) login: u64,
    /// Issue time of the session's token; zero if the station did not say.
    issued_at: Timestamp,
    /// Ticket shown to stations with every call for the session, renewed by each assertion.
    pub(crate) ticket: Option<Ticket>,
}

impl ConnectionState {
    pub(crate) fn issued_at(&self) -> Option<Timestamp> {
        (self.issued_at != Timestamp::ZERO).then_some(self.issued_at)
    }

    /// Replaces the ticket after an answered assertion or a refreshed token.
    pub(crate) fn replace_ticket(&mut self, next: Ticket) {
        let ticket = self.ticket.map_or(next, |ticket| ticket.replaced_by(next));
        (self.ticket, self.is_renewing) = (Some(ticket), false);
    }

    pub(crate) fn set_issued_at(&mut self, issued_at: Option<Timestamp>) {
        self.issued_at = issued_at.unwrap_or_default();
    }
}

impl Connection {
    /// Creates a connection; the loop turns to it once it has a slot.
    pub(crate) fn new(
        id: SessionId,
        limits: Arc<SessionLimits>,
        queue: Arc<ReadyQueue>,
        now: Timestamp,
    ) -> Arc<Connection> {
        Arc::new(Connection {
            id,
            state: Mutex::new(ConnectionState {
                session: Session::new(id, limits, now),
                in_doubt: false,
                is_unregistered: false,
                is_renewing: false,
                login: 0,
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

    /// Updates the session and wakes the loop for the consequences.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        let answer = change(&mut self.state.lock().session);
        Connection::wake(self);
        answer
    }

    /// Locks the state: for reads without consequences, and for the loop itself.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }

    /// Schedules one more turn of the loop.
    pub(crate) fn wake(&self) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            self.queue.push(self.slot.load(Ordering::Relaxed));
        }
    }

    /// Sets the connection's slot in the loop; no wake reaches it before.
    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Begins a turn of the loop: updates from here on schedule another one.
    pub(crate) fn begin_turn(&self) {
        self.is_ready.swap(false, Ordering::AcqRel);
    }
}

impl ArcWake for Connection {
    fn wake_by_ref(connection: &Arc<Self>) {
        Connection::wake(connection);
    }
}
