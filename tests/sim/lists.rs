//! What users do to their lists: a conversation goes from it, or is arranged; by the real rule. And what the list
//! says.

use api::task::{MessageTask, Task};
use protocol::cached;
use protocol::change::{Arranged, ChangeKind, ChangeOf};
use protocol::conversation::{Around, Clearing, ConversationRow, Listed, ReadUpTo, Seen, clear};
use protocol::delivery::{self, Source};
use protocol::frame::{HiddenPage, ListPage, Summary};
use protocol::history::{Place, PrivateRow, Version};
use protocol::ledger::Event as LedgerEvent;
use protocol::unread::{self, Tally};
use protocol::{
    Code, ConversationId, MessageId, Placed, Position, Refusal, Seq, Timestamp, UserId, sync,
};

use crate::cached::{Filled, Found};
use crate::effects::{Effect, Registers};
use crate::plan::Sabotage;
use crate::station::{MARGIN, PAGE_MAX};
use crate::world::World;
use crate::writer::{Batch, Written, version_of};

/// What is done to a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deed {
    owner: UserId,
    conversation: ConversationId,
    version: Version,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Clear(Tally),
    Arrange(Arranged),
    Hide(Seq),
}

impl Deed {
    /// The message that it hides.
    pub(crate) fn hidden(self) -> Option<Effect> {
        match self.what {
            What::Hide(seq) => Some(Effect::Hidden {
                owner: self.owner,
                conversation: self.conversation,
                mark: self.version.mark(),
                seq,
            }),
            What::Clear(_) | What::Arrange(_) => None,
        }
    }

    /// The register that it moves.
    pub(crate) fn effect(self, at: Timestamp) -> Effect {
        let Deed {
            owner,
            conversation,
            version,
            what,
        } = self;
        match what {
            What::Clear(up_to) => Effect::Cleared {
                owner,
                conversation,
                up_to,
                at,
            },
            What::Hide(_) => Effect::HiddenTo {
                owner,
                conversation,
                mark: version.mark(),
                at,
            },
            What::Arrange(arranged) => Effect::Arranged {
                owner,
                conversation,
                version,
                arranged,
                at,
            },
        }
    }
}

impl World {
    pub(crate) fn list_deed(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        change: &ChangeOf,
        batch: &mut Batch,
    ) {
        let (version, owner) = (version_of(source), work.message.from);
        let conversation = work.message.conversation().expect("two users");
        let subject = change.subject.expect("of a message");
        if let ConversationId::Group(_) = conversation
            && !(self.group_of(conversation)).is_some_and(|it| it.members.contains(owner))
        {
            let refusal = Refusal::new(Code::Forbidden, "you never were in this group");
            return self.unchanged(source, work, Some(refusal), batch);
        }
        let what = match change.kind {
            ChangeKind::Arrange(arranged) => What::Arrange(arranged),
            ChangeKind::Hide => match self.subject(conversation, owner, subject, batch) {
                Some(placed) => What::Hide(placed.position.seq),
                None => {
                    let refusal = Refusal::new(Code::NotFound, "no such message");
                    return self.unchanged(source, work, Some(refusal), batch);
                }
            },
            _ => match self.clearing(version, owner, conversation, subject, batch) {
                Clearing::Cleared(up_to) => What::Clear(up_to),
                Clearing::Nothing => return self.unchanged(source, work, None, batch),
                Clearing::Expired => {
                    let refusal = Refusal::new(Code::NotFound, "a message came meanwhile");
                    return self.unchanged(source, work, Some(refusal), batch);
                }
            },
        };
        let seq = match what {
            What::Clear(up_to) => up_to.seq,
            What::Arrange(_) => Seq(1),
            What::Hide(seq) => seq,
        };
        let placed = Placed {
            message: work.message.clone(),
            conversation,
            position: Position { seq, prev: None },
        };
        batch.deeds.push(Deed {
            owner,
            conversation,
            version,
            what,
        });
        let owed = vec![delivery::told(owner)];
        let task = self.told_task(task, placed, 0, owed, LedgerEvent::Listed { conversation });
        batch.deliveries.push(Written { source, task });
    }

    fn clearing(
        &self,
        record: Version,
        owner: UserId,
        conversation: ConversationId,
        subject: MessageId,
        batch: &Batch,
    ) -> Clearing {
        let Some(placed) = self.subject(conversation, owner, subject, batch) else {
            return Clearing::Expired;
        };
        let (seq, id) = (placed.position.seq, placed.message.id);
        if self.sabotage == Some(Sabotage::ClearWithoutBound) {
            let head = self.head(conversation, batch);
            return Clearing::Cleared(match conversation.side_of(owner) {
                Some(side) => head.tally(side),
                None => Tally {
                    seq: head.seq,
                    incoming: 0,
                },
            });
        }
        let (place, next) = match conversation {
            ConversationId::Group(group) => {
                let place = Tally { seq, incoming: 0 };
                let pending = batch.group_rows.iter();
                let mut rows = pending.chain(self.disk.group_rows.values());
                let next = rows.find(|row| row.group == group && row.seq == seq.next());
                (place, next.map(|row| row.version))
            }
            _ => {
                let row = self.row(owner, id, batch);
                let place = row.map(|row| Place::from(row).into()).unwrap_or_default();
                let next = self.row_at(owner, conversation, seq.next(), batch);
                (place, next.map(|row| row.version))
            }
        };
        let around = Around {
            seen: Some((id, place)),
            next,
        };
        let seen = Seen { seq, id };
        let cleared = self.registers(owner, conversation).cleared;
        clear(record, seen, around, cleared)
    }

    /// The row of a place, as its owner has it.
    fn row_at<'a>(
        &'a self,
        owner: UserId,
        conversation: ConversationId,
        seq: Seq,
        batch: &'a Batch,
    ) -> Option<&'a PrivateRow> {
        let mut pending = batch.rows.iter();
        let is_there = |row: &&PrivateRow| {
            let of = row.conversation() == Some(conversation);
            row.owner == owner && of && row.seq == seq
        };
        pending
            .find(is_there)
            .or_else(|| self.disk.rows.values().find(is_there))
    }

    pub(crate) fn registers(&self, owner: UserId, conversation: ConversationId) -> Registers {
        let registers = self.disk.registers.get(&(owner, conversation));
        registers.copied().unwrap_or_default()
    }

    /// What the owner hid, page by page.
    pub(crate) fn hidden_page(
        &self,
        owner: UserId,
        conversation: ConversationId,
        after: u64,
        limit: u32,
    ) -> HiddenPage {
        let hidden = self.disk.hidden.get(&(owner, conversation));
        let mut behind = hidden.into_iter().flat_map(|all| all.range(after + 1..));
        let limit = sync::page_limit(limit, PAGE_MAX);
        let page: Vec<(u64, Seq)> = behind.by_ref().take(limit).map(|(m, s)| (*m, *s)).collect();
        HiddenPage {
            last: page.last().map_or(after, |(mark, _)| *mark),
            seqs: page.into_iter().map(|(_, seq)| seq).collect(),
            more: behind.next().is_some(),
        }
    }

    /// The conversations that changed, as the owner's devices get them.
    pub(crate) fn list_page(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
        found: Found,
        filled: &mut Vec<Filled>,
    ) -> Result<ListPage, Refusal> {
        let from = sync::list_from(since, MARGIN, self.now)?;
        let is_quiet = found.user().is_some_and(|copy| copy.is_private_quiet(from));
        let mine = self.disk.conversations.values();
        let mine = mine.filter(|row| row.owner == owner && !is_quiet);
        let listed = mine.map(|row| self.listed(row));
        let changed = listed.filter(|listed| listed.version() >= from);
        let changed: Vec<Listed> = changed.collect();
        let before = cached::private_before(&changed, from);
        let told = (changed.into_iter())
            .filter(|listed| listed.is_told(since))
            .filter(|listed| after.is_none_or(|after| listed.row.conversation > after));
        let mut conversations: Vec<_> = told.map(|listed| self.summary(&listed)).collect();
        let (groups, at) = self.rows_of(owner, &found);
        let groups = (groups.into_iter()).filter(|row| row.standing().is_told(since, from));
        conversations.extend(groups.map(|row| self.group_summary(owner, &row)));
        filled.extend(self.filled_list(owner, found, before));
        let at = match self.sabotage {
            Some(Sabotage::CopiesOfNow) => self.now,
            _ => self.now.min(at).max(since),
        };
        Ok(ListPage {
            conversations,
            version: at,
            more: false,
        })
    }

    fn listed(&self, row: &ConversationRow) -> Listed {
        let registers = self.registers(row.owner, row.conversation);
        Listed {
            row: *row,
            read_seq: registers.read,
            received_seq: registers.read,
            cleared: registers.cleared,
            touched: registers.touched,
            arranged: registers.arranged.unwrap_or_default().1,
            hidden: registers.hidden,
        }
    }

    /// One conversation, whether it is on the list or not.
    pub(crate) fn list_row(&self, owner: UserId, conversation: ConversationId) -> Option<Summary> {
        if let ConversationId::Group(group) = conversation {
            let row = self.group_listed(owner, group)?;
            return Some(self.group_summary(owner, &row));
        }
        let row = self.disk.conversations.get(&(owner, conversation))?;
        Some(self.summary(&self.listed(row)))
    }

    fn summary(&self, listed: &Listed) -> Summary {
        let row = &listed.row;
        let newest = self.disk.rows.get(&(row.owner, row.last_id));
        let mut newest = newest.and_then(PrivateRow::placed);
        let marks = newest
            .as_mut()
            .filter(|_| row.rev > 0)
            .and_then(|newest| self.show_as_it_is(newest));
        listed.summary(self.unread(listed), newest, marks)
    }

    fn unread(&self, listed: &Listed) -> u64 {
        let Listed { row, cleared, .. } = listed;
        let none = Batch::default();
        let read = match listed.read_up_to() {
            ReadUpTo::End => return 0,
            ReadUpTo::Place(place) => place,
            ReadUpTo::Row(seq) => {
                let row = self.row_at(row.owner, row.conversation, seq, &none);
                row.map(|row| Place::from(row).into()).unwrap_or_default()
            }
        };
        let base = unread::base(read, *cleared);
        let between = (row.conversation, base.seq.next())..=(row.conversation, row.end.seq);
        let is_counted = self.sabotage == Some(Sabotage::RecallCounted);
        let recalled = match base.seq < row.end.seq && !is_counted {
            true => self.disk.recalled.range(between),
            false => Default::default(),
        };
        let recalled = recalled.map(|((_, seq), author)| (*seq, *author));
        listed.unread(base, recalled.collect())
    }
}
