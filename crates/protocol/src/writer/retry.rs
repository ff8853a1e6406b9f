//! Retries of deliveries: the message goes out as it is now, edited or recalled meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::PANICKED;
use super::draft::known;
use super::facts::{Facts, Missing, MissingFact};
use crate::change::{ChangeKind, Overlay};
use crate::delivery::DeliveryTask;
use crate::event::{Encode, Event, GroupRoles, is_group_command, own_frames};
use crate::group::{GroupSettings, Member, reads_edit};
use crate::history::Version;
use crate::ledger::DeadReason;
use crate::message::Content;
use crate::message_row::Owner;
use crate::record::{RetryTask, Task};
use crate::{ConversationId, GroupId, Message, Placed, Recipient, UserId};

/// A retry without a delivery.
#[derive(Debug)]
pub enum RetryFailure {
    /// The keys to be read first: its row, then what became of the message there, then the members who are owed it, if
    /// it was edited; of a group command the members at once.
    Missing(Box<Missing>),
    /// The record dies of this, alone.
    Dead(DeadReason, String),
}

/// The delivery of a retry.
///
/// # Errors
/// Facts that are missing; a panic, which would end its neighbours with it.
pub fn retry(
    task: &Task,
    retry: &RetryTask,
    facts: &Facts,
    encode: &dyn Encode,
) -> Result<DeliveryTask, RetryFailure> {
    let decide = || {
        let mut missing = Missing::default();
        match refreshed(retry, facts, &mut missing) {
            Ok(retried) => Ok(delivery(task, retry, retried, encode)),
            Err(MissingFact) => Err(RetryFailure::Missing(Box::new(missing))),
        }
    };
    let panicked = |_| {
        Err(RetryFailure::Dead(
            DeadReason::HandlerPanic,
            PANICKED.to_owned(),
        ))
    };
    catch_unwind(AssertUnwindSafe(decide)).unwrap_or_else(panicked)
}

/// A message that goes out once more.
#[derive(Debug)]
pub(super) struct RetriedMessage {
    /// The message for everybody who is owed it, and for their mail.
    placed: Placed,
    /// Those who may read its latest edit, where somebody else may not, and that edit.
    edited: Option<(Vec<UserId>, Content)>,
    /// Roles of those concerned, of a group command.
    roles: GroupRoles,
}

/// The message as its recipient's history has it now, or as the retry carries it where history has none.
pub(super) fn refreshed(
    retry: &RetryTask,
    facts: &Facts,
    missing: &mut Missing,
) -> Result<RetriedMessage, MissingFact> {
    if is_edit(&retry.placed.message) {
        return refreshed_edit(retry, facts, missing);
    }
    let message = &retry.placed.message;
    let owner = match message.to {
        Recipient::User(to) => Owner::User(to),
        Recipient::Group(group) => Owner::Group(group),
    };
    let key = (owner, message.id);
    let row = known(facts.rows.get(&key), || _ = missing.rows.insert(key));
    let roles = roles(retry, facts, missing);
    let Some(row) = row? else {
        return Ok(RetriedMessage {
            placed: retry.placed.clone(),
            edited: None,
            roles: roles?,
        });
    };
    let mut placed = row.placed.clone();
    let overlay = overlay_of(&placed, facts, missing)?;
    let shown = overlay.shown(&placed.message.content);
    // One frame for all, mail included: it has an edit only if each of them may read that.
    let edited = match overlay.edited.as_ref() {
        Some(edited) if overlay.recalled.is_none() => {
            edit_readers(retry, edited.version, facts, missing)?
        }
        Some(_) | None => None,
    };
    let edited = match edited {
        Some(readers) => Some((readers, shown)),
        None => {
            placed.message.content = shown;
            None
        }
    };
    Ok(RetriedMessage {
        placed,
        edited,
        roles: roles?,
    })
}

/// The event of an edit, without its text if the message was recalled meanwhile.
fn refreshed_edit(
    retry: &RetryTask,
    facts: &Facts,
    missing: &mut Missing,
) -> Result<RetriedMessage, MissingFact> {
    let mut placed = retry.placed.clone();
    if overlay_of(&placed, facts, missing)?.recalled.is_some() {
        placed.message.content = placed.message.content.without_text();
    }
    Ok(RetriedMessage {
        placed,
        edited: None,
        roles: GroupRoles::new(),
    })
}

fn is_edit(message: &Message) -> bool {
    let change = message.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::Edit))
}

/// What became of the message at this place.
fn overlay_of<'f>(
    placed: &Placed,
    facts: &'f Facts,
    missing: &mut Missing,
) -> Result<&'f Overlay, MissingFact> {
    let place = (placed.conversation, placed.position.seq);
    let overlay = facts.overlays.get(&place);
    known(overlay, || _ = missing.overlays.insert(place))
}

/// Users owed the message of a group who may read the edit of this record; `None` if all may.
fn edit_readers(
    retry: &RetryTask,
    edit: Version,
    facts: &Facts,
    missing: &mut Missing,
) -> Result<Option<Vec<UserId>>, MissingFact> {
    let ConversationId::Group(group) = retry.placed.conversation else {
        return Ok(None);
    };
    let seq = retry.placed.position.seq;
    let (mut readers, mut are_all, mut are_known) = (Vec::new(), true, Ok(()));
    for owed in retry.owed() {
        match member(group, owed.user, facts, missing) {
            Ok(member) if reads_edit(member.as_ref(), seq, edit) => readers.push(owed.user),
            Ok(_) => are_all = false,
            Err(MissingFact) => are_known = Err(MissingFact),
        }
    }
    are_known?;
    Ok((!are_all).then_some(readers))
}

fn member<'f>(
    group: GroupId,
    user: UserId,
    facts: &'f Facts,
    missing: &mut Missing,
) -> Result<&'f Option<(GroupSettings, Member)>, MissingFact> {
    let key = (group, user);
    known(facts.members.get(&key), || _ = missing.members.insert(key))
}

fn roles(
    retry: &RetryTask,
    facts: &Facts,
    missing: &mut Missing,
) -> Result<GroupRoles, MissingFact> {
    let ConversationId::Group(group) = retry.placed.conversation else {
        return Ok(GroupRoles::new());
    };
    if !is_group_command(&retry.placed.message) {
        return Ok(GroupRoles::new());
    }
    let mut roles = Ok(GroupRoles::new());
    for owed in retry.owed() {
        let member = member(group, owed.user, facts, missing);
        roles = roles.and_then(|mut roles| {
            let role = member?.as_ref().and_then(|(_, member)| member.role);
            roles.insert(owed.user, role);
            Ok(roles)
        });
    }
    roles
}

pub(super) fn delivery(
    task: &Task,
    retry: &RetryTask,
    retried: RetriedMessage,
    encode: &dyn Encode,
) -> DeliveryTask {
    let RetriedMessage {
        placed,
        edited,
        roles,
    } = retried;
    let mut own_frames = own_frames(&placed, &roles, task.trace, encode);
    if let Some((readers, content)) = edited {
        let mut edited = placed.clone();
        edited.message.content = content;
        let frame = encode.encode(&Event::Message(&edited), task.trace);
        own_frames.extend(readers.into_iter().map(|user| (user, frame.clone())));
    }
    DeliveryTask {
        audience: None,
        own_frames,
        owed: retry.owed(),
        frame: encode.encode(&Event::of(&placed, retry.rev), task.trace),
        placed,
        rev: retry.rev,
        retry_count: task.retry_count,
        first_at: task.first_at,
        origin: None,
        letter: retry.letter.as_deref().map(Arc::from),
        trace: task.trace,
        noted: Vec::new(),
    }
}
