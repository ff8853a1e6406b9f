//! What becomes of a wish about a group. It takes no place and moves no head: what decides is where it stands in the
//! log, and what of it stands already (`protocol::group::rule`).

use std::sync::Arc;

use api::task::MessageTask;
use api::told::{Roles, frames_of};
use protocol::cached::Owner;
use protocol::delivery::{self, Task};
use protocol::group::{self, Group, Outcome, Wish};
use protocol::ledger::{DeadReason, Event};
use protocol::{ConversationId, GroupId, Placed, Position, Seq, Timestamp};
use tokio::time::Instant;

use super::decide::{Before, Decided, told_task};
use super::{Halt, WriteFailure, Writer};
use crate::work::Read;

/// What a wish makes of its group.
pub(super) struct Granted {
    group: GroupId,
    partition: u32,
    outcome: Outcome,
    /// The group then.
    after: Arc<Group>,
    /// The record as it is told.
    placed: Placed,
}

impl Writer {
    /// The wish is the only record of its batch.
    pub(super) fn wish(
        &self,
        read: &Read,
        task: &MessageTask,
        wish: &Wish,
        before: &Before,
    ) -> Decided {
        let conversation = task.message.conversation();
        let Some(ConversationId::Group(group)) = conversation else {
            let error = "a wish about a group belongs to its conversation".to_owned();
            return Decided::Dead(DeadReason::Misplaced, error);
        };
        let conversation = ConversationId::Group(group);
        let standing = before.groups.get(&group);
        let head = before.heads.get(&conversation).copied().unwrap_or_default();
        let (version, by) = (self.version(read), task.message.from);
        let ruled = group::rule(
            standing.map(Arc::as_ref),
            version,
            by,
            wish,
            head.seq,
            &task.bounds.group_limits(),
        );
        let outcome = match ruled {
            Ok(outcome) => outcome,
            Err(refusal) => return self.refused(read, task, conversation, refusal),
        };
        let after = match (standing, outcome.settings) {
            (Some(standing), _) if outcome.is_nothing() => standing.clone(),
            (Some(standing), _) => {
                let mut after = Group::clone(standing);
                after.apply(outcome.clone());
                Arc::new(after)
            }
            (None, settings) => {
                let Some((settings, version)) = settings else {
                    let error = "a new group without settings".to_owned();
                    return Decided::Dead(DeadReason::StoreRejected, error);
                };
                Arc::new(Group {
                    settings,
                    version,
                    members: outcome.members.clone().into_iter().collect(),
                })
            }
        };
        let position = Position {
            seq: head.seq.max(Seq(1)),
            prev: None,
        };
        Decided::Granted(Box::new(Granted {
            group,
            partition: read.source.partition,
            outcome,
            after,
            placed: Placed {
                message: task.message.clone(),
                conversation,
                position,
            },
        }))
    }

    /// Before anything else of the record.
    pub(super) async fn grant(
        &mut self,
        granted: Granted,
        until: Instant,
    ) -> Result<(), WriteFailure> {
        let Granted {
            group,
            partition,
            outcome,
            after,
            ..
        } = granted;
        if outcome.is_nothing() {
            return Ok(());
        }
        let saved = self.groups.save(group, partition, &outcome, after).await;
        saved.map_err(super::refused)?;
        // A device that is away learns by the list what became of its user's part.
        let conversation = ConversationId::Group(group);
        let touched: Vec<_> = (outcome.members.keys())
            .map(|user| (*user, conversation))
            .collect();
        let mut stamping = self.stamping(until);
        while let Some(at) = stamping.next()? {
            let touches = self.conversations.touch(touched.clone(), at);
            self.stores.within(touches).await?;
        }
        // Whoever may read less from now on must not find by a copy what is written next.
        let left = outcome.members.iter();
        let left = left.filter(|(_, member)| member.role.is_none());
        let left = left.map(|(user, _)| Owner::User(*user));
        let settings = outcome.settings.map(|_| Owner::Group(group));
        let forgotten = self.forget_copies(left.chain(settings).collect()).await;
        Ok(forgotten.map_err(Halt::Store)?)
    }
}

/// Told to all sessions of those whose membership it changed, and of the asker.
pub(super) fn first_task(read: &Read, granted: &Granted, now: Timestamp) -> Task {
    let placed = &granted.placed;
    let asker = placed.message.from;
    let changed = granted.outcome.members.keys().copied();
    let role = |user| (user, granted.after.role(user));
    let roles: Roles = changed.chain([asker]).map(role).collect();
    let owed = roles.keys().map(|user| delivery::told(*user)).collect();
    let conversation = placed.conversation;
    Task {
        own_frames: frames_of(placed, &roles, read.placing()),
        ..told_task(read, placed, 0, owed, Event::Listed { conversation }, now)
    }
}
