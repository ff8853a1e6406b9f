//! Clients and real server sessions over a wire that delays, goes silent and breaks, among crashes;
//! the clock jumps to the next event. Everything follows from one seed.

mod boats;
mod ends;
mod judge;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::codec::{decode_server, encode_message};
use protocol::change::{ChangeKind, ChangeOf, MessageMarks, OrderedChange};
use protocol::delivery::{Push, PushToken};
use protocol::frame::{
    Ack, AckItem, Acked, ClientFrame, ListEvent, PlacedEcho, Send, ServerFrame, Summary, SyncPage,
};
use protocol::message::Content;
use protocol::receipt::{Receipt, ReceiptKind, ReceiptStatus};
use protocol::session::{self, Admission, Outcome, Outgoing, Page, PageItem, Session, Token};
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Placed, Platform, Recipient, Refusal, SendId, Seq,
    SessionId, Timestamp, UserId,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::server::{SendResult, Server};
use crate::core::{
    Action, CatchUp, Change, ConnectionState, Core, Limits, SendStatus, Settings, ShownMessage,
    Snapshot,
};

pub(super) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Severity of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Time during which things break.
    pub(super) storm: Duration,
    pub(super) sends: usize,
    pub(super) cuts: usize,
    pub(super) crashes: usize,
    pub(super) changes: usize,
    pub(super) reads: usize,
    /// Percentage of submits that fail: refused, or refused though some sends were accepted.
    pub(super) refusals: u32,
}

struct End {
    user: UserId,
    device: DeviceId,
    platform: Platform,
    core: Core,
    snapshot: Snapshot,
    /// Messages the application has taken; a crash takes back those not stored.
    shown_messages: BTreeMap<ConversationId, Vec<(Placed, Option<MessageMarks>)>>,
    /// Changes taken, each with the number of messages that were there before it.
    changes: BTreeMap<ConversationId, Vec<OrderedChange>>,
    hidden_seqs: BTreeMap<ConversationId, BTreeSet<Seq>>,
    /// Conversation list, as the application sees it.
    list: BTreeMap<ConversationId, Summary>,
    ranks: BTreeMap<SendId, u8>,
    failed_sends: Vec<(Timestamp, SendId)>,
    /// All sends, in order, that were durable in the outbox at some time.
    durable_sends: Vec<(SendId, Recipient)>,
    open_store: Option<(Timestamp, u64, Vec<Change>)>,
    pending_items: VecDeque<(Timestamp, TakenItem)>,
    dial_at: Option<Timestamp>,
    wire: Option<usize>,
}

/// Item the application is about to take.
enum TakenItem {
    Message(ShownMessage),
    Change(u64, ConversationId, OrderedChange),
    Hidden(u64, ConversationId, Vec<Seq>),
}

/// One connection: in each direction, frames arrive in order or not at all.
struct Wire {
    end: usize,
    session: Session,
    up: VecDeque<(Timestamp, ClientFrame)>,
    down: VecDeque<(Timestamp, Down)>,
    /// The boat's queries to the station and their answers, each with its time.
    answers: Vec<(Timestamp, Answer)>,
    /// Nothing comes through any more, and neither side knows yet.
    silent: bool,
    /// The client has noticed the end.
    is_end_noticed: bool,
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
    /// The log has some of the sends, but the answer is a refusal.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    Cut,
    Crash,
    /// A user recalls, edits or reacts to a message they have.
    Change,
    Read,
    /// All clients reconnect once more: news that was only pushed, and lost, is learnt by then.
    CutAll,
}

pub(super) struct World {
    rng: StdRng,
    pub(super) now: Timestamp,
    server: Server,
    ends: Vec<End>,
    wires: Vec<Wire>,
    pushes: BTreeMap<(Timestamp, u64), (SendResult, usize)>,
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
            (Event::Change, weather.changes),
            (Event::Read, weather.reads),
        ];
        for (event, count) in events {
            for _ in 0..count {
                let at = START + Duration::from_millis(rng.random_range(0..storm) as u64);
                plan.insert((at, plan.len() as u64), event);
            }
        }
        plan.insert((START + weather.storm, u64::MAX), Event::CutAll);
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
            let core = begin(&device, platform, Snapshot::default());
            world.ends.push(End {
                user: user(number),
                device,
                platform,
                core,
                snapshot: Snapshot::default(),
                shown_messages: BTreeMap::new(),
                changes: BTreeMap::new(),
                hidden_seqs: BTreeMap::new(),
                list: BTreeMap::new(),
                ranks: BTreeMap::new(),
                failed_sends: Vec::new(),
                durable_sends: Vec::new(),
                open_store: None,
                pending_items: VecDeque::new(),
                dial_at: None,
                wire: None,
            });
        }
        for end in 0..world.ends.len() {
            world.drain_end(end);
        }
        world
    }

    /// Runs until nothing is pending, then judges.
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
                && *end.core.state() == ConnectionState::Ready
                && end.core.questions.is_quiet()
                && end.core.outbox.tracker.all_placed()
        };
        self.plan.is_empty()
            && self.pushes.is_empty()
            && self.server.mail.values().all(BTreeMap::is_empty)
            && self.ends.iter().all(is_settled)
            && (self.wires.iter()).all(|wire| {
                wire.is_end_noticed
                    || (wire.up.is_empty() && wire.down.is_empty() && wire.answers.is_empty())
            })
    }

    /// Describes what keeps the world from rest.
    fn owed(&self) -> String {
        let ends = self.ends.iter().map(|end| {
            let core = &end.core;
            let (device, state) = (&end.device, core.state());
            let (unsettled_count, untaken_count) = (core.unsettled(), core.untaken());
            format!(
                "{device} {state:?} unsettled {unsettled_count} untaken {untaken_count} flushed {}\n",
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
                end.open_store.as_ref().map(|(at, ..)| *at),
                end.pending_items.front().map(|(at, _)| *at),
                end.dial_at,
                end.failed_sends.first().map(|(at, _)| *at),
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
                Event::Change => self.change(end),
                Event::Read => self.read(end),
                Event::CutAll => (0..self.ends.len()).for_each(|end| self.cut(end)),
            }
        }
        while let Some((&key, _)) = self.pushes.first_key_value()
            && key.0 <= self.now
        {
            match self.pushes.remove(&key).expect("it is there") {
                (SendResult::Placed(entry), origin) => self.push(&entry, origin),
                (SendResult::Changed(conversation, change), _) => {
                    self.push_change(conversation, change)
                }
                (SendResult::Hidden(user, word), _) => self.push_list_event(user, word),
                (SendResult::Nothing, _) => {}
            }
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
}

fn ids_shown(messages: &[(Placed, Option<MessageMarks>)]) -> Vec<MessageId> {
    messages.iter().map(|(entry, _)| entry.message.id).collect()
}

fn ids(entries: &[Placed]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.message.id).collect()
}

fn begin(device: &DeviceId, platform: Platform, snapshot: Snapshot) -> Core {
    let settings = Settings {
        token: "token".into(),
        renews_token: false,
        platform,
        device: device.clone(),
        acks: true,
        catch_up: CatchUp::Everything,
        limits: limits(),
    };
    let mut core = Core::new(settings, snapshot);
    core.start();
    core
}
