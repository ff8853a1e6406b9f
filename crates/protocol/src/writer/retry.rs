//! Retries of deliveries: the message goes out as it is now, edited or recalled meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::PANICKED;
use super::draft::known;
use super::facts::{Facts, Missing, MissingFact};
use crate::delivery::DeliveryTask;
use crate::event::{Encode, Event, GroupRoles, is_group_command, own_frames};
use crate::ledger::DeadReason;
use crate::message_row::Owner;
use crate::record::{RetryTask, Task};
use crate::{ConversationId, Placed, Recipient};

/// A retry without a delivery.
#[derive(Debug)]
pub enum RetryFailure {
    /// The keys to be read first: its row, then what became of the message there, and roles where it tells of a group
    /// command.
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
            Ok((placed, roles)) => Ok(delivery(task, retry, placed, &roles, encode)),
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

/// The message as its recipient's history has it now, or as the retry carries it where history has none; and the roles
/// of those concerned, of a group command.
pub(super) fn refreshed(
    retry: &RetryTask,
    facts: &Facts,
    missing: &mut Missing,
) -> Result<(Placed, GroupRoles), MissingFact> {
    let message = &retry.placed.message;
    let owner = match message.to {
        Recipient::User(to) => Owner::User(to),
        Recipient::Group(group) => Owner::Group(group),
    };
    let key = (owner, message.id);
    let row = known(facts.rows.get(&key), || _ = missing.rows.insert(key));
    let roles = roles(retry, facts, missing);
    let placed = match row? {
        Some(row) => {
            let mut placed = row.placed.clone();
            let place = (placed.conversation, placed.position.seq);
            let overlay = facts.overlays.get(&place);
            let overlay = known(overlay, || _ = missing.overlays.insert(place))?;
            placed.message.content = overlay.shown(&placed.message.content);
            placed
        }
        None => retry.placed.clone(),
    };
    Ok((placed, roles?))
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
        let key = (group, owed.user);
        let role = known(facts.roles.get(&key), || _ = missing.roles.insert(key)).copied();
        roles = roles.and_then(|mut roles| {
            roles.insert(owed.user, role?);
            Ok(roles)
        });
    }
    roles
}

pub(super) fn delivery(
    task: &Task,
    retry: &RetryTask,
    placed: Placed,
    roles: &GroupRoles,
    encode: &dyn Encode,
) -> DeliveryTask {
    DeliveryTask {
        audience: None,
        own_frames: own_frames(&placed, roles, task.trace, encode),
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
