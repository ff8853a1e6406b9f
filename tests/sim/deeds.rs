//! What people do beside sending: they recall, edit, react, read, and tidy up their lists.

use std::time::Duration;

use protocol::change::{Arranged, ChangeKind, ChangeOf, Reaction};
use protocol::message::Content;
use protocol::{ConversationId, MessageId, Recipient, SendId, Seq, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::device::DeviceEvent;
use crate::plan::moment;
use crate::world::{Event, World};

/// Another source of chance than that of messages and faults: their worlds stay as they are.
const CHANCE: u64 = 0x0063_6861_6e67_6573;
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
    /// One conversation, and how much of it.
    Read(u8, u8),
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
    pub(crate) fn of(seed: u64, devices: usize) -> Deeds {
        let mut rng = StdRng::seed_from_u64(!seed ^ CHANCE);
        if rng.random_bool(0.2) {
            return Deeds::default();
        }
        let count = rng.random_range(2..30);
        let done = (0..count).map(|_| {
            let at = moment(&mut rng);
            (at, rng.random_range(0..devices), deed(&mut rng))
        });
        let done = done.collect();
        let late = (0..devices).map(|_| match rng.random_bool(0.2) {
            true => moment(&mut rng),
            false => Duration::ZERO,
        });
        let late = late.collect();
        Deeds { done, late }
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
        self.send_change(index, send_id, ask.to, ask.content);
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
            Deed::Pin(of, pinned) => {
                let (conversation, newest) = self.newest(index, of)?;
                let arranged = Arranged {
                    pinned,
                    muted_until: None,
                };
                let kind = ChangeKind::Arrange(arranged);
                (conversation, newest, kind, Content::text(""))
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
