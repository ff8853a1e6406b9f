//! What becomes of a record that changes a message: recall, edit, reaction.

use std::sync::Arc;

use api::task::{MessageTask, Work};
use protocol::change::{
    Altered, Asked, ChangePlacement, ChangeRow, Changed, Subject, Verdict, judge,
};
use protocol::delivery::{self, Notice, Task, Word};
use protocol::history::{PrivateRow, Version};
use protocol::ledger::{DeadReason, Event, LedgerEntry};
use protocol::{ConversationId, MessageId, Placed, Position, Refusal, Timestamp, UserId};

use super::decide::{After, Before, Decided};
use super::{WriteFailure, Writer};
use crate::records::frame_of;
use crate::work::Read;

/// A change with its place.
pub(super) struct Changing {
    pub(super) row: ChangeRow,
    /// The change as it is told: at the position of the message that it changes.
    placed: Placed,
}

impl Writer {
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
        if task.unsure || task.maybe_repeat || task.letter.is_some() {
            first = self
                .first_change(conversation, &asked, version, head.rev, before)
                .await?;
            if first.is_some() && task.letter.is_none() {
                return Ok(self.unchanged(read, task, conversation, asked.subject, None));
            }
        }
        let key = [(asked.by, asked.subject)];
        let subject = match pending(decided, asked.by, asked.subject) {
            Some(row) => Some(row.clone()),
            None => {
                let rows = self.stores.within(self.history.private(&key)).await?;
                rows.into_iter().next().flatten()
            }
        };
        let subject = subject.filter(|row| row.conversation() == Some(conversation));
        let altered = self.altered(conversation, subject.as_ref(), before).await?;
        let mut made_by = version;
        let (changed, after) = match head.place_change(version) {
            // A letter sent on its way again: it has its place, and what follows was not done.
            _ if first.is_some() => {
                let first = first.map(|(version, changed)| {
                    made_by = version;
                    changed
                });
                (first, After::Kept(head))
            }
            ChangePlacement::Redelivery => {
                let found = self.changes.of_record(conversation, version, head.rev);
                (self.stores.within(found).await?, After::Kept(head))
            }
            ChangePlacement::New(rev) => {
                let of_row = subject.as_ref().map(|row| Subject {
                    from: author(row),
                    accepted_at: row.accepted_at,
                    content: &row.content,
                    altered: &altered,
                });
                let verdict = match judge(version, &asked, of_row, None, &self.rules) {
                    Ok(verdict) => verdict,
                    Err(refusal) => {
                        let refusal = Some(refusal);
                        return Ok(self.unchanged(
                            read,
                            task,
                            conversation,
                            asked.subject,
                            refusal,
                        ));
                    }
                };
                let changed = subject.as_ref().map(|row| Changed {
                    rev,
                    seq: row.seq,
                    asked: asked.clone(),
                });
                let moved = After::Moved(head.moved_by_change(version));
                (changed.filter(|_| verdict == Verdict::Change), moved)
            }
        };
        let (Some(changed), Some(subject)) = (changed, subject) else {
            return Ok(self.unchanged(read, task, conversation, asked.subject, None));
        };
        before.heads.insert(conversation, after.head());
        let altered = before
            .altered
            .entry((conversation, changed.seq))
            .or_default();
        altered.apply(made_by, &changed);
        let row = ChangeRow {
            conversation,
            version: made_by,
            author: author(&subject),
            changed,
        };
        before.changed.push(row.clone());
        let placed = Placed {
            message: task.message.clone(),
            conversation,
            position: Position {
                seq: row.changed.seq,
                prev: None,
            },
        };
        let change = Box::new(Changing { row, placed });
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

    /// What has become of the message, also by earlier records of the batch.
    async fn altered(
        &self,
        conversation: ConversationId,
        subject: Option<&PrivateRow>,
        before: &mut Before,
    ) -> Result<Altered, WriteFailure> {
        let Some(row) = subject else {
            return Ok(Altered::default());
        };
        let key = (conversation, row.seq);
        if let Some(altered) = before.altered.get(&key) {
            return Ok(altered.clone());
        }
        let found = self.changes.altered(conversation, row.seq, row.seq);
        let found = self.stores.within(found).await?.remove(&row.seq);
        let altered = found.unwrap_or_default();
        before.altered.insert(key, altered.clone());
        Ok(altered)
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
        let (id, send_id) = (task.message.id, task.message.send_id);
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
            notice: refusal
                .zip(task.origin.as_ref())
                .map(|(refusal, origin)| Notice {
                    life: origin.life.clone(),
                    session: origin.session,
                    word: Word::Refused { send_id, refusal },
                }),
        }
    }
}

/// The row of a message that an earlier record of the batch placed.
pub(super) fn pending(decided: &[Decided], owner: UserId, id: MessageId) -> Option<&PrivateRow> {
    decided.iter().rev().find_map(|decided| match decided {
        Decided::Placed { placement, .. } if placement.placed.message.id == id => {
            placement.rows.iter().find(|row| row.owner == owner)
        }
        _ => None,
    })
}

fn author(row: &PrivateRow) -> UserId {
    match row.direction {
        protocol::history::Direction::Out => row.owner,
        protocol::history::Direction::In => row.peer,
    }
}

/// A change, for all sessions that live: the asker's own, too.
pub(super) fn first_task(read: &Read, change: &Changing, now: Timestamp) -> Task {
    let Changing { row, placed } = change;
    let letter = match &read.task.work {
        Work::Message(task) => task.letter.as_deref().map(Arc::from),
        Work::Deliver(_) | Work::Kickout(_) => None,
    };
    let noted = LedgerEntry {
        message: placed.message.id,
        at: now,
        target: None,
        event: Event::Changed {
            conversation: row.conversation,
            subject: row.changed.asked.subject,
            rev: row.changed.rev,
            from: placed.message.from,
            send_id: placed.message.send_id,
            partition: read.source.partition,
            offset: read.source.offset,
        },
    };
    let (rev, trace) = (row.changed.rev, read.placing());
    Task {
        owed: delivery::owed(placed, Vec::new()),
        frame: frame_of(placed, rev, trace),
        placed: placed.clone(),
        rev,
        retry_count: read.task.retry_count,
        first_at: read.task.first_at,
        origin: None,
        letter,
        trace,
        noted: vec![noted],
    }
}
