//! Retries of deliveries: the message goes out as it is now, edited or recalled meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::PANICKED;
use super::draft::require_fact;
use super::facts::{Facts, Missing, MissingFact};
use crate::change::{ChangeKind, Overlay};
use crate::delivery::DeliveryTask;
use crate::event::{Encode, Event, GroupRoles, is_group_command, own_frames};
use crate::group::{GroupInfo, Member, reads_edit};
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
        let mut missing_facts = Missing::default();
        match refresh_message(retry, facts, &mut missing_facts) {
            Ok(message) => Ok(delivery(task, retry, message, encode)),
            Err(MissingFact) => Err(RetryFailure::Missing(Box::new(missing_facts))),
        }
    };
    let dead_on_panic = |_| {
        Err(RetryFailure::Dead(
            DeadReason::HandlerPanic,
            PANICKED.to_owned(),
        ))
    };
    catch_unwind(AssertUnwindSafe(decide)).unwrap_or_else(dead_on_panic)
}

/// A message that goes out once more.
#[derive(Debug)]
pub(super) struct RetriedMessage {
    /// The message for everybody who is owed it, and for their mail.
    message: Placed,
    /// Those who may read its latest edit, where somebody else may not, and that edit.
    limited_edit: Option<(Vec<UserId>, Content)>,
    /// Roles of those concerned, of a group command.
    roles: GroupRoles,
}

/// The message as its recipient's history has it now, or as the retry carries it where history has none.
pub(super) fn refresh_message(
    retry: &RetryTask,
    facts: &Facts,
    missing_facts: &mut Missing,
) -> Result<RetriedMessage, MissingFact> {
    if is_edit(&retry.placed.message) {
        return refresh_edit(retry, facts, missing_facts);
    }
    let message = &retry.placed.message;
    let owner = match message.to {
        Recipient::User(to) => Owner::User(to),
        Recipient::Group(group) => Owner::Group(group),
    };
    let key = (owner, message.id);
    let row = require_fact(facts.rows.get(&key), || _ = missing_facts.rows.insert(key));
    let roles = roles(retry, facts, missing_facts);
    let Some(row) = row? else {
        return Ok(RetriedMessage {
            message: retry.placed.clone(),
            limited_edit: None,
            roles: roles?,
        });
    };
    let mut stored_message = row.placed.clone();
    let overlay = find_overlay(&stored_message, facts, missing_facts)?;
    let content = overlay.shown(&stored_message.message.content);
    // One frame for all, mail included: it has an edit only if each of them may read that.
    let limited_edit = match overlay.edited.as_ref() {
        Some(edit) if overlay.recalled.is_none() => {
            edit_readers(retry, edit.version, facts, missing_facts)?
        }
        Some(_) | None => None,
    };
    let limited_edit = match limited_edit {
        Some(readers) => Some((readers, content)),
        None => {
            stored_message.message.content = content;
            None
        }
    };
    Ok(RetriedMessage {
        message: stored_message,
        limited_edit,
        roles: roles?,
    })
}

/// The event of an edit, without its text if the message was recalled meanwhile.
fn refresh_edit(
    retry: &RetryTask,
    facts: &Facts,
    missing_facts: &mut Missing,
) -> Result<RetriedMessage, MissingFact> {
    let mut edit = retry.placed.clone();
    if find_overlay(&edit, facts, missing_facts)?
        .recalled
        .is_some()
    {
        edit.message.content = edit.message.content.without_text();
    }
    Ok(RetriedMessage {
        message: edit,
        limited_edit: None,
        roles: GroupRoles::new(),
    })
}

fn is_edit(message: &Message) -> bool {
    let change = message.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::Edit))
}

/// What became of the message at this place.
fn find_overlay<'f>(
    message: &Placed,
    facts: &'f Facts,
    missing_facts: &mut Missing,
) -> Result<&'f Overlay, MissingFact> {
    let place = (message.conversation, message.position.seq);
    let overlay = facts.overlays.get(&place);
    require_fact(overlay, || _ = missing_facts.overlays.insert(place))
}

/// Users owed the message of a group who may read the edit of this record; `None` if all may.
fn edit_readers(
    retry: &RetryTask,
    edit: Version,
    facts: &Facts,
    missing_facts: &mut Missing,
) -> Result<Option<Vec<UserId>>, MissingFact> {
    let ConversationId::Group(group) = retry.placed.conversation else {
        return Ok(None);
    };
    let seq = retry.placed.position.seq;
    let (mut readers, mut are_all, mut are_known) = (Vec::new(), true, Ok(()));
    for obligation in retry.owed() {
        match member(group, obligation.user, facts, missing_facts) {
            Ok(member) if reads_edit(member.as_ref(), seq, edit) => readers.push(obligation.user),
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
    missing_facts: &mut Missing,
) -> Result<&'f Option<(GroupInfo, Member)>, MissingFact> {
    let key = (group, user);
    require_fact(facts.members.get(&key), || {
        _ = missing_facts.members.insert(key)
    })
}

fn roles(
    retry: &RetryTask,
    facts: &Facts,
    missing_facts: &mut Missing,
) -> Result<GroupRoles, MissingFact> {
    let ConversationId::Group(group) = retry.placed.conversation else {
        return Ok(GroupRoles::new());
    };
    if !is_group_command(&retry.placed.message) {
        return Ok(GroupRoles::new());
    }
    let mut roles = Ok(GroupRoles::new());
    for obligation in retry.owed() {
        let member = member(group, obligation.user, facts, missing_facts);
        roles = roles.and_then(|mut roles| {
            let member = member?.as_ref();
            let member = member.filter(|(info, _)| !info.is_dissolved);
            let role = member.and_then(|(_, member)| member.role);
            roles.insert(obligation.user, role);
            Ok(roles)
        });
    }
    roles
}

pub(super) fn delivery(
    task: &Task,
    retry: &RetryTask,
    retried_message: RetriedMessage,
    encode: &dyn Encode,
) -> DeliveryTask {
    let RetriedMessage {
        message,
        limited_edit,
        roles,
    } = retried_message;
    let mut own_frames = own_frames(&message, &roles, task.trace, encode);
    if let Some((readers, content)) = limited_edit {
        let mut edited_message = message.clone();
        edited_message.message.content = content;
        let frame = encode.encode(&Event::Message(&edited_message), task.trace);
        own_frames.extend(readers.into_iter().map(|user| (user, frame.clone())));
    }
    DeliveryTask {
        audience: None,
        own_frames,
        obligations: retry.owed(),
        frame: encode.encode(&Event::of(&message, retry.rev), task.trace),
        placed: message,
        rev: retry.rev,
        retry_count: task.retry_count,
        first_at: task.first_at,
        origin: None,
        letter: retry.letter.as_deref().map(Arc::from),
        trace: task.trace,
        earlier_entries: Vec::new(),
    }
}
