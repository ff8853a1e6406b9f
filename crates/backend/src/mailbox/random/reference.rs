//! The mailbox as a beginner would write it: lists, searched from end to end.

use bytes::Bytes;
use protocol::mailbox::{
    ACKED_KEEP, ACKED_MAX, Mail, MailboxPolicy, NewSession, RouteAnswer, RouteRequest,
};
use protocol::message::Target;
use protocol::presence::{Denied, SessionKey};
use protocol::{MessageId, Platform, Timestamp, UserId};

#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    pub(super) sessions: Vec<(SessionKey, Platform)>,
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
            let here = self.sessions_of(request.user).any(|(_, p)| *p == platform);
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

    pub(super) fn connect(&mut self, new: &NewSession, denied: &Denied) -> Vec<SessionKey> {
        if let Some((key, _)) = self.sessions.iter_mut().find(|(key, _)| is(key, &new.key)) {
            key.life = key.life.clone().max(new.key.life.clone());
            return Vec::new();
        }
        self.bury(new.key.user, denied);
        let rival =
            |(key, p): &(SessionKey, Platform)| key.user == new.key.user && *p == new.platform;
        let displaced = self.sessions.iter().filter(|s| rival(s));
        let displaced: Vec<SessionKey> = displaced.map(|(key, _)| key.clone()).collect();
        self.sessions.retain(|session| !rival(session));
        self.sessions.push((new.key.clone(), new.platform));
        displaced
    }

    pub(super) fn disconnect(&mut self, key: &SessionKey) {
        self.sessions
            .retain(|(known, _)| !is(known, key) || known.life > key.life);
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

    /// What a page from the beginning shows.
    pub(super) fn page(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Vec<Mail> {
        let mut mails = self.mails(target);
        mails.retain(|mail| mail.accepted_at >= now - policy.expire);
        mails
    }

    pub(super) fn mails(&self, target: Target) -> Vec<Mail> {
        let of_target = self.waiting.iter().filter(|(t, _)| *t == target);
        of_target.map(|(_, mail)| mail.clone()).collect()
    }

    /// The process restarts.
    pub(super) fn forget_presence(&mut self) {
        self.sessions.clear();
        self.acked.clear();
    }

    pub(super) fn sessions_of(
        &self,
        user: UserId,
    ) -> impl Iterator<Item = &(SessionKey, Platform)> {
        self.sessions
            .iter()
            .filter(move |(key, _)| key.user == user)
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

    fn bury(&mut self, user: UserId, denied: &Denied) {
        self.sessions
            .retain(|(key, _)| key.user != user || !denied.contains(&key.life));
    }
}

/// Of the same boat, whichever life of it.
pub(super) fn is(known: &SessionKey, key: &SessionKey) -> bool {
    (known.user, known.session, &known.life.boat) == (key.user, key.session, &key.life.boat)
}
