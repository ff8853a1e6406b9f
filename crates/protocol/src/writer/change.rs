//! Recalls, edits, reactions: their place among the changes, by the rule of [`crate::change`].

use super::draft::{ChangeDraft, Death, Draft, DraftStep, HeadAfter, Readers, Subject};
use super::facts::{ChangeKey, MissingFact};
use crate::change::{
    ChangePlacement, ChangeRequest, ChangeRow, ChangeRuling, ChangeSearch, ChangeSubject,
    OrderedChange, Overlay, Requester, RulingFacts, rule,
};
use crate::group::Audience;
use crate::history::Version;
use crate::ledger::DeadReason;
use crate::record::{MessageTask, TaskRecord};
use crate::{ConversationId, Refusal};

impl<'a> Draft<'a> {
    pub(super) fn change(
        &mut self,
        record: &TaskRecord<'a>,
        task: &MessageTask,
        conversation: ConversationId,
        request: ChangeRequest,
    ) -> Result<DraftStep<'a>, MissingFact> {
        let (id, version) = (task.message.id, self.version(record));
        let nothing = |refusal: Option<Refusal>| DraftStep::Unchanged {
            subject: request.subject,
            refusal,
        };
        // All keys that can be named at once.
        let group = self.group(record, conversation);
        let head = self.head(conversation);
        let subject = self.subject(record, conversation, request.by, request.subject);
        let overlay = match &subject {
            Ok(Some(subject)) => self.overlay(conversation, subject.seq(), subject.is_new()),
            Ok(None) | Err(MissingFact) => Ok(Overlay::default()),
        };
        let (group, head) = (group?, head?);
        let is_late = head.may_be_late(id);
        let first = if is_late || task.unsure || task.maybe_repeat || task.letter.is_some() {
            self.first_change(conversation, &request, version)?
        } else {
            None
        };
        if first.is_some() && task.letter.is_none() {
            return Ok(nothing(None));
        }
        let (subject, mut overlay) = (subject?, overlay?);
        let is_behind = group.is_some_and(|group| group.newest() > version);
        let placement = head.place_change(version, &overlay, is_behind);
        let search = match placement {
            ChangePlacement::New(_) => None,
            ChangePlacement::Redelivery => Some(ChangeSearch::UpTo(self.last_rev(conversation))),
            ChangePlacement::Interrupted => {
                let head = self.facts.heads.get(&conversation);
                Some(ChangeSearch::Behind(head.map_or(0, |head| head.rev)))
            }
        };
        let own = match search.filter(|_| first.is_none()) {
            Some(search) => self.own_change(conversation, version, search)?,
            None => None,
        };
        let requester = match conversation {
            ConversationId::Group(_) => {
                Requester::in_group(group.map(AsRef::as_ref), request.by, request.at)
            }
            ConversationId::Private { .. } | ConversationId::System(_) => Ok(Requester::ONE_OF_TWO),
        };
        let facts = RulingFacts {
            placement,
            first,
            is_letter: task.letter.is_some(),
            own,
            subject: subject.as_ref().map(|subject| ChangeSubject {
                seq: subject.seq(),
                from: subject.author(),
                accepted_at: subject.accepted_at(),
                content: subject.content(),
                overlay: &overlay,
            }),
            asker: requester,
        };
        let ruling = rule(version, &request, facts, &task.bounds.rules());
        let (change, made_by, moves) = match ruling {
            ChangeRuling::Place {
                change,
                made_by,
                moves,
            } => (change, made_by, moves),
            ChangeRuling::Nothing(refusal) => return Ok(nothing(refusal)),
            ChangeRuling::Died { change, moves } => {
                let head = head.moved_by_change(version, id, change.rev);
                let row = ChangeRow {
                    conversation,
                    version,
                    author: request.by,
                    changed: change,
                };
                let error = "handled before, and died".to_owned();
                let death = Death::new(DeadReason::StoreRejected, error);
                return Ok(DraftStep::Died(if moves {
                    death.at(head, row)
                } else {
                    death
                }));
            }
        };
        let Some(subject) = subject else {
            return Ok(nothing(None));
        };
        overlay.apply(made_by, &change);
        let head = if moves {
            head.moved_by_change(version, id, change.rev)
        } else {
            head
        };
        // An event of a change tells the message's content: it is for those who may read that.
        let readers = group.map(|group| {
            let audience = Audience::for_change(group.clone(), change.seq);
            Readers::of(audience, self.push_max)
        });
        Ok(DraftStep::Changed(Box::new(ChangeDraft {
            row: ChangeRow {
                conversation,
                version: made_by,
                author: subject.author(),
                changed: change,
            },
            subject,
            head: HeadAfter { head, moves },
            overlay,
            readers: readers.unwrap_or(Readers::NONE),
        })))
    }

    /// Death of a change by chance. It has the next place, unless its row stands since before a crash. Reads no more
    /// than that takes: what cannot be read may be why it dies.
    pub(super) fn record_change_death(
        &mut self,
        record: &TaskRecord<'a>,
        conversation: ConversationId,
        request: &ChangeRequest,
        death: Death,
    ) -> Result<Death, MissingFact> {
        let (head, version) = (self.head(conversation)?, self.version(record));
        if head.has_handled(version) {
            return Ok(death);
        }
        let cached_head = self.facts.heads.get(&conversation);
        let search = ChangeSearch::Behind(cached_head.map_or(0, |head| head.rev));
        let row = match self.own_change(conversation, version, search)? {
            // It stands: its effect may be missing yet.
            Some(change) if !change.has_died() => {
                let subject = self.subject(record, conversation, request.by, request.subject)?;
                ChangeRow {
                    conversation,
                    version,
                    author: subject.map_or(request.by, |subject| subject.author()),
                    changed: change,
                }
            }
            own => ChangeRow {
                conversation,
                version,
                author: request.by,
                changed: OrderedChange::died(own.map_or(head.rev + 1, |own| own.rev), request),
            },
        };
        let head = head.moved_by_change(version, request.id, row.changed.rev);
        Ok(death.at(head, row))
    }

    /// The same change of an earlier record.
    fn first_change(
        &mut self,
        conversation: ConversationId,
        request: &ChangeRequest,
        version: Version,
    ) -> Result<Option<(Version, OrderedChange)>, MissingFact> {
        let is_same = |row: &&ChangeRow| {
            let other = &row.changed.asked;
            row.conversation == conversation
                && (other.by, other.send_id) == (request.by, request.send_id)
                && row.version < version
        };
        if let Some(row) = self.drafted_changes().iter().find(is_same) {
            return Ok(Some((row.version, row.changed.clone())));
        }
        let key = ChangeKey {
            conversation,
            by: request.by,
            send_id: request.send_id,
        };
        let last = self.last_rev(conversation);
        let Some(first) = self.facts.first_changes.get(&key) else {
            self.missing().first_changes.insert(key, last);
            return Err(MissingFact);
        };
        let first = first
            .as_ref()
            .filter(|(stored_version, _)| *stored_version < version);
        Ok(first.cloned())
    }

    /// The change that this record made when it was handled before.
    fn own_change(
        &mut self,
        conversation: ConversationId,
        version: Version,
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>, MissingFact> {
        let key = (conversation, version);
        match self.facts.own_changes.get(&key) {
            Some(own) => Ok(own.clone()),
            None => {
                self.missing().own_changes.insert(key, search);
                Err(MissingFact)
            }
        }
    }
}

impl Subject<'_> {
    fn is_new(&self) -> bool {
        matches!(self, Subject::Drafted { is_new: true, .. })
    }
}
