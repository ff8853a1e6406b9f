//! A naive mailbox: lists, searched from end to end.

use bytes::Bytes;
use protocol::mailbox::{
    ACKED_KEEP, ACKED_MAX, Mail, MailboxPolicy, NewSession, ReassertResult, RouteAnswer,
    RouteRequest,
};
use protocol::message::Target;
use protocol::presence::{DeniedBoats, SessionKey};
use protocol::{DeviceId, MessageId, Platform, Timestamp, UserId};

/// With its login number.
pub(super) type ReferenceSession = (SessionKey, Platform, DeviceId, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    /// In login order.
    pub(super) sessions: Vec<ReferenceSession>,
    /// The last login number given.
    last: u64,
    /// Sorted by time and id within a target.
    waiting_mail: Vec<(Target, Mail)>,
    acks: Vec<(Target, MessageId, Timestamp)>,
}

impl Reference {
    pub(super) fn route(&mut self, request: &RouteRequest, policy: MailboxPolicy) -> RouteAnswer {
        self.bury(request.user, &request.denied_boats);
        let mut answer = RouteAnswer {
            live: Vec::new(),
            stored_platforms: Vec::new(),
            acknowledged_platforms: Vec::new(),
            dropped_count: 0,
        };
        let Some(mail) = &request.mail else {
            return answer;
        };
        for &platform in &request.platforms {
            let target = Target {
                user: request.user,
                platform,
            };
            if self.acked_lately(target, mail.id, request.now) {
                answer.acknowledged_platforms.push(platform);
                continue;
            }
            let has_session = self
                .user_sessions(request.user)
                .any(|(_, p, ..)| *p == platform);
            if has_session && !request.forced_platforms.contains(&platform) {
                continue;
            }
            answer.stored_platforms.push(platform);
            if !self.mails(target).contains(mail) {
                self.waiting_mail.push((target, mail.clone()));
                self.waiting_mail
                    .sort_by_key(|(target, mail)| (*target, mail.accepted_at, mail.id));
                answer.dropped_count += self.trim(target, policy, request.now);
            }
        }
        answer
    }

    /// Returns the sessions displaced and the sessions replaced.
    pub(super) fn connect(
        &mut self,
        new: &NewSession,
        room: usize,
    ) -> (Vec<SessionKey>, Vec<SessionKey>) {
        if self.find(new) {
            return Default::default();
        }
        let removals = self.make_room(new, room);
        self.last += 1;
        let session = (new.key.clone(), new.platform, new.device.clone(), self.last);
        self.sessions.push(session);
        removals
    }

    /// `login` is its number at the sign-in, as far as its boat knows it.
    pub(super) fn reassert(
        &mut self,
        new: &NewSession,
        login: Option<u64>,
        room: usize,
    ) -> ReassertResult {
        let life = self.sessions.iter().find(|s| is(&s.0, &new.key));
        let life = life.map(|s| s.0.life.clone());
        if self.find(new) {
            return if life < Some(new.key.life.clone()) {
                ReassertResult::Restored
            } else {
                ReassertResult::Known
            };
        }
        let (is_known, login) = (login.is_some(), login.unwrap_or(self.last + 1));
        let rivals = self.sessions.iter().filter(|s| is_rival(s, new));
        let newer_rivals: Vec<_> = rivals.filter(|s| !is_known || s.3 >= login).collect();
        if newer_rivals.iter().any(|s| s.2 == new.device) {
            return ReassertResult::Replaced;
        }
        if newer_rivals.len() >= room {
            return ReassertResult::Displaced;
        }
        // As if it signed in before them.
        self.make_room(new, room);
        self.last = self.last.max(login);
        let session = (new.key.clone(), new.platform, new.device.clone(), login);
        self.sessions.push(session);
        self.sessions.sort_by_key(|session| session.3);
        ReassertResult::Restored
    }

    /// The sessions displaced and replaced for another one.
    fn make_room(&mut self, new: &NewSession, room: usize) -> (Vec<SessionKey>, Vec<SessionKey>) {
        let (mut displaced_keys, mut replaced_keys) = (Vec::new(), Vec::new());
        while let Some(index) = self.first(|s| is_rival(s, new) && s.2 == new.device) {
            replaced_keys.push(self.sessions.remove(index).0);
        }
        while self.sessions.iter().filter(|s| is_rival(s, new)).count() >= room {
            let index = self.first(|s| is_rival(s, new));
            displaced_keys.push(self.sessions.remove(index.expect("a rival")).0);
        }
        (displaced_keys, replaced_keys)
    }

    /// Login number of a session that is there.
    pub(super) fn login_number(&self, key: &SessionKey) -> u64 {
        let session = self.sessions.iter().find(|s| is(&s.0, key));
        session.expect("there").3
    }

    /// Looks for the session, perhaps under an earlier life of its boat, and moves it to the later
    /// life.
    fn find(&mut self, new: &NewSession) -> bool {
        let session = self.sessions.iter_mut().find(|s| is(&s.0, &new.key));
        let is_known = session.is_some();
        if let Some((key, ..)) = session {
            key.life = key.life.clone().max(new.key.life.clone());
        }
        is_known
    }

    fn first(&self, matches: impl Fn(&ReferenceSession) -> bool) -> Option<usize> {
        self.sessions.iter().position(matches)
    }

    pub(super) fn disconnect(&mut self, key: &SessionKey) {
        self.sessions
            .retain(|(other, ..)| !is(other, key) || other.life > key.life);
    }

    pub(super) fn acknowledge(
        &mut self,
        target: Target,
        ids: &[MessageId],
        now: Timestamp,
    ) -> Vec<MessageId> {
        let mut removed_ids = Vec::new();
        for &id in ids {
            let old_count = self.waiting_mail.len();
            self.waiting_mail
                .retain(|(t, mail)| *t != target || mail.id != id);
            if self.waiting_mail.len() < old_count {
                removed_ids.push(id);
            }
            self.acks
                .retain(|(t, other, _)| *t != target || *other != id);
            self.acks.push((target, id, now));
        }
        let of_target = |ack: &&(Target, MessageId, Timestamp)| ack.0 == target;
        assert!(self.acks.iter().filter(of_target).count() <= ACKED_MAX);
        removed_ids
    }

    pub(super) fn trim(&mut self, target: Target, policy: MailboxPolicy, now: Timestamp) -> u32 {
        let oldest_kept = now - policy.expire;
        let old_count = self.waiting_mail.len();
        self.waiting_mail
            .retain(|(t, mail)| *t != target || mail.accepted_at >= oldest_kept);
        if let Some(max) = policy.count_max {
            while self.mails(target).len() > max as usize {
                let oldest = self.waiting_mail.iter().position(|(t, _)| *t == target);
                self.waiting_mail
                    .remove(oldest.expect("more than the maximum"));
            }
        }
        (old_count - self.waiting_mail.len()) as u32
    }

    /// Mail that paging from the beginning yields.
    pub(super) fn page(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Vec<Mail> {
        let mut mails = self.mails(target);
        mails.retain(|mail| mail.accepted_at >= now - policy.expire);
        mails
    }

    pub(super) fn mails(&self, target: Target) -> Vec<Mail> {
        let of_target = self.waiting_mail.iter().filter(|(t, _)| *t == target);
        of_target.map(|(_, mail)| mail.clone()).collect()
    }

    /// Simulates a restart of the process.
    pub(super) fn forget_presence(&mut self) {
        self.sessions.clear();
        self.acks.clear();
    }

    pub(super) fn user_sessions(&self, user: UserId) -> impl Iterator<Item = &ReferenceSession> {
        self.sessions
            .iter()
            .filter(move |(key, ..)| key.user == user)
    }

    pub(super) fn bodies(&self) -> Vec<Bytes> {
        let mut bodies: Vec<Bytes> = self
            .waiting_mail
            .iter()
            .map(|(_, m)| m.body.clone())
            .collect();
        bodies.sort();
        bodies.dedup();
        bodies
    }

    fn acked_lately(&self, target: Target, id: MessageId, now: Timestamp) -> bool {
        self.acks
            .iter()
            .any(|(t, other, at)| *t == target && *other == id && now.since(*at) < ACKED_KEEP)
    }

    fn bury(&mut self, user: UserId, denied_boats: &DeniedBoats) {
        self.sessions
            .retain(|(key, ..)| key.user != user || !denied_boats.contains(&key.life));
    }
}

/// True for a session of the same user on the same platform.
fn is_rival((key, platform, ..): &ReferenceSession, new: &NewSession) -> bool {
    key.user == new.key.user && *platform == new.platform
}

/// True for the same session on the same boat, whatever its life.
pub(super) fn is(other: &SessionKey, key: &SessionKey) -> bool {
    (other.user, other.session, &other.life.boat) == (key.user, key.session, &key.life.boat)
}
