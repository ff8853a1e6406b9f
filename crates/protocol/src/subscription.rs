//! Subscriptions of one boat's sessions to large groups.
//!
//! A large group is pushed to nobody in particular: each record goes once to every boat, and the
//! boat passes it to the sessions that subscribed. A session has a *seat* for each group it names.
//! The seat is made first, closed; then the member's row is read; then the seat opens, and the
//! group's end is compared with what the client has. Nothing is acknowledged or retried: a boat
//! keeps the group's version and end, applies a record that continues them, and asks a station
//! wherever one does not. So a client has each body, or a signal that says how far the group is.
//!
//! Rows of members are merged by their versions wherever they come from, also into closed seats: a
//! read that was overtaken by a removal opens nothing.

mod partitions;
mod questions;
mod record;
mod seats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use questions::{GroupAnswer, GroupFacts, Question};
pub use record::{Broadcast, GroupRecord, RecordKind};
pub use seats::{Delivery, Seat};

use crate::group::Member;
use crate::history::Version;
use crate::pause::{between, mix};
use crate::{GroupId, Seq, SessionId, Timestamp, UserId};
use partitions::Partitions;
use questions::{Item, Questions};
use seats::{Move, SeatKey, SeatState, Seats};

/// Groups that one session subscribes to at a time.
pub const GROUPS_MAX: usize = 1000;

/// Groups that one session watches at a time.
pub const WATCHED_MAX: usize = 8;

/// Seats of one boat: 40 bytes each.
pub const SEATS_MAX: usize = 4_000_000;

/// Time over which boats spread a question that all of them have at the same moment.
const SPREAD: Duration = Duration::from_secs(2);

/// Bound of a client's own spread before it reads what a signal announced.
const CLIENT_SPREAD_MAX: Duration = Duration::from_secs(5);

/// How far a group has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupEnd {
    /// Position of the last message.
    pub seq: Seq,
    /// The last change of a message.
    pub rev: u64,
}

impl GroupEnd {
    /// Whether there is something behind `other`.
    pub fn is_ahead_of(self, other: GroupEnd) -> bool {
        self.seq > other.seq || self.rev > other.rev
    }

    pub fn max(self, other: GroupEnd) -> GroupEnd {
        GroupEnd {
            seq: self.seq.max(other.seq),
            rev: self.rev.max(other.rev),
        }
    }
}

/// Word to a client about a group: how far it is, or why it hears nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSignal {
    pub group: GroupId,
    pub end: GroupEnd,
    /// Time of the last message.
    pub at: Timestamp,
    pub state: SubscriptionState,
    /// Time over which clients spread the reads that follow.
    pub spread: Duration,
}

impl GroupSignal {
    /// Signal to a client that hears no more of the group than this.
    pub const fn last(group: GroupId, state: SubscriptionState) -> GroupSignal {
        GroupSignal {
            group,
            end: GroupEnd {
                seq: Seq::ZERO,
                rev: 0,
            },
            at: Timestamp::ZERO,
            state,
            spread: Duration::ZERO,
        }
    }
}

/// What became of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionState {
    Subscribed,
    /// The group is not large: its messages are pushed.
    Small,
    /// The user is not in the group, or there is none.
    Gone,
    /// The boat has no seat left: ask for the row from time to time.
    Full,
}

impl SubscriptionState {
    pub const ALL: [SubscriptionState; 4] = [
        SubscriptionState::Subscribed,
        SubscriptionState::Small,
        SubscriptionState::Gone,
        SubscriptionState::Full,
    ];

    /// Number on the wire.
    pub const fn number(self) -> i32 {
        match self {
            SubscriptionState::Subscribed => 1,
            SubscriptionState::Small => 2,
            SubscriptionState::Gone => 3,
            SubscriptionState::Full => 4,
        }
    }
}

/// What a group is to its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    Large,
    Small,
    /// There is none, or it was dissolved.
    Gone,
}

impl GroupState {
    const fn signal_state(self) -> SubscriptionState {
        match self {
            GroupState::Large => SubscriptionState::Subscribed,
            GroupState::Small => SubscriptionState::Small,
            GroupState::Gone => SubscriptionState::Gone,
        }
    }
}

/// Actions for the caller, to do in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a station; answer by `handle_answer`, in any case.
    Ask(Question),
    /// Pass this to the seats of one connection loop: each gets what [`Seat::delivery`] says.
    Broadcast {
        loop_index: usize,
        seats: Arc<Vec<Seat>>,
        broadcast: Arc<Broadcast>,
    },
    /// Pass this to the open seats of one connection loop.
    SignalAll {
        loop_index: usize,
        seats: Arc<Vec<Seat>>,
        signal: GroupSignal,
    },
    Signal {
        loop_index: usize,
        session: SessionId,
        signal: GroupSignal,
    },
}

/// Subscriptions of one boat. See the [module](self).
#[derive(Clone, Debug)]
pub struct Subscriptions {
    groups: BTreeMap<GroupId, Group>,
    subscribers: BTreeMap<SessionId, Subscriber>,
    partitions: Partitions,
    questions: Questions,
    seats_max: usize,
    seat_count: usize,
    /// Sessions that wait for nothing any more, and have a set that came meanwhile.
    released_sessions: BTreeSet<SessionId>,
    actions: VecDeque<Action>,
    /// State of the random numbers that spread questions.
    random: u64,
}

#[derive(Clone, Debug)]
struct Subscriber {
    user: UserId,
    loop_index: usize,
    groups: Vec<GroupId>,
    watched_groups: Vec<GroupId>,
    /// Seats whose row is being asked for the first time.
    asked_count: usize,
    /// Set that came while a question was under way; the last one counts.
    next_set: Option<BTreeMap<GroupId, GroupEnd>>,
}

/// A group with at least one seat.
#[derive(Clone, Debug, Default)]
struct Group {
    /// Seats by connection loop.
    seats: Seats,
    /// Seats without their row.
    waiting: BTreeMap<SeatKey, Wait>,
    /// `None` until a station or a record said it.
    partition: Option<u32>,
    /// `None` until a station answered, and while all seats are closed for good.
    known: Option<KnownGroup>,
}

/// Waiting seats whose rows an answer brings: their loop, and what the client has.
type AnsweredSeats = BTreeMap<SeatKey, (usize, Option<GroupEnd>)>;

/// A seat that waits for its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    /// Number of the last question before the wait began: only later ones end it.
    since: u64,
    /// What the client has. `None`: the seat was open before, and may have missed something.
    client_end: Option<GroupEnd>,
    /// Whether the session's next set waits for this seat: until the row was asked for once.
    is_first_try: bool,
}

/// State of a large group as far as the boat knows it.
#[derive(Clone, Copy, Debug)]
struct KnownGroup {
    /// Record that last changed anything of the group: all rows up to it are in the seats.
    version: Version,
    end: GroupEnd,
    at: Timestamp,
    present: u32,
}

impl KnownGroup {
    fn signal(&self, group: GroupId) -> GroupSignal {
        let spread = Duration::from_millis(u64::from(self.present / 10));
        GroupSignal {
            group,
            end: self.end,
            at: self.at,
            state: SubscriptionState::Subscribed,
            spread: spread.min(CLIENT_SPREAD_MAX),
        }
    }
}

impl Subscriptions {
    /// Subscriptions of a boat with so many seats. `seed` is any random number.
    pub fn new(seats_max: usize, seed: u64) -> Subscriptions {
        Subscriptions {
            groups: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            partitions: Partitions::default(),
            questions: Questions::default(),
            seats_max,
            seat_count: 0,
            released_sessions: BTreeSet::new(),
            actions: VecDeque::new(),
            random: seed,
        }
    }

    /// Number of seats, open and closed.
    pub fn seat_count(&self) -> usize {
        self.seat_count
    }

    /// Replaces the set of groups that a session subscribes to, with what its client has of each.
    /// A session keeps its seats in groups that stay.
    pub fn subscribe(
        &mut self,
        session: SessionId,
        user: UserId,
        loop_index: usize,
        groups: &[(GroupId, GroupEnd)],
        now: Timestamp,
    ) {
        let subscriber = self.subscribers.entry(session).or_insert(Subscriber {
            user,
            loop_index,
            groups: Vec::new(),
            watched_groups: Vec::new(),
            asked_count: 0,
            next_set: None,
        });
        subscriber.next_set = Some(groups.iter().copied().take(GROUPS_MAX).collect());
        if subscriber.asked_count == 0 {
            self.released_sessions.insert(session);
        }
        self.go_on(now);
    }

    /// Replaces the groups that a session has open: these get bodies in any case.
    pub fn watch(&mut self, session: SessionId, groups: &[GroupId]) {
        let Some(subscriber) = self.subscribers.get_mut(&session) else {
            return;
        };
        subscriber.watched_groups = groups.iter().copied().take(WATCHED_MAX).collect();
        let subscriber = &*subscriber;
        for group_id in &subscriber.groups {
            let is_watching = subscriber.watched_groups.contains(group_id);
            if let Some(group) = self.groups.get_mut(group_id) {
                group.seats.watch(
                    subscriber.loop_index,
                    (subscriber.user, session),
                    is_watching,
                );
            }
        }
    }

    /// Takes away the seats of a session that has ended.
    pub fn end_session(&mut self, session: SessionId) {
        let Some(subscriber) = self.subscribers.remove(&session) else {
            return;
        };
        self.released_sessions.remove(&session);
        for group_id in &subscriber.groups {
            self.remove_seat(*group_id, subscriber.loop_index, (subscriber.user, session));
        }
    }

    /// Takes what a carrier's stream says about the partitions that it serves: all of them.
    pub fn handle_serves(&mut self, stream: u32, partitions: &[u32], now: Timestamp) {
        let moved = self.partitions.serve(stream, partitions, now);
        self.ask_of_partitions(&moved, now);
    }

    /// Notes that a carrier left out records of this stream.
    pub fn handle_cut(&mut self, stream: u32, now: Timestamp) {
        let cut = self.partitions.served_by(stream);
        self.ask_of_partitions(&cut, now);
    }

    /// Notes that a carrier's stream has ended.
    pub fn handle_stream_ended(&mut self, stream: u32, now: Timestamp) {
        let lost = self.partitions.end(stream, now);
        self.ask_of_partitions(&lost, now);
    }

    /// Takes a record of a group.
    pub fn handle_record(&mut self, record: GroupRecord, now: Timestamp) {
        let group_id = record.group;
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        group.partition = Some(record.partition);
        self.partitions.expect(record.partition, now);
        match record.kind {
            RecordKind::Command {
                before,
                members,
                present,
                state,
            } => {
                for (user, member) in &members {
                    self.merge_member(group_id, *user, member, now);
                }
                self.take_command(group_id, before, record.version, present, state, now);
            }
            RecordKind::Message(broadcast) => {
                let end = GroupEnd {
                    seq: broadcast.seq,
                    rev: 0,
                };
                self.broadcast(group_id, record.version, end, record.at, broadcast, now);
            }
            RecordKind::Change { rev, broadcast } => {
                let end = GroupEnd {
                    seq: Seq::ZERO,
                    rev,
                };
                let at = Timestamp::ZERO;
                self.broadcast(group_id, record.version, end, at, broadcast, now);
            }
        }
        self.go_on(now);
    }

    /// Takes the answer to a question; what it leaves out, or all of it (`None`), is asked again.
    pub fn handle_answer(&mut self, number: u64, answer: Option<GroupAnswer>, now: Timestamp) {
        let Some(question) = self.questions.answered(number) else {
            return;
        };
        let answer = answer.unwrap_or_default();
        let group_ids: BTreeSet<GroupId> = question.groups().collect();
        for group_id in group_ids {
            self.take_group_answer(group_id, &question, &answer, now);
        }
        self.go_on(now);
    }

    /// Acts on passed deadlines.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let unserved = self.partitions.unserved(now);
        self.ask_of_partitions(&unserved, now);
        self.go_on(now);
    }

    /// Returns the next action. Call until it is `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time at which to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let unserved_at = (!self.groups.is_empty()).then(|| self.partitions.deadline());
        let deadlines = [self.questions.deadline(), unserved_at.flatten()];
        deadlines.into_iter().flatten().min()
    }

    /// Does everything the last event made possible.
    fn go_on(&mut self, now: Timestamp) {
        while let Some(session) = self.released_sessions.pop_first() {
            self.apply_next_set(session, now);
        }
        while let Some(question) = self.questions.next(now) {
            self.actions.push_back(Action::Ask(question));
        }
    }

    fn apply_next_set(&mut self, session: SessionId, now: Timestamp) {
        let Some(subscriber) = self.subscribers.get_mut(&session) else {
            return;
        };
        let Some(next_set) = subscriber.next_set.take() else {
            return;
        };
        let (user, loop_index) = (subscriber.user, subscriber.loop_index);
        let former_groups =
            std::mem::replace(&mut subscriber.groups, next_set.keys().copied().collect());
        for group_id in former_groups {
            if !next_set.contains_key(&group_id) {
                self.remove_seat(group_id, loop_index, (user, session));
            }
        }
        let mut full_groups = Vec::new();
        for (group_id, client_end) in next_set {
            if !self.take_seat(group_id, session, client_end, now) {
                full_groups.push(group_id);
            }
        }
        if let Some(subscriber) = self.subscribers.get_mut(&session) {
            subscriber.groups.retain(|it| !full_groups.contains(it));
        }
        for group_id in full_groups {
            self.actions.push_back(Action::Signal {
                loop_index,
                session,
                signal: GroupSignal::last(group_id, SubscriptionState::Full),
            });
        }
    }

    /// Makes a closed seat, or closes one that heard its last, and has the row read. False: there
    /// is no seat left.
    fn take_seat(
        &mut self,
        group_id: GroupId,
        session: SessionId,
        client_end: GroupEnd,
        now: Timestamp,
    ) -> bool {
        let Some(subscriber) = self.subscribers.get(&session) else {
            return true;
        };
        let key = (subscriber.user, session);
        let loop_index = subscriber.loop_index;
        let state = (self.groups.get(&group_id)).and_then(|it| it.seats.state(loop_index, key));
        match state {
            Some(SeatState::Open | SeatState::Waiting) => return true,
            Some(SeatState::Out) => {}
            None if self.seat_count >= self.seats_max => return false,
            None => {
                self.seat_count += 1;
                let is_watching = subscriber.watched_groups.contains(&group_id);
                let group = self.groups.entry(group_id).or_default();
                group.seats.add(loop_index, key, is_watching);
            }
        }
        self.await_row(group_id, loop_index, key, Some(client_end), now);
        true
    }

    /// Closes a seat until its row has been read.
    fn await_row(
        &mut self,
        group_id: GroupId,
        loop_index: usize,
        key: SeatKey,
        client_end: Option<GroupEnd>,
        ask_at: Timestamp,
    ) {
        let last_question = self.questions.last_number();
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        group.seats.set(loop_index, key, SeatState::Waiting);
        let wait = Wait {
            since: last_question,
            client_end,
            is_first_try: true,
        };
        group.waiting.insert(key, wait);
        if let Some(subscriber) = self.subscribers.get_mut(&key.1) {
            subscriber.asked_count += 1;
        }
        if group.known.is_none() {
            self.questions.ask(Item::group(group_id), ask_at);
        }
        self.questions.ask(Item::member(group_id, key.0), ask_at);
    }

    /// Notes that the row of a waiting seat was asked for, whatever came of it.
    fn end_first_try(&mut self, group_id: GroupId, key: SeatKey) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        if let Some(wait) = group.waiting.get_mut(&key)
            && std::mem::take(&mut wait.is_first_try)
        {
            self.release(key.1);
        }
    }

    /// Ends the wait of a seat.
    fn settle(&mut self, group_id: GroupId, loop_index: usize, key: SeatKey, state: SeatState) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        group.seats.set(loop_index, key, state);
        if (group.waiting.remove(&key)).is_some_and(|wait| wait.is_first_try) {
            self.release(key.1);
        }
        self.forget_if_unused(group_id);
    }

    /// Counts one seat of the session that its next set waits for no more.
    fn release(&mut self, session: SessionId) {
        if let Some(subscriber) = self.subscribers.get_mut(&session) {
            subscriber.asked_count -= 1;
            if subscriber.asked_count == 0 && subscriber.next_set.is_some() {
                self.released_sessions.insert(session);
            }
        }
    }

    fn remove_seat(&mut self, group_id: GroupId, loop_index: usize, key: SeatKey) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        if group.seats.remove(loop_index, key) {
            self.seat_count -= 1;
        }
        let was_asked = (group.waiting.remove(&key)).is_some_and(|wait| wait.is_first_try);
        if group.seats.is_empty() {
            self.groups.remove(&group_id);
        } else {
            self.forget_if_unused(group_id);
        }
        if was_asked {
            self.release(key.1);
        }
    }

    /// Forgets the state of a group in which all seats are closed for good: nobody hears when it
    /// gets old.
    fn forget_if_unused(&mut self, group_id: GroupId) {
        if let Some(group) = self.groups.get_mut(&group_id)
            && !group.seats.is_any_in_use()
        {
            group.known = None;
        }
    }

    /// Merges a member's row into the seats of the user.
    fn merge_member(&mut self, group_id: GroupId, user: UserId, member: &Member, now: Timestamp) {
        for (loop_index, key) in self.seats_of(group_id, user) {
            let Some(group) = self.groups.get_mut(&group_id) else {
                return;
            };
            let user_move = group.seats.merge(loop_index, key, member);
            match (group.seats.state(loop_index, key), user_move) {
                (Some(SeatState::Open), Some(Move::Out)) => self.leave(group_id, loop_index, key),
                (Some(SeatState::Out), Some(Move::In)) => {
                    self.await_row(group_id, loop_index, key, None, now);
                }
                _ => {}
            }
        }
    }

    fn seats_of(&self, group_id: GroupId, user: UserId) -> Vec<(usize, SeatKey)> {
        let group = self.groups.get(&group_id);
        group.map_or_else(Vec::new, |group| group.seats.of_user(user))
    }

    /// Closes the seat of a user who is not in the group.
    fn leave(&mut self, group_id: GroupId, loop_index: usize, key: SeatKey) {
        self.settle(group_id, loop_index, key, SeatState::Out);
        self.signal(
            loop_index,
            key,
            GroupSignal::last(group_id, SubscriptionState::Gone),
        );
    }

    /// Follows a command of the group from one version to the next.
    fn take_command(
        &mut self,
        group_id: GroupId,
        before: Version,
        after: Version,
        present: u32,
        state: GroupState,
        now: Timestamp,
    ) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        match &mut group.known {
            Some(known) if after <= known.version => {}
            Some(known) if before == known.version => {
                (known.version, known.present) = (after, present);
                if state != GroupState::Large {
                    self.close_all(group_id, u64::MAX, state.signal_state(), now);
                }
            }
            Some(_) | None => self.ask_again(group_id, now),
        }
    }

    /// Passes on a message or a change that continues what the boat has. `at`: time of the message.
    fn broadcast(
        &mut self,
        group_id: GroupId,
        version: Version,
        end: GroupEnd,
        at: Timestamp,
        broadcast: Broadcast,
        now: Timestamp,
    ) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        let Some(known) = group.known.as_mut().filter(|it| it.version >= version) else {
            return self.ask_again(group_id, now);
        };
        if !end.is_ahead_of(known.end) {
            return;
        }
        known.end = known.end.max(end);
        known.at = known.at.max(at);
        let broadcast = Arc::new(Broadcast {
            signal: known.signal(group_id),
            ..broadcast
        });
        for (loop_index, seats) in group.seats.open() {
            self.actions.push_back(Action::Broadcast {
                loop_index,
                seats: Arc::clone(seats),
                broadcast: Arc::clone(&broadcast),
            });
        }
    }

    fn take_group_answer(
        &mut self,
        group_id: GroupId,
        question: &Question,
        answer: &GroupAnswer,
        now: Timestamp,
    ) {
        // Chosen before the group's state closes seats: these rows were read after it.
        let mut answered_seats = BTreeMap::new();
        for user in question.members(group_id) {
            let row = answer.members.get(&(group_id, user));
            if let Some(Some(member)) = row {
                self.merge_member(group_id, user, member, now);
            }
            for (loop_index, key) in self.seats_of(group_id, user) {
                let group = self.groups.get(&group_id);
                let wait = group.and_then(|group| group.waiting.get(&key));
                let Some(wait) = wait.filter(|wait| wait.since < question.number) else {
                    continue;
                };
                if row.is_some() {
                    answered_seats.insert(key, (loop_index, wait.client_end));
                } else {
                    let at = self.later(now);
                    self.questions.ask(Item::member(group_id, user), at);
                    self.end_first_try(group_id, key);
                }
            }
        }
        if question.asks_for(group_id) {
            match answer.groups.get(&group_id) {
                Some(facts) => {
                    let facts = facts.as_ref();
                    self.take_facts(group_id, question.number, facts, &answered_seats, now);
                }
                None if self.groups.contains_key(&group_id) => {
                    let at = self.later(now);
                    self.questions.ask(Item::group(group_id), at);
                }
                None => {}
            }
        }
        for (key, (loop_index, client_end)) in answered_seats {
            self.take_row(group_id, loop_index, key, client_end);
        }
    }

    /// Takes a group's state from a station.
    fn take_facts(
        &mut self,
        group_id: GroupId,
        number: u64,
        facts: Option<&GroupFacts>,
        answered_seats: &AnsweredSeats,
        now: Timestamp,
    ) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        let Some(facts) = facts.filter(|facts| facts.state != GroupState::Gone) else {
            return self.close_all(group_id, number, SubscriptionState::Gone, now);
        };
        group.partition = Some(facts.partition);
        self.partitions.expect(facts.partition, now);
        let is_late = (group.known).is_some_and(|known| facts.version < known.version);
        if facts.state == GroupState::Small {
            if !is_late {
                self.close_all(group_id, number, SubscriptionState::Small, now);
            }
            return;
        }
        let Some(known) = &mut group.known else {
            if group.seats.is_any_in_use() {
                group.known = Some(KnownGroup {
                    version: facts.version,
                    end: facts.end,
                    at: facts.at,
                    present: facts.present,
                });
                self.read_rows_again(group_id, answered_seats, now);
            }
            return;
        };
        let is_ahead = facts.end.is_ahead_of(known.end);
        known.end = known.end.max(facts.end);
        known.at = known.at.max(facts.at);
        if facts.version > known.version {
            (known.version, known.present) = (facts.version, facts.present);
            self.read_rows_again(group_id, answered_seats, now);
        } else if is_ahead {
            self.signal_all(group_id);
        }
    }

    /// Closes all seats until their rows have been read after the state that the boat has now, as
    /// those of `answered_seats` were.
    fn read_rows_again(
        &mut self,
        group_id: GroupId,
        answered_seats: &AnsweredSeats,
        now: Timestamp,
    ) {
        let last_question = self.questions.last_number();
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        let mut users = BTreeSet::new();
        for (key, wait) in &mut group.waiting {
            if !answered_seats.contains_key(key) {
                wait.since = last_question;
                users.insert(key.0);
            }
        }
        let open_seats = group.seats.all_open();
        for user in users {
            let at = self.soon(now);
            self.questions.ask(Item::member(group_id, user), at);
        }
        for (loop_index, key) in open_seats {
            let at = self.soon(now);
            self.await_row(group_id, loop_index, key, None, at);
        }
    }

    /// Opens a seat whose row has been read, or closes it for good.
    fn take_row(
        &mut self,
        group_id: GroupId,
        loop_index: usize,
        key: SeatKey,
        client_end: Option<GroupEnd>,
    ) {
        let Some(group) = self.groups.get(&group_id) else {
            return;
        };
        if group.seats.state(loop_index, key) != Some(SeatState::Waiting) {
            return;
        }
        if !group.seats.is_in(loop_index, key) {
            return self.leave(group_id, loop_index, key);
        }
        let Some(known) = group.known else {
            // The row may be older than the state, which comes yet; then it is read once more.
            return self.end_first_try(group_id, key);
        };
        self.settle(group_id, loop_index, key, SeatState::Open);
        if client_end.is_none_or(|client_end| known.end.is_ahead_of(client_end)) {
            self.signal(loop_index, key, known.signal(group_id));
        }
    }

    /// Closes all seats for good, apart from those that wait for a later question than this one.
    fn close_all(
        &mut self,
        group_id: GroupId,
        number: u64,
        state: SubscriptionState,
        now: Timestamp,
    ) {
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        let signal = GroupSignal::last(group_id, state);
        for (loop_index, seats) in group.seats.open() {
            self.actions.push_back(Action::SignalAll {
                loop_index,
                seats: Arc::clone(seats),
                signal,
            });
        }
        group.seats.close_open();
        let waiting_keys = (group.waiting.iter())
            .filter(|(_, wait)| wait.since < number)
            .map(|(key, _)| *key);
        for key in waiting_keys.collect::<Vec<_>>() {
            let Some(subscriber) = self.subscribers.get(&key.1) else {
                continue;
            };
            let loop_index = subscriber.loop_index;
            self.settle(group_id, loop_index, key, SeatState::Out);
            self.signal(loop_index, key, signal);
        }
        let Some(group) = self.groups.get_mut(&group_id) else {
            return;
        };
        group.known = None;
        if group.seats.is_any_in_use() {
            self.questions.ask(Item::group(group_id), now);
        }
    }

    fn signal(&mut self, loop_index: usize, key: SeatKey, signal: GroupSignal) {
        self.actions.push_back(Action::Signal {
            loop_index,
            session: key.1,
            signal,
        });
    }

    /// Says to all open seats how far the group is.
    fn signal_all(&mut self, group_id: GroupId) {
        let Some(group) = self.groups.get(&group_id) else {
            return;
        };
        let Some(known) = group.known else {
            return;
        };
        let signal = known.signal(group_id);
        for (loop_index, seats) in group.seats.open() {
            self.actions.push_back(Action::SignalAll {
                loop_index,
                seats: Arc::clone(seats),
                signal,
            });
        }
    }

    /// Asks for the state of a group of which something was missed.
    fn ask_again(&mut self, group_id: GroupId, now: Timestamp) {
        let is_in_use = |group: &Group| group.seats.is_any_in_use();
        if self.groups.get(&group_id).is_some_and(is_in_use) {
            let at = self.soon(now);
            self.questions.ask(Item::group(group_id), at);
        }
    }

    /// Asks for the states of all groups of these partitions, and of groups whose partition no
    /// answer has named yet.
    fn ask_of_partitions(&mut self, partitions: &[u32], now: Timestamp) {
        if partitions.is_empty() {
            return;
        }
        let is_concerned =
            |group: &Group| group.partition.is_none_or(|it| partitions.contains(&it));
        let group_ids: Vec<GroupId> = (self.groups.iter())
            .filter(|(_, group)| is_concerned(group))
            .map(|(group_id, _)| *group_id)
            .collect();
        for group_id in group_ids {
            self.ask_again(group_id, now);
        }
        self.go_on(now);
    }

    /// Time of a question that all boats have at the same moment.
    fn soon(&mut self, now: Timestamp) -> Timestamp {
        now + between(Duration::ZERO, SPREAD, self.next_random())
    }

    /// Time of the next try of a question that failed.
    fn later(&mut self, now: Timestamp) -> Timestamp {
        now + between(SPREAD / 2, SPREAD, self.next_random())
    }

    fn next_random(&mut self) -> u64 {
        self.random = mix(self.random, 1);
        self.random
    }
}
