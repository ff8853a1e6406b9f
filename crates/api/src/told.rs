//! What sessions are told of a record: the message, the change that it is, or a word about a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protocol::change::ChangeKind;
use protocol::delivery;
use protocol::frame::{ListDeed, ListWord, ServerFrame};
use protocol::group::Role;
use protocol::{Message, Placed, Recipient, TraceContext, UserId};

use crate::codec::{encode_copy, encode_server, encode_traced};
use crate::task::{DeliverTask, Task};

/// How users stand in a group.
pub type Roles = BTreeMap<UserId, Option<Role>>;

/// What a record says of its sender's list, if it does.
fn list_deed(placed: &Placed) -> Option<ListDeed> {
    match placed.message.content.change.as_deref()?.kind {
        ChangeKind::Clear => Some(ListDeed::Cleared(placed.position.seq)),
        ChangeKind::Arrange(arranged) => Some(ListDeed::Arranged(arranged)),
        ChangeKind::Hide => Some(ListDeed::Hidden(placed.position.seq)),
        // Whoever is told of it has a frame of their own.
        ChangeKind::Wish(_) => Some(ListDeed::Member(None)),
        ChangeKind::Recall | ChangeKind::Edit | ChangeKind::React { .. } => None,
    }
}

fn list_frame(placed: &Placed, deed: ListDeed) -> Bytes {
    encode_server(&ServerFrame::Listed(ListWord {
        id: placed.message.id,
        send_id: placed.message.send_id,
        conversation: placed.conversation,
        deed,
    }))
}

/// The record is a wish about a group.
pub fn is_wish(message: &Message) -> bool {
    let change = message.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::Wish(_)))
}

/// Frames of single users, instead of the frame of all: of a wish, what each of these is told; of a private message, its
/// sender's copy.
pub fn frames_of(
    placed: &Placed,
    roles: &Roles,
    trace: Option<TraceContext>,
) -> BTreeMap<UserId, Bytes> {
    let message = &placed.message;
    if message.content.change.is_none() && matches!(message.to, Recipient::User(_)) {
        let copy = encode_copy(placed, Some(message.from), trace);
        return BTreeMap::from([(message.from, copy)]);
    }
    if !is_wish(message) {
        return BTreeMap::new();
    }
    let mut frames: BTreeMap<Option<Role>, Bytes> = BTreeMap::new();
    let frames = roles.iter().map(|(user, role)| {
        let frame = frames.entry(*role);
        let frame = frame.or_insert_with(|| list_frame(placed, ListDeed::Member(*role)));
        (*user, frame.clone())
    });
    frames.collect()
}

/// What every session gets: the message, or the change that it is.
pub fn frame_of(placed: &Placed, rev: u64, trace: Option<TraceContext>) -> Bytes {
    if let Some(deed) = list_deed(placed) {
        return list_frame(placed, deed);
    }
    match placed.changed(rev) {
        Some(changed) => encode_server(&ServerFrame::Changed {
            conversation: placed.conversation,
            changed,
        }),
        None => encode_traced(placed, trace),
    }
}

/// A queued delivery as the machine takes it; `roles`: how those stand now who are told of a wish.
pub fn task_of(task: Task, deliver: DeliverTask, roles: &Roles) -> delivery::Task {
    delivery::Task {
        audience: None,
        own_frames: frames_of(&deliver.placed, roles, task.trace),
        owed: deliver.owed(),
        frame: frame_of(&deliver.placed, deliver.rev, task.trace),
        placed: deliver.placed,
        rev: deliver.rev,
        retry_count: task.retry_count,
        first_at: task.first_at,
        origin: None,
        letter: deliver.letter.map(Arc::from),
        trace: task.trace,
        noted: Vec::new(),
    }
}
