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
    waiting: Vec<(Target, Mail)>,
    acked: Vec<(Target, MessageId, Timestamp)>,
}

impl Reference {
    pub(super) fn route(&mut self, request: &RouteRequest, policy: MailboxPolicy) -> RouteAnswer {
        self.bury(request.user, &request.denied);
        let mut answer = RouteAnswer {
            live: Vec::new(),
            stored: Vec::new(),
            acknowledged: Vec::new(),
            dropped: 0,
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
                answer.acknowledged.push(platform);
                continue;
            }
            let here = self
                .sessions_of(request.user)
                .any(|(_, p, ..)| *p == platform);
            if here && !request.forced.contains(&platform) {
                continue;
            }
            answer.stored.push(platform);
            if !self.mails(target).contains(mail) {
                self.waiting.push((target, mail.clone()));
                self.waiting
                    .sort_by_key(|(target, mail)| (*target, mail.accepted_at, mail.id));
                answer.dropped += self.trim(target, policy, request.now);
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
        let ended = self.make_room(new, room);
        self.last += 1;
        let session = (new.key.clone(), new.platform, new.device.clone(), self.last);
        self.sessions.push(session);
        ended
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
            return match life < Some(new.key.life.clone()) {
                true => ReassertResult::Restored,
                false => ReassertResult::Known,
            };
        }
        let (is_known, login) = (login.is_some(), login.unwrap_or(self.last + 1));
        let rivals = self.sessions.iter().filter(|s| is_rival(s, new));
        let later: Vec<_> = rivals.filter(|s| !is_known || s.3 >= login).collect();
        if later.iter().any(|s| s.2 == new.device) {
            return ReassertResult::Replaced;
        }
        if later.len() >= room {
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
        let (mut displaced, mut replaced) = (Vec::new(), Vec::new());
        while let Some(at) = self.first(|s| is_rival(s, new) && s.2 == new.device) {
            replaced.push(self.sessions.remove(at).0);
        }
        while self.sessions.iter().filter(|s| is_rival(s, new)).count() >= room {
            let at = self.first(|s| is_rival(s, new));
            displaced.push(self.sessions.remove(at.expect("a rival")).0);
        }
        (displaced, replaced)
    }

    /// Login number of a session that is there.
    pub(super) fn login_of(&self, key: &SessionKey) -> u64 {
        let session = self.sessions.iter().find(|s| is(&s.0, key));
        session.expect("there").3
    }

    /// Looks for the session, perhaps under an earlier life of its boat, and moves it to the later
    /// life.
    fn find(&mut self, new: &NewSession) -> bool {
        let known = self.sessions.iter_mut().find(|s| is(&s.0, &new.key));
        let is_known = known.is_some();
        if let Some((key, ..)) = known {
            key.life = key.life.clone().max(new.key.life.clone());
        }
        is_known
    }

    fn first(&self, wanted: impl Fn(&ReferenceSession) -> bool) -> Option<usize> {
        self.sessions.iter().position(wanted)
    }

    pub(super) fn disconnect(&mut self, key: &SessionKey) {
        self.sessions
            .retain(|(known, ..)| !is(known, key) || known.life > key.life);
    }

    pub(super) fn acknowledge(
        &mut self,
        target: Target,
        ids: &[MessageId],
        now: Timestamp,
    ) -> Vec<MessageId> {
        let mut waited = Vec::new();
        for &id in ids {
            let before = self.waiting.len();
            self.waiting
                .retain(|(t, mail)| *t != target || mail.id != id);
            if self.waiting.len() < before {
                waited.push(id);
            }
            self.acked
                .retain(|(t, known, _)| *t != target || *known != id);
            self.acked.push((target, id, now));
        }
        let of_target = |acked: &&(Target, MessageId, Timestamp)| acked.0 == target;
        assert!(self.acked.iter().filter(of_target).count() <= ACKED_MAX);
        waited
    }

    pub(super) fn trim(&mut self, target: Target, policy: MailboxPolicy, now: Timestamp) -> u32 {
        let kept = now - policy.expire;
        let before = self.waiting.len();
        self.waiting
            .retain(|(t, mail)| *t != target || mail.accepted_at >= kept);
        if let Some(max) = policy.count_max {
            while self.mails(target).len() > max as usize {
                let oldest = self.waiting.iter().position(|(t, _)| *t == target);
                self.waiting.remove(oldest.expect("more than the maximum"));
            }
        }
        (before - self.waiting.len()) as u32
    }

    /// Mail that paging from the beginning yields.
    pub(super) fn page(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Vec<Mail> {
        let mut mails = self.mails(target);
        mails.retain(|mail| mail.accepted_at >= now - policy.expire);
        mails
    }

    pub(super) fn mails(&self, target: Target) -> Vec<Mail> {
        let of_target = self.waiting.iter().filter(|(t, _)| *t == target);
        of_target.map(|(_, mail)| mail.clone()).collect()
    }

    /// Simulates a restart of the process.
    pub(super) fn forget_presence(&mut self) {
        self.sessions.clear();
        self.acked.clear();
    }

    pub(super) fn sessions_of(&self, user: UserId) -> impl Iterator<Item = &ReferenceSession> {
        self.sessions
            .iter()
            .filter(move |(key, ..)| key.user == user)
    }

    pub(super) fn bodies(&self) -> Vec<Bytes> {
        let mut bodies: Vec<Bytes> = self.waiting.iter().map(|(_, m)| m.body.clone()).collect();
        bodies.sort();
        bodies.dedup();
        bodies
    }

    fn acked_lately(&self, target: Target, id: MessageId, now: Timestamp) -> bool {
        self.acked
            .iter()
            .any(|(t, known, at)| *t == target && *known == id && now.since(*at) < ACKED_KEEP)
    }

    fn bury(&mut self, user: UserId, denied: &DeniedBoats) {
        self.sessions
            .retain(|(key, ..)| key.user != user || !denied.contains(&key.life));
    }
}

/// True for a session of the same user on the same platform.
fn is_rival((key, platform, ..): &ReferenceSession, new: &NewSession) -> bool {
    key.user == new.key.user && *platform == new.platform
}

/// True for the same session on the same boat, whatever its life.
pub(super) fn is(known: &SessionKey, key: &SessionKey) -> bool {
    (known.user, known.session, &known.life.boat) == (key.user, key.session, &key.life.boat)
}
