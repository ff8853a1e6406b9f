//! Clears, arrangements, hidden messages: changes of what their owner sees, and nobody else.
//!
//! They take no position and move no head. Their place in the log among the messages decides, which is the same
//! whenever they are handled.

use super::draft::{Draft, DraftStep};
use super::facts::MissingFact;
use super::plan::{ListOp, ListOpKind};
use crate::change::{ChangeKind, ChangeOf};
use crate::conversation::{ClearResult, Neighbours, NewestSeen, clear};
use crate::ledger::DeadReason;
use crate::record::{MessageTask, TaskRecord};
use crate::{Code, ConversationId, MessageId, Position, Refusal, Seq, UserId};

impl<'a> Draft<'a> {
    pub(super) fn list_op(
        &mut self,
        record: &TaskRecord<'a>,
        task: &MessageTask,
        conversation: ConversationId,
        change: &ChangeOf,
    ) -> Result<DraftStep<'a>, MissingFact> {
        let Some(subject) = change.subject else {
            let error = "it names no message".to_owned();
            return Ok(DraftStep::Dead(DeadReason::StoreRejected, error));
        };
        let refuse = |code, text: &str| DraftStep::Unchanged {
            subject,
            refusal: Some(Refusal::new(code, text)),
        };
        let nothing = || DraftStep::Unchanged {
            subject,
            refusal: None,
        };
        let owner = task.message.from;
        // All keys that can be named at once.
        let group = self.group(record, conversation);
        let subject_fact = match change.kind {
            ChangeKind::Arrange(_) => Ok(None),
            _ => self.subject(record, conversation, owner, subject),
        };
        let group = group?;
        // Former members may still tidy up.
        if let ConversationId::Group(_) = conversation
            && !group.is_some_and(|group| group.members.contains(owner))
        {
            return Ok(refuse(Code::Forbidden, "you never were in this group"));
        }
        let kind = match change.kind {
            ChangeKind::Arrange(arrangement) => ListOpKind::Arrange(arrangement),
            ChangeKind::Hide => match subject_fact? {
                Some(message) => {
                    let seq = message.seq();
                    if self.is_hidden(record, (owner, conversation, seq))? {
                        return Ok(nothing());
                    }
                    ListOpKind::Hide(seq)
                }
                None => {
                    let text = "no such message in this conversation";
                    return Ok(refuse(Code::NotFound, text));
                }
            },
            _ => match self.clearing(record, conversation, owner, subject)? {
                ClearResult::Cleared(up_to) => ListOpKind::Clear(up_to),
                ClearResult::Nothing => return Ok(nothing()),
                ClearResult::Expired => {
                    let text =
                        "a message came that this device had not seen: the conversation stays";
                    return Ok(refuse(Code::NotFound, text));
                }
            },
        };
        let seq = match kind {
            ListOpKind::Clear(up_to) => up_to.seq,
            ListOpKind::Arrange(_) => Seq(1),
            ListOpKind::Hide(seq) => seq,
        };
        let op = ListOp {
            owner,
            conversation,
            version: self.version(record),
            kind,
        };
        let position = Position { seq, prev: None };
        Ok(DraftStep::Listed { op, position })
    }

    fn clearing(
        &mut self,
        record: &TaskRecord<'a>,
        conversation: ConversationId,
        owner: UserId,
        subject: MessageId,
    ) -> Result<ClearResult, MissingFact> {
        let key = (owner, conversation);
        let cleared_tally = self.facts.clears.get(&key).copied();
        if cleared_tally.is_none() {
            self.missing().clears.insert(key);
        }
        let Some(subject) = self.subject(record, conversation, owner, subject)? else {
            return Ok(ClearResult::Expired);
        };
        let seq = subject.seq();
        let next = self.follower(conversation, owner, seq)?;
        let newest_seen = NewestSeen {
            seq,
            id: subject.id(),
        };
        let neighbours = Neighbours {
            newest_seen: Some((newest_seen.id, subject.tally(owner))),
            next,
        };
        let cleared_tally = cleared_tally.ok_or(MissingFact)?;
        Ok(clear(
            self.version(record),
            newest_seen,
            neighbours,
            cleared_tally,
        ))
    }
}
