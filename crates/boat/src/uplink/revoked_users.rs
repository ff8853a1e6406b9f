//! Users whose tokens were revoked, as far as this boat knows.

use std::time::Duration;

use metrics::{Counter, counter};
use parking_lot::RwLock;
use protocol::Timestamp;
use protocol::revocation::{Endings, Insertion, Revocations, UserRevocation, closing};
use tracing::info;

use crate::connection::Connection;

/// A station that has not read one of these revocations yet may admit a user it concerns.
pub(crate) struct RevokedUsers {
    revocations: RwLock<Revocations>,
    session_counter: Counter,
}

impl RevokedUsers {
    pub(super) fn new() -> RevokedUsers {
        RevokedUsers {
            revocations: RwLock::default(),
            session_counter: counter!("boat_sessions_revoked_total"),
        }
    }

    /// Inserts a page and returns the endings that are new.
    pub(crate) fn insert(&self, page: &[UserRevocation]) -> Endings {
        let mut revocations = self.revocations.write();
        let mut is_news =
            |revocation: &&UserRevocation| revocations.insert(**revocation) == Insertion::Changed;
        Endings::of(page.iter().filter(&mut is_news).copied())
    }

    /// Forgets some revocations older than their retention; true if more are left.
    pub(crate) fn forget(&self, retention: Duration, now: Timestamp) -> bool {
        self.revocations.write().forget(now, retention)
    }

    /// Ends a session just admitted if its token is revoked already; later revocations end it by
    /// themselves.
    pub(super) fn end_if_revoked(&self, connection: &Connection, now: Timestamp) {
        let issued_by = {
            let state = connection.lock();
            state.session.user().zip(state.issued_at())
        };
        let is_revoked = issued_by
            .is_some_and(|(user, issued_at)| self.revocations.read().refuses(user, issued_at));
        if is_revoked {
            self.end(connection, now);
        }
    }

    /// Ends a session whose token is revoked.
    pub(crate) fn end(&self, connection: &Connection, now: Timestamp) {
        info!(
            session = connection.id().get(),
            "session ended: its token was revoked"
        );
        self.session_counter.increment(1);
        connection.update(|session| session.close(closing(), now));
    }
}
