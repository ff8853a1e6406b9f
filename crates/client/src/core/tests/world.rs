//! Clients and real server sessions over a wire that delays, goes silent and breaks, among crashes; a
//! clock that jumps to whatever comes next. Everything follows from one seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::codec::{decode_server, encode_message};
use protocol::frame::{Ack, Acked, ClientFrame, PlacedEcho, Send, ServerFrame, SyncPage};
use protocol::message::Content;
use protocol::receipt::{ReceiptKind, Status};
use protocol::session::{self, Admission, Outcome, Outgoing, Page, PageItem, Push, Session, Token};
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Placed, Platform, Recipient, Refusal, SendId,
    SessionId, Timestamp, UserId,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::server::Server;
use crate::core::{
    Action, CatchUp, Change, Core, Limits, Saved, SendStatus, Settings, Shown, State,
};

pub(super) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// How hard the world is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// For how long things break; then they stop breaking.
    pub(super) storm: Duration,
    pub(super) sends: usize,
    pub(super) cuts: usize,
    pub(super) crashes: usize,
    /// Of 100 submits: refused though some were accepted, refused, answered late.
    pub(super) refusals: u32,
}

struct End {
    user: UserId,
    device: DeviceId,
    platform: Platform,
    core: Core,
    saved: Saved,
    /// What the application has taken; a crash takes back what was not stored.
    shown: BTreeMap<ConversationId, Vec<Placed>>,
    ranks: BTreeMap<SendId, u8>,
    failed: Vec<(Timestamp, SendId)>,
    /// All sends in their order that were durable in the outbox at some time.
    sent: Vec<(SendId, Recipient)>,
    storing: Option<(Timestamp, u64, Vec<Change>)>,
    taking: VecDeque<(Timestamp, Shown)>,
    dialing: Option<Timestamp>,
    wire: Option<usize>,
}

/// One connection: in each direction frames arrive in order, or not at all.
struct Wire {
    end: usize,
    session: Session,
    up: VecDeque<(Timestamp, ClientFrame)>,
    down: VecDeque<(Timestamp, Down)>,
    /// The boat's questions to the station and their answers, each at its time.
    answers: Vec<(Timestamp, Answer)>,
    /// Nothing comes through any more, and nobody knows yet.
    silent: bool,
    /// The client has noticed the end.
    gone: bool,
}

enum Down {
    Frame(ServerFrame),
    End(Refusal),
}

enum Answer {
    Admitted(Platform),
    Submitted(Vec<Send>, Trouble),
    Receipts(Ack),
    Page(Option<protocol::mailbox::MailCursor>, u32),
    Sync(protocol::frame::SyncRequest),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Refused,
    /// The log has some, but the answer says no.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    Cut,
    Crash,
}

pub(super) struct World {
    rng: StdRng,
    pub(super) now: Timestamp,
    server: Server,
    ends: Vec<End>,
    wires: Vec<Wire>,
    pushes: BTreeMap<(Timestamp, u64), (Placed, usize)>,
    plan: BTreeMap<(Timestamp, u64), Event>,
    storm_until: Timestamp,
    weather: Weather,
    next: u64,
    pub(super) steps: u64,
}

fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

fn limits() -> Limits {
    Limits {
        untaken_max: 6,
        held_max: 5,
        page: 5,
        fetches_max: 2,
        followed_max: 16,
        ..Limits::default()
    }
}

impl World {
    pub(super) fn new(seed: u64, weather: Weather) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let devices = [
            (1, Platform::Ios),
            (1, Platform::Desktop),
            (2, Platform::Ios),
            (3, Platform::Web),
        ];
        let mut plan = BTreeMap::new();
        let storm = weather.storm.as_millis() as i64;
        let events = [
            (Event::Send, weather.sends),
            (Event::Cut, weather.cuts),
            (Event::Crash, weather.crashes),
        ];
        for (event, count) in events {
            for _ in 0..count {
                let at = START + Duration::from_millis(rng.random_range(0..storm) as u64);
                plan.insert((at, plan.len() as u64), event);
            }
        }
        let mut world = World {
            rng,
            now: START,
            server: Server::default(),
            ends: Vec::new(),
            wires: Vec::new(),
            pushes: BTreeMap::new(),
            plan,
            storm_until: START + weather.storm,
            weather,
            next: 0,
            steps: 0,
        };
        for (number, platform) in devices {
            let device = DeviceId::new(&format!("{number}-{platform}")).expect("short");
            let core = begin(&device, platform, Saved::default());
            world.ends.push(End {
                user: user(number),
                device,
                platform,
                core,
                saved: Saved::default(),
                shown: BTreeMap::new(),
                ranks: BTreeMap::new(),
                failed: Vec::new(),
                sent: Vec::new(),
                storing: None,
                taking: VecDeque::new(),
                dialing: None,
                wire: None,
            });
        }
        for end in 0..world.ends.len() {
            world.drain_end(end);
        }
        world
    }

    /// Runs until nothing is owed any more, then judges.
    pub(super) fn run(mut self) -> World {
        let limit = self.storm_until + Duration::from_secs(3600);
        while !self.is_quiet() {
            let Some(at) = self.next_event() else {
                break;
            };
            assert!(
                at < limit,
                "the world does not come to rest: {}",
                self.owed()
            );
            self.now = self.now.max(at);
            self.step();
        }
        self.judge();
        self
    }

    fn is_quiet(&self) -> bool {
        let is_settled = |end: &End| {
            let wire = end.wire.map(|index| &self.wires[index]);
            wire.is_some_and(|wire| !wire.silent && wire.session.is_open())
                && end.core.unsettled() == 0
                && end.core.is_flushed()
                && end.core.untaken() == 0
                && *end.core.state() == State::Ready
                && end.core.questions.is_quiet()
                && end.core.outbox.sent.all_placed()
        };
        self.plan.is_empty()
            && self.pushes.is_empty()
            && self.server.mail.values().all(BTreeMap::is_empty)
            && self.ends.iter().all(is_settled)
            && (self.wires.iter()).all(|wire| {
                wire.gone || (wire.up.is_empty() && wire.down.is_empty() && wire.answers.is_empty())
            })
    }

    /// What is missing to rest.
    fn owed(&self) -> String {
        let ends = self.ends.iter().map(|end| {
            let core = &end.core;
            let (device, state) = (&end.device, core.state());
            let (unsettled, untaken) = (core.unsettled(), core.untaken());
            format!(
                "{device} {state:?} unsettled {unsettled} untaken {untaken} flushed {}\n",
                core.is_flushed()
            )
        });
        let mail = self.server.mail.iter().filter(|(_, mail)| !mail.is_empty());
        let mail = mail.map(|(key, mail)| format!("{key:?} {:?}\n", mail.keys()));
        ends.chain(mail).collect()
    }

    fn next_event(&self) -> Option<Timestamp> {
        let ends = self.ends.iter().flat_map(|end| {
            [
                end.core.poll_timeout(),
                end.storing.as_ref().map(|(at, ..)| *at),
                end.taking.front().map(|(at, _)| *at),
                end.dialing,
                end.failed.first().map(|(at, _)| *at),
            ]
        });
        let wires = self.wires.iter().flat_map(|wire| {
            [
                wire.session.poll_timeout(),
                wire.up.front().map(|(at, _)| *at),
                wire.down.front().map(|(at, _)| *at),
                wire.answers.iter().map(|(at, _)| *at).min(),
            ]
        });
        ends.chain(wires)
            .flatten()
            .chain(self.pushes.keys().map(|(at, _)| *at).next())
            .chain(self.plan.keys().map(|(at, _)| *at).next())
            .min()
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(
            self.steps < 100_000,
            "the world runs in circles: {}",
            self.owed()
        );
        while let Some((&key, &event)) = self.plan.first_key_value()
            && key.0 <= self.now
        {
            self.plan.remove(&key);
            let end = self.rng.random_range(0..self.ends.len());
            match event {
                Event::Send => self.send(end),
                Event::Cut => self.cut(end),
                Event::Crash => self.crash(end),
            }
        }
        while let Some((&key, _)) = self.pushes.first_key_value()
            && key.0 <= self.now
        {
            let (placed, origin) = self.pushes.remove(&key).expect("it is there");
            self.push(&placed, origin);
        }
        for wire in 0..self.wires.len() {
            self.step_wire(wire);
        }
        for end in 0..self.ends.len() {
            self.step_end(end);
        }
    }

    fn soon(&mut self, longest: u64) -> Timestamp {
        self.now + Duration::from_millis(self.rng.random_range(0..=longest))
    }

    fn chance(&mut self, of_100: u32) -> bool {
        self.now < self.storm_until && self.rng.random_range(0..100) < of_100
    }

    // The ends.

    fn send(&mut self, at: usize) {
        self.next += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next.to_be_bytes());
        let send_id = SendId::from_bytes(bytes);
        let peers: Vec<i64> = (1..=3)
            .filter(|peer| user(*peer) != self.ends[at].user)
            .collect();
        let to = Recipient::User(user(peers[self.rng.random_range(0..peers.len())]));
        let end = &mut self.ends[at];
        let content = Content::text(format!("{} from {}", self.next, end.device));
        end.core
            .send(send_id, to, content, self.now)
            .expect("room in the outbox");
        end.sent.push((send_id, to));
        self.drain_end(at);
    }

    /// The connection breaks: noticed by the client at once, or not at all.
    fn cut(&mut self, at: usize) {
        let Some(index) = self.ends[at].wire else {
            return;
        };
        let quietly = self.rng.random_bool(0.4);
        let wire = &mut self.wires[index];
        wire.silent = true;
        // Some of what was on its way still arrives at the server.
        let arrives = self.rng.random_range(0..=wire.up.len());
        wire.up.truncate(arrives);
        wire.down.clear();
        if !quietly {
            self.hang_up(at, Refusal::new(Code::Unavailable, "cut"));
        }
    }

    /// The client's process dies and starts again from what it had stored.
    fn crash(&mut self, at: usize) {
        let device = self.ends[at].device.clone();
        let end = &mut self.ends[at];
        if let Some(index) = end.wire.take() {
            let wire = &mut self.wires[index];
            (wire.silent, wire.gone) = (true, true);
            wire.down.clear();
        }
        end.storing = None;
        end.taking.clear();
        end.dialing = None;
        end.failed.clear();
        for (conversation, shown) in &mut end.shown {
            let kept = end.saved.conversations.get(conversation);
            shown.truncate(kept.map_or(0, |kept| kept.cursor.seq.0 as usize));
        }
        let rows = end.saved.outbox.values().map(|row| row.send_id);
        let durable: BTreeSet<SendId> = rows.collect();
        let ranks = &mut end.ranks;
        // What was not in the store was never transmitted, so it does not exist.
        end.sent.retain(|(send_id, _)| {
            durable.contains(send_id) || ranks.get(send_id).is_some_and(|rank| *rank >= 2)
        });
        // What was learnt and not stored is learnt again.
        for send_id in durable {
            ranks.insert(send_id, 0);
        }
        for row in end.saved.followed.values() {
            let rank = match (row.status, row.seq) {
                (Status::Sent, None) => 2,
                (Status::Sent, Some(_)) => 3,
                (Status::Delivered | Status::Read, _) => 4,
            };
            ranks.insert(row.send_id, rank);
        }
        end.core = begin(&device, end.platform, end.saved.clone());
        self.drain_end(at);
    }

    fn hang_up(&mut self, at: usize, why: Refusal) {
        let jitter = self.rng.random();
        let end = &mut self.ends[at];
        if let Some(index) = end.wire.take() {
            let wire = &mut self.wires[index];
            wire.gone = true;
            wire.down.clear();
        }
        end.core.handle_disconnected(why, self.now, jitter);
        self.drain_end(at);
    }

    fn step_end(&mut self, at: usize) {
        let now = self.now;
        let due = |at: Timestamp| at <= now;
        if self.ends[at].dialing.is_some_and(due) {
            self.ends[at].dialing = None;
            self.dial(at);
        }
        let end = &mut self.ends[at];
        if let Some((_, batch, changes)) = end.storing.take_if(|(at, ..)| due(*at)) {
            changes
                .into_iter()
                .for_each(|change| end.saved.apply(change));
            end.core.handle_stored(batch, now);
            self.drain_end(at);
        }
        let end = &mut self.ends[at];
        while end.taking.front().is_some_and(|(at, _)| due(*at)) {
            let (_, shown) = end.taking.pop_front().expect("it is there");
            let list = end.shown.entry(shown.placed.conversation).or_default();
            list.push(shown.placed);
            end.core.handle_taken(shown.number, now);
        }
        self.drain_end(at);
        let end = &mut self.ends[at];
        if end.failed.first().is_some_and(|(at, _)| due(*at)) {
            let (_, send_id) = end.failed.remove(0);
            // It may have been accepted late, after all.
            if end.core.retry(send_id, now) {
                end.ranks.insert(send_id, 0);
            }
            self.drain_end(at);
        }
        if self.ends[at].core.poll_timeout().is_some_and(due) {
            self.ends[at].core.handle_timeout(now);
            self.drain_end(at);
        }
    }

    fn dial(&mut self, at: usize) {
        if self.chance(20) {
            return self.hang_up(at, Refusal::new(Code::Unavailable, "no route"));
        }
        self.next += 1;
        let id = SessionId::new(self.next as i64).expect("positive");
        let session_limits = session::Limits {
            push_window: 5,
            mail_page: 3,
            send_window: 4,
            ..session::Limits::default()
        };
        self.wires.push(Wire {
            end: at,
            session: Session::new(id, Arc::new(session_limits), self.now),
            up: VecDeque::new(),
            down: VecDeque::new(),
            answers: Vec::new(),
            silent: false,
            gone: false,
        });
        self.ends[at].wire = Some(self.wires.len() - 1);
        self.ends[at].core.handle_connected(self.now);
        self.drain_end(at);
    }

    fn drain_end(&mut self, at: usize) {
        while let Some(action) = self.ends[at].core.poll_action() {
            match action {
                Action::Connect => {
                    let when = self.soon(100);
                    self.ends[at].dialing = Some(when);
                }
                Action::Disconnect(why) => {
                    if let Some(index) = self.ends[at].wire {
                        self.wires[index].silent = true;
                    }
                    self.hang_up(at, why);
                }
                Action::Transmit(frame) => self.transmit_up(at, frame),
                Action::Store { batch, changes } => {
                    assert!(self.ends[at].storing.is_none(), "one store at a time");
                    let when = self.soon(30);
                    self.ends[at].storing = Some((when, batch, changes));
                }
                Action::Show(shown) => {
                    let slow = if self.chance(3) { 4000 } else { 20 };
                    let soon = self.soon(slow);
                    let end = &mut self.ends[at];
                    let when = end
                        .taking
                        .back()
                        .map_or(soon, |(before, _)| soon.max(*before));
                    end.taking.push_back((when, shown));
                }
                Action::Status { send_id, status } => self.status(at, send_id, status),
                Action::State(State::Closed(why)) => panic!("closed for good: {why}"),
                Action::Reset(reset) => panic!("there is only one history: {reset:?}"),
                Action::Gap { .. } => panic!("everything can be had"),
                Action::Receipt(_) | Action::State(_) | Action::Older { .. } => {}
            }
        }
    }

    /// Statuses only move forward. // I7
    fn status(&mut self, at: usize, send_id: SendId, status: SendStatus) {
        let when = self.soon(500);
        let end = &mut self.ends[at];
        let rank = status.rank();
        let known = end.ranks.insert(send_id, rank);
        if let Some(known) = known {
            let is_same = rank == 0 && known == 0;
            assert!(
                rank > known || is_same,
                "{send_id}: {known} then {status:?}"
            );
        }
        if let SendStatus::Failed(why) = status {
            assert!(
                why.code.retryable(),
                "nothing is refused for good here: {why}"
            );
            end.failed.push((when, send_id));
        }
    }

    fn transmit_up(&mut self, at: usize, frame: ClientFrame) {
        if let ClientFrame::Send(send) = &frame {
            let is_stored = self.ends[at]
                .saved
                .outbox
                .values()
                .any(|row| row.send_id == send.send_id);
            assert!(is_stored, "transmitted before it was stored");
        }
        let soon = self.soon(60);
        let Some(wire) = self.ends[at].wire.map(|index| &mut self.wires[index]) else {
            return;
        };
        if !wire.silent {
            let when = wire.up.back().map_or(soon, |(before, _)| soon.max(*before));
            wire.up.push_back((when, frame));
        }
    }

    // The server.

    fn step_wire(&mut self, index: usize) {
        let now = self.now;
        if self.wires[index]
            .session
            .poll_timeout()
            .is_some_and(|at| at <= now)
        {
            self.wires[index].session.handle_timeout(now);
            self.drain_session(index);
        }
        while (self.wires[index].up.front()).is_some_and(|(at, _)| *at <= now) {
            let (_, frame) = self.wires[index].up.pop_front().expect("it is there");
            self.wires[index].session.handle_frame(frame, now);
            self.drain_session(index);
        }
        while let Some(due) = self.wires[index]
            .answers
            .iter()
            .position(|(at, _)| *at <= now)
        {
            let (_, answer) = self.wires[index].answers.remove(due);
            self.answer(index, answer);
            self.drain_session(index);
        }
        while (self.wires[index].down.front()).is_some_and(|(at, _)| *at <= now) {
            let (_, down) = self.wires[index].down.pop_front().expect("it is there");
            let at = self.wires[index].end;
            match down {
                Down::Frame(frame) => {
                    self.ends[at].core.handle_frame(frame, now);
                    self.drain_end(at);
                }
                Down::End(why) => self.hang_up(at, why),
            }
        }
    }

    fn drain_session(&mut self, index: usize) {
        while let Some(action) = self.wires[index].session.poll_action() {
            match action {
                session::Action::Transmit(outgoing) => {
                    let weight = outgoing.weight();
                    self.transmit_down(index, outgoing);
                    self.wires[index].session.handle_written(weight);
                }
                session::Action::Admit(hello) => {
                    self.later(index, 30, Answer::Admitted(hello.platform));
                }
                session::Action::Submit(sends) => {
                    let trouble = match self.rng.random_range(0..2) {
                        _ if !self.chance(self.weather.refusals) => Trouble::None,
                        0 => Trouble::Refused,
                        _ => Trouble::Unknown,
                    };
                    let slow = if self.chance(5) { 9000 } else { 50 };
                    self.later(index, slow, Answer::Submitted(sends, trouble));
                }
                session::Action::Receipts(ack) => self.later(index, 30, Answer::Receipts(ack)),
                session::Action::FetchMail { after, limit } => {
                    self.later(index, 30, Answer::Page(after, limit));
                }
                session::Action::Sync(request) => {
                    let slow = if self.chance(3) { 15_000 } else { 50 };
                    self.later(index, slow, Answer::Sync(request));
                }
                session::Action::Resolve { token, outcome } => {
                    if outcome != Outcome::Done {
                        self.undelivered(index, token);
                    }
                }
                session::Action::RemoveMail { ids } => {
                    let end = &self.ends[self.wires[index].end];
                    let mail = self
                        .server
                        .mail
                        .entry((end.user, end.platform))
                        .or_default();
                    mail.retain(|id, _| !ids.contains(id));
                }
                session::Action::Close(why) => {
                    let when = self.soon(60);
                    let wire = &mut self.wires[index];
                    if !wire.silent && !wire.gone {
                        let when = wire
                            .down
                            .back()
                            .map_or(when, |(before, _)| when.max(*before));
                        wire.down.push_back((when, Down::End(why)));
                    }
                }
                session::Action::Leave => {}
            }
        }
    }

    fn later(&mut self, index: usize, longest: u64, answer: Answer) {
        let when = self.soon(longest);
        self.wires[index].answers.push((when, answer));
    }

    fn transmit_down(&mut self, index: usize, outgoing: Outgoing) {
        let frame = match outgoing {
            Outgoing::Frame(frame) => frame,
            Outgoing::Encoded(bytes) => decode_server(bytes, 1 << 20).expect("our own frame"),
        };
        let soon = self.soon(60);
        let wire = &mut self.wires[index];
        if !wire.silent && !wire.gone {
            let when = wire
                .down
                .back()
                .map_or(soon, |(before, _)| soon.max(*before));
            wire.down.push_back((when, Down::Frame(frame)));
        }
    }

    fn answer(&mut self, index: usize, answer: Answer) {
        let now = self.now;
        let end = self.wires[index].end;
        let (me, device) = (self.ends[end].user, self.ends[end].device.clone());
        match answer {
            Answer::Admitted(platform) => self.admit(index, me, platform),
            Answer::Submitted(sends, trouble) => {
                let answers = self.submit(index, me, &device, sends, trouble);
                self.wires[index].session.handle_submitted(answers, now);
            }
            Answer::Receipts(ack) => {
                self.receive(end, &ack);
                let acked = Acked {
                    kind: ack.kind,
                    ids: ack.items.iter().map(|item| item.id).collect(),
                    refused: Vec::new(),
                };
                self.wires[index].session.handle_receipts(Ok(acked), now);
            }
            Answer::Page(after, limit) => {
                let platform = self.ends[end].platform;
                let mail = self.server.mail.entry((me, platform)).or_default();
                let after = after.map(|cursor| cursor.id);
                let mut rest = mail
                    .iter()
                    .filter(|(id, _)| after.is_none_or(|after| **id > after));
                let page: Vec<&Placed> =
                    rest.by_ref().take(limit as usize).map(|(_, p)| p).collect();
                let next = rest.next().and_then(|_| page.last()).map(|last| {
                    protocol::mailbox::MailCursor {
                        accepted_at: last.message.accepted_at,
                        id: last.message.id,
                    }
                });
                let mails = page.iter().map(|placed| PageItem {
                    id: placed.message.id,
                    frame: encode_message(placed),
                });
                let page = Page {
                    mails: mails.collect(),
                    next,
                };
                self.wires[index].session.handle_page(Ok(page), now);
            }
            Answer::Sync(request) => {
                let answer = self.server.answer(me, request.query, now);
                let answer = answer.map(|answer| {
                    Outgoing::Frame(ServerFrame::Page(SyncPage {
                        request: request.request,
                        answer,
                    }))
                });
                self.wires[index]
                    .session
                    .handle_answer(request.request, answer);
            }
        }
    }

    fn admit(&mut self, index: usize, me: UserId, platform: Platform) {
        for other in 0..self.wires.len() {
            let end = &self.ends[self.wires[other].end];
            if other != index && end.user == me && end.platform == platform {
                // The same device: an old connection that was admitted late, not somebody else.
                let why = Refusal::new(Code::Reconnect, "replaced by another connection");
                self.wires[other].session.close(why, self.now);
                self.drain_session(other);
            }
        }
        let mail = self.server.mail.entry((me, platform)).or_default();
        let admission = Admission {
            user: me,
            marker: 1,
            recovered: true,
            mail_waits: !mail.is_empty(),
            cluster: 1,
            server_time: self.now,
            expires_at: Timestamp::MAX,
        };
        (self.wires[index].session).handle_admitted(Ok(admission), self.now);
    }

    fn submit(
        &mut self,
        index: usize,
        me: UserId,
        device: &DeviceId,
        sends: Vec<Send>,
        trouble: Trouble,
    ) -> Vec<Result<protocol::frame::Accepted, Refusal>> {
        let end = self.wires[index].end;
        // From here on everything of the same receiver fails, as in one produce batch.
        let fails_from = match trouble {
            Trouble::None => sends.len(),
            Trouble::Refused | Trouble::Unknown => self.rng.random_range(0..sends.len()),
        };
        let mut failing: Vec<Recipient> = Vec::new();
        let mut answers = Vec::new();
        for (place, send) in sends.into_iter().enumerate() {
            if place == fails_from {
                failing.push(send.to);
            }
            let fails = failing.contains(&send.to);
            let is_first = place == fails_from;
            if !fails || (trouble == Trouble::Unknown && is_first) {
                let (accepted, placed) = self.server.accept(me, device, &send, self.now);
                if let Some(placed) = placed {
                    self.deliver(index, end, &placed);
                }
                if !fails {
                    answers.push(Ok(accepted));
                    continue;
                }
            }
            answers.push(Err(Refusal::new(
                Code::Unavailable,
                "the log did not answer",
            )));
        }
        answers
    }

    /// Echoes the place to the sending session, and has the message pushed a little later.
    fn deliver(&mut self, index: usize, end: usize, placed: &Placed) {
        let echo = ServerFrame::Placed(PlacedEcho {
            send_id: placed.message.send_id,
            id: placed.message.id,
            conversation: placed.conversation,
            position: placed.position,
        });
        if !self.chance(10) {
            self.wires[index]
                .session
                .notice(api::codec::encode_server(&echo));
        }
        self.next += 1;
        let when = self.soon(200);
        self.pushes.insert((when, self.next), (placed.clone(), end));
    }

    fn push(&mut self, placed: &Placed, origin: usize) {
        let message = &placed.message;
        let Recipient::User(to) = message.to else {
            return;
        };
        for at in 0..self.ends.len() {
            let end = &self.ends[at];
            let is_other_own = end.user == message.from && at != origin;
            if end.user != to && !is_other_own {
                continue;
            }
            let key = (end.user, end.platform);
            let open: Vec<usize> = (0..self.wires.len())
                .filter(|wire| self.wires[*wire].end == at && self.wires[*wire].session.is_open())
                .collect();
            if open.is_empty() && end.user == to {
                self.server
                    .mail
                    .entry(key)
                    .or_default()
                    .insert(message.id, placed.clone());
            }
            for index in open {
                let push = Push {
                    token: Some(Token {
                        source: u32::from(is_other_own),
                        number: message.id.get() as u64,
                    }),
                    id: message.id,
                    frame: encode_message(placed),
                    needs_ack: true,
                };
                self.wires[index].session.push(push, self.now);
                self.drain_session(index);
            }
        }
    }

    /// A push failed: the receiver's platform finds it in the mailbox, the sender's other device syncs.
    fn undelivered(&mut self, index: usize, token: Token) {
        let at = self.wires[index].end;
        if token.source == 1 {
            let why = Refusal::new(Code::Reconnect, "sync");
            self.wires[index].session.close(why, self.now);
            return;
        }
        let id = MessageId::new(token.number as i64).expect("positive");
        let placed = (self.server.logs.values().flatten())
            .find(|placed| placed.message.id == id)
            .cloned()
            .expect("it was placed");
        let key = (self.ends[at].user, self.ends[at].platform);
        self.server.mail.entry(key).or_default().insert(id, placed);
        for wire in 0..self.wires.len() {
            if self.wires[wire].end == at && wire != index {
                self.wires[wire].session.hint();
                self.drain_session(wire);
            }
        }
        self.wires[index].session.hint();
    }

    /// No acknowledgement without the message on the device. // I8
    fn receive(&mut self, at: usize, ack: &Ack) {
        for item in &ack.items {
            let kept = self.ends[at].saved.conversations.get(&item.conversation);
            let has = kept.is_some_and(|kept| kept.cursor.seq >= item.seq);
            assert!(
                has || ack.kind == ReceiptKind::Read,
                "acknowledged what is not stored"
            );
            let by = self.ends[at].user;
            let told = self
                .server
                .receipt(ack.kind, item.conversation, item.seq, by, self.now);
            let Some((from, receipt)) = told else {
                continue;
            };
            let bytes = api::codec::encode_server(&ServerFrame::Receipts(vec![receipt]));
            for wire in 0..self.wires.len() {
                if self.ends[self.wires[wire].end].user == from {
                    self.wires[wire].session.notice(bytes.clone());
                    self.drain_session(wire);
                }
            }
        }
    }

    // The judge.

    fn judge(&self) {
        for end in &self.ends {
            let mine = |conversation: &&ConversationId| conversation.peer_of(end.user).is_some();
            for conversation in self.server.logs.keys().filter(mine) {
                let log = &self.server.logs[conversation];
                let shown = end.shown.get(conversation).map_or(&[][..], Vec::as_slice);
                assert_eq!(ids(shown), ids(log), "{} shows {conversation}", end.device);
                let kept = end.saved.conversations[conversation];
                assert_eq!(kept.cursor.seq.0, log.len() as u64);
            }
            for conversation in end.shown.keys() {
                assert!(self.server.logs.contains_key(conversation));
            }
            self.judge_sends(end);
        }
        let accepted: usize = self.server.logs.values().map(Vec::len).sum();
        let sent: usize = self.ends.iter().map(|end| end.sent.len()).sum();
        assert_eq!(accepted, sent, "each send is one message");
    }

    /// Each once, in the order in which it was sent.
    fn judge_sends(&self, end: &End) {
        for (conversation, log) in &self.server.logs {
            let arrived: Vec<SendId> = (log.iter())
                .filter(|placed| placed.message.device == end.device)
                .map(|placed| placed.message.send_id)
                .collect();
            let sent: Vec<SendId> = (end.sent.iter())
                .filter(|(_, to)| match to {
                    Recipient::User(to) => conversation.peer_of(end.user) == Some(*to),
                    Recipient::Group(_) => false,
                })
                .map(|(send_id, _)| *send_id)
                .collect();
            assert_eq!(arrived, sent, "{} in {conversation}", end.device);
        }
    }

    /// A fingerprint of everything that was shown and said.
    pub(super) fn trace(&self) -> (Timestamp, u64, usize, Vec<Vec<MessageId>>) {
        let shown = self
            .ends
            .iter()
            .flat_map(|end| end.shown.values().map(|shown| ids(shown)));
        (self.now, self.steps, self.server.repeats, shown.collect())
    }
}

fn ids(placed: &[Placed]) -> Vec<MessageId> {
    placed.iter().map(|placed| placed.message.id).collect()
}

fn begin(device: &DeviceId, platform: Platform, saved: Saved) -> Core {
    let settings = Settings {
        token: "token".into(),
        platform,
        device: device.clone(),
        acks: true,
        catch_up: CatchUp::Everything,
        limits: limits(),
    };
    let mut core = Core::new(settings, saved);
    core.start();
    core
}
