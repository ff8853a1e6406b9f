//! Actions of users besides sending: recall, edit, react, pin, read, and tidy up lists.

use std::time::Duration;

use protocol::change::{ChangeKind, ChangeOf, ListArrangement, Reaction};
use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, Recipient, SendId, Seq, Timestamp, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::core_device::CoreDevice;

/// Time zero of every world.
pub const START: Timestamp = Timestamp::from_millis(1_750_000_000_000);
/// Period of faults at the start of a world; then it heals.
pub const FAULT_PERIOD: Duration = Duration::from_secs(40);

/// Seed apart from that of messages and faults, whose worlds thus stay as they are.
const CHANGES: u64 = 0x0063_6861_6e67_6573;
const GROUPS: u64 = 0x0067_726f_7570_7321;
const HIDES: u64 = 0x0068_6964_6465_6e21;
const PINS: u64 = 0x0070_696e_6e65_6421;
const RESTRICTIONS: u64 = 0x006d_7574_6564_2121;
/// Sends of this device are numbered by their action, behind all messages.
const FIRST_SEND_NUMBER: u128 = 1 << 64;
const REACTIONS: [&str; 3] = ["+1", "heart", "eyes"];

#[derive(Clone, Copy, Debug)]
pub enum UserAction {
    Change(On, To),
    /// Last change of the device, requested again under another id.
    Again,
    /// Clears up to the newest message that the device has.
    Clear(u8),
    Pin(u8, bool),
    Hide(On),
    /// Reads a share of one conversation.
    Read(u8, u8),
    /// Says something in a group.
    Say(GroupId),
    Group(GroupId, GroupAction),
}

/// Command about a group; users by number.
#[derive(Clone, Copy, Debug)]
pub enum GroupAction {
    /// Creates a group with these members, one bit each.
    Create(GroupSettings, u8),
    Join,
    Leave,
    Add(usize),
    Remove(usize),
    SetRole(usize, Role),
    HandOver(usize),
    Set(GroupSettings),
    Ban(usize),
    /// Until this time after the start.
    Mute(usize, Duration),
    Dissolve,
}

/// Message to change.
#[derive(Clone, Copy, Debug)]
pub enum On {
    /// A message of a conversation that the device shows.
    Shown(u8, u8),
    /// One of the newest few of a conversation: several changes meet there.
    Newest(u8, u8),
    /// An own message that was accepted, without a position known here.
    Unplaced,
    /// A message that never existed.
    Nothing(u8),
}

#[derive(Clone, Copy, Debug)]
pub enum To {
    Recall,
    Edit,
    React(u8, bool),
    Pin(bool),
}

/// Actions in a world.
#[derive(Clone, Debug, Default)]
pub struct UserActions {
    /// Time, device and action.
    pub steps: Vec<(Duration, usize, UserAction)>,
    /// Delay of each device behind the others.
    pub delays: Vec<Duration>,
}

impl UserActions {
    /// Actions in the world of a seed, for so many devices. Some worlds have none.
    pub fn of(seed: u64, devices: usize, users: usize) -> UserActions {
        let mut rng = StdRng::seed_from_u64(!seed ^ CHANGES);
        if rng.random_bool(0.2) {
            return UserActions::default();
        }
        let count = rng.random_range(2..30);
        let steps = (0..count).map(|_| {
            let at = moment(&mut rng);
            (at, rng.random_range(0..devices), action(&mut rng))
        });
        let mut steps: Vec<_> = steps.collect();
        steps.extend(in_groups(seed, devices, users));
        steps.extend(hides(seed, devices));
        steps.extend(pins(seed, devices));
        steps.extend(restrictions(seed, devices, users));
        let delays = (0..devices).map(|_| {
            if rng.random_bool(0.2) {
                moment(&mut rng)
            } else {
                Duration::ZERO
            }
        });
        UserActions {
            delays: delays.collect(),
            steps,
        }
    }
}

/// Actions in groups, which some worlds have.
fn in_groups(seed: u64, devices: usize, users: usize) -> Vec<(Duration, usize, UserAction)> {
    let mut rng = StdRng::seed_from_u64(!seed ^ GROUPS);
    let mut actions = Vec::new();
    let groups = [0, 0, 0, 1, 1, 2][rng.random_range(0..6)];
    for number in 1..=groups {
        let group = GroupId::new(1000 + number).expect("positive");
        let members = rng.random_range(0..1 << users) as u8 | 1 << rng.random_range(0..users);
        let create = UserAction::Group(group, GroupAction::Create(settings(&mut rng), members));
        let begin = Duration::from_millis(rng.random_range(0..10_000));
        actions.push((begin, rng.random_range(0..devices), create));
        for _ in 0..rng.random_range(2..16) {
            let say = (
                moment(&mut rng),
                rng.random_range(0..devices),
                UserAction::Say(group),
            );
            actions.push(say);
        }
        for _ in 0..rng.random_range(0..12) {
            let command = UserAction::Group(group, group_action(&mut rng, users));
            actions.push((moment(&mut rng), rng.random_range(0..devices), command));
        }
    }
    actions
}

/// Hides of messages, which some worlds have.
fn hides(seed: u64, devices: usize) -> Vec<(Duration, usize, UserAction)> {
    let mut rng = StdRng::seed_from_u64(!seed ^ HIDES);
    let count = [0, 0, 1, 3, 8][rng.random_range(0..5)];
    let hides = (0..count).map(|_| {
        let at = moment(&mut rng);
        (
            at,
            rng.random_range(0..devices),
            UserAction::Hide(on(&mut rng)),
        )
    });
    hides.collect()
}

/// Pins of messages, which some worlds have.
fn pins(seed: u64, devices: usize) -> Vec<(Duration, usize, UserAction)> {
    let mut rng = StdRng::seed_from_u64(!seed ^ PINS);
    let count = [0, 0, 1, 4, 10][rng.random_range(0..5)];
    let pins = (0..count).map(|_| {
        let (at, device) = (moment(&mut rng), rng.random_range(0..devices));
        let pin = UserAction::Change(on(&mut rng), To::Pin(rng.random_bool(0.7)));
        (at, device, pin)
    });
    pins.collect()
}

/// Bans, mutes and dissolved groups, which some worlds have.
fn restrictions(seed: u64, devices: usize, users: usize) -> Vec<(Duration, usize, UserAction)> {
    let mut rng = StdRng::seed_from_u64(!seed ^ RESTRICTIONS);
    let count = [0, 0, 1, 3, 8][rng.random_range(0..5)];
    let restrictions = (0..count).map(|_| {
        let user = rng.random_range(0..users);
        let action = match rng.random_range(0..12) {
            0..=3 => GroupAction::Ban(user),
            4..=7 => GroupAction::Mute(user, moment(&mut rng)),
            8 => GroupAction::Dissolve,
            _ => GroupAction::Set(GroupSettings {
                muted: rng.random_bool(0.5),
                quiet: rng.random_bool(0.5),
                ..settings(&mut rng)
            }),
        };
        let group = GroupId::new(1000 + rng.random_range(1..=2)).expect("positive");
        let (at, device) = (moment(&mut rng), rng.random_range(0..devices));
        (at, device, UserAction::Group(group, action))
    });
    restrictions.collect()
}

fn settings(rng: &mut StdRng) -> GroupSettings {
    GroupSettings {
        open_history: rng.random_bool(0.3),
        open_door: rng.random_bool(0.6),
        ..GroupSettings::CLOSED
    }
}

fn group_action(rng: &mut StdRng, users: usize) -> GroupAction {
    let user = rng.random_range(0..users);
    match rng.random_range(0..16) {
        0..=3 => GroupAction::Join,
        4 | 5 => GroupAction::Leave,
        6..=8 => GroupAction::Add(user),
        9..=11 => GroupAction::Remove(user),
        12 => GroupAction::SetRole(user, Role::Admin),
        13 => GroupAction::SetRole(user, Role::Member),
        14 => GroupAction::HandOver(user),
        _ => GroupAction::Set(settings(rng)),
    }
}

fn group_command(action: GroupAction, me: UserId) -> GroupCommand {
    match action {
        GroupAction::Create(settings, members) => {
            let members = (0..8).filter(|index| members & 1 << index != 0).map(user);
            GroupCommand::Create {
                settings,
                members: members.filter(|user| *user != me).collect(),
            }
        }
        GroupAction::Join => GroupCommand::Join,
        GroupAction::Leave => GroupCommand::Leave,
        GroupAction::Add(index) => GroupCommand::Add(vec![user(index)]),
        GroupAction::Remove(index) => GroupCommand::Remove(vec![user(index)]),
        GroupAction::SetRole(index, role) => GroupCommand::SetRole(user(index), role),
        GroupAction::HandOver(index) => GroupCommand::HandOver(user(index)),
        GroupAction::Set(settings) => GroupCommand::Set(settings),
        GroupAction::Ban(index) => GroupCommand::Ban(vec![user(index)]),
        GroupAction::Mute(index, until) => GroupCommand::Mute(user(index), START + until),
        GroupAction::Dissolve => GroupCommand::Dissolve,
    }
}

fn action(rng: &mut StdRng) -> UserAction {
    match rng.random_range(0..20) {
        0..=11 => UserAction::Change(on(rng), to(rng)),
        12 => UserAction::Again,
        13 | 14 => UserAction::Clear(rng.random()),
        15 => UserAction::Pin(rng.random(), rng.random()),
        _ => UserAction::Read(rng.random(), rng.random()),
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

/// Send made by an action.
#[derive(Clone, Debug)]
pub struct Ask {
    to: Recipient,
    content: Content,
}

/// Name of the send of an action, by its number.
pub fn action_send_id(number: usize) -> SendId {
    SendId::from_bytes((FIRST_SEND_NUMBER + number as u128).to_be_bytes())
}

/// User `index` of a world.
pub fn user(index: usize) -> UserId {
    UserId::new(index as i64 + 1).expect("positive")
}

/// Random time in the period of faults.
pub fn moment(rng: &mut StdRng) -> Duration {
    Duration::from_millis(rng.random_range(0..FAULT_PERIOD.as_millis() as u64))
}

impl CoreDevice {
    /// Performs an action at once; the device must be running.
    pub fn perform(&mut self, action: UserAction, number: usize, now: Timestamp) {
        if let UserAction::Read(pick, share) = action {
            return self.read_up_to(pick, share, now);
        }
        let Some(ask) = self.ask(action, number) else {
            return;
        };
        if let UserAction::Change(..) = action {
            self.last_ask = Some(ask.clone());
        }
        self.send_fallible(action_send_id(number), ask.to, ask.content, now);
    }

    fn ask(&self, action: UserAction, number: usize) -> Option<Ask> {
        let (conversation, subject, kind, content) = match action {
            UserAction::Change(on, to) => {
                let (conversation, subject) = self.find(on)?;
                let text = match to {
                    To::Edit => format!("edit {number}"),
                    To::Recall | To::React(..) | To::Pin(_) => String::new(),
                };
                (conversation, subject, change_kind(to), Content::text(text))
            }
            UserAction::Again => return self.last_ask.clone(),
            UserAction::Clear(pick) => {
                let (conversation, newest) = self.newest(pick)?;
                (conversation, newest, ChangeKind::Clear, Content::text(""))
            }
            UserAction::Hide(on) => {
                let (conversation, subject) = self.find(on)?;
                (conversation, subject, ChangeKind::Hide, Content::text(""))
            }
            UserAction::Pin(pick, is_pinned) => {
                let (conversation, newest) = self.newest(pick)?;
                let arrangement = ListArrangement {
                    pinned: is_pinned,
                    muted_until: None,
                };
                let kind = ChangeKind::Arrange(arrangement);
                (conversation, newest, kind, Content::text(""))
            }
            UserAction::Say(group) => {
                return Some(Ask {
                    to: Recipient::Group(group),
                    content: Content::text(format!("said {number}")),
                });
            }
            UserAction::Group(group, action) => {
                let change = ChangeOf {
                    subject: None,
                    kind: ChangeKind::GroupCommand(group_command(action, self.user)),
                };
                return Some(Ask {
                    to: Recipient::Group(group),
                    content: Content {
                        change: Some(Box::new(change)),
                        ..Content::text("")
                    },
                });
            }
            UserAction::Read(..) => return None,
        };
        let change = ChangeOf {
            subject: Some(subject),
            kind,
        };
        Some(Ask {
            to: conversation
                .other_than(self.user)
                .expect("a conversation of theirs"),
            content: Content {
                change: Some(Box::new(change)),
                ..content
            },
        })
    }

    fn find(&self, on: On) -> Option<(ConversationId, MessageId)> {
        match on {
            On::Shown(pick, share) => {
                let (conversation, messages) = self.shown(pick)?;
                Some((conversation, messages[index_at(share, messages.len())].1))
            }
            On::Newest(pick, back) => {
                let (conversation, messages) = self.shown(pick)?;
                let (_, id) = messages[messages.len().saturating_sub(1 + usize::from(back))];
                Some((conversation, id))
            }
            On::Unplaced => self.unplaced().next_back(),
            On::Nothing(pick) => {
                let (conversation, _) = self.shown(pick)?;
                let unknown_id = MessageId::floor_of(START);
                Some((conversation, unknown_id))
            }
        }
    }

    fn newest(&self, pick: u8) -> Option<(ConversationId, MessageId)> {
        let (conversation, messages) = self.shown(pick)?;
        Some((conversation, messages.last()?.1))
    }

    /// Picks a conversation the device shows, with its messages.
    fn shown(&self, pick: u8) -> Option<(ConversationId, Vec<(Seq, MessageId)>)> {
        let conversations: Vec<_> = self.app.conversations().collect();
        let last = conversations.len().checked_sub(1)?;
        let conversation = conversations[index_at(pick, last + 1)];
        let messages = self.app.said(conversation).iter();
        Some((
            conversation,
            messages
                .map(|messages| (messages.seq, messages.id))
                .collect(),
        ))
    }

    fn read_up_to(&mut self, pick: u8, share: u8, now: Timestamp) {
        let Some((conversation, messages)) = self.shown(pick) else {
            return;
        };
        let (seq, id) = messages[index_at(share, messages.len())];
        let read_seq = self.read.entry(conversation).or_default();
        *read_seq = seq.max(*read_seq);
        self.with(|core| core.read(conversation, seq, id, now));
    }
}

fn change_kind(to: To) -> ChangeKind {
    match to {
        To::Recall => ChangeKind::Recall,
        To::Edit => ChangeKind::Edit,
        To::React(index, on) => {
            let reaction = REACTIONS[usize::from(index)].parse::<Reaction>();
            let reaction = reaction.expect("short");
            ChangeKind::React { reaction, on }
        }
        To::Pin(on) => ChangeKind::Pin { on },
    }
}

/// Index among `count`, by a share of 256.
fn index_at(share: u8, count: usize) -> usize {
    usize::from(share) * count / 256
}
