//! Group commands. They take no position and move no head: their place in the log decides, and what of them is stored
//! already ([`crate::group::rule`]).

use std::sync::Arc;

use super::draft::{Draft, DraftStep, GroupDraft};
use super::facts::MissingFact;
use crate::group::{self, Group, GroupCommand};
use crate::ledger::DeadReason;
use crate::record::{MessageTask, TaskRecord};
use crate::{ConversationId, Position, Seq};

impl<'a> Draft<'a> {
    /// The only record of its group in the batch: see [`Parts`](super::Parts).
    pub(super) fn command(
        &mut self,
        record: &TaskRecord<'a>,
        task: &MessageTask,
        conversation: ConversationId,
        command: &GroupCommand,
    ) -> Result<DraftStep<'a>, MissingFact> {
        let ConversationId::Group(number) = conversation else {
            let error = "a group command belongs to the conversation of its group".to_owned();
            return Ok(DraftStep::Dead(DeadReason::Misplaced, error));
        };
        let group = self.group(record, conversation);
        let head = self.head(conversation);
        let (mut group, head) = (group?, head?);
        let version = self.version(record);
        // Records behind the command moved the head, and a newcomer begins at its end: where another writer granted the
        // command meanwhile, that newcomer stays as it is.
        if head.version > version && group.is_none_or(|group| group.newest() < version) {
            group = self.stored_group(record, number)?;
        }
        let result = group::rule(
            group.map(Arc::as_ref),
            version,
            task.message.from,
            command,
            head.seq,
            &task.bounds.group_limits(),
        );
        let update = match result {
            Ok(update) => update,
            Err(refusal) => return Ok(DraftStep::Refused(refusal)),
        };
        let updated_group = match (group, update.info) {
            (Some(group), _) if update.is_nothing() => group.clone(),
            (Some(group), _) => {
                let mut updated_group = Group::clone(group);
                updated_group.apply(update.clone());
                Arc::new(updated_group)
            }
            (None, Some(info)) => Arc::new(Group {
                info,
                members: update.members.clone().into_iter().collect(),
            }),
            (None, None) => {
                let error = "a new group without its own row".to_owned();
                return Ok(DraftStep::Dead(DeadReason::StoreRejected, error));
            }
        };
        let position = Position {
            seq: head.seq.max(Seq(1)),
            prev: None,
        };
        Ok(DraftStep::Granted(Box::new(GroupDraft {
            group: number,
            update,
            updated_group,
            position,
            head: (*command == GroupCommand::Dissolve).then_some(head),
        })))
    }
}
