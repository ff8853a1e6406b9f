//! Large groups with their log and stores, the streams of carriers, a station, one boat and its
//! clients. Judges watch what each client gets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::group::{Member, Role};
use crate::history::Version;
use crate::subscription::{
    Action, Broadcast, Delivery, GroupAnswer, GroupEnd, GroupFacts, GroupRecord, GroupSignal,
    GroupState, Question, RecordKind, SubscriptionState, Subscriptions,
};
use crate::{GroupId, Seq, SessionId, Timestamp, UserId};

pub(super) fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

pub(super) fn group(number: i64) -> GroupId {
    GroupId::new(number).expect("positive")
}

pub(super) fn session(number: i64) -> SessionId {
    SessionId::new(number).expect("positive")
}

pub(super) const START: Timestamp = Timestamp::from_millis(1_000_000);

/// A group in the stores, and what was true at each of its records.
#[derive(Clone, Debug)]
pub(super) struct StoredGroup {
    partition: u32,
    version: Version,
    end: GroupEnd,
    state: GroupState,
    /// Written before the rest of a command.
    rows: BTreeMap<UserId, Member>,
    /// Users in the group by the last whole command.
    present_users: BTreeSet<UserId>,
    /// Users in the group at each message.
    readers: BTreeMap<Seq, BTreeSet<UserId>>,
    /// A command of which only the rows are written.
    half_command: Option<HalfCommand>,
}

type HalfCommand = (Version, Vec<(UserId, Member)>, GroupState);

#[derive(Clone, Debug)]
pub(super) enum StreamItem {
    Record(GroupRecord),
    Serves(Vec<u32>),
    Cut,
}

/// A question at a station.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    question: Question,
    states: Option<BTreeMap<GroupId, Option<GroupFacts>>>,
    rows: Option<BTreeMap<(GroupId, UserId), Option<Member>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) user: UserId,
    /// What it has or was told of each group.
    pub(super) ends: BTreeMap<GroupId, GroupEnd>,
    /// Last word of each group it subscribed to.
    pub(super) states: BTreeMap<GroupId, SubscriptionState>,
    pub(super) bodies: Vec<(GroupId, Seq)>,
    pub(super) signal_count: usize,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) boat: Subscriptions,
    pub(super) now: Timestamp,
    pub(super) groups: BTreeMap<GroupId, StoredGroup>,
    /// Saved records that no stream has yet.
    pub(super) saved_records: VecDeque<GroupRecord>,
    /// All records, for redeliveries.
    pub(super) records: Vec<GroupRecord>,
    /// Streams to the boat; the last one serves all partitions.
    pub(super) streams: BTreeMap<u32, VecDeque<StreamItem>>,
    pub(super) next_offset: u64,
    pub(super) readings: Vec<Reading>,
    pub(super) clients: BTreeMap<SessionId, Client>,
    /// The planted bug: the station reads rows before states.
    pub(super) reads_rows_first: bool,
    /// Bodies that reached somebody who may not read them.
    pub(super) leaks: Vec<(SessionId, GroupId, Seq)>,
}

impl World {
    /// A large group 1 with these members, and a boat with one stream.
    pub(super) fn new(members: &[i64]) -> World {
        let mut world = World {
            boat: Subscriptions::new(1_000, 7),
            now: START,
            groups: BTreeMap::new(),
            saved_records: VecDeque::new(),
            records: Vec::new(),
            streams: BTreeMap::new(),
            next_offset: 1,
            readings: Vec::new(),
            clients: BTreeMap::new(),
            reads_rows_first: false,
            leaks: Vec::new(),
        };
        world.add_group(1, members);
        world.open_stream(1);
        world.receive_all();
        world
    }

    pub(super) fn add_group(&mut self, number: i64, members: &[i64]) {
        let version = self.next_version();
        let member = Member::new(Some(Role::Member), Seq::ZERO, version);
        let stored_group = StoredGroup {
            partition: number as u32,
            version,
            end: GroupEnd::default(),
            state: GroupState::Large,
            rows: members.iter().map(|it| (user(*it), member)).collect(),
            present_users: members.iter().map(|it| user(*it)).collect(),
            readers: BTreeMap::new(),
            half_command: None,
        };
        self.groups.insert(group(number), stored_group);
    }

    fn next_version(&mut self) -> Version {
        self.next_offset += 1;
        Version {
            epoch: 0,
            offset: self.next_offset,
        }
    }

    fn group_mut(&mut self, number: i64) -> &mut StoredGroup {
        self.groups.get_mut(&group(number)).expect("a group")
    }

    // Carrier.

    pub(super) fn open_stream(&mut self, stream: u32) {
        let partitions = self.groups.values().map(|it| it.partition).collect();
        let items = VecDeque::from([StreamItem::Serves(partitions)]);
        self.streams.insert(stream, items);
    }

    fn newest_stream(&mut self) -> Option<&mut VecDeque<StreamItem>> {
        self.streams.values_mut().next_back()
    }

    /// Saves a message of `author`.
    pub(super) fn save_message(&mut self, number: i64, author: i64) {
        self.complete_command(number);
        let stored_group = self.group_mut(number);
        if stored_group.state != GroupState::Large {
            return;
        }
        stored_group.end.seq = stored_group.end.seq.next();
        let seq = stored_group.end.seq;
        let readers = stored_group.present_users.clone();
        stored_group.readers.insert(seq, readers);
        let broadcast = Broadcast::new(group(number), seq, user(author), Bytes::new());
        self.save_record(number, RecordKind::Message(broadcast));
    }

    /// Saves a change of the last message.
    pub(super) fn save_change(&mut self, number: i64, author: i64) {
        self.complete_command(number);
        let stored_group = self.group_mut(number);
        if stored_group.end.seq == Seq::ZERO || stored_group.state != GroupState::Large {
            return;
        }
        stored_group.end.rev += 1;
        let GroupEnd { seq, rev } = stored_group.end;
        let broadcast = Broadcast {
            is_change: true,
            ..Broadcast::new(group(number), seq, user(author), Bytes::new())
        };
        self.save_record(number, RecordKind::Change { rev, broadcast });
    }

    /// Writes the rows of a command that takes users in, or out.
    pub(super) fn write_rows(&mut self, number: i64, users: &[i64], is_in: bool) {
        self.complete_command(number);
        let version = self.next_version();
        let stored_group = self.group_mut(number);
        let mut members = Vec::new();
        for user in users.iter().map(|it| user(*it)) {
            let role = is_in.then_some(Role::Member);
            let former_row = stored_group.rows.get(&user);
            if former_row.and_then(|row| row.role) == role {
                continue;
            }
            let since = match former_row {
                Some(row) if !is_in => row.since,
                _ => stored_group.end.seq,
            };
            let member = Member::new(role, since, version);
            stored_group.rows.insert(user, member);
            members.push((user, member));
        }
        let state = stored_group.state;
        stored_group.half_command = Some((version, members, state));
    }

    /// Begins a command that changes the state of the group.
    pub(super) fn write_state(&mut self, number: i64, state: GroupState) {
        self.complete_command(number);
        let version = self.next_version();
        self.group_mut(number).half_command = Some((version, Vec::new(), state));
    }

    /// Writes the rest of a command.
    pub(super) fn complete_command(&mut self, number: i64) {
        let stored_group = self.group_mut(number);
        let Some((version, members, state)) = stored_group.half_command.take() else {
            return;
        };
        let before = std::mem::replace(&mut stored_group.version, version);
        stored_group.state = state;
        let present = stored_group
            .rows
            .iter()
            .filter(|(_, row)| row.role.is_some());
        stored_group.present_users = present.map(|(user, _)| *user).collect();
        let present = stored_group.present_users.len() as u32;
        let kind = RecordKind::Command {
            before,
            members,
            present,
            state,
        };
        self.save_record(number, kind);
    }

    fn save_record(&mut self, number: i64, kind: RecordKind) {
        let stored_group = self.group_mut(number);
        let record = GroupRecord {
            group: group(number),
            partition: stored_group.partition,
            version: stored_group.version,
            at: START,
            kind,
        };
        self.saved_records.push_back(record);
    }

    /// Hands the oldest saved record over to the stream.
    pub(super) fn hand_over(&mut self) {
        if let Some(record) = self.saved_records.pop_front() {
            self.records.push(record.clone());
            if let Some(stream) = self.newest_stream() {
                stream.push_back(StreamItem::Record(record));
            }
        }
    }

    /// Hands over the last records once more.
    pub(super) fn redeliver(&mut self, count: usize) {
        let begin = self.records.len().saturating_sub(count);
        let records = self.records[begin..].to_vec();
        if let Some(stream) = self.newest_stream() {
            stream.extend(records.into_iter().map(StreamItem::Record));
        }
    }

    /// Empties the outbox of the newest stream, and says so.
    pub(super) fn cut(&mut self) {
        if let Some(stream) = self.newest_stream() {
            stream.retain(|item| !matches!(item, StreamItem::Record(_)));
            stream.push_back(StreamItem::Cut);
        }
    }

    /// Ends the oldest stream with all that is in it.
    pub(super) fn lose_oldest_stream(&mut self) {
        if let Some((stream, _)) = self.streams.pop_first() {
            self.boat.handle_stream_ended(stream, self.now);
            self.carry_out();
        }
    }

    // Boat.

    /// Takes the next item of a stream.
    pub(super) fn receive(&mut self, stream: u32) {
        let Some(item) = self.streams.get_mut(&stream).and_then(VecDeque::pop_front) else {
            return;
        };
        match item {
            StreamItem::Record(record) => self.boat.handle_record(record, self.now),
            StreamItem::Serves(partitions) => {
                self.boat.handle_serves(stream, &partitions, self.now);
            }
            StreamItem::Cut => self.boat.handle_cut(stream, self.now),
        }
        self.carry_out();
    }

    pub(super) fn receive_all(&mut self) {
        let streams: Vec<u32> = self.streams.keys().copied().collect();
        for stream in streams {
            while self
                .streams
                .get(&stream)
                .is_some_and(|items| !items.is_empty())
            {
                self.receive(stream);
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.boat.poll_action() {
            match action {
                Action::Ask(question) => self.readings.push(Reading {
                    question,
                    states: None,
                    rows: None,
                }),
                Action::Broadcast {
                    seats, broadcast, ..
                } => {
                    for seat in seats.iter() {
                        match seat.delivery(&broadcast) {
                            Some(Delivery::Frame) => self.show(seat.session, &broadcast),
                            Some(Delivery::Signal) => self.tell(seat.session, broadcast.signal),
                            None => {}
                        }
                    }
                }
                Action::SignalAll { seats, signal, .. } => {
                    for seat in seats.iter().filter(|seat| seat.is_open()) {
                        self.tell(seat.session, signal);
                    }
                }
                Action::Signal {
                    session, signal, ..
                } => self.tell(session, signal),
            }
        }
    }

    fn show(&mut self, session: SessionId, broadcast: &Broadcast) {
        let client = self.clients.get_mut(&session).expect("a client");
        let group = broadcast.signal.group;
        let end = client.ends.entry(group).or_default();
        if broadcast.is_change {
            end.rev = end.rev.max(broadcast.signal.end.rev);
        } else {
            end.seq = end.seq.max(broadcast.seq);
            client.bodies.push((group, broadcast.seq));
        }
        let readers = &self.groups[&group].readers[&broadcast.seq];
        if !readers.contains(&client.user) {
            self.leaks.push((session, group, broadcast.seq));
        }
    }

    fn tell(&mut self, session: SessionId, signal: GroupSignal) {
        let client = self.clients.get_mut(&session).expect("a client");
        let end = client.ends.entry(signal.group).or_default();
        *end = end.max(signal.end);
        client.states.insert(signal.group, signal.state);
        client.signal_count += 1;
    }

    // Station.

    /// Does the next step of the `index`-th question: the states, the rows, the answer.
    pub(super) fn work(&mut self, index: usize) {
        let (rows_first, now) = (self.reads_rows_first, self.now);
        let Some(reading) = self.readings.get_mut(index) else {
            return;
        };
        let groups = &self.groups;
        let reads_states = reading.states.is_none() && (!rows_first || reading.rows.is_some());
        if reads_states {
            let states = reading.question.states();
            let states = states.map(|id| (id, groups.get(&id).map(StoredGroup::facts)));
            reading.states = Some(states.collect());
        } else if reading.rows.is_none() {
            let rows = reading.question.rows();
            let row = |(id, user)| groups.get(&id)?.rows.get(&user).copied();
            reading.rows = Some(rows.map(|key| (key, row(key))).collect());
        } else {
            let reading = self.readings.remove(index);
            let answer = GroupAnswer {
                groups: reading.states.unwrap_or_default(),
                members: reading.rows.unwrap_or_default(),
            };
            let number = reading.question.number;
            self.boat.handle_answer(number, Some(answer), now);
            self.carry_out();
        }
    }

    /// Fails the `index`-th question.
    pub(super) fn fail(&mut self, index: usize) {
        if index < self.readings.len() {
            let reading = self.readings.remove(index);
            self.boat
                .handle_answer(reading.question.number, None, self.now);
            self.carry_out();
        }
    }

    pub(super) fn answer_all(&mut self) {
        for _ in 0..10_000 {
            if self.readings.is_empty() {
                return;
            }
            self.work(0);
        }
        panic!("questions without end: {:#?}", self.boat);
    }

    // Clients.

    pub(super) fn subscribe(&mut self, number: i64, of_user: i64, groups: &[i64]) {
        let client = self
            .clients
            .entry(session(number))
            .or_insert_with(|| Client {
                user: user(of_user),
                ends: BTreeMap::new(),
                states: BTreeMap::new(),
                bodies: Vec::new(),
                signal_count: 0,
            });
        let groups = groups.iter().map(|number| group(*number));
        let set: Vec<(GroupId, GroupEnd)> = groups
            .map(|id| (id, client.ends.get(&id).copied().unwrap_or_default()))
            .collect();
        let wanted: BTreeSet<GroupId> = set.iter().map(|(id, _)| *id).collect();
        client
            .states
            .retain(|id, state| wanted.contains(id) && *state == SubscriptionState::Subscribed);
        for id in wanted {
            client
                .states
                .entry(id)
                .or_insert(SubscriptionState::Subscribed);
        }
        let loop_index = number as usize % 2;
        let user = client.user;
        (self.boat).subscribe(session(number), user, loop_index, &set, self.now);
        self.carry_out();
    }

    pub(super) fn leave(&mut self, number: i64) {
        self.boat.end_session(session(number));
        self.clients.remove(&session(number));
    }

    // Time.

    pub(super) fn wait(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.boat.handle_timeout(self.now);
        self.carry_out();
    }

    /// Lets everything come to rest: carriers say what they serve, stations answer.
    pub(super) fn finish(&mut self) {
        let group_numbers: Vec<i64> = self.groups.keys().map(|id| id.get()).collect();
        for number in group_numbers {
            self.complete_command(number);
        }
        while !self.saved_records.is_empty() {
            self.hand_over();
        }
        for _ in 0..12 {
            let partitions: Vec<u32> = self.groups.values().map(|it| it.partition).collect();
            if let Some(stream) = self.newest_stream() {
                stream.push_back(StreamItem::Serves(partitions));
            }
            self.receive_all();
            self.answer_all();
            self.wait(Duration::from_secs(2));
        }
    }

    /// Members who were told that they hear nothing subscribe again, as their event has it.
    pub(super) fn subscribe_again(&mut self) {
        let sessions: Vec<(i64, i64, Vec<i64>)> = (self.clients.iter())
            .map(|(id, client)| {
                let groups = client.states.keys().map(|id| id.get()).collect();
                (id.get(), client.user.get(), groups)
            })
            .collect();
        for (number, of_user, groups) in sessions {
            self.subscribe(number, of_user, &groups);
        }
        self.finish();
    }

    /// Whether a body reached somebody who may not read it, or came twice.
    pub(super) fn has_leak(&self) -> bool {
        let came_twice = |client: &Client| {
            let distinct: BTreeSet<_> = client.bodies.iter().collect();
            distinct.len() < client.bodies.len()
        };
        !self.leaks.is_empty() || self.clients.values().any(came_twice)
    }

    /// A subscribed member who does not know how far a large group is.
    pub(super) fn ignorant_client(&self) -> Option<(SessionId, GroupId)> {
        for (session, client) in &self.clients {
            for (id, state) in &client.states {
                let stored_group = &self.groups[id];
                let is_reader = stored_group.present_users.contains(&client.user)
                    && stored_group.state == GroupState::Large;
                let mut known_end = client.ends.get(id).copied().unwrap_or_default();
                if let Some(row) = stored_group.rows.get(&client.user) {
                    known_end.seq = known_end.seq.max(row.since);
                }
                let is_subscribed = *state == SubscriptionState::Subscribed;
                if is_reader && (!is_subscribed || stored_group.end.is_ahead_of(known_end)) {
                    return Some((*session, *id));
                }
                if !is_reader && is_subscribed {
                    return Some((*session, *id));
                }
            }
        }
        None
    }
}

impl Reading {
    pub(super) fn question(&self) -> &Question {
        &self.question
    }

    pub(super) fn states(&self) -> &BTreeMap<GroupId, Option<GroupFacts>> {
        self.states.as_ref().expect("read")
    }

    pub(super) fn rows(&self) -> &BTreeMap<(GroupId, UserId), Option<Member>> {
        self.rows.as_ref().expect("read")
    }
}

impl StoredGroup {
    fn facts(&self) -> GroupFacts {
        GroupFacts {
            partition: self.partition,
            state: self.state,
            version: self.version,
            end: self.end,
            at: START,
            present: self.present_users.len() as u32,
        }
    }
}
