//! One user's whole mailbox as a value: the rule that every store must follow.

use std::collections::BTreeMap;

use super::{
    Bodies, ConnectAnswer, ConnectRequest, HeldSession, Mail, MailCursor, MailIndex, MailLocation,
    MailPage, MailboxPolicy, Policies, Presence, ReassertAnswer, ReassertResult, RouteAnswer,
    RouteRequest, TooManySessions,
};
use crate::presence::{DeniedBoats, SessionEntry, SessionKey};
use crate::{MessageId, Platform, Timestamp, UserId};

/// One user's sessions and, per platform, the waiting messages. Each method is one atomic step: a
/// store that splits one loses messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    user: UserId,
    presence: Presence,
    mail_indexes: BTreeMap<Platform, MailIndex>,
}

/// Change to an entry, for the counter of [`Bodies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailboxChange {
    Added { platform: Platform, at: MailCursor },
    Removed { platform: Platform, at: MailCursor },
}

impl Mailbox {
    pub fn new(user: UserId) -> Mailbox {
        Mailbox {
            user,
            presence: Presence::default(),
            mail_indexes: BTreeMap::new(),
        }
    }

    /// Looks up sessions, and stores for platforms without one, as one step.
    pub fn route(
        &mut self,
        request: &RouteRequest,
        policies: &Policies,
    ) -> (RouteAnswer, Vec<MailboxChange>) {
        let placement = self.presence.place(request);
        let mut changes = Vec::new();
        let mut dropped_count = 0;
        for &platform in &placement.store_platforms {
            let Some(mail) = &request.mail else { break };
            dropped_count += self.append(platform, mail, policies, request.now, &mut changes);
        }
        let answer = RouteAnswer {
            live: placement.live,
            stored_platforms: placement.store_platforms,
            acknowledged_platforms: placement.acknowledged_platforms,
            dropped_count,
        };
        (answer, changes)
    }

    /// Registers a session and reports whether mail waits for its platform, as one step. `marker`
    /// is the store's.
    ///
    /// # Errors
    ///
    /// The platform has as many sessions as it may have, and displaces none.
    pub fn connect(
        &mut self,
        request: &ConnectRequest,
        policies: &Policies,
        marker: u64,
    ) -> Result<ConnectAnswer, TooManySessions> {
        let new = &request.entry;
        let sessions = &mut self.presence.sessions;
        let result = sessions.connect(
            self.user,
            new,
            &policies.sessions,
            &request.denied_boats,
            request.now,
        )?;
        Ok(ConnectAnswer {
            login: result.login,
            displaced_sessions: result.displaced_sessions,
            replaced_sessions: result.replaced_sessions,
            marker,
            mail_waits: self.mail_waits(new.platform, policies, request.now),
        })
    }

    /// Handles a boat's assertion that it holds this session.
    pub fn reassert(
        &mut self,
        held_session: &HeldSession,
        denied_boats: &DeniedBoats,
        policies: &Policies,
        marker: u64,
        now: Timestamp,
    ) -> ReassertAnswer {
        let sessions = &mut self.presence.sessions;
        let new = &held_session.session;
        match sessions.reassert(held_session, &policies.sessions, denied_boats, now) {
            ReassertResult::Known => ReassertAnswer::Known {
                mail_waits: self.mail_waits(new.platform, policies, now),
            },
            ReassertResult::Displaced => ReassertAnswer::Displaced,
            ReassertResult::Replaced => ReassertAnswer::Replaced,
            ReassertResult::Restored => ReassertAnswer::Restored {
                marker,
                mail_waits: self.mail_waits(new.platform, policies, now),
            },
        }
    }

    /// Removes exactly this session. Returns `false` if it is absent, or a later life of its boat
    /// holds it.
    pub fn disconnect(&mut self, key: &SessionKey) -> bool {
        self.presence.sessions.disconnect(key)
    }

    /// Sessions whose boat is not known to have ended.
    pub fn live(&self, denied_boats: &DeniedBoats) -> impl Iterator<Item = &SessionEntry> {
        self.presence.sessions.live(denied_boats)
    }

    /// Returns waiting mail strictly after `cursor`, oldest first; removes nothing. Entries without
    /// a body are listed apart, in `bodiless`.
    pub fn page(
        &self,
        platform: Platform,
        cursor: Option<MailCursor>,
        limit: usize,
        policies: &Policies,
        bodies: &Bodies,
        now: Timestamp,
    ) -> MailPage {
        let mut page = MailPage::default();
        let Some(index) = self.mail_indexes.get(&platform) else {
            return page;
        };
        let (entries, next) = index.page(cursor, limit, policies.of(platform), now);
        page.next = next;
        for MailCursor { accepted_at, id } in entries {
            match bodies.get(id).cloned() {
                Some(body) => page.mails.push(Mail {
                    id,
                    accepted_at,
                    body,
                }),
                None => page.bodiless.push(id),
            }
        }
        page
    }

    /// Locates one message in one step, so a message acknowledged meanwhile is found either waiting
    /// or among the remembered acknowledgements.
    pub fn find(
        &self,
        platform: Platform,
        id: MessageId,
        policies: &Policies,
        now: Timestamp,
    ) -> MailLocation {
        let index = self.mail_indexes.get(&platform);
        if index.is_some_and(|index| index.has(id, policies.of(platform), now)) {
            return MailLocation::Waits;
        }
        if self.presence.has_acked(platform, id, now) {
            MailLocation::Acknowledged
        } else {
            MailLocation::Absent
        }
    }

    /// Removes mail acknowledged by the platform's device, and remembers the ids for a while. The
    /// changes list the entries that had waited.
    pub fn acknowledge(
        &mut self,
        platform: Platform,
        ids: &[MessageId],
        now: Timestamp,
    ) -> Vec<MailboxChange> {
        self.presence.remember_acked(platform, ids, now);
        let Some(index) = self.mail_indexes.get_mut(&platform) else {
            return Vec::new();
        };
        removal_changes(platform, index.acknowledge(ids))
    }

    /// Removes mail that the policy no longer retains.
    pub fn trim(
        &mut self,
        platform: Platform,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> Vec<MailboxChange> {
        let Some(index) = self.mail_indexes.get_mut(&platform) else {
            return Vec::new();
        };
        removal_changes(platform, index.trim(policy, now))
    }

    /// Number of entries waiting for a platform, including expired ones until they are trimmed.
    pub fn waiting(&self, platform: Platform) -> u64 {
        self.mail_indexes.get(&platform).map_or(0, MailIndex::len)
    }

    /// Loses sessions and recent acknowledgements, like a store that died with them in memory.
    pub fn lose_presence(&mut self) {
        self.presence = Presence::default();
    }

    fn mail_waits(&self, platform: Platform, policies: &Policies, now: Timestamp) -> bool {
        let index = self.mail_indexes.get(&platform);
        index.is_some_and(|index| index.any(policies.of(platform), now))
    }

    fn append(
        &mut self,
        platform: Platform,
        mail: &Mail,
        policies: &Policies,
        now: Timestamp,
        changes: &mut Vec<MailboxChange>,
    ) -> u32 {
        let cursor = mail.cursor();
        let index = self.mail_indexes.entry(platform).or_default();
        let result = index.append(cursor, policies.of(platform), now);
        if result.is_new {
            changes.push(MailboxChange::Added {
                platform,
                at: cursor,
            });
        }
        let dropped_count = result.dropped_entries.len() as u32;
        changes.extend(removal_changes(platform, result.dropped_entries));
        dropped_count
    }
}

fn removal_changes(platform: Platform, entries: Vec<MailCursor>) -> Vec<MailboxChange> {
    let change = |cursor| MailboxChange::Removed {
        platform,
        at: cursor,
    };
    entries.into_iter().map(change).collect()
}
