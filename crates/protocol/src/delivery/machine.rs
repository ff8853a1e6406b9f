//! The machine: its open work, and the entry and end of tasks. `routing` has the questions to the
//! mailbox and its answers, `pushing` those of the boats.

mod audiences;
mod pushing;
mod record;
mod routing;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use self::audiences::Audiences;
pub use self::pushing::{Push, PushOutcome, PushToken};
use self::record::{Leg, Record};
pub use self::routing::{Route, RouteFailure, RouteToken};
use super::arena::{Arena, Key};
use super::budget::Budget;
use super::lanes::{Lanes, LegKey};
use super::{
    Action, DeliveryLimits, DeliveryLoad, DeliveryTask, Notice, PartitionKey, SessionEvent,
    Settlement, Source, settle,
};
use crate::frame::PlacedEcho;
use crate::ledger::{FailureCause, LedgerEvent};
use crate::mailbox::RouteAnswer;
use crate::message::Target;
use crate::presence::{BoatLife, DeniedBoats, SessionKey};
use crate::{Moment, Timestamp, UserId};

/// All deliveries in flight. Tasks go in, actions come out; every task ends in exactly one
/// [`Settlement`], unless its partition is revoked before.
#[derive(Clone, Debug)]
pub struct Delivery {
    limits: DeliveryLimits,
    budget: Budget,
    records: Arena<Record>,
    /// Users that these records are owed to, and bytes of their frames.
    users: usize,
    bytes: usize,
    routes: Arena<OpenRoute>,
    pushes: Arena<OpenPush>,
    lanes: Lanes,
    audiences: Audiences,
    /// Deadlines of pushes, on the timer. All pushes wait equally long, so the earliest is in
    /// front.
    deadlines: VecDeque<(Timestamp, Key)>,
    actions: VecDeque<Action>,
    /// Empty, shared by all routes until they are stamped.
    no_denied_boats: DeniedBoats,
}

#[derive(Clone, Debug)]
struct OpenRoute {
    record: Key,
    kind: RouteKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteKind {
    /// First look at a user of the task, by index in `obligations`.
    First(usize),
    /// First look at a member of the audience.
    Member(UserId),
    /// The receiver counts as offline: store, even if sessions live.
    Offline(usize),
    /// Close the sender's other sessions, so that they sync.
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
    /// Whether this push decides its leg; answers of the others only have side effects.
    decides: bool,
    /// Time on the timer.
    sent_at: Timestamp,
}
impl Delivery {
    pub fn new(limits: DeliveryLimits) -> Delivery {
        Delivery {
            budget: Budget::new(&limits),
            limits,
            records: Arena::default(),
            users: 0,
            bytes: 0,
            routes: Arena::default(),
            pushes: Arena::default(),
            lanes: Lanes::default(),
            audiences: Audiences::default(),
            deadlines: VecDeque::new(),
            actions: VecDeque::new(),
            no_denied_boats: DeniedBoats::default(),
        }
    }

    /// Number of further small tasks that fit now: members of a group and large frames count as
    /// well.
    pub fn room(&self) -> usize {
        let is_full = self.users >= self.limits.users_in_flight_max
            || self.bytes >= self.limits.bytes_in_flight_max;
        if is_full {
            return 0;
        }
        self.budget.limit().saturating_sub(self.records.len())
    }

    pub fn is_idle(&self) -> bool {
        self.records.len() == 0
    }

    pub fn load(&self) -> DeliveryLoad {
        DeliveryLoad {
            records: self.records.len(),
            records_max: self.budget.limit(),
            users: self.users,
            bytes: self.bytes,
            pushes: self.pushes.len(),
            lanes: self.lanes.len(),
        }
    }

    /// Returns the next action; drain completely after every call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time of the next `handle_timeout` call, on the timer.
    pub fn poll_timeout(&mut self) -> Option<Timestamp> {
        while let Some((deadline, push)) = self.deadlines.front() {
            if self.pushes.get(*push).is_some() {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Begins a delivery. Hands the task back if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller keeps the task it gave")]
    pub fn handle_task(
        &mut self,
        now: impl Into<Moment>,
        source: Source,
        mut task: DeliveryTask,
    ) -> Result<(), DeliveryTask> {
        let now = now.into();
        if self.room() == 0 {
            return Err(task);
        }
        self.notify_origin(&task);
        let is_offline = task.retry_count >= self.limits.offline_after;
        let users = task.obligations.len();
        let ledger = std::mem::take(&mut task.earlier_entries);
        self.users += users;
        self.bytes += task.frame_bytes();
        let record = self.records.insert(Record {
            source,
            task,
            legs: Vec::new(),
            // One for this call, so that nothing settles before every user has been looked at.
            open: 1,
            last_member: None,
            is_sync_noted: false,
            failures: Vec::new(),
            notifications: Vec::new(),
            ledger,
        });
        for index in 0..users {
            self.begin_user(now, record, index, is_offline);
        }
        self.begin_audience(now, record);
        self.close_one(now, record);
        Ok(())
    }

    /// Takes the mailbox's answer to a route, or its failure.
    pub fn handle_routed(
        &mut self,
        now: impl Into<Moment>,
        token: RouteToken,
        answer: Result<RouteAnswer, RouteFailure>,
    ) {
        let now = now.into();
        let Some(route) = self.routes.remove(token.0) else {
            return;
        };
        match route.kind {
            RouteKind::First(index) => self.handle_first_route(now, route.record, index, answer),
            RouteKind::Member(user) => self.handle_member_route(now, route.record, user, answer),
            RouteKind::Offline(index) => {
                self.handle_offline_route(now, route.record, index, answer)
            }
            RouteKind::Renew(index) => self.handle_renew_route(now, route.record, index, answer),
            RouteKind::Again(leg) => self.handle_reroute(now, route.record, leg, answer),
            RouteKind::Store(leg) => self.handle_store_route(now, route.record, leg, answer),
        }
        self.close_one(now, route.record);
        if let RouteKind::Member(_) = route.kind {
            self.audiences.routes = self.audiences.routes.saturating_sub(1);
        }
        self.reach_audiences(now);
    }

    /// Takes a boat's answer to a push, or the lack of one. Answers to unknown or already answered
    /// pushes change nothing. Returns the acknowledgement latency of the device, if this is its
    /// acknowledgement.
    pub fn handle_outcome(
        &mut self,
        now: impl Into<Moment>,
        token: PushToken,
        outcome: PushOutcome,
    ) -> Option<Duration> {
        let now = now.into();
        let push = self.pushes.remove(token.0)?;
        if push.decides {
            let lane = self.lanes.lane_mut(push.target);
            lane.outstanding_pushes = lane.outstanding_pushes.saturating_sub(1);
        }
        let mut latency = None;
        match (outcome, push.decides) {
            (PushOutcome::Done, _) => latency = self.push_done(now, &push),
            (_, true) => self.deciding_push_failed(now, &push, outcome),
            (_, false) => self.further_push_failed(now, &push, outcome),
        }
        self.pump(now, push.target);
        self.reach_audiences(now);
        latency
    }

    /// Fails the open pushes to a life of a boat: its stream broke, or the life is known to be
    /// over.
    pub fn handle_boat_lost(&mut self, now: impl Into<Moment>, life: &BoatLife) {
        let now = now.into();
        let lost_pushes: Vec<Key> = self
            .pushes
            .iter()
            .filter(|(_, push)| push.session.life == *life)
            .map(|(key, _)| key)
            .collect();
        for key in lost_pushes {
            self.handle_outcome(now, PushToken(key), PushOutcome::Unreachable);
        }
    }

    /// Gives up on pushes whose boat did not answer in time.
    pub fn handle_timeout(&mut self, now: impl Into<Moment>) {
        let now = now.into();
        while let Some((deadline, push)) = self.deadlines.front().copied() {
            if deadline > now.timer {
                break;
            }
            self.deadlines.pop_front();
            self.handle_outcome(now, PushToken(push), PushOutcome::Unreachable);
        }
    }

    /// Drops the records of revoked partitions without a settlement: they belong to another carrier
    /// now, which pushes them again.
    pub fn handle_revoked(&mut self, now: impl Into<Moment>, partitions: &[PartitionKey]) {
        let now = now.into();
        let revoked_records: BTreeSet<Key> = self
            .records
            .iter()
            .filter(|(_, r)| partitions.contains(&(r.source.topic, r.source.partition)))
            .map(|(key, _)| key)
            .collect();
        let pushes: Vec<Key> = find_keys(&self.pushes, |push| {
            revoked_records.contains(&push.leg.record)
        });
        for push in pushes.into_iter().filter_map(|key| self.pushes.remove(key)) {
            if push.decides {
                let lane = self.lanes.lane_mut(push.target);
                lane.outstanding_pushes = lane.outstanding_pushes.saturating_sub(1);
            }
        }
        let routes: Vec<Key> = find_keys(&self.routes, |route| {
            revoked_records.contains(&route.record)
        });
        for key in routes {
            let Some(route) = self.routes.remove(key) else {
                continue;
            };
            match route.kind {
                RouteKind::Again(leg) => self.end_reroute(route.record, leg),
                RouteKind::Member(_) => {
                    self.audiences.routes = self.audiences.routes.saturating_sub(1);
                }
                RouteKind::First(_)
                | RouteKind::Offline(_)
                | RouteKind::Renew(_)
                | RouteKind::Store(_) => {}
            }
        }
        self.lanes
            .abandon(|record| revoked_records.contains(&record));
        self.audiences
            .abandon(|record| revoked_records.contains(&record));
        for record in revoked_records {
            self.remove(record);
        }
        for target in self.lanes.targets() {
            self.pump(now, target);
        }
        self.reach_audiences(now);
    }

    fn notify_origin(&mut self, task: &DeliveryTask) {
        if let Some(origin) = &task.origin {
            self.actions.push_back(Action::Notice(Notice {
                life: origin.life.clone(),
                session: origin.session,
                event: SessionEvent::Placed(PlacedEcho {
                    send_id: task.placed.message.send_id,
                    id: task.placed.message.id,
                    conversation: task.placed.conversation,
                    position: task.placed.position,
                }),
            }));
        }
    }

    /// Fails the leg's attempt; the target may still be owed the message.
    fn fail_leg(&mut self, now: Moment, key: Key, target: Target, cause: FailureCause) {
        if let Some(record) = self.records.get_mut(key) {
            record.fail(now, target, cause);
        }
        self.close_one(now, key);
    }

    /// Ends one open item of the record; with the last one the record settles.
    fn close_one(&mut self, now: Moment, key: Key) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        record.open -= 1;
        if record.open > 0 {
            return;
        }
        let Some(mut record) = self.remove(key) else {
            return;
        };
        let remainder = settle::settle(
            record.source,
            &record.task,
            &record.failures,
            now.wall,
            &self.limits,
        );
        record.ledger.extend(remainder.ledger);
        record.note(now, None, LedgerEvent::Settled);
        self.actions.push_back(Action::Settled(Box::new(Settlement {
            source: record.source,
            task: record.task,
            retries: remainder.retries,
            letter: remainder.letter,
            notifications: record.notifications,
            ledger: record.ledger,
        })));
    }

    fn remove(&mut self, key: Key) -> Option<Record> {
        let record = self.records.remove(key)?;
        self.users -= record.task.obligations.len();
        self.bytes -= record.task.frame_bytes();
        Some(record)
    }

    fn leg(&self, key: Key, leg: u32) -> Option<&Leg> {
        self.records.get(key)?.legs.get(leg as usize)
    }

    fn leg_mut(&mut self, key: Key, leg: u32) -> Option<&mut Leg> {
        self.records.get_mut(key)?.legs.get_mut(leg as usize)
    }

    fn end_reroute(&mut self, key: Key, leg: u32) {
        if let Some(target) = self.leg(key, leg).map(|leg| leg.target) {
            let lane = self.lanes.lane_mut(target);
            lane.reroute_count = lane.reroute_count.saturating_sub(1);
        }
    }
}

fn find_keys<T>(arena: &Arena<T>, matches: impl Fn(&T) -> bool) -> Vec<Key> {
    let entries = arena.iter();
    let matches = entries.filter(|(_, value)| matches(value));
    matches.map(|(key, _)| key).collect()
}
