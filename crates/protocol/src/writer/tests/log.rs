//! Logs of a few users and groups.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::NOON;
use crate::bounds::Bounds;
use crate::change::{ChangeKind, ChangeOf, ChangeRequest, ListArrangement, Reaction};
use crate::delivery::Source;
use crate::event::{Encode, Event};
use crate::group::{GroupCommand, GroupSettings};
use crate::keys::Topic;
use crate::message::Content;
use crate::record::{MessageTask, Task, TaskRecord, Work};
use crate::{
    DeviceId, GroupId, Message, MessageId, Options, Recipient, SendId, Timestamp, TraceContext,
    UserId,
};

/// Text whose frame cannot be made.
pub(crate) const PANICS: &str = "panics";
/// Time of acceptance of changes whose frames cannot be made, and later ones.
const PANICS_AT: Timestamp = Timestamp::from_millis(NOON.millis() + 3_600_000);

/// Frames that tests can read.
pub(crate) struct EncodeDebug;

impl Encode for EncodeDebug {
    fn encode(&self, event: &Event<'_>, _: Option<TraceContext>) -> Bytes {
        let panics = match event {
            Event::Message(message) => message.message.content.data == PANICS,
            Event::Changed { change, .. } => change.asked.at >= PANICS_AT,
            Event::SenderCopy(_) | Event::List(_) => false,
        };
        if panics {
            // A planned panic says nothing on standard error.
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
        format!("{event:?}").into()
    }
}

/// Frames of all messages.
pub(crate) struct EncodeAll;

impl Encode for EncodeAll {
    fn encode(&self, event: &Event<'_>, _: Option<TraceContext>) -> Bytes {
        format!("{event:?}").into()
    }
}

/// Record to be made.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    by: i64,
    to: To,
    kind: Kind,
    /// Number of an earlier act, whose send comes again.
    repeat_of: Option<usize>,
    unsure: bool,
    /// Accepted by a station whose clock is behind.
    late: bool,
}

#[derive(Clone, Copy, Debug)]
enum To {
    User(i64),
    Group(i64),
}

#[derive(Clone, Debug)]
enum Kind {
    Say,
    /// Change of the message of an earlier act, by its number.
    Change(usize, ChangeKind),
    Command(GroupCommand),
}

impl Act {
    fn new(by: i64, to: To, kind: Kind) -> Act {
        Act {
            by,
            to,
            kind,
            repeat_of: None,
            unsure: false,
            late: false,
        }
    }

    pub(crate) fn say(by: i64, to: i64) -> Act {
        Act::new(by, To::User(to), Kind::Say)
    }

    pub(crate) fn say_in(by: i64, group: i64) -> Act {
        Act::new(by, To::Group(group), Kind::Say)
    }

    pub(crate) fn change(by: i64, to: i64, subject: usize, kind: ChangeKind) -> Act {
        Act::new(by, To::User(to), Kind::Change(subject, kind))
    }

    /// The send of an earlier act comes again, in doubt whether it was accepted; to another
    /// receiver, under its send_id.
    pub(crate) fn repeating(self, number: usize) -> Act {
        Act {
            repeat_of: Some(number),
            unsure: true,
            ..self
        }
    }

    /// The same, by a station whose clock is behind.
    pub(crate) fn late(self) -> Act {
        Act { late: true, ..self }
    }

    /// Reacts to the message of the first act.
    pub(crate) fn react(by: i64, to: i64, on: bool) -> Act {
        let reaction: Reaction = "+1".parse().expect("short");
        Act::change(by, to, 0, ChangeKind::React { reaction, on })
    }

    pub(crate) fn create(by: i64, group: i64) -> Act {
        let members = (1..=USERS).filter(|user| *user != by).map(user).collect();
        let create = GroupCommand::Create {
            settings: OPEN,
            members,
        };
        Act::command(by, group, create)
    }

    pub(crate) fn command(by: i64, group: i64, command: GroupCommand) -> Act {
        Act::new(by, To::Group(group), Kind::Command(command))
    }
}

pub(crate) fn message_to(by: i64, to: i64) -> Act {
    Act::say(by, to)
}

const USERS: i64 = 3;
const GROUPS: i64 = 2;
const OPEN: GroupSettings = GroupSettings {
    open_history: true,
    open_door: true,
    ..GroupSettings::CLOSED
};

pub(crate) fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

pub(crate) fn group(number: i64) -> GroupId {
    GroupId::new(number).expect("positive")
}

fn command() -> impl Strategy<Value = GroupCommand> {
    let someone = (1..=USERS).prop_map(user);
    prop_oneof![
            3 => someone.clone().prop_map(|member| GroupCommand::Create {
                settings: OPEN,
                members: vec![member],
            }),
            1 => Just(GroupCommand::Join),
            1 => Just(GroupCommand::Leave),
            2 => someone.clone().prop_map(|member| GroupCommand::Add(vec![member])),
            2 => someone.clone().prop_map(|member| GroupCommand::Remove(vec![member])),
            1 => someone.prop_map(GroupCommand::HandOver),
            1 => any::<bool>().prop_map(|open_history| GroupCommand::Set(GroupSettings {
    open_history,
    open_door: true,
    ..GroupSettings::CLOSED
    })),
        ]
}

fn change() -> impl Strategy<Value = ChangeKind> {
    let reaction = || "+1".parse::<Reaction>().expect("short");
    prop_oneof![
        2 => Just(ChangeKind::Recall),
        2 => Just(ChangeKind::Edit),
        3 => any::<bool>().prop_map(move |on| ChangeKind::React { reaction: reaction(), on }),
        2 => Just(ChangeKind::Clear),
        1 => any::<bool>().prop_map(|pinned| ChangeKind::Arrange(ListArrangement {
            pinned,
            muted_until: None,
        })),
        2 => Just(ChangeKind::Hide),
        2 => any::<bool>().prop_map(|on| ChangeKind::Pin { on }),
    ]
}

/// Logs of up to 24 records behind the creation of their groups, of which everybody is a member at first: a list
/// operation asks if its owner ever was one, and a replay must not find members that came later.
pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let to = prop_oneof![
        (1..=USERS).prop_map(To::User),
        (100..100 + GROUPS).prop_map(To::Group),
    ];
    let kind = prop_oneof![
        4 => Just(Kind::Say),
        4 => (0..24usize, change()).prop_map(|(subject, kind)| Kind::Change(subject, kind)),
        3 => command().prop_map(Kind::Command),
    ];
    let repeat_of = prop_oneof![3 => Just(None), 1 => (0..24usize).prop_map(Some)];
    let act = (1..=USERS, to, kind, repeat_of, any::<bool>(), any::<bool>());
    let act = act.prop_map(|(by, to, kind, repeat_of, unsure, late)| Act {
        by,
        to,
        kind,
        repeat_of,
        unsure,
        late,
    });
    let acts = prop::collection::vec(act, 1..24);
    acts.prop_map(|mut acts| {
        let groups = (100..100 + GROUPS).map(|group| Act::create(1, group));
        acts.splice(..0, groups);
        acts
    })
}

/// Records on one partition.
pub(crate) struct Log {
    pub(crate) tasks: Vec<Task>,
}

impl Log {
    pub(crate) fn of(acts: &[Act]) -> Log {
        let mut log = Log { tasks: Vec::new() };
        for (number, act) in acts.iter().enumerate() {
            let task = log.task(number, act);
            log.tasks.extend(task);
        }
        if log.tasks.is_empty() {
            log.tasks.extend(log.task(acts.len(), &Act::say(1, 2)));
        }
        log
    }

    pub(crate) fn records(&self) -> Vec<TaskRecord<'_>> {
        let records = self.tasks.iter().enumerate();
        let records = records.map(|(offset, task)| TaskRecord {
            source: Source {
                topic: Topic::Message,
                partition: 0,
                offset: offset as u64,
            },
            task,
        });
        records.collect()
    }

    /// Makes the frame of this message or change impossible; false where there is none.
    pub(crate) fn poison(&mut self, number: usize) -> bool {
        let Some(Work::Message(task)) = self.tasks.get_mut(number).map(|task| &mut task.work)
        else {
            return false;
        };
        let is_change = ChangeRequest::of(&task.message).is_some();
        match &task.message.content.change {
            None => task.message.content.data = PANICS.into(),
            Some(_) if is_change => task.message.accepted_at = PANICS_AT,
            Some(_) => return false,
        }
        true
    }

    /// True for the record of a change of a message.
    pub(crate) fn is_change(&self, number: usize) -> bool {
        let message = self.message_at(number);
        message.is_some_and(|message| ChangeRequest::of(message).is_some())
    }

    pub(crate) fn is_command(&self, offset: u64) -> bool {
        let message = self.message_at(offset as usize);
        message.is_some_and(crate::event::is_group_command)
    }

    fn message_at(&self, number: usize) -> Option<&Message> {
        match &self.tasks.get(number)?.work {
            Work::Message(task) => Some(&task.message),
            Work::Deliver(_) | Work::Kickout(_) => None,
        }
    }

    /// `None` for an act that no station accepts.
    fn task(&self, number: usize, act: &Act) -> Option<Task> {
        let (millis, id) = (number as i64, (number as i64 + 1) * 10);
        // A clock that is behind makes a smaller id.
        let id = if act.late { id - 5 - 60 } else { id };
        let from = user(act.by);
        let to = match act.to {
            To::User(to) if to == act.by => return None,
            To::User(to) => Recipient::User(user(to)),
            To::Group(to) => Recipient::Group(group(to)),
        };
        let (content, to) = match &act.kind {
            Kind::Say => (Content::text(format!("text {number}")), to),
            Kind::Command(command) => {
                let Recipient::Group(_) = to else {
                    return None;
                };
                let kind = ChangeKind::GroupCommand(command.clone());
                let change = ChangeOf {
                    subject: None,
                    kind,
                };
                (changing("", change), to)
            }
            Kind::Change(subject, kind) => {
                let subject_message = self.message_at(*subject)?;
                let to = match (subject_message.to, subject_message.from == from) {
                    (Recipient::User(_), false) if subject_message.to != Recipient::User(from) => {
                        return None;
                    }
                    (Recipient::User(_), false) => Recipient::User(subject_message.from),
                    (to, _) => to,
                };
                let text = if kind.has_text() { "edited" } else { "" };
                let change = ChangeOf {
                    subject: Some(subject_message.id),
                    kind: kind.clone(),
                };
                (changing(text, change), to)
            }
        };
        let earlier_message = act.repeat_of.and_then(|number| self.message_at(number));
        let earlier_message =
            earlier_message.filter(|earlier_message| earlier_message.from == from);
        let first = earlier_message.filter(|first| first.to == to);
        let is_same = |first: &&Message| first.content.change.is_some() == content.change.is_some();
        let first = first.filter(is_same);
        // A client that uses a send_id for two receivers, while nothing can tell.
        let is_message = |message: &Message| message.content.change.is_none();
        let other = earlier_message
            .filter(|other| other.to != to && is_message(other) && content.change.is_none());
        let send_id = match first.or(other) {
            Some(first) => first.send_id,
            None => SendId::from_bytes((number as u128 + 1).to_be_bytes()),
        };
        let message = Message {
            id: MessageId::new(base() + id).expect("positive"),
            from,
            to,
            accepted_at: NOON + Duration::from_millis(millis.unsigned_abs()),
            device: DeviceId::new("pixel-9").expect("a name"),
            send_id,
            options: Options::STORE_OFFLINE,
            content: first.map_or(content, |first| first.content.clone()),
        };
        let task = MessageTask {
            message,
            origin: None,
            maybe_repeat: first.is_some(),
            unsure: other.is_some() || (act.unsure && first.is_some()),
            age: Duration::from_secs(1),
            letter: None,
            bounds: Bounds::DEFAULT,
        };
        Some(Task::new(Work::Message(task), NOON))
    }
}

fn changing(text: &str, change: ChangeOf) -> Content {
    Content {
        change: Some(Box::new(change)),
        ..Content::text(text)
    }
}

/// Ids of the time of the log.
fn base() -> i64 {
    MessageId::floor_of(NOON).get() + 1_000
}
