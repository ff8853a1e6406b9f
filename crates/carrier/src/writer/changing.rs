//! What becomes of a record that changes a message: recall, edit, reaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::task::MessageTask;
use protocol::change::{
    Altered, Asked, Asker, Change, ChangePlacement, ChangeRow, Changed, Known, Ruling, rule,
};
use protocol::delivery::{self, Notice, Task, Word};
use protocol::group::{Audience, Group};
use protocol::history::Version;
use protocol::ledger::{DeadReason, Event, LedgerEntry};
use protocol::message::Content;
use protocol::{
    ConversationId, GroupId, MessageId, Placed, Position, Refusal, Seq, Timestamp, UserId,
};

use super::decide::{After, Before, Decided, Readers, told_task};
use super::{WriteFailure, Writer};
use crate::work::Read;

/// A change with its place.
pub(super) struct Changing {
    pub(super) row: ChangeRow,
    /// The change as it is told: at the position of the message that it changes.
    placed: Placed,
    /// The message that it changes.
    pub(super) subject: Placed,
    /// What that says now.
    pub(super) shown: Content,
    /// The members of its group who may read that.
    readers: Readers,
}

/// Messages that a batch recalls, by where their rows lie.
#[derive(Default)]
pub(super) struct Recalled {
    private: Vec<(UserId, MessageId)>,
    groups: BTreeMap<GroupId, Vec<MessageId>>,
}

pub(super) fn recalled(changes: &[ChangeRow]) -> Recalled {
    let mut recalled = Recalled::default();
    for row in changes {
        let asked = &row.changed.asked;
        if asked.change != Change::Recall {
            continue;
        }
        match row.conversation {
            ConversationId::Group(group) => {
                let ids = recalled.groups.entry(group).or_default();
                ids.push(asked.subject);
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                recalled.private.push((row.author, asked.subject));
            }
        }
    }
    recalled
}

impl Writer {
    /// Rows of recalled messages are marked deleted, after the changes that say so: a crash between brings the recalls
    /// back, and marking again changes nothing.
    pub(super) async fn delete(&self, recalled: Recalled) -> Result<(), WriteFailure> {
        if !recalled.private.is_empty() {
            let deleted = self.history.delete(&recalled.private);
            self.stores.within(deleted).await?;
        }
        for (group, ids) in &recalled.groups {
            let deleted = self.group_history.delete(*group, ids);
            self.stores.within(deleted).await?;
        }
        Ok(())
    }

    pub(super) async fn change(
        &self,
        read: &Read,
        task: &MessageTask,
        asked: Asked,
        decided: &[Decided],
        before: &mut Before,
    ) -> Result<Decided, WriteFailure> {
        let Some(conversation) = task.message.conversation() else {
            return Ok(Decided::Dead(
                DeadReason::Misplaced,
                "it belongs to no conversation".to_owned(),
            ));
        };
        let version = self.version(read);
        let head = before.heads.get(&conversation).copied().unwrap_or_default();
        let mut first = None;
        let is_late = head.may_be_late(task.message.id);
        if is_late || task.unsure || task.maybe_repeat || task.letter.is_some() {
            first = self
                .first_change(conversation, &asked, version, head.rev, before)
                .await?;
            if first.is_some() && task.letter.is_none() {
                return Ok(self.unchanged(read, task, conversation, asked.subject, None));
            }
        }
        let subject = self
            .subject((conversation, asked.by, asked.subject), decided, before)
            .await?;
        let altered = match &subject {
            Some(subject) => self.altered(conversation, subject.seq(), before).await?,
            None => Altered::default(),
        };
        let placement = match before.is_behind(conversation, version) {
            true => ChangePlacement::Redelivery,
            false => head.place_change(version),
        };
        let own = match placement {
            ChangePlacement::Redelivery if first.is_none() => {
                let found = self.changes.of_record(conversation, version, head.rev);
                self.stores.within(found).await?
            }
            ChangePlacement::Redelivery | ChangePlacement::New(_) => None,
        };
        let known = Known {
            placement,
            first,
            is_letter: task.letter.is_some(),
            own,
            subject: subject.as_ref().map(|original| &original.placed),
            altered: &altered,
            asker: asker(conversation, before.group(conversation), asked.by),
        };
        let (changed, made_by, moves) = match rule(version, &asked, known, &task.bounds.rules()) {
            Ruling::Place {
                changed,
                made_by,
                moves,
            } => (changed, made_by, moves),
            Ruling::Nothing(refusal) => {
                return Ok(self.unchanged(read, task, conversation, asked.subject, refusal));
            }
        };
        let Some(subject) = subject else {
            return Ok(self.unchanged(read, task, conversation, asked.subject, None));
        };
        let after = match moves {
            true => After::Moved(head.moved_by_change(version, task.message.id)),
            false => After::Kept(head),
        };
        before.heads.insert(conversation, after.head());
        let altered = before
            .altered
            .entry((conversation, changed.seq))
            .or_default();
        altered.apply(made_by, &changed);
        let shown = altered.shown(&subject.placed.message.content);
        let row = ChangeRow {
            conversation,
            version: made_by,
            author: subject.author(),
            changed,
        };
        let readers = before.group(conversation);
        // A change says what the message says: it is for those who may read that.
        let readers = readers.map(|group| {
            let audience = Audience::of_change(group.clone(), row.changed.seq);
            Readers::of(audience, self.group_push_max)
        });
        before.changed.push(row.clone());
        let placed = Placed {
            message: task.message.clone(),
            conversation,
            position: Position {
                seq: row.changed.seq,
                prev: None,
            },
        };
        let change = Box::new(Changing {
            row,
            placed,
            subject: subject.placed,
            shown,
            readers: readers.unwrap_or_default(),
        });
        Ok(Decided::Changed {
            change,
            head: after,
        })
    }

    /// The same change of an earlier record, where it stands already.
    async fn first_change(
        &self,
        conversation: ConversationId,
        asked: &Asked,
        version: Version,
        last: u64,
        before: &Before,
    ) -> Result<Option<(Version, Changed)>, WriteFailure> {
        let same = |row: &ChangeRow| {
            let other = &row.changed.asked;
            row.conversation == conversation
                && (other.by, other.send_id) == (asked.by, asked.send_id)
                && row.version < version
        };
        if let Some(row) = before.changed.iter().find(|row| same(row)) {
            return Ok(Some((row.version, row.changed.clone())));
        }
        let found = (self.changes).find_send(conversation, asked.by, asked.send_id, last);
        let found = self.stores.within(found).await?;
        Ok(found.filter(|(standing, _)| *standing < version))
    }

    /// What has become of the message at this place, also by earlier records of the batch.
    pub(super) async fn altered(
        &self,
        conversation: ConversationId,
        seq: Seq,
        before: &mut Before,
    ) -> Result<Altered, WriteFailure> {
        let key = (conversation, seq);
        if let Some(altered) = before.altered.get(&key) {
            return Ok(altered.clone());
        }
        let found = self.changes.altered(conversation, seq, seq);
        let found = self.stores.within(found).await?.remove(&seq);
        let altered = found.unwrap_or_default();
        before.altered.insert(key, altered.clone());
        Ok(altered)
    }

    /// The record ends here, at its place in the log.
    pub(super) fn refused(
        &self,
        read: &Read,
        task: &MessageTask,
        conversation: ConversationId,
        refusal: Refusal,
    ) -> Decided {
        let id = task.message.id;
        let refused = Event::Refused {
            conversation,
            why: refusal.text.clone(),
        };
        let entry = |event| LedgerEntry {
            message: id,
            at: self.clock.now(),
            target: None,
            event,
        };
        tracing::debug!(source = %read.source, %id, ?refusal, "refused at its place");
        Decided::Refused {
            ledger: [refused, Event::Settled].map(entry).into(),
            notice: told_why(task, Some(refusal)),
        }
    }

    /// The record ends here: nothing is changed, or not once more.
    pub(super) fn unchanged(
        &self,
        read: &Read,
        task: &MessageTask,
        conversation: ConversationId,
        subject: MessageId,
        refusal: Option<Refusal>,
    ) -> Decided {
        let id = task.message.id;
        let entry = |event| LedgerEntry {
            message: id,
            at: self.clock.now(),
            target: None,
            event,
        };
        let unchanged = Event::Unchanged {
            conversation,
            subject,
            refused: refusal.as_ref().map(|refusal| refusal.text.clone()),
        };
        tracing::debug!(source = %read.source, %id, refusal = ?refusal, "nothing is changed");
        Decided::Unchanged {
            ledger: [unchanged, Event::Settled].map(entry).into(),
            notice: told_why(task, refusal),
        }
    }
}

/// Tells the session that sent it.
fn told_why(task: &MessageTask, refusal: Option<Refusal>) -> Option<Notice> {
    let (origin, refusal) = (task.origin.as_ref()?, refusal?);
    let send_id = task.message.send_id;
    Some(Notice {
        life: origin.life.clone(),
        session: origin.session,
        word: Word::Refused { send_id, refusal },
    })
}

/// Who has a part in the conversation may ask.
fn asker(
    conversation: ConversationId,
    group: Option<&Arc<Group>>,
    by: UserId,
) -> Result<Asker, Refusal> {
    match conversation {
        ConversationId::Group(_) => Asker::in_group(group.map(Arc::as_ref), by),
        ConversationId::Private { .. } | ConversationId::System(_) => Ok(Asker::ONE_OF_TWO),
    }
}

/// A change, for all sessions that live: the asker's own, too.
pub(super) fn first_task(read: &Read, change: &Changing, now: Timestamp) -> Task {
    let (row, placed) = (&change.row, &change.placed);
    let (owed, audience) = match placed.conversation {
        ConversationId::Group(_) => change.readers.owed(placed, |_| Vec::new()),
        ConversationId::Private { .. } | ConversationId::System(_) => {
            (delivery::owed(placed, Vec::new()), None)
        }
    };
    let event = Event::Changed {
        conversation: row.conversation,
        subject: row.changed.asked.subject,
        rev: row.changed.rev,
        from: placed.message.from,
        send_id: placed.message.send_id,
        partition: read.source.partition,
        offset: read.source.offset,
    };
    Task {
        audience,
        ..told_task(read, placed, row.changed.rev, owed, event, now)
    }
}
