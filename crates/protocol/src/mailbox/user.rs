//! One user's whole mailbox as a value: the rule that every store must behave like.

use std::collections::BTreeMap;

use super::{
    Bodies, ConnectAnswer, ConnectRequest, Mail, MailCursor, MailPage, MailboxPolicy, NewSession,
    Policies, Presence, ReassertAnswer, Reasserted, RouteAnswer, RouteRequest, TooManySessions,
    Waiting, Whereabouts,
};
use crate::presence::{Denied, SessionEntry, SessionKey};
use crate::{MessageId, Platform, Timestamp, UserId};

/// One user's sessions and, per platform, what waits. Each method is one step that nothing may
/// interrupt: a store that splits one loses messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    user: UserId,
    presence: Presence,
    waiting: BTreeMap<Platform, Waiting>,
}

/// What happened to an entry, for whoever counts [`Bodies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added { platform: Platform, at: MailCursor },
    Removed { platform: Platform, at: MailCursor },
}

impl Mailbox {
    pub fn new(user: UserId) -> Mailbox {
        Mailbox {
            user,
            presence: Presence::default(),
            waiting: BTreeMap::new(),
        }
    }

    /// Looks, and stores where nobody is, as one step.
    pub fn route(
        &mut self,
        request: &RouteRequest,
        policies: &Policies,
    ) -> (RouteAnswer, Vec<Change>) {
        let placement = self.presence.place(request);
        let mut changes = Vec::new();
        let mut dropped = 0;
        for &platform in &placement.store {
            let Some(mail) = &request.mail else { break };
            dropped += self.append(platform, mail, policies, request.now, &mut changes);
        }
        let answer = RouteAnswer {
            live: placement.live,
            stored: placement.store,
            acknowledged: placement.acknowledged,
            dropped,
        };
        (answer, changes)
    }

    /// Registers a session and tells whether something waits for its platform, as one step. `marker` is
    /// the store's.
    ///
    /// # Errors
    ///
    /// As many sessions as the platform may have are registered, and it displaces none.
    pub fn connect(
        &mut self,
        request: &ConnectRequest,
        policies: &Policies,
        marker: u64,
    ) -> Result<ConnectAnswer, TooManySessions> {
        let new = &request.entry;
        let sessions = &mut self.presence.sessions;
        let registered = sessions.connect(
            self.user,
            new,
            &policies.sessions,
            &request.denied,
            request.now,
        )?;
        Ok(ConnectAnswer {
            login: registered.login,
            displaced: registered.displaced,
            replaced: registered.replaced,
            marker,
            mail_waits: self.mail_waits(new.platform, policies, request.now),
        })
    }

    /// A boat says that it holds this session.
    pub fn reassert(
        &mut self,
        new: &NewSession,
        denied: &Denied,
        policies: &Policies,
        marker: u64,
        now: Timestamp,
    ) -> ReassertAnswer {
        let sessions = &mut self.presence.sessions;
        match sessions.reassert(new, &policies.sessions, denied, now) {
            Reasserted::Known => ReassertAnswer::Known {
                mail_waits: self.mail_waits(new.platform, policies, now),
            },
            Reasserted::Displaced => ReassertAnswer::Displaced,
            Reasserted::Replaced => ReassertAnswer::Replaced,
            Reasserted::Restored => ReassertAnswer::Restored {
                marker,
                mail_waits: self.mail_waits(new.platform, policies, now),
            },
        }
    }

    /// Removes exactly this session; `false` where it was not there, or a later life of its boat holds it.
    pub fn disconnect(&mut self, key: &SessionKey) -> bool {
        self.presence.sessions.disconnect(key)
    }

    /// Those whose boat is not known to have ended.
    pub fn live(&self, denied: &Denied) -> impl Iterator<Item = &SessionEntry> {
        self.presence.sessions.live(denied)
    }

    /// What waits, oldest first, strictly after `after`; removes nothing. Entries whose body is gone
    /// take their place in the page without one.
    pub fn page(
        &self,
        platform: Platform,
        after: Option<MailCursor>,
        limit: usize,
        policies: &Policies,
        bodies: &Bodies,
        now: Timestamp,
    ) -> MailPage {
        let mut page = MailPage::default();
        let Some(waiting) = self.waiting.get(&platform) else {
            return page;
        };
        let (entries, next) = waiting.page(after, limit, policies.of(platform), now);
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

    /// What is known of one message, as one look: what is acknowledged in between was there or is remembered.
    pub fn find(
        &self,
        platform: Platform,
        id: MessageId,
        policies: &Policies,
        now: Timestamp,
    ) -> Whereabouts {
        let waiting = self.waiting.get(&platform);
        if waiting.is_some_and(|waiting| waiting.has(id, policies.of(platform), now)) {
            return Whereabouts::Waits;
        }
        match self.presence.has_acked(platform, id, now) {
            true => Whereabouts::Acknowledged,
            false => Whereabouts::Absent,
        }
    }

    /// Removes what the platform's device acknowledged and remembers it for a while; the changes name
    /// what had waited.
    pub fn acknowledge(
        &mut self,
        platform: Platform,
        ids: &[MessageId],
        now: Timestamp,
    ) -> Vec<Change> {
        self.presence.remember_acked(platform, ids, now);
        let Some(waiting) = self.waiting.get_mut(&platform) else {
            return Vec::new();
        };
        removed(platform, waiting.acknowledge(ids))
    }

    /// Removes what the policy no longer keeps.
    pub fn trim(
        &mut self,
        platform: Platform,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> Vec<Change> {
        let Some(waiting) = self.waiting.get_mut(&platform) else {
            return Vec::new();
        };
        removed(platform, waiting.trim(policy, now))
    }

    /// How many wait for a platform, expired ones included until they are trimmed.
    pub fn waiting(&self, platform: Platform) -> u64 {
        self.waiting.get(&platform).map_or(0, Waiting::len)
    }

    /// Loses sessions and marks, as a store does that kept them in memory and died.
    pub fn lose_presence(&mut self) {
        self.presence = Presence::default();
    }

    fn mail_waits(&self, platform: Platform, policies: &Policies, now: Timestamp) -> bool {
        let waiting = self.waiting.get(&platform);
        waiting.is_some_and(|waiting| waiting.any(policies.of(platform), now))
    }

    fn append(
        &mut self,
        platform: Platform,
        mail: &Mail,
        policies: &Policies,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> u32 {
        let at = mail.cursor();
        let waiting = self.waiting.entry(platform).or_default();
        let appended = waiting.append(at, policies.of(platform), now);
        if appended.added {
            changes.push(Change::Added { platform, at });
        }
        let dropped = appended.dropped.len() as u32;
        changes.extend(removed(platform, appended.dropped));
        dropped
    }
}

fn removed(platform: Platform, entries: Vec<MailCursor>) -> Vec<Change> {
    let change = |at| Change::Removed { platform, at };
    entries.into_iter().map(change).collect()
}
