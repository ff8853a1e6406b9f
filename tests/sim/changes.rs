//! Recall, edit, reaction: judged at the door and by the writer, with the real rules; and how pages show
//! what became of a message.

use api::task::{MessageTask, Task};
use protocol::change::{
    Altered, Asked, Asker, ChangePlacement, ChangeRow, Changed, Known, Marks, Rules, Ruling,
    Subject, judge, rule,
};
use protocol::conversation::Head;
use protocol::delivery::{self, Owed, Source};
use protocol::frame::ChangePage;
use protocol::history::Version;
use protocol::ledger::Event as LedgerEvent;
use protocol::sync::{changes_behind, check_rev, dense_changes};
use protocol::{ConversationId, Message, MessageId, Placed, Position, Refusal, Seq, UserId, sync};

use crate::cached::{Filled, Found};
use crate::plan::Sabotage;
use crate::station::PAGE_MAX;
use crate::world::World;
use crate::writer::{Batch, Written, version_of};

impl World {
    /// Why this change would come to nothing. What cannot be judged yet goes on to the writer.
    pub(crate) fn refused_at_door(&self, message: &Message) -> Option<Refusal> {
        let asked = Asked::of(message)?;
        let conversation = message.conversation()?;
        let none = Batch::default();
        let role = self
            .group_of(conversation)
            .and_then(|group| group.role(asked.by));
        let subject = self.subject(conversation, asked.by, asked.subject, &none)?;
        let altered = self.altered(conversation, subject.position.seq, &none);
        let subject = Subject {
            from: subject.message.from,
            accepted_at: subject.message.accepted_at,
            content: &subject.message.content,
            altered: &altered,
        };
        judge(
            Version::LATEST,
            &asked,
            Some(subject),
            role,
            &Rules::default(),
        )
        .err()
    }

    /// Gives a change its place.
    pub(crate) fn change(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        asked: Asked,
        batch: &mut Batch,
    ) {
        let conversation = work.message.conversation().expect("two users");
        let version = version_of(source);
        let mut head = self.head(conversation, batch);
        if self.sabotage == Some(Sabotage::RevReused) {
            head.rev = self.head(conversation, &Batch::default()).rev;
        }
        let mut first = None;
        let is_late = head.may_be_late(work.message.id);
        if is_late || work.unsure || work.maybe_repeat {
            first = self.first_change(conversation, &asked, version, head.rev, batch);
        }
        let subject = self.subject(conversation, asked.by, asked.subject, batch);
        let altered = match &subject {
            Some(subject) => self.altered(conversation, subject.position.seq, batch),
            None => Altered::default(),
        };
        let group = self.group_of(conversation);
        let placement = match group.as_ref().is_some_and(|group| group.newest() > version) {
            true => ChangePlacement::Redelivery,
            false => head.place_change(version),
        };
        let asker = match conversation {
            ConversationId::Group(_) => Asker::in_group(group.as_ref(), asked.by),
            _ => Ok(Asker::ONE_OF_TWO),
        };
        let own = match placement {
            ChangePlacement::Redelivery => self.own_change(conversation, version, head.rev),
            ChangePlacement::New(_) => None,
        };
        let known = Known {
            placement,
            first,
            is_letter: false,
            own,
            subject: subject.as_ref(),
            altered: &altered,
            asker,
        };
        // The planted bug takes its own half-done work for somebody else's.
        let seen_by = match self.sabotage {
            Some(Sabotage::OwnWorkSeen) => Version::LATEST,
            _ => version,
        };
        match (rule(seen_by, &asked, known, &Rules::default()), subject) {
            (Ruling::Place { changed, moves, .. }, Some(subject)) => {
                let mut after = head;
                if moves {
                    after = head.moved_by_change(version, work.message.id);
                    batch.heads.insert(conversation, after);
                }
                if self.sabotage != Some(Sabotage::ChangeUnlisted) {
                    batch.list(conversation, &after);
                }
                let row = ChangeRow {
                    conversation,
                    version,
                    author: subject.message.from,
                    changed,
                };
                self.write_change(source, task, work, row, batch);
            }
            (Ruling::Place { .. }, None) => self.judge.found("a change of nothing".into()),
            (Ruling::Nothing(refusal), _) => self.unchanged(source, work, refusal, batch),
        }
    }

    fn write_change(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        row: ChangeRow,
        batch: &mut Batch,
    ) {
        let (conversation, rev, seq) = (row.conversation, row.changed.rev, row.changed.seq);
        let mut altered = self.altered(conversation, seq, batch);
        altered.apply(row.version, &row.changed);
        batch.altered.insert((conversation, seq), altered);
        let placed = Placed {
            message: work.message.clone(),
            conversation,
            position: Position { seq, prev: None },
        };
        let event = LedgerEvent::Changed {
            conversation,
            subject: row.changed.asked.subject,
            rev,
            from: work.message.from,
            send_id: work.message.send_id,
            partition: source.partition,
            offset: source.offset,
        };
        let owed = self.told_of_change(&placed);
        let task = self.told_task(task, placed, rev, owed, event);
        batch.changes.push(row);
        batch.deliveries.push(Written { source, task });
    }

    /// Whatever lives of those who may read what it says.
    fn told_of_change(&self, placed: &Placed) -> Vec<Owed> {
        match self.group_of(placed.conversation) {
            Some(group) => {
                let readers = group.readers_now(placed.position.seq);
                delivery::owed_to(readers, placed, |_| Vec::new())
            }
            None => delivery::owed(placed, Vec::new()),
        }
    }

    /// The message as `owner` has it, in this conversation.
    pub(crate) fn subject(
        &self,
        conversation: ConversationId,
        owner: UserId,
        id: MessageId,
        batch: &Batch,
    ) -> Option<Placed> {
        let placed = match conversation {
            ConversationId::Group(group) => {
                let row = self.group_row(group, id, batch)?;
                Some(row.placed())
            }
            _ => self.row(owner, id, batch)?.placed(),
        };
        placed.filter(|placed| placed.conversation == conversation)
    }

    /// What has become of the message at this place, also by earlier records of the batch.
    fn altered(&self, conversation: ConversationId, seq: Seq, batch: &Batch) -> Altered {
        let key = (conversation, seq);
        let altered = batch.altered.get(&key);
        let altered = altered.or_else(|| self.disk.altered.get(&key));
        altered.cloned().unwrap_or_default()
    }

    /// The same change of an earlier record, where it stands already.
    fn first_change(
        &self,
        conversation: ConversationId,
        asked: &Asked,
        version: Version,
        last: u64,
        batch: &Batch,
    ) -> Option<(Version, Changed)> {
        let standing = self
            .disk
            .changes
            .range((conversation, 0)..=(conversation, last));
        let rows = batch.changes.iter().chain(standing.map(|(_, row)| row));
        let same = |row: &&ChangeRow| {
            let other = &row.changed.asked;
            row.conversation == conversation
                && (other.by, other.send_id) == (asked.by, asked.send_id)
                && row.version < version
        };
        let first = { rows }.find(same);
        first.map(|row| (row.version, row.changed.clone()))
    }

    /// The change that this record made before.
    fn own_change(
        &self,
        conversation: ConversationId,
        version: Version,
        last: u64,
    ) -> Option<Changed> {
        let mut standing = self
            .disk
            .changes
            .range((conversation, 0)..=(conversation, last));
        let own = standing.find(|(_, row)| row.version == version);
        own.map(|(_, row)| row.changed.clone())
    }

    /// Makes of a message what it is now, and says what became of it.
    pub(crate) fn show_as_it_is(&self, placed: &mut Placed) -> Option<Marks> {
        if self.sabotage == Some(Sabotage::PagesAsSent) {
            return None;
        }
        let key = (placed.conversation, placed.position.seq);
        self.disk.altered.get(&key)?.show(placed)
    }

    /// Changes in their order, from behind `after` on.
    pub(crate) fn change_page(
        &self,
        user: UserId,
        conversation: ConversationId,
        after: u64,
        limit: u32,
        found: Option<Found>,
        filled: &mut Vec<Filled>,
    ) -> Result<ChangePage, Refusal> {
        let is_behind = |head: &Head| after >= head.rev;
        let (floor, copy) = self.stands(user, conversation, found, filled, is_behind)?;
        let last_rev = copy.head.rev;
        check_rev(after, last_rev)?;
        let behind = self.disk.changes.range((conversation, after + 1)..);
        let behind = behind.map(|(_, row)| row);
        let standing = behind
            .take_while(|row| row.conversation == conversation && row.changed.rev <= last_rev);
        let changes = standing.map(|row| row.changed.clone());
        let mut changes: Vec<Changed> = changes.take(sync::page_limit(limit, PAGE_MAX)).collect();
        let more = dense_changes(conversation, &changes, after, last_rev)?;
        changes_behind(&mut changes, floor);
        Ok(ChangePage {
            conversation,
            changes,
            last_rev,
            more,
        })
    }
}
