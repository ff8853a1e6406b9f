//! Questions to the mailbox, its answers, and their consequences.

use std::collections::BTreeSet;

use super::record::{failure_cause, mail, mail_platforms, targets};
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
    pub invalidations: Vec<Invalidation>,
    /// On a retry, the time of the record's first attempt.
    pub first_at: Option<Timestamp>,
    /// Trace of the message.
    pub trace: Option<TraceContext>,
}

impl Route {
    /// Dates the question as it is asked: now, while these boats are known to have ended.
    pub fn stamp(&mut self, now: Timestamp, denied_boats: &DeniedBoats) {
        self.request.now = now;
        self.request.denied_boats = denied_boats.clone();
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
    pub(super) fn begin_user(&mut self, now: Moment, record: Key, index: usize, is_offline: bool) {
        let Some(task) = self.records.get(record).map(|record| &record.task) else {
            return;
        };
        let Obligation {
            user, platforms, ..
        } = &task.obligations[index];
        let is_mirror = task.is_live_only(*user);
        let stores = task.placed.message.options.has(Options::STORE_OFFLINE);
        let mail_platforms = || mail_platforms(platforms);
        // Without a platform that keeps it the body would travel for nothing.
        let mail = (stores && !is_mirror && !mail_platforms().is_empty()).then(|| mail(task));
        let (kind, platforms, forced_platforms) = match (is_mirror, is_offline) {
            (true, true) => (RouteKind::Renew(index), Vec::new(), Vec::new()),
            (true, false) => (RouteKind::First(index), Vec::new(), Vec::new()),
            (false, false) => (RouteKind::First(index), mail_platforms(), Vec::new()),
            (false, true) if stores => (
                RouteKind::Offline(index),
                mail_platforms(),
                mail_platforms(),
            ),
            (false, true) => {
                let absent_targets: Vec<Target> = targets(*user, platforms).collect();
                if let Some(record) = self.records.get_mut(record) {
                    absent_targets
                        .into_iter()
                        .for_each(|target| record.note_absent(now, target));
                }
                return;
            }
        };
        let user = *user;
        self.route(record, kind, user, platforms, forced_platforms, mail);
    }

    pub(super) fn route(
        &mut self,
        record: Key,
        kind: RouteKind,
        user: UserId,
        platforms: Vec<Platform>,
        forced_platforms: Vec<Platform>,
        mail: Option<Mail>,
    ) {
        let (mut trace, mut invalidations, mut first_at) = (None, Vec::new(), None);
        if let Some(record) = self.records.get_mut(record) {
            record.open += 1;
            let task = &record.task;
            trace = task.trace;
            let is_retry = matches!(record.source.topic, Topic::Retry(_));
            first_at = is_retry.then_some(task.first_at);
            invalidations = cache::outdated(&task.placed, task.rev, user);
        }
        let token = RouteToken(self.routes.insert(OpenRoute { record, kind }));
        let request = RouteRequest {
            user,
            platforms,
            forced_platforms,
            mail,
            denied_boats: self.no_denied_boats.clone(),
            now: Timestamp::ZERO,
        };
        self.actions.push_back(Action::Route(Route {
            token,
            request,
            invalidations,
            first_at,
            trace,
        }));
    }

    pub(super) fn handle_first_route(
        &mut self,
        now: Moment,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get(key) else {
            return;
        };
        let obligation = record.task.obligations[index].clone();
        self.handle_route_answer(now, key, &obligation, answer);
    }

    /// Takes the answer for a member of the audience.
    pub(super) fn handle_member_route(
        &mut self,
        now: Moment,
        key: Key,
        user: UserId,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        self.handle_route_answer(now, key, &live_only(user), answer);
    }

    fn handle_route_answer(
        &mut self,
        now: Moment,
        key: Key,
        obligation: &Obligation,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let is_mirror = record.task.is_live_only(obligation.user);
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, obligation, failure),
        };
        if is_mirror && let Some(origin) = &record.task.origin {
            answer.live.retain(|entry| entry.session != origin.session);
        }
        let is_unreached = obligation.platforms.is_empty() && answer.live.is_empty();
        // Noted once for a whole audience: the entry names no user.
        let is_noted = record.task.audience.is_some() && record.is_sync_noted;
        if is_unreached && !is_mirror && !is_noted {
            record.is_sync_noted = true;
            record.note(now, None, LedgerEvent::ReachableBySync);
        }
        self.start_legs(now, key, obligation, &answer, is_mirror);
    }

    /// Starts a leg for each platform with sessions, and ends the others.
    fn start_legs(
        &mut self,
        now: Moment,
        key: Key,
        obligation: &Obligation,
        answer: &RouteAnswer,
        is_mirror: bool,
    ) {
        let live_platforms = answer.live.iter().map(|entry| entry.platform);
        let platforms: BTreeSet<Platform> = obligation
            .platforms
            .iter()
            .copied()
            .chain(live_platforms.filter(|_| obligation.live))
            .collect();
        for target in targets(obligation.user, &platforms) {
            match PlatformAnswer::from_answer(answer, target.platform) {
                PlatformAnswer::Live(sessions) => {
                    let Some(leg) = self.add_leg(key, target, is_mirror, sessions) else {
                        return;
                    };
                    self.enter_lane(now, leg);
                }
                end => self.note_end(now, key, target, end),
            }
        }
    }

    /// Notes the end that the mailbox's answer gives a target, unless a session lives there.
    fn note_end(&mut self, now: Moment, key: Key, target: Target, answer: PlatformAnswer) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        match answer {
            PlatformAnswer::Live(_) => {}
            PlatformAnswer::Stored => record.note_stored(now, target),
            PlatformAnswer::Acknowledged => record.note_acknowledged(now, target),
            // The mailbox was asked to store, and reports neither a stored copy nor a live session.
            PlatformAnswer::Nobody if record.stores_for(target) => {
                record.fail(now, target, FailureCause::MailboxRefused);
            }
            PlatformAnswer::Nobody => record.note_absent(now, target),
        }
    }

    pub(super) fn handle_offline_route(
        &mut self,
        now: Moment,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let mut obligation = record.task.obligations[index].clone();
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, &obligation, failure),
        };
        for target in targets(obligation.user, &obligation.platforms) {
            if target.platform.keeps_mail() {
                self.handle_forced_store(now, key, target, &answer);
            } else if let Some(record) = self.records.get_mut(key) {
                record.note_absent(now, target);
            }
        }
        // Sessions on platforms without stored mail.
        let rest = RouteAnswer {
            live: (answer.live.iter())
                .filter(|entry| !obligation.platforms.contains(&entry.platform))
                .cloned()
                .collect(),
            stored_platforms: Vec::new(),
            acknowledged_platforms: answer.acknowledged_platforms,
            dropped_count: 0,
        };
        obligation.platforms.clear();
        self.start_legs(now, key, &obligation, &rest, false);
    }

    pub(super) fn handle_renew_route(
        &mut self,
        now: Moment,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let obligation = record.task.obligations[index].clone();
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, &obligation, failure),
        };
        for entry in answer.live {
            let target = Target {
                user: obligation.user,
                platform: entry.platform,
            };
            record.note(now, Some(target), LedgerEvent::ReachableBySync);
            (self.actions).push_back(pushing::resync(entry.life, entry.session));
        }
    }

    pub(super) fn handle_reroute(
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
            Ok(answer) => match PlatformAnswer::from_answer(&answer, target.platform) {
                PlatformAnswer::Live(sessions) => {
                    state.sessions = sessions;
                    self.push(now, LegKey { record: key, leg });
                }
                end => {
                    self.note_end(now, key, target, end);
                    self.close_one(now, key);
                }
            },
            Err(failure) => self.fail_leg(now, key, target, failure_cause(failure)),
        }
        self.pump(now, target);
    }

    pub(super) fn handle_store_route(
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
                self.handle_forced_store(now, key, target, &answer);
                self.close_one(now, key);
            }
            Err(failure) => self.fail_leg(now, key, target, failure_cause(failure)),
        }
    }

    /// Takes the answer to a forced store: stored, already acknowledged by the device, or refused.
    fn handle_forced_store(&mut self, now: Moment, key: Key, target: Target, answer: &RouteAnswer) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        if answer.stored_platforms.contains(&target.platform) {
            record.note_stored(now, target);
            let live = answer.live.iter();
            for entry in live.filter(|entry| entry.platform == target.platform) {
                self.actions.push_back(Action::Notice(Notice {
                    life: entry.life.clone(),
                    session: entry.session,
                    event: SessionEvent::Hint,
                }));
            }
        } else if answer.acknowledged_platforms.contains(&target.platform) {
            record.note_acknowledged(now, target);
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
    fn from_answer(answer: &RouteAnswer, platform: Platform) -> PlatformAnswer {
        if answer.acknowledged_platforms.contains(&platform) {
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
        if answer.stored_platforms.contains(&platform) {
            PlatformAnswer::Stored
        } else {
            PlatformAnswer::Nobody
        }
    }
}
