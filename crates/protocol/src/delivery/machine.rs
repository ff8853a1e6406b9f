//! The machine: what is open, and what each answer changes.

use std::collections::{BTreeSet, VecDeque};

use super::arena::{Arena, Key};
use super::budget::Budget;
use super::lanes::{Lanes, LegKey, Waiting};
use super::settle::{self, Failure, insists};
use super::{
    Action, Limits, Load, Notice, Outcome, Owed, PartitionKey, Push, PushToken, Route,
    RouteFailure, RouteToken, Settlement, Source, Task, Word,
};
use crate::code::{Code, Refusal};
use crate::frame::PlacedEcho;
use crate::ledger::{Event, FailureCause, LedgerEntry};
use crate::mailbox::{Mail, RouteAnswer};
use crate::message::Target;
use crate::notify::{Notification, wants_notification};
use crate::presence::{BoatLife, SessionEntry, SessionKey};
use crate::{Options, Platform, SessionId, Timestamp, UserId};

/// All deliveries in flight. Tasks go in, actions come out, and for every task exactly one
/// [`Settlement`] at the end, unless its partition is revoked before.
#[derive(Clone, Debug)]
pub struct Delivery {
    limits: Limits,
    budget: Budget,
    records: Arena<Record>,
    routes: Arena<OpenRoute>,
    pushes: Arena<OpenPush>,
    lanes: Lanes,
    /// When to give up on which push. All wait equally long, so the earliest is in front.
    deadlines: VecDeque<(Timestamp, Key)>,
    actions: VecDeque<Action>,
}

#[derive(Clone, Debug)]
struct Record {
    source: Source,
    task: Task,
    legs: Vec<Leg>,
    /// Routes, legs and further pushes without an end.
    open: usize,
    failures: Vec<Failure>,
    notifications: Vec<Notification>,
    ledger: Vec<LedgerEntry>,
}

#[derive(Clone, Debug)]
struct Leg {
    target: Target,
    /// To the sender's own other sessions: never stored, at most told to begin anew.
    mirror: bool,
    /// Of its platform, newest first; the first one decides.
    sessions: Vec<SessionEntry>,
    reroutes: u8,
}

#[derive(Clone, Debug)]
struct OpenRoute {
    record: Key,
    kind: RouteKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteKind {
    /// To whom does this go? The number is that of the user in the task.
    First(usize),
    /// The receiver counts as offline: store, whoever lives.
    Offline(usize),
    /// End the sender's other sessions, so that they sync.
    Renew(usize),
    /// The leg's session was gone.
    Again(u32),
    /// The leg's session has no room: store.
    Store(u32),
}

#[derive(Clone, Debug)]
struct OpenPush {
    leg: LegKey,
    session: SessionKey,
    target: Target,
    /// Its answer decides; the others' are only acted on.
    decides: bool,
    sent_at: Timestamp,
}

impl Delivery {
    pub fn new(limits: Limits) -> Delivery {
        Delivery {
            budget: Budget::new(&limits),
            limits,
            records: Arena::default(),
            routes: Arena::default(),
            pushes: Arena::default(),
            lanes: Lanes::default(),
            deadlines: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// How many more tasks are taken now.
    pub fn room(&self) -> usize {
        self.budget.limit().saturating_sub(self.records.len())
    }

    pub fn is_idle(&self) -> bool {
        self.records.len() == 0
    }

    pub fn load(&self) -> Load {
        Load {
            records: self.records.len(),
            records_max: self.budget.limit(),
            pushes: self.pushes.len(),
            lanes: self.lanes.len(),
            ack_latency: self.budget.latency(),
        }
    }

    /// The next thing to do; drain completely after every call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&mut self) -> Option<Timestamp> {
        while let Some((deadline, push)) = self.deadlines.front() {
            if self.pushes.get(*push).is_some() {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// A record wants to be delivered. Handed back where there is no room.
    #[allow(clippy::result_large_err, reason = "the caller keeps the task it gave")]
    pub fn handle_task(
        &mut self,
        now: Timestamp,
        source: Source,
        mut task: Task,
    ) -> Result<(), Task> {
        if self.room() == 0 {
            return Err(task);
        }
        self.tell_origin(&task);
        let offline = task.retry_count >= self.limits.offline_after;
        let users = task.owed.len();
        let ledger = std::mem::take(&mut task.noted);
        let record = self.records.insert(Record {
            source,
            task,
            legs: Vec::new(),
            // One for this call, so that nothing settles before every user is looked at.
            open: 1,
            failures: Vec::new(),
            notifications: Vec::new(),
            ledger,
        });
        for index in 0..users {
            self.begin_user(now, record, index, offline);
        }
        self.close_one(now, record);
        Ok(())
    }

    /// The mailbox answered a route, or failed.
    pub fn handle_routed(
        &mut self,
        now: Timestamp,
        token: RouteToken,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(route) = self.routes.remove(token.0) else {
            return;
        };
        match route.kind {
            RouteKind::First(index) => self.routed_first(now, route.record, index, answer),
            RouteKind::Offline(index) => self.routed_offline(now, route.record, index, answer),
            RouteKind::Renew(index) => self.routed_renew(now, route.record, index, answer),
            RouteKind::Again(leg) => self.routed_again(now, route.record, leg, answer),
            RouteKind::Store(leg) => self.routed_store(now, route.record, leg, answer),
        }
        self.close_one(now, route.record);
    }

    /// A boat answered a push, or cannot. An answer to nothing, or a second one, changes nothing.
    pub fn handle_outcome(&mut self, now: Timestamp, token: PushToken, outcome: Outcome) {
        let Some(push) = self.pushes.remove(token.0) else {
            return;
        };
        if push.decides {
            let lane = self.lanes.of(push.target);
            lane.outstanding = lane.outstanding.saturating_sub(1);
        }
        match (outcome, push.decides) {
            (Outcome::Done, _) => self.push_done(now, &push),
            (_, true) => self.deciding_push_failed(now, &push, outcome),
            (_, false) => self.further_push_failed(now, &push, outcome),
        }
        self.pump(now, push.target);
    }

    /// The stream to a life of a boat broke, or the life is known to be over: its open pushes have no
    /// answer to wait for.
    pub fn handle_boat_lost(&mut self, now: Timestamp, life: &BoatLife) {
        let lost: Vec<Key> = self
            .pushes
            .iter()
            .filter(|(_, push)| push.session.life == *life)
            .map(|(key, _)| key)
            .collect();
        for key in lost {
            self.handle_outcome(now, PushToken(key), Outcome::Unreachable);
        }
    }

    /// Gives up on pushes whose boat did not answer in time.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((deadline, push)) = self.deadlines.front().copied() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_front();
            self.handle_outcome(now, PushToken(push), Outcome::Unreachable);
        }
    }

    /// Partitions were given away: their records are somebody else's, and are dropped here without a
    /// settlement. What was pushed of them was pushed, and will be again.
    pub fn handle_revoked(&mut self, now: Timestamp, partitions: &[PartitionKey]) {
        let gone: BTreeSet<Key> = self
            .records
            .iter()
            .filter(|(_, r)| partitions.contains(&(r.source.topic, r.source.partition)))
            .map(|(key, _)| key)
            .collect();
        let pushes: Vec<Key> = keys_of(&self.pushes, |push| gone.contains(&push.leg.record));
        for push in pushes.into_iter().filter_map(|key| self.pushes.remove(key)) {
            if push.decides {
                let lane = self.lanes.of(push.target);
                lane.outstanding = lane.outstanding.saturating_sub(1);
            }
        }
        let routes: Vec<Key> = keys_of(&self.routes, |route| gone.contains(&route.record));
        for key in routes {
            if let Some(route) = self.routes.remove(key)
                && let RouteKind::Again(leg) = route.kind
            {
                self.end_reroute(route.record, leg);
            }
        }
        self.lanes.abandon(|record| gone.contains(&record));
        for record in gone {
            self.records.remove(record);
        }
        for target in self.lanes.targets() {
            self.pump(now, target);
        }
    }

    // ---- beginnings -------------------------------------------------------------------------------

    fn tell_origin(&mut self, task: &Task) {
        if let Some(origin) = &task.origin {
            self.actions.push_back(Action::Notice(Notice {
                life: origin.life.clone(),
                session: origin.session,
                word: Word::Placed(PlacedEcho {
                    send_id: task.placed.message.send_id,
                    id: task.placed.message.id,
                    conversation: task.placed.conversation,
                    position: task.placed.position,
                }),
            }));
        }
    }

    fn begin_user(&mut self, now: Timestamp, record: Key, index: usize, offline: bool) {
        let Some(task) = self.records.get(record).map(|record| &record.task) else {
            return;
        };
        let Owed {
            user, platforms, ..
        } = &task.owed[index];
        let mirror = *user == task.placed.message.from;
        let stores = task.placed.message.options.has(Options::STORE_OFFLINE);
        let mail = (stores && !mirror).then(|| mail(task));
        let keeping = || keeping_mail(platforms);
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

    fn route(
        &mut self,
        record: Key,
        kind: RouteKind,
        user: UserId,
        platforms: Vec<Platform>,
        forced: Vec<Platform>,
        mail: Option<Mail>,
    ) {
        if let Some(record) = self.records.get_mut(record) {
            record.open += 1;
        }
        let token = RouteToken(self.routes.insert(OpenRoute { record, kind }));
        self.actions.push_back(Action::Route(Route {
            token,
            user,
            platforms,
            forced,
            mail,
        }));
    }

    // ---- answers of the mailbox -------------------------------------------------------------------

    fn routed_first(
        &mut self,
        now: Timestamp,
        key: Key,
        index: usize,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        let owed = record.task.owed[index].clone();
        let mirror = owed.user == record.task.placed.message.from;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return record.fail_all(now, &owed, failure),
        };
        if mirror && let Some(origin) = &record.task.origin {
            answer.live.retain(|entry| entry.session != origin.session);
        }
        let nobody = owed.platforms.is_empty() && answer.live.is_empty();
        if nobody && !mirror {
            record.note(now, None, Event::ReachableBySync);
        }
        self.start_legs(now, key, &owed, &answer, mirror);
    }

    /// Starts a leg for each platform that has sessions, and ends the others.
    fn start_legs(
        &mut self,
        now: Timestamp,
        key: Key,
        owed: &Owed,
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
            match Answered::of(answer, target.platform) {
                Answered::Live(sessions) => {
                    let Some(leg) = self.add_leg(key, target, mirror, sessions) else {
                        return;
                    };
                    self.enter_lane(now, leg);
                }
                ended => self.note_end(now, key, target, ended),
            }
        }
    }

    /// The mailbox's answer ends what is owed to the target, unless a session lives there.
    fn note_end(&mut self, now: Timestamp, key: Key, target: Target, answered: Answered) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        match answered {
            Answered::Live(_) => {}
            Answered::Stored => record.note_stored(now, target),
            Answered::Acknowledged => record.note_had(now, target),
            // It was asked to store, and says neither that it did nor that somebody lives.
            Answered::Nobody if record.stores_for(target) => {
                record.fail(now, target, FailureCause::MailboxRefused);
            }
            Answered::Nobody => record.note_absent(now, target),
        }
    }

    fn routed_offline(
        &mut self,
        now: Timestamp,
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
        // Sessions on platforms that nothing was stored for.
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

    fn routed_renew(
        &mut self,
        now: Timestamp,
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
            record.note(now, Some(target), Event::ReachableBySync);
            self.actions.push_back(close(entry.life, entry.session));
        }
    }

    fn routed_again(
        &mut self,
        now: Timestamp,
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
            Ok(answer) => match Answered::of(&answer, target.platform) {
                Answered::Live(sessions) => {
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

    fn routed_store(
        &mut self,
        now: Timestamp,
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

    /// The mailbox was told to store: it has, or the device had it already, or it refuses.
    fn after_forced_store(
        &mut self,
        now: Timestamp,
        key: Key,
        target: Target,
        answer: &RouteAnswer,
    ) {
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
                    word: Word::Hint,
                }));
            }
        } else if answer.acknowledged.contains(&target.platform) {
            record.note_had(now, target);
        } else {
            record.fail(now, target, FailureCause::MailboxRefused);
        }
    }

    // ---- lanes and pushes -------------------------------------------------------------------------

    fn add_leg(
        &mut self,
        key: Key,
        target: Target,
        mirror: bool,
        sessions: Vec<SessionEntry>,
    ) -> Option<LegKey> {
        let record = self.records.get_mut(key)?;
        record.open += 1;
        record.legs.push(Leg {
            target,
            mirror,
            sessions,
            reroutes: 0,
        });
        Some(LegKey {
            record: key,
            leg: record.legs.len() as u32 - 1,
        })
    }

    /// A leg comes to its lane: it is pushed, waits, or finds no room.
    fn enter_lane(&mut self, now: Timestamp, key: LegKey) {
        let Some(leg) = self.leg(key.record, key.leg) else {
            return;
        };
        let (target, newest) = (leg.target, leg.sessions[0].clone());
        let (window, most) = (self.limits.lane_window, self.limits.lane_max);
        let lane = self.lanes.of(target);
        if lane.waiting.is_empty() && lane.takes(window) {
            self.push(now, key);
        } else if lane.waiting.len() + lane.outstanding < most {
            lane.waiting.push_back(Waiting {
                key,
                session: newest.session,
                life: newest.life,
            });
        } else {
            self.session_failed(now, key, Outcome::Full);
        }
    }

    fn pump(&mut self, now: Timestamp, target: Target) {
        while let Some(key) = self.lanes.next(target, self.limits.lane_window) {
            self.push(now, key);
        }
    }

    /// Writes towards all sessions of the leg; the newest decides.
    fn push(&mut self, now: Timestamp, key: LegKey) {
        let Some(record) = self.records.get_mut(key.record) else {
            return;
        };
        let leg = &record.legs[key.leg as usize];
        let message = &record.task.placed.message;
        let target = leg.target;
        let attempt = record.task.retry_count;
        let deadline = now + self.limits.push_deadline();
        for (nth, entry) in leg.sessions.iter().enumerate() {
            let push = self.pushes.insert(OpenPush {
                leg: key,
                session: SessionKey {
                    user: target.user,
                    session: entry.session,
                    life: entry.life.clone(),
                },
                target,
                decides: nth == 0,
                sent_at: now,
            });
            self.deadlines.push_back((deadline, push));
            self.actions.push_back(Action::Push(Push {
                token: PushToken(push),
                life: entry.life.clone(),
                session: entry.session,
                message: message.id,
                frame: record.task.frame.clone(),
                needs_ack: message.options.has(Options::NEEDS_ACK),
                deadline,
            }));
            record.ledger.push(LedgerEntry {
                message: message.id,
                at: now,
                target: Some(target),
                event: Event::Pushed {
                    session: entry.session,
                    life: entry.life.clone(),
                    attempt,
                },
            });
        }
        // The leg itself is open already; each further session is one thing more.
        record.open += leg.sessions.len() - 1;
        self.lanes.of(target).outstanding += 1;
        self.forget_old_deadlines();
    }

    /// Answered pushes leave their deadlines behind; they are swept before they outweigh the rest.
    fn forget_old_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.pushes.len() + 1024 {
            let pushes = &self.pushes;
            self.deadlines
                .retain(|(_, push)| pushes.get(*push).is_some());
        }
    }

    fn push_done(&mut self, now: Timestamp, push: &OpenPush) {
        let Some(record) = self.records.get_mut(push.leg.record) else {
            return;
        };
        let session = push.session.session;
        let event = if record.task.placed.message.options.has(Options::NEEDS_ACK) {
            self.budget.acked(now, now.since(push.sent_at));
            Event::Acked { session }
        } else {
            Event::Written { session }
        };
        if push.decides {
            record.note(now, Some(push.target), event);
        }
        self.close_one(now, push.leg.record);
    }

    /// A session that does not decide: it is put right, and nothing is owed.
    fn further_push_failed(&mut self, now: Timestamp, push: &OpenPush, outcome: Outcome) {
        let session = &push.session;
        match outcome {
            Outcome::NoSession => self.actions.push_back(Action::Forget(session.clone())),
            Outcome::NoAck | Outcome::Full => self.close(session.life.clone(), session.session),
            Outcome::Done | Outcome::Unreachable => {}
        }
        self.close_one(now, push.leg.record);
    }

    fn deciding_push_failed(&mut self, now: Timestamp, push: &OpenPush, outcome: Outcome) {
        let session = &push.session;
        match outcome {
            Outcome::NoSession => self.actions.push_back(Action::Forget(session.clone())),
            Outcome::NoAck => self.close_once(push),
            Outcome::Done | Outcome::Full | Outcome::Unreachable => {}
        }
        self.session_failed(now, push.leg, outcome);
        // What happened to the session happens to all that wait for it.
        let waiting = self
            .lanes
            .take_waiting(push.target, |waiting| match outcome {
                Outcome::Unreachable => waiting.life == session.life,
                Outcome::Done | Outcome::NoAck | Outcome::NoSession | Outcome::Full => {
                    waiting.session == session.session
                }
            });
        for key in waiting {
            self.session_failed(now, key, outcome);
        }
    }

    /// The session that decides on this leg did not take the message.
    fn session_failed(&mut self, now: Timestamp, key: LegKey, outcome: Outcome) {
        let reroutes_max = self.limits.reroutes_max;
        let Some(record) = self.records.get_mut(key.record) else {
            return;
        };
        let options = record.task.placed.message.options;
        let leg = &mut record.legs[key.leg as usize];
        let target = leg.target;
        let cause = match outcome {
            Outcome::Done => return,
            Outcome::NoAck => FailureCause::NoAck,
            Outcome::NoSession => FailureCause::NoSession,
            Outcome::Full => FailureCause::SessionFull,
            Outcome::Unreachable => FailureCause::BoatUnreachable,
        };
        if leg.mirror {
            return self.mirror_failed(now, key, cause);
        }
        let stores = options.has(Options::STORE_OFFLINE) && target.platform.keeps_mail();
        match outcome {
            Outcome::NoSession if leg.reroutes < reroutes_max => {
                leg.reroutes += 1;
                let mail = stores.then(|| mail(&record.task));
                record.note_failed(now, Some(target), cause);
                self.lanes.of(target).rerouting += 1;
                let again = RouteKind::Again(key.leg);
                let platforms = keeping_mail(&[target.platform]);
                self.route(key.record, again, target.user, platforms, Vec::new(), mail);
            }
            Outcome::Full if stores => {
                let mail = Some(mail(&record.task));
                record.note_failed(now, Some(target), cause);
                let platforms = vec![target.platform];
                self.route(
                    key.record,
                    RouteKind::Store(key.leg),
                    target.user,
                    platforms.clone(),
                    platforms,
                    mail,
                );
            }
            Outcome::Done
            | Outcome::NoAck
            | Outcome::NoSession
            | Outcome::Full
            | Outcome::Unreachable => self.fail_leg(now, key.record, target, cause),
        }
    }

    /// A session of the sender missed it: it is ended, so that it syncs; or its boat is out of reach, and
    /// that must be tried again.
    fn mirror_failed(&mut self, now: Timestamp, key: LegKey, cause: FailureCause) {
        let Some(record) = self.records.get_mut(key.record) else {
            return;
        };
        let leg = &record.legs[key.leg as usize];
        let (target, newest) = (leg.target, leg.sessions[0].clone());
        record.note_failed(now, Some(target), cause);
        match cause {
            FailureCause::BoatUnreachable => record.failures.push(Failure {
                user: target.user,
                platform: None,
                cause,
            }),
            FailureCause::NoAck
            | FailureCause::NoSession
            | FailureCause::SessionFull
            | FailureCause::MailboxUnavailable
            | FailureCause::MailboxRefused => {
                record.note(now, Some(target), Event::ReachableBySync);
                // A session that gave no ack was told already.
                if cause == FailureCause::SessionFull {
                    self.close(newest.life, newest.session);
                }
            }
        }
        self.close_one(now, key.record);
    }

    fn close_once(&mut self, push: &OpenPush) {
        let session = push.session.session;
        let lane = self.lanes.of(push.target);
        if lane.closed.replace(session) != Some(session) {
            self.close(push.session.life.clone(), session);
        }
    }

    fn close(&mut self, life: BoatLife, session: SessionId) {
        self.actions.push_back(close(life, session));
    }

    // ---- ends -------------------------------------------------------------------------------------

    /// The leg's attempt came to nothing, and something may still be owed.
    fn fail_leg(&mut self, now: Timestamp, key: Key, target: Target, cause: FailureCause) {
        if let Some(record) = self.records.get_mut(key) {
            record.fail(now, target, cause);
        }
        self.close_one(now, key);
    }

    /// One thing of the record has ended; with the last one the record settles.
    fn close_one(&mut self, now: Timestamp, key: Key) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        record.open -= 1;
        if record.open > 0 {
            return;
        }
        let Some(mut record) = self.records.remove(key) else {
            return;
        };
        let left = settle::settle(
            record.source,
            &record.task,
            &record.failures,
            now,
            &self.limits,
        );
        record.ledger.extend(left.ledger);
        record.note(now, None, Event::Settled);
        self.actions.push_back(Action::Settled(Box::new(Settlement {
            source: record.source,
            task: record.task,
            retries: left.retries,
            letter: left.letter,
            notifications: record.notifications,
            ledger: record.ledger,
        })));
    }

    // ---- small print ------------------------------------------------------------------------------

    fn leg(&self, key: Key, leg: u32) -> Option<&Leg> {
        self.records.get(key)?.legs.get(leg as usize)
    }

    fn leg_mut(&mut self, key: Key, leg: u32) -> Option<&mut Leg> {
        self.records.get_mut(key)?.legs.get_mut(leg as usize)
    }

    fn end_reroute(&mut self, key: Key, leg: u32) {
        if let Some(target) = self.leg(key, leg).map(|leg| leg.target) {
            let lane = self.lanes.of(target);
            lane.rerouting = lane.rerouting.saturating_sub(1);
        }
    }
}

impl Record {
    fn stores_for(&self, target: Target) -> bool {
        let options = self.task.placed.message.options;
        options.has(Options::STORE_OFFLINE) && target.platform.keeps_mail()
    }

    fn note(&mut self, at: Timestamp, target: Option<Target>, event: Event) {
        self.ledger.push(LedgerEntry {
            message: self.task.placed.message.id,
            at,
            target,
            event,
        });
    }

    fn note_stored(&mut self, now: Timestamp, target: Target) {
        self.note(now, Some(target), Event::StoredOffline);
        self.notify(now, target);
    }

    /// A device acknowledged it a short while ago; the ledger has that from whoever took the ack.
    fn note_had(&mut self, now: Timestamp, target: Target) {
        self.note(now, Some(target), Event::ReachableBySync);
    }

    /// Nobody is there, and the options ask for no storing.
    fn note_absent(&mut self, now: Timestamp, target: Target) {
        let event = if insists(self.task.placed.message.options) {
            Event::ReachableBySync
        } else {
            Event::Dropped
        };
        self.note(now, Some(target), event);
        self.notify(now, target);
    }

    fn notify(&mut self, now: Timestamp, target: Target) {
        let message = &self.task.placed.message;
        if wants_notification(message.options) {
            self.notifications.push(Notification {
                message: message.id,
                from: message.from,
                target,
                conversation: self.task.placed.conversation,
                accepted_at: message.accepted_at,
            });
            self.note(now, Some(target), Event::Notified);
        }
    }

    fn note_failed(&mut self, now: Timestamp, target: Option<Target>, cause: FailureCause) {
        let attempt = self.task.retry_count;
        self.note(now, target, Event::Failed { cause, attempt });
    }

    /// The attempt at the target came to nothing; it stays owed if anybody insists, and where it was no
    /// attempt at all.
    fn fail(&mut self, now: Timestamp, target: Target, cause: FailureCause) {
        self.note_failed(now, Some(target), cause);
        if self.stays_owed(cause) {
            self.failures.push(Failure {
                user: target.user,
                platform: Some(target.platform),
                cause,
            });
        } else {
            self.note(now, Some(target), Event::Dropped);
        }
    }

    fn stays_owed(&self, cause: FailureCause) -> bool {
        cause == FailureCause::MailboxUnavailable || insists(self.task.placed.message.options)
    }

    /// The user could not be routed at all.
    fn fail_all(&mut self, now: Timestamp, owed: &Owed, failure: RouteFailure) {
        let cause = cause_of(failure);
        for target in targets(owed.user, &owed.platforms) {
            self.fail(now, target, cause);
        }
        if owed.live {
            self.note_failed(now, None, cause);
        }
        let mirror = owed.user == self.task.placed.message.from;
        if owed.live && (mirror || self.stays_owed(cause)) {
            self.failures.push(Failure {
                user: owed.user,
                platform: None,
                cause,
            });
        }
    }
}

/// What the mailbox's answer says of one platform.
enum Answered {
    /// The sessions, newest first.
    Live(Vec<SessionEntry>),
    Stored,
    Acknowledged,
    Nobody,
}

impl Answered {
    fn of(answer: &RouteAnswer, platform: Platform) -> Answered {
        if answer.acknowledged.contains(&platform) {
            return Answered::Acknowledged;
        }
        let live = answer.live.iter();
        let mut sessions: Vec<SessionEntry> = live
            .filter(|entry| entry.platform == platform)
            .cloned()
            .collect();
        if !sessions.is_empty() {
            sessions.sort_by_key(|entry| std::cmp::Reverse((entry.login, entry.session)));
            return Answered::Live(sessions);
        }
        if answer.stored.contains(&platform) {
            Answered::Stored
        } else {
            Answered::Nobody
        }
    }
}

fn targets<'a>(
    user: UserId,
    platforms: impl IntoIterator<Item = &'a Platform>,
) -> impl Iterator<Item = Target> {
    let platforms = platforms.into_iter().copied();
    platforms.map(move |platform| Target { user, platform })
}

fn keeping_mail(platforms: &[Platform]) -> Vec<Platform> {
    let platforms = platforms.iter().copied();
    platforms.filter(|platform| platform.keeps_mail()).collect()
}

fn mail(task: &Task) -> Mail {
    Mail {
        id: task.placed.message.id,
        accepted_at: task.placed.message.accepted_at,
        body: task.frame.clone(),
    }
}

fn cause_of(failure: RouteFailure) -> FailureCause {
    match failure {
        RouteFailure::Unavailable => FailureCause::MailboxUnavailable,
        RouteFailure::Refused => FailureCause::MailboxRefused,
    }
}

fn close(life: BoatLife, session: SessionId) -> Action {
    Action::Notice(Notice {
        life,
        session,
        word: Word::Close(Refusal::new(
            Code::Reconnect,
            "a delivery was not acknowledged in time",
        )),
    })
}

fn keys_of<T>(arena: &Arena<T>, wanted: impl Fn(&T) -> bool) -> Vec<Key> {
    let entries = arena.iter();
    let wanted = entries.filter(|(_, value)| wanted(value));
    wanted.map(|(key, _)| key).collect()
}
