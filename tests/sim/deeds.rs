//! What people do beside sending: they recall, edit, react, read, and tidy up their lists.

use std::time::Duration;

use protocol::change::{Arranged, ChangeKind, ChangeOf, Reaction};
use protocol::group::{Role, Settings, Wish};
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, Recipient, SendId, Seq, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::device::DeviceEvent;
use crate::plan::moment;
use crate::world::{Event, World, user};

/// Another source of chance than that of messages and faults: their worlds stay as they are.
const CHANCE: u64 = 0x0063_6861_6e67_6573;
const GROUPS: u64 = 0x0067_726f_7570_7321;
const HIDES: u64 = 0x0068_6964_6465_6e21;
/// Sends of this device are numbered by their deed, behind all messages.
const SENDS: u128 = 1 << 64;
const REACTIONS: [&str; 3] = ["+1", "heart", "eyes"];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    Change(On, To),
    /// The last change of the device, asked for once more under another name.
    Again,
    /// Up to the newest message that the device has.
    Clear(u8),
    Pin(u8, bool),
    Hide(On),
    /// One conversation, and how much of it.
    Read(u8, u8),
    /// Something is said in a group.
    Say(GroupId),
    Wish(GroupId, Wished),
}

/// What is to become of a group; users by number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wished {
    /// With all of these, by bits.
    Create(Settings, u8),
    Join,
    Leave,
    Add(usize),
    Remove(usize),
    SetRole(usize, Role),
    HandOver(usize),
    Set(Settings),
}

/// Which message is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    /// A conversation that the device shows, and which message of it.
    Shown(u8, u8),
    /// One of the newest few of a conversation: several changes meet there.
    Newest(u8, u8),
    /// One of its own that was accepted, and whose place it does not know.
    Unplaced,
    /// One that never was.
    Nothing(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    Recall,
    Edit,
    React(u8, bool),
}

/// What is done in a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deeds {
    /// What which device does, when.
    pub(crate) done: Vec<(Duration, usize, Deed)>,
    /// How long after the others a device is there.
    pub(crate) late: Vec<Duration>,
}

impl Deeds {
    /// What is done in the world of a seed, by so many devices. In some worlds nothing.
    pub(crate) fn of(seed: u64, devices: usize, users: usize) -> Deeds {
        let mut rng = StdRng::seed_from_u64(!seed ^ CHANCE);
        if rng.random_bool(0.2) {
            return Deeds::default();
        }
        let count = rng.random_range(2..30);
        let done = (0..count).map(|_| {
            let at = moment(&mut rng);
            (at, rng.random_range(0..devices), deed(&mut rng))
        });
        let mut done: Vec<_> = done.collect();
        done.extend(in_groups(seed, devices, users));
        done.extend(hides(seed, devices));
        let late = (0..devices).map(|_| match rng.random_bool(0.2) {
            true => moment(&mut rng),
            false => Duration::ZERO,
        });
        Deeds {
            late: late.collect(),
            done,
        }
    }
}

/// In some worlds there are groups.
fn in_groups(seed: u64, devices: usize, users: usize) -> Vec<(Duration, usize, Deed)> {
    let mut rng = StdRng::seed_from_u64(!seed ^ GROUPS);
    let mut deeds = Vec::new();
    let groups = [0, 0, 0, 1, 1, 2][rng.random_range(0..6)];
    for number in 1..=groups {
        let group = GroupId::new(1000 + number).expect("positive");
        let members = rng.random_range(0..1 << users) as u8 | 1 << rng.random_range(0..users);
        let create = Deed::Wish(group, Wished::Create(settings(&mut rng), members));
        let begin = Duration::from_millis(rng.random_range(0..10_000));
        deeds.push((begin, rng.random_range(0..devices), create));
        for _ in 0..rng.random_range(2..16) {
            let say = (
                moment(&mut rng),
                rng.random_range(0..devices),
                Deed::Say(group),
            );
            deeds.push(say);
        }
        for _ in 0..rng.random_range(0..12) {
            let wish = Deed::Wish(group, wished(&mut rng, users));
            deeds.push((moment(&mut rng), rng.random_range(0..devices), wish));
        }
    }
    deeds
}

/// In some worlds somebody hides messages.
fn hides(seed: u64, devices: usize) -> Vec<(Duration, usize, Deed)> {
    let mut rng = StdRng::seed_from_u64(!seed ^ HIDES);
    let count = [0, 0, 1, 3, 8][rng.random_range(0..5)];
    let hides = (0..count).map(|_| {
        let at = moment(&mut rng);
        (at, rng.random_range(0..devices), Deed::Hide(on(&mut rng)))
    });
    hides.collect()
}

fn settings(rng: &mut StdRng) -> Settings {
    Settings {
        open_history: rng.random_bool(0.3),
        open_door: rng.random_bool(0.6),
    }
}

fn wished(rng: &mut StdRng, users: usize) -> Wished {
    let user = rng.random_range(0..users);
    match rng.random_range(0..16) {
        0..=3 => Wished::Join,
        4 | 5 => Wished::Leave,
        6..=8 => Wished::Add(user),
        9..=11 => Wished::Remove(user),
        12 => Wished::SetRole(user, Role::Admin),
        13 => Wished::SetRole(user, Role::Member),
        14 => Wished::HandOver(user),
        _ => Wished::Set(settings(rng)),
    }
}

fn wish_of(wished: Wished, me: UserId) -> Wish {
    match wished {
        Wished::Create(settings, members) => {
            let members = (0..8).filter(|index| members & 1 << index != 0).map(user);
            Wish::Create {
                settings,
                members: members.filter(|user| *user != me).collect(),
            }
        }
        Wished::Join => Wish::Join,
        Wished::Leave => Wish::Leave,
        Wished::Add(index) => Wish::Add(vec![user(index)]),
        Wished::Remove(index) => Wish::Remove(user(index)),
        Wished::SetRole(index, role) => Wish::SetRole(user(index), role),
        Wished::HandOver(index) => Wish::HandOver(user(index)),
        Wished::Set(settings) => Wish::Set(settings),
    }
}

fn deed(rng: &mut StdRng) -> Deed {
    match rng.random_range(0..20) {
        0..=11 => Deed::Change(on(rng), to(rng)),
        12 => Deed::Again,
        13 | 14 => Deed::Clear(rng.random()),
        15 => Deed::Pin(rng.random(), rng.random()),
        _ => Deed::Read(rng.random(), rng.random()),
    }
}

fn on(rng: &mut StdRng) -> On {
    match rng.random_range(0..20) {
        0..=6 => On::Shown(rng.random(), rng.random()),
        7..=15 => On::Newest(rng.random(), rng.random_range(0..2)),
        16..=18 => On::Unplaced,
        _ => On::Nothing(rng.random()),
    }
}

fn to(rng: &mut StdRng) -> To {
    match rng.random_range(0..10) {
        0 | 1 => To::Recall,
        2..=5 => To::Edit,
        _ => To::React(
            rng.random_range(0..REACTIONS.len() as u8),
            rng.random_bool(0.7),
        ),
    }
}

/// A send that a deed makes.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    to: Recipient,
    content: Content,
}

impl World {
    pub(crate) fn do_deed(&mut self, index: usize, deed: Deed, number: usize) {
        if self.devices[index].is_gone() {
            return;
        }
        if !self.devices[index].is_running() {
            let again = DeviceEvent::Do {
                device: index,
                deed,
                number,
            };
            return self.after(Duration::from_secs(4), Event::Device(again));
        }
        if let Deed::Read(of, share) = deed {
            return self.read_up_to(index, of, share);
        }
        let Some(ask) = self.ask(index, deed, number) else {
            return;
        };
        if let Deed::Change(..) = deed {
            self.devices[index].last_ask = Some(ask.clone());
        }
        let send_id = SendId::from_bytes((SENDS + number as u128).to_be_bytes());
        self.send_what_may_fail(index, send_id, ask.to, ask.content);
    }

    fn ask(&self, index: usize, deed: Deed, number: usize) -> Option<Ask> {
        let (conversation, subject, kind, content) = match deed {
            Deed::Change(on, to) => {
                let (conversation, subject) = self.find(index, on)?;
                let text = match to {
                    To::Edit => format!("edit {number}"),
                    To::Recall | To::React(..) => String::new(),
                };
                (conversation, subject, kind_of(to), Content::text(text))
            }
            Deed::Again => return self.devices[index].last_ask.clone(),
            Deed::Clear(of) => {
                let (conversation, newest) = self.newest(index, of)?;
                (conversation, newest, ChangeKind::Clear, Content::text(""))
            }
            Deed::Hide(on) => {
                let (conversation, subject) = self.find(index, on)?;
                (conversation, subject, ChangeKind::Hide, Content::text(""))
            }
            Deed::Pin(of, pinned) => {
                let (conversation, newest) = self.newest(index, of)?;
                let arranged = Arranged {
                    pinned,
                    muted_until: None,
                };
                let kind = ChangeKind::Arrange(arranged);
                (conversation, newest, kind, Content::text(""))
            }
            Deed::Say(group) => {
                return Some(Ask {
                    to: Recipient::Group(group),
                    content: Content::text(format!("said {number}")),
                });
            }
            Deed::Wish(group, wished) => {
                let change = ChangeOf {
                    subject: None,
                    kind: ChangeKind::Wish(wish_of(wished, self.devices[index].user)),
                };
                return Some(Ask {
                    to: Recipient::Group(group),
                    content: Content {
                        change: Some(Box::new(change)),
                        ..Content::text("")
                    },
                });
            }
            Deed::Read(..) => return None,
        };
        let change = ChangeOf {
            subject: Some(subject),
            kind,
        };
        Some(Ask {
            to: self.recipient(index, conversation),
            content: Content {
                change: Some(Box::new(change)),
                ..content
            },
        })
    }

    fn recipient(&self, index: usize, conversation: ConversationId) -> Recipient {
        if let ConversationId::Group(group) = conversation {
            return Recipient::Group(group);
        }
        let me: UserId = self.devices[index].user;
        let peer = conversation.peer_of(me).expect("a conversation of theirs");
        Recipient::User(peer)
    }

    fn find(&self, index: usize, on: On) -> Option<(ConversationId, MessageId)> {
        let device = &self.devices[index];
        match on {
            On::Shown(of, share) => {
                let (conversation, shown) = self.shown(index, of)?;
                Some((conversation, shown[place_of(share, shown.len())].1))
            }
            On::Newest(of, back) => {
                let (conversation, shown) = self.shown(index, of)?;
                let (_, id) = shown[shown.len().saturating_sub(1 + usize::from(back))];
                Some((conversation, id))
            }
            On::Unplaced => {
                let mut unplaced = device.unplaced();
                unplaced.next_back()
            }
            On::Nothing(of) => {
                let (conversation, _) = self.shown(index, of)?;
                let never = MessageId::floor_of(crate::world::START);
                Some((conversation, never))
            }
        }
    }

    fn newest(&self, index: usize, of: u8) -> Option<(ConversationId, MessageId)> {
        let (conversation, shown) = self.shown(index, of)?;
        Some((conversation, shown.last()?.1))
    }

    /// One of the conversations that the device shows, with its messages.
    fn shown(&self, index: usize, of: u8) -> Option<(ConversationId, Vec<(Seq, MessageId)>)> {
        let app = &self.devices[index].app;
        let conversations: Vec<_> = app.conversations().collect();
        let last = conversations.len().checked_sub(1)?;
        let conversation = conversations[place_of(of, last + 1)];
        let said = app.said(conversation).iter();
        Some((conversation, said.map(|said| (said.seq, said.id)).collect()))
    }

    fn read_up_to(&mut self, index: usize, of: u8, share: u8) {
        let Some((conversation, shown)) = self.shown(index, of) else {
            return;
        };
        let (seq, id) = shown[place_of(share, shown.len())];
        let furthest = self.devices[index].read.entry(conversation).or_default();
        *furthest = seq.max(*furthest);
        self.read_on_device(index, conversation, seq, id);
    }
}

fn kind_of(to: To) -> ChangeKind {
    match to {
        To::Recall => ChangeKind::Recall,
        To::Edit => ChangeKind::Edit,
        To::React(which, on) => {
            let reaction = REACTIONS[usize::from(which)].parse::<Reaction>();
            let reaction = reaction.expect("short");
            ChangeKind::React { reaction, on }
        }
    }
}

/// One of so many, by share of 256.
fn place_of(share: u8, count: usize) -> usize {
    usize::from(share) * count / 256
}
