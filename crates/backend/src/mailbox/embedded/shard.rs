//! Sessions and recent acknowledgements, in memory: they end with the process, as its boats do.

use std::collections::HashMap;
use std::time::Duration;

use protocol::mailbox::{NewSession, Presence};
use protocol::{BoatId, Timestamp, UserId};

use crate::table;

/// Interval at which a shard frees expired acknowledgements.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of boat names shared between sessions.
const BOATS_MAX: usize = 64;

/// Presences of some users. An idle session takes about 150 bytes plus its device's name.
#[derive(Debug, Default)]
pub(super) struct Shard {
    presences: HashMap<UserId, Presence>,
    boats: Vec<BoatId>,
    /// Largest login number among users dropped from memory; new numbers continue from it.
    forgotten_login: u64,
    swept_at: Timestamp,
}

impl Shard {
    /// Presence of a user; creates none.
    pub(super) fn find(&mut self, user: UserId) -> Option<&mut Presence> {
        self.presences.get_mut(&user)
    }

    /// Changes a user's presence, creating it for the duration of the change if needed.
    pub(super) fn change<T>(
        &mut self,
        user: UserId,
        now: Timestamp,
        change: impl FnOnce(&mut Presence) -> T,
    ) -> T {
        self.sweep(now);
        let last_login = self.forgotten_login;
        let presence = self
            .presences
            .entry(user)
            .or_insert_with(|| Presence::after_login(last_login));
        let result = change(presence);
        self.leave_if_empty(user);
        result
    }

    /// Drops a user of whom only the login number is left to remember.
    pub(super) fn leave_if_empty(&mut self, user: UserId) {
        if let Some(presence) = self.presences.get(&user)
            && presence.is_empty()
        {
            let last = presence.sessions.last_login();
            self.forgotten_login = self.forgotten_login.max(last);
            self.presences.remove(&user);
            table::shrink(&mut self.presences);
        }
    }

    /// Replaces the session's boat name with a shared copy.
    pub(super) fn share_boat(&mut self, mut session: NewSession) -> NewSession {
        let boat = &mut session.key.life.boat;
        match self.boats.iter().find(|shared| *shared == boat) {
            Some(shared) => *boat = shared.clone(),
            None => {
                if self.boats.len() == BOATS_MAX {
                    self.boats.clear();
                }
                self.boats.push(boat.clone());
            }
        }
        session
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.presences.len()
    }

    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept_at) < SWEEP_EVERY {
            return;
        }
        self.swept_at = now;
        let mut last = self.forgotten_login;
        self.presences.retain(|_, presence| {
            presence.forget_old(now);
            let stays = !presence.is_empty();
            if !stays {
                last = last.max(presence.sessions.last_login());
            }
            stays
        });
        self.forgotten_login = last;
        table::shrink(&mut self.presences);
    }
}

#[cfg(test)]
mod tests {
    use protocol::mailbox::ACKED_KEEP;
    use protocol::presence::SessionEntry;
    use protocol::{DeviceId, MessageId, Platform};

    use super::*;

    fn user(n: i64) -> UserId {
        UserId::new(n).expect("positive")
    }

    #[test]
    fn an_idle_session_is_small() {
        // A table is at least seven sixteenths full, and has one byte per slot beside its rows.
        let row = (size_of::<(UserId, Presence)>() + 1) * 16 / 7;
        let session = size_of::<SessionEntry>() + size_of::<DeviceId>();
        assert!(row + session < 200, "{row} + {session}");
    }

    #[test]
    fn marks_of_the_absent_are_given_back() {
        let mut shard = Shard::default();
        let id = MessageId::new(1).expect("positive");
        let remember = |p: &mut Presence| p.remember_acked(Platform::Ios, &[id], Timestamp::ZERO);
        shard.change(user(1), Timestamp::ZERO, remember);
        assert_eq!(shard.len(), 1);
        shard.change(user(2), Timestamp::ZERO + ACKED_KEEP, |_| {});
        assert_eq!(shard.len(), 0);
    }
}
