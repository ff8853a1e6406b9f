//! Events: the frames that sessions get for a record.
//!
//! A message goes out as itself, a change as the change of another message, and what somebody does to a list or a group
//! as a line about that. Bytes are made by an [`Encode`].

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::change::{ChangeKind, OrderedChange};
use crate::frame::{ListEvent, ListEventKind};
use crate::group::Role;
use crate::{ConversationId, Message, Placed, Recipient, TraceContext, UserId};

/// Roles of users in a group; `None`: not a member.
pub type GroupRoles = BTreeMap<UserId, Option<Role>>;

/// One frame to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message for its recipients.
    Message(&'a Placed),
    /// A private message for the other sessions of its sender.
    SenderCopy(&'a Placed),
    /// A change of a message.
    Changed {
        conversation: ConversationId,
        change: OrderedChange,
    },
    /// A change of a list, or of a group.
    List(ListEvent),
}

/// Makes the bytes of events.
pub trait Encode: Send + Sync {
    fn encode(&self, event: &Event<'_>, trace: Option<TraceContext>) -> Bytes;
}

impl<'a> Event<'a> {
    /// The event of a record for everybody that [`own_frames`] does not name. `rev`: position of a change among the
    /// changes.
    pub fn of(placed: &'a Placed, rev: u64) -> Event<'a> {
        if let Some(kind) = list_event(placed) {
            return Event::list(placed, kind);
        }
        match placed.changed(rev) {
            Some(change) => Event::Changed {
                conversation: placed.conversation,
                change,
            },
            None => Event::Message(placed),
        }
    }

    fn list(placed: &Placed, kind: ListEventKind) -> Event<'a> {
        Event::List(ListEvent {
            id: placed.message.id,
            send_id: placed.message.send_id,
            conversation: placed.conversation,
            kind,
        })
    }
}

/// True for a record that creates or changes a group.
pub fn is_group_command(message: &Message) -> bool {
    let change = message.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::GroupCommand(_)))
}

/// Frames of single users that replace the frame of all: of a private message its sender's copy, of a group command
/// each member's role. `roles`: those of the members concerned, where it is a group command.
pub fn own_frames(
    placed: &Placed,
    roles: &GroupRoles,
    trace: Option<TraceContext>,
    encode: &dyn Encode,
) -> BTreeMap<UserId, Bytes> {
    let message = &placed.message;
    if message.content.change.is_none() && matches!(message.to, Recipient::User(_)) {
        let copy = encode.encode(&Event::SenderCopy(placed), trace);
        return BTreeMap::from([(message.from, copy)]);
    }
    if !is_group_command(message) {
        return BTreeMap::new();
    }
    let mut frames: BTreeMap<Option<Role>, Bytes> = BTreeMap::new();
    let frames = roles.iter().map(|(user, role)| {
        let frame = frames.entry(*role).or_insert_with(|| {
            let event = Event::list(placed, ListEventKind::Member(*role));
            encode.encode(&event, None)
        });
        (*user, frame.clone())
    });
    frames.collect()
}

/// The event about a list or a group, if the record changes one.
fn list_event(placed: &Placed) -> Option<ListEventKind> {
    match placed.message.content.change.as_deref()?.kind {
        ChangeKind::Clear => Some(ListEventKind::Cleared(placed.position.seq)),
        ChangeKind::Arrange(arrangement) => Some(ListEventKind::Arranged(arrangement)),
        ChangeKind::Hide => Some(ListEventKind::Hidden(placed.position.seq)),
        // Members concerned have frames of their own.
        ChangeKind::GroupCommand(_) => Some(ListEventKind::Member(None)),
        ChangeKind::Recall
        | ChangeKind::Edit
        | ChangeKind::React { .. }
        | ChangeKind::Pin { .. } => None,
    }
}
