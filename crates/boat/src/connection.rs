//! A connection as the rest of the boat sees it: a session, and how to wake whoever drives it.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};
use protocol::session::{Limits, Session};
use protocol::{SessionId, Timestamp};

/// Shared by the task that drives it and by all who push to it. No channel: whoever has something for
/// the session tells it under the lock, then wakes the task.
#[derive(Debug)]
pub(crate) struct Connection {
    id: SessionId,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) session: Session,
    /// `None`: the task is awake, or will look before it sleeps.
    pub(crate) waker: Option<Waker>,
    /// The last assertion got no answer: whether it registered the session anew is not known.
    pub(crate) in_doubt: bool,
    /// Admitted while the mailbox was away, and not registered since.
    pub(crate) unregistered: bool,
}

impl Connection {
    pub(crate) fn new(id: SessionId, limits: Arc<Limits>, now: Timestamp) -> Arc<Connection> {
        Arc::new(Connection {
            id,
            state: Mutex::new(State {
                session: Session::new(id, limits, now),
                waker: None,
                in_doubt: false,
                unregistered: false,
            }),
        })
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// Tells the session something, and has its task do what follows.
    pub(crate) fn update<T>(&self, tell: impl FnOnce(&mut Session) -> T) -> T {
        let mut state = self.state.lock();
        let told = tell(&mut state.session);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        told
    }

    /// For a look without consequences, and for the task itself.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
