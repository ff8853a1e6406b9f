//! Questions to the mailbox, its answers, and their consequences.

use std::collections::BTreeSet;

use super::record::{cause_of, keeping_mail, mail, targets};
use super::{Delivery, OpenRoute, RouteKind, pushing};
use crate::cache::{self, Invalidation};
use crate::delivery::arena::Key;
use crate::delivery::lanes::LegKey;
use crate::delivery::{Action, Notice, Obligation, SessionEvent, live_only};
use crate::keys::Topic;
use crate::ledger::{FailureCause, LedgerEvent};
use crate::mailbox::{Mail, RouteAnswer, RouteRequest};
use crate::message::Target;
use crate::presence::{DeniedBoats, SessionEntry};
use crate::{Moment, Options, Platform, Timestamp, TraceContext, UserId};

/// Names an open [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteToken(pub(super) Key);

/// A question to the mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub token: RouteToken,
    /// The question itself, still to be [stamped](Route::stamp).
    pub request: RouteRequest,
    /// Cache entries to invalidate before the look for sessions: see [`crate::cache`].
    pub outdated: Vec<Invalidation>,
    /// On a retry, the time of the record's first attempt.
    pub first_at: Option<Timestamp>,
    /// Trace of the message.
    pub trace: Option<TraceContext>,
}

impl Route {
    /// Dates the question as it is asked: now, while these boats are known to have ended.
    pub fn stamp(&mut self, now: Timestamp, denied: &DeniedBoats) {
        self.request.now = now;
        self.request.denied = denied.clone();
    }
}

/// Failure of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteFailure {
    /// The store did not answer: retried, and the attempt does not count.
    Unavailable,
    /// The store refused: the attempt counts.
    Refused,
}

impl Delivery {
    pub(super) fn begin_user(&mut self, now: Moment, record: Key, index: usize, offline: bool) {
        let Some(task) = self.records.get(record).map(|record| &record.task) else {
            return;
        };
        let Obligation {
            user, platforms, ..
        } = &task.owed[index];
        let mirror = task.is_only_told(*user);
        let stores = task.placed.message.options.has(Options::STORE_OFFLINE);
        let keeping = || keeping_mail(platforms);
        // Without a platform that keeps it the body would travel for nothing.
        let mail = (stores && !mirror && !keeping().is_empty()).then(|| mail(task));
        let (kind, platforms, forced) = match (mirror, offline) {
            (true, true) => (RouteKind::Renew(index), Vec::new(), Vec::new()),
            (true, false) => (RouteKind::First(index), Vec::new(), Vec::new()),
            (false, false) => (RouteKind::First(index), keeping(), Vec::new()),
            (false, true) if stores => (RouteKind::Offline(index), keeping(), keeping()),
            (false, true) => {
                let absent: Vec<Target> = targets(*user, platforms).collect();
                if let Some(record) = self.records.get_mut(record) {
                    absent
                        .into_iter()
                        .for_each(|target| record.note_absent(now, target));
                }
                return;
            }
        };
        let user = *user;
        self.route(record, kind, user, platforms, forced, mail);
    }

    pub(super) fn route(
        &mut self,
        record: Key,
        kind: RouteKind,
        user: UserId,
        platforms: Vec<Platform>,
        forced: Vec<Platform>,
        mail: Option<Mail>,
    ) {
        let (mut trace, mut outdated, mut first_at) = (None, Vec::new(), None);
        if let Some(record) = self.records.get_mut(record) {
            record.open += 1;
            let task = &record.task;
            trace = task.trace;
            let is_retry = matches!(record.source.topic, Topic::Retry(_));
            first_at = is_retry.then_some(task.first_at);
            outdated = cache::outdated(&task.placed, task.rev, user);
        }
        let token = RouteToken(self.routes.insert(OpenRoute { record, kind }));
        let request = RouteRequest {
            user,
            platforms,
            forced,
            mail,
            denied: self.denied.clone(),
            now: Timestamp::ZERO,
        };
        self.actions.push_back(Action::Route(Route {
            token,
            request,
            outdated,
            first_at,
            trace,
        }));
    }

    pub(super) fn routed_first(
        &mut self,
        now: Moment,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get(key) else {
            return;
        };
        let owed = record.task.owed[index].clone();
        self.routed(now, key, &owed, answer);
    }

    /// Takes the answer for a member of the audience.
    pub(super) fn routed_member(
        &mut self,
        now: Moment,
        key: Key,
        user: UserId,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        self.routed(now, key, &live_only(user), answer);
    }

    fn routed(
        &mut self,
        now: Moment,
        key: Key,
        owed: &Obligation,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let mirror = record.task.is_only_told(owed.user);
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, owed, failure),
        };
        if mirror && let Some(origin) = &record.task.origin {
            answer.live.retain(|entry| entry.session != origin.session);
        }
        let nobody = owed.platforms.is_empty() && answer.live.is_empty();
        // Noted once for a whole audience: the entry names no user.
        let is_said = record.task.audience.is_some() && record.synced;
        if nobody && !mirror && !is_said {
            record.synced = true;
            record.note(now, None, LedgerEvent::ReachableBySync);
        }
        self.start_legs(now, key, owed, &answer, mirror);
    }

    /// Starts a leg for each platform with sessions, and ends the others.
    fn start_legs(
        &mut self,
        now: Moment,
        key: Key,
        owed: &Obligation,
        answer: &RouteAnswer,
        mirror: bool,
    ) {
        let also = answer.live.iter().map(|entry| entry.platform);
        let wanted: BTreeSet<Platform> = owed
            .platforms
            .iter()
            .copied()
            .chain(also.filter(|_| owed.live))
            .collect();
        for target in targets(owed.user, &wanted) {
            match PlatformAnswer::of(answer, target.platform) {
                PlatformAnswer::Live(sessions) => {
                    let Some(leg) = self.add_leg(key, target, mirror, sessions) else {
                        return;
                    };
                    self.enter_lane(now, leg);
                }
                ended => self.note_end(now, key, target, ended),
            }
        }
    }

    /// Notes the end that the mailbox's answer gives a target, unless a session lives there.
    fn note_end(&mut self, now: Moment, key: Key, target: Target, answered: PlatformAnswer) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        match answered {
            PlatformAnswer::Live(_) => {}
            PlatformAnswer::Stored => record.note_stored(now, target),
            PlatformAnswer::Acknowledged => record.note_had(now, target),
            // The mailbox was asked to store, and reports neither a stored copy nor a live session.
            PlatformAnswer::Nobody if record.stores_for(target) => {
                record.fail(now, target, FailureCause::MailboxRefused);
            }
            PlatformAnswer::Nobody => record.note_absent(now, target),
        }
    }

    pub(super) fn routed_offline(
        &mut self,
        now: Moment,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let mut owed = record.task.owed[index].clone();
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, &owed, failure),
        };
        for target in targets(owed.user, &owed.platforms) {
            if target.platform.keeps_mail() {
                self.after_forced_store(now, key, target, &answer);
            } else if let Some(record) = self.records.get_mut(key) {
                record.note_absent(now, target);
            }
        }
        // Sessions on platforms without stored mail.
        let rest = RouteAnswer {
            live: (answer.live.iter())
                .filter(|entry| !owed.platforms.contains(&entry.platform))
                .cloned()
                .collect(),
            stored: Vec::new(),
            acknowledged: answer.acknowledged,
            dropped: 0,
        };
        owed.platforms.clear();
        self.start_legs(now, key, &owed, &rest, false);
    }

    pub(super) fn routed_renew(
        &mut self,
        now: Moment,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let owed = record.task.owed[index].clone();
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, &owed, failure),
        };
        for entry in answer.live {
            let target = Target {
                user: owed.user,
                platform: entry.platform,
            };
            record.note(now, Some(target), LedgerEvent::ReachableBySync);
            (self.actions).push_back(pushing::resync(entry.life, entry.session));
        }
    }

    pub(super) fn routed_again(
        &mut self,
        now: Moment,
        key: Key,
        leg: u32,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        self.end_reroute(key, leg);
        let Some(state) = self.leg_mut(key, leg) else {
            return;
        };
        let target = state.target;
        match answer {
            Ok(answer) => match PlatformAnswer::of(&answer, target.platform) {
                PlatformAnswer::Live(sessions) => {
                    state.sessions = sessions;
                    self.push(now, LegKey { record: key, leg });
                }
                ended => {
                    self.note_end(now, key, target, ended);
                    self.close_one(now, key);
                }
            },
            Err(failure) => self.fail_leg(now, key, target, cause_of(failure)),
        }
        self.pump(now, target);
    }

    pub(super) fn routed_store(
        &mut self,
        now: Moment,
        key: Key,
        leg: u32,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(target) = self.leg_mut(key, leg).map(|leg| leg.target) else {
            return;
        };
        match answer {
            Ok(answer) => {
                self.after_forced_store(now, key, target, &answer);
                self.close_one(now, key);
            }
            Err(failure) => self.fail_leg(now, key, target, cause_of(failure)),
        }
    }

    /// Takes the answer to a forced store: stored, already acknowledged by the device, or refused.
    fn after_forced_store(&mut self, now: Moment, key: Key, target: Target, answer: &RouteAnswer) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        if answer.stored.contains(&target.platform) {
            record.note_stored(now, target);
            let live = answer.live.iter();
            for entry in live.filter(|entry| entry.platform == target.platform) {
                self.actions.push_back(Action::Notice(Notice {
                    life: entry.life.clone(),
                    session: entry.session,
                    word: SessionEvent::Hint,
                }));
            }
        } else if answer.acknowledged.contains(&target.platform) {
            record.note_had(now, target);
        } else {
            record.fail(now, target, FailureCause::MailboxRefused);
        }
    }
}

/// The mailbox's answer for one platform.
enum PlatformAnswer {
    /// The sessions, newest first.
    Live(Vec<SessionEntry>),
    Stored,
    Acknowledged,
    Nobody,
}

impl PlatformAnswer {
    fn of(answer: &RouteAnswer, platform: Platform) -> PlatformAnswer {
        if answer.acknowledged.contains(&platform) {
            return PlatformAnswer::Acknowledged;
        }
        let live = answer.live.iter();
        let mut sessions: Vec<SessionEntry> = live
            .filter(|entry| entry.platform == platform)
            .cloned()
            .collect();
        if !sessions.is_empty() {
            sessions.sort_by_key(|entry| std::cmp::Reverse((entry.login, entry.session)));
            return PlatformAnswer::Live(sessions);
        }
        if answer.stored.contains(&platform) {
            PlatformAnswer::Stored
        } else {
            PlatformAnswer::Nobody
        }
    }
}
