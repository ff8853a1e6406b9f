//! The draft: what the records before this one, in the same batch, have come to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::facts::{HideKey, MissingFact};
use super::plan::{ListOp, ListOpKind};
use super::retry::RetriedMessage;
use super::{Batch, Facts, Missing, Rules, SendKey};
use crate::change::{ChangeKind, ChangeRequest, ChangeRow, Overlay};
use crate::conversation::{Head, StoredPosition};
use crate::group::{Audience, Group, GroupUpdate};
use crate::history::Version;
use crate::ledger::DeadReason;
use crate::message::Content;
use crate::message_row::{MessageRow, Owner};
use crate::record::{MessageTask, TaskRecord, Work};
use crate::unread::Tally;
use crate::{
    ConversationId, GroupId, Message, MessageId, Placed, Platform, Position, Refusal, SendId, Seq,
    Timestamp, UserId,
};

/// Ruling of one record.
#[derive(Debug)]
pub(super) enum DraftStep<'a> {
    Placed(MessageDraft),
    Changed(Box<ChangeDraft<'a>>),
    Listed {
        op: ListOp,
        position: Position,
    },
    Granted(Box<GroupDraft>),
    /// Refused at its place in the log.
    Refused(Refusal),
    /// A change that changes nothing, or not once more.
    Unchanged {
        subject: MessageId,
        refusal: Option<Refusal>,
    },
    /// The message stands already, as this one.
    Repeat {
        first: MessageId,
        position: Position,
    },
    Retry(Box<RetriedMessage>),
    Kickout,
    /// Without a position, for a reason that is the same whenever the record is handled.
    Dead(DeadReason, String),
    /// Without a position, for a reason that need not come again: a panic, or a store's refusal.
    Died(Death),
    /// Another writer is ahead.
    Overtaken(ConversationId),
}

/// Death of a record.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) reason: DeadReason,
    pub(super) error: String,
    /// Head after it; `None` for a record that has no turn in its conversation, or had it before.
    pub(super) new_head: Option<Head>,
    /// For a change, the row at its place.
    pub(super) row: Option<Box<ChangeRow>>,
}

impl Death {
    pub(super) const fn new(reason: DeadReason, error: String) -> Death {
        Death {
            reason,
            error,
            new_head: None,
            row: None,
        }
    }

    pub(super) fn at(self, new_head: Head, row: ChangeRow) -> Death {
        Death {
            new_head: Some(new_head),
            row: Some(Box::new(row)),
            ..self
        }
    }
}

/// A message with its position.
#[derive(Debug)]
pub(super) struct MessageDraft {
    pub(super) position: Position,
    /// Version of its rows: an earlier record's where a letter keeps its position.
    pub(super) version: Version,
    /// Ordinal of the message among its sender's, in a private conversation.
    pub(super) sent_count: u64,
    pub(super) head: HeadAfter,
    pub(super) readers: Readers,
    /// Current content of a message that was handled before.
    pub(super) changed_content: Option<Content>,
    /// Whether the message was recalled since: it goes out without its text.
    pub(super) is_recalled: bool,
}

/// A change with its place.
#[derive(Debug)]
pub(super) struct ChangeDraft<'a> {
    pub(super) row: ChangeRow,
    pub(super) subject: Subject<'a>,
    pub(super) head: HeadAfter,
    /// State of the message after it.
    pub(super) overlay: Overlay,
    pub(super) readers: Readers,
}

/// A group after a command.
#[derive(Debug)]
pub(super) struct GroupDraft {
    pub(super) group: GroupId,
    pub(super) update: GroupUpdate,
    pub(super) updated_group: Arc<Group>,
    pub(super) position: Position,
    /// Where the lists of all members change: the head, which is stamped for them.
    pub(super) head: Option<Head>,
}

/// Head of the conversation after a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadAfter {
    pub(super) head: Head,
    /// False: the record was handled before, and the head stays.
    pub(super) moves: bool,
}

/// Recipients in a group.
#[derive(Debug)]
pub(super) enum Readers {
    /// Each of them is owed it.
    Few(Vec<UserId>),
    /// Only live sessions get it, a few members at a time.
    Many(Audience),
}

impl Readers {
    pub(super) const NONE: Readers = Readers::Few(Vec::new());

    pub(super) fn of(audience: Audience, few: usize) -> Readers {
        let readers: Vec<UserId> = audience.behind(None).take(few.saturating_add(1)).collect();
        if readers.len() > few {
            Readers::Many(audience)
        } else {
            Readers::Few(readers)
        }
    }
}

/// The message that a record changes, hides or clears up to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject<'a> {
    Stored(&'a MessageRow),
    /// Placed by an earlier record of the batch.
    Drafted {
        message: &'a Message,
        conversation: ConversationId,
        position: Position,
        sent_count: u64,
        /// Whether the position is new: only records of the batch can have changed the message.
        is_new: bool,
    },
}

impl<'a> Subject<'a> {
    pub(super) fn seq(&self) -> Seq {
        match self {
            Subject::Stored(row) => row.seq(),
            Subject::Drafted { position, .. } => position.seq,
        }
    }

    pub(super) fn author(&self) -> UserId {
        match self {
            Subject::Stored(row) => row.author(),
            Subject::Drafted { message, .. } => message.from,
        }
    }

    pub(super) fn id(&self) -> MessageId {
        match self {
            Subject::Stored(row) => row.id(),
            Subject::Drafted { message, .. } => message.id,
        }
    }

    pub(super) fn content(&self) -> &'a Content {
        match self {
            Subject::Stored(row) => &row.placed.message.content,
            Subject::Drafted { message, .. } => &message.content,
        }
    }

    pub(super) fn accepted_at(&self) -> Timestamp {
        match self {
            Subject::Stored(row) => row.placed.message.accepted_at,
            Subject::Drafted { message, .. } => message.accepted_at,
        }
    }

    /// Position as `owner` counts unread messages.
    pub(super) fn tally(&self, owner: UserId) -> Tally {
        match self {
            Subject::Stored(row) => row.tally(),
            Subject::Drafted {
                conversation: ConversationId::Group(_),
                position,
                ..
            } => Tally {
                seq: position.seq,
                incoming: 0,
            },
            Subject::Drafted {
                message,
                position,
                sent_count,
                ..
            } => Tally {
                seq: position.seq,
                incoming: if message.from == owner {
                    position.seq.0.saturating_sub(*sent_count)
                } else {
                    *sent_count
                },
            },
        }
    }

    fn conversation(&self) -> ConversationId {
        match self {
            Subject::Stored(row) => row.placed.conversation,
            Subject::Drafted { conversation, .. } => *conversation,
        }
    }

    pub(super) fn placed(&self) -> Placed {
        match self {
            Subject::Stored(row) => row.placed.clone(),
            Subject::Drafted {
                message,
                conversation,
                position,
                ..
            } => Placed {
                message: (*message).clone(),
                conversation: *conversation,
                position: *position,
            },
        }
    }
}

/// A message that the batch placed.
#[derive(Clone, Copy, Debug)]
struct DraftedMessage<'a> {
    message: &'a Message,
    conversation: ConversationId,
    stored_position: StoredPosition,
    is_new: bool,
}

/// Facts, and above them the effects of the records so far.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) epoch: u32,
    pub(super) facts: &'a Facts,
    pub(super) push_max: usize,
    unsure_margin: std::time::Duration,
    missing_facts: Missing,
    heads: BTreeMap<ConversationId, Head>,
    /// In log order.
    placed_messages: Vec<DraftedMessage<'a>>,
    by_id: BTreeMap<MessageId, usize>,
    /// A client may use one send_id for several receivers: those are several messages.
    by_send: BTreeMap<(UserId, ConversationId, SendId), usize>,
    by_position: BTreeMap<(ConversationId, Seq), usize>,
    overlays: BTreeMap<(ConversationId, Seq), Overlay>,
    changes: Vec<ChangeRow>,
    /// Messages that the batch hid from their owners.
    hidden_messages: BTreeSet<HideKey>,
    /// Conversations of records that could not be decided, with the largest id of these: a later record may have to be
    /// looked up if they are placed.
    open: BTreeMap<ConversationId, MessageId>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(batch: &Batch<'a>, facts: &'a Facts, rules: &Rules<'_>) -> Draft<'a> {
        Draft {
            epoch: batch.epoch,
            facts,
            push_max: rules.push_max,
            unsure_margin: rules.unsure_margin,
            missing_facts: Missing::default(),
            heads: BTreeMap::new(),
            placed_messages: Vec::new(),
            by_id: BTreeMap::new(),
            by_send: BTreeMap::new(),
            by_position: BTreeMap::new(),
            overlays: BTreeMap::new(),
            changes: Vec::new(),
            hidden_messages: BTreeSet::new(),
            open: BTreeMap::new(),
        }
    }

    pub(super) fn into_missing(self) -> Missing {
        self.missing_facts
    }

    /// Rules a record. Changes nothing but what is missing.
    pub(super) fn step(&mut self, record: &TaskRecord<'a>) -> Result<DraftStep<'a>, MissingFact> {
        let task = match &record.task.work {
            Work::Message(task) => task,
            Work::Deliver(task) => {
                let message =
                    super::retry::refresh_message(task, self.facts, &mut self.missing_facts)?;
                return Ok(DraftStep::Retry(Box::new(message)));
            }
            Work::Kickout(_) => return Ok(DraftStep::Kickout),
        };
        let Some(conversation) = task.message.conversation() else {
            let error = "it belongs to no conversation".to_owned();
            return Ok(DraftStep::Dead(DeadReason::Misplaced, error));
        };
        let change = task.message.content.change.as_deref();
        match (ChangeRequest::of(&task.message), change) {
            (Some(request), _) => self.change(record, task, conversation, request),
            (None, Some(change)) => match &change.kind {
                ChangeKind::GroupCommand(command) => {
                    self.command(record, task, conversation, command)
                }
                _ => self.list_op(record, task, conversation, change),
            },
            (None, None) => self.place(record, task, conversation),
        }
    }

    /// Death of a record that has no position. A message moves the head's version, or it might be
    /// placed when it comes again, where its neighbours are by then; a change of a message has a row
    /// that says so.
    pub(super) fn record_death(
        &mut self,
        record: &TaskRecord<'a>,
        death: Death,
    ) -> Result<DraftStep<'a>, MissingFact> {
        let Work::Message(MessageTask { message, .. }) = &record.task.work else {
            return Ok(DraftStep::Died(death));
        };
        let Some(conversation) = message.conversation() else {
            return Ok(DraftStep::Died(death));
        };
        let death = match (&message.content.change, ChangeRequest::of(message)) {
            (None, _) => Death {
                new_head: self.head(conversation)?.passed_by(self.version(record)),
                ..death
            },
            (Some(_), Some(request)) => {
                self.record_change_death(record, conversation, &request, death)?
            }
            (Some(_), None) => death,
        };
        Ok(DraftStep::Died(death))
    }

    /// Adds the effects of a record to the draft. Cannot fail.
    pub(super) fn admit(&mut self, record: &TaskRecord<'a>, step: &DraftStep<'a>) {
        let Work::Message(MessageTask { message, .. }) = &record.task.work else {
            return;
        };
        let Some(conversation) = message.conversation() else {
            return;
        };
        match step {
            DraftStep::Placed(draft) => {
                self.heads.insert(conversation, draft.head.head);
                let index = self.placed_messages.len();
                self.by_id.entry(message.id).or_insert(index);
                let send = (message.from, conversation, message.send_id);
                self.by_send.entry(send).or_insert(index);
                let place = (conversation, draft.position.seq);
                self.by_position.entry(place).or_insert(index);
                self.placed_messages.push(DraftedMessage {
                    message,
                    conversation,
                    stored_position: StoredPosition {
                        version: draft.version,
                        position: draft.position,
                        sent: draft.sent_count,
                    },
                    is_new: draft.head.moves,
                });
            }
            DraftStep::Changed(draft) => {
                self.heads.insert(conversation, draft.head.head);
                let place = (conversation, draft.row.changed.seq);
                self.overlays.insert(place, draft.overlay.clone());
                self.changes.push(draft.row.clone());
            }
            DraftStep::Died(death) => {
                (self.heads).extend(death.new_head.map(|head| (conversation, head)));
            }
            DraftStep::Listed { op, .. } => {
                if let ListOpKind::Hide(seq) = op.kind {
                    self.hidden_messages
                        .insert((op.owner, op.conversation, seq));
                }
            }
            DraftStep::Granted(_)
            | DraftStep::Refused(_)
            | DraftStep::Unchanged { .. }
            | DraftStep::Repeat { .. }
            | DraftStep::Retry(_)
            | DraftStep::Kickout
            | DraftStep::Dead(..)
            | DraftStep::Overtaken(_) => {}
        }
    }

    /// The record waits for facts: what follows in its conversation is only looked at for keys.
    pub(super) fn leave_open(&mut self, record: &TaskRecord<'a>) {
        let Work::Message(MessageTask { message, .. }) = &record.task.work else {
            return;
        };
        if let Some(conversation) = message.conversation() {
            let id = self.open.entry(conversation).or_insert(message.id);
            *id = (*id).max(message.id);
        }
    }

    /// A ruling behind a record that is open may become another one: the conversation stays open.
    pub(super) fn stay_open(&mut self, record: &TaskRecord<'a>) {
        let conversation = record.task.work.conversation();
        if conversation.is_some_and(|conversation_id| self.open.contains_key(&conversation_id)) {
            self.leave_open(record);
        }
    }

    pub(super) fn version(&self, record: &TaskRecord<'_>) -> Version {
        record.version(self.epoch)
    }

    /// The group of a conversation, if it has one; `None` also where the group does not exist.
    pub(super) fn group(
        &mut self,
        record: &TaskRecord<'_>,
        conversation: ConversationId,
    ) -> Result<Option<&'a Arc<Group>>, MissingFact> {
        let ConversationId::Group(group) = conversation else {
            return Ok(None);
        };
        match self.facts.groups.get(&group) {
            Some(group_fact) => Ok(group_fact.as_ref()),
            None => {
                self.missing_facts
                    .groups
                    .insert(group, record.source.partition);
                Err(MissingFact)
            }
        }
    }

    /// The group as its store has it now.
    pub(super) fn stored_group(
        &mut self,
        record: &TaskRecord<'_>,
        group: GroupId,
    ) -> Result<Option<&'a Arc<Group>>, MissingFact> {
        let stored_group = self.facts.stored_groups.get(&group);
        let (missing_groups, partition) = (
            &mut self.missing_facts.stored_groups,
            record.source.partition,
        );
        require_fact(stored_group, || _ = missing_groups.insert(group, partition))
            .map(Option::as_ref)
    }

    /// The head after the records so far.
    pub(super) fn head(&mut self, conversation: ConversationId) -> Result<Head, MissingFact> {
        let drafted_head = self.heads.get(&conversation);
        let head = drafted_head.or_else(|| self.facts.heads.get(&conversation));
        let missing_heads = &mut self.missing_facts.heads;
        let mut head = *require_fact(head, || _ = missing_heads.insert(conversation))?;
        if let Some(id) = self.open.get(&conversation) {
            head.max_id = head.max_id.max(Some(*id));
        }
        Ok(head)
    }

    /// The last change of a conversation that its store can know of.
    pub(super) fn last_rev(&self, conversation: ConversationId) -> u64 {
        let cached_head = self.facts.heads.get(&conversation);
        let stored_head = self.facts.stored_heads.get(&conversation);
        let heads = cached_head.into_iter().chain(stored_head);
        heads.map(|head| head.rev).max().unwrap_or_default()
    }

    /// The head as the store has it now.
    pub(super) fn stored_head(
        &mut self,
        conversation: ConversationId,
    ) -> Result<Head, MissingFact> {
        let head = self.facts.stored_heads.get(&conversation);
        let missing_heads = &mut self.missing_facts.stored_heads;
        require_fact(head, || _ = missing_heads.insert(conversation)).copied()
    }

    pub(super) fn platforms(&mut self, user: UserId) -> Result<&'a [Platform], MissingFact> {
        let platforms = self.facts.platforms.get(&user);
        let missing_platforms = &mut self.missing_facts.platforms;
        require_fact(platforms, || _ = missing_platforms.insert(user)).map(Vec::as_slice)
    }

    /// The row of a message as `user` reads it.
    fn row(
        &mut self,
        conversation: ConversationId,
        user: UserId,
        id: MessageId,
    ) -> Result<Option<&'a MessageRow>, MissingFact> {
        let key = (Owner::of(conversation, user), id);
        let row = self.facts.rows.get(&key);
        let missing_rows = &mut self.missing_facts.rows;
        require_fact(row, || _ = missing_rows.insert(key)).map(Option::as_ref)
    }

    /// Position of the message with the id of this one, in the draft or stored.
    pub(super) fn stored(
        &mut self,
        conversation: ConversationId,
        message: &Message,
    ) -> Result<Option<StoredPosition>, MissingFact> {
        if let Some(index) = self.by_id.get(&message.id) {
            return Ok(Some(self.placed_messages[*index].stored_position));
        }
        let row = self.row(conversation, message.from, message.id)?;
        Ok(row.map(MessageRow::position))
    }

    /// The message that an earlier record placed under the same send_id.
    pub(super) fn first_send(
        &mut self,
        record: &TaskRecord<'_>,
        task: &MessageTask,
        conversation: ConversationId,
    ) -> Result<Option<(MessageId, Position)>, MissingFact> {
        let (message, version) = (&task.message, self.version(record));
        let lower_bound = message.accepted_at - task.age - self.unsure_margin;
        let key = SendKey {
            from: message.from,
            conversation,
            send_id: message.send_id,
            min_id: MessageId::floor_of(lower_bound),
        };
        let stored_send = self.facts.first_sends.get(&key);
        let missing_sends = &mut self.missing_facts.first_sends;
        let stored_send = require_fact(stored_send, || _ = missing_sends.insert(key))?;
        let send = (message.from, conversation, message.send_id);
        let drafted_send = self.by_send.get(&send);
        let drafted_send = drafted_send.map(|at| &self.placed_messages[*at]);
        let drafted_send =
            drafted_send.map(|message| (message.message.id, message.stored_position));
        let first = stored_send.or(drafted_send);
        Ok(first
            .filter(|(id, position)| *id != message.id && position.version < version)
            .map(|(id, position)| (id, position.position)))
    }

    /// The message `id` as `owner` has it in this conversation, if its record comes before this one:
    /// one behind it may be stored by a write that was broken off.
    pub(super) fn subject(
        &mut self,
        record: &TaskRecord<'_>,
        conversation: ConversationId,
        owner: UserId,
        id: MessageId,
    ) -> Result<Option<Subject<'a>>, MissingFact> {
        let version = self.version(record);
        let subject = match self.find_drafted(conversation, owner, id, version) {
            Some(subject) => Some(subject),
            None => {
                let row = self.row(conversation, owner, id)?;
                row.filter(|row| row.version < version).map(Subject::Stored)
            }
        };
        Ok(subject.filter(|subject| subject.conversation() == conversation))
    }

    fn find_drafted(
        &self,
        conversation: ConversationId,
        owner: UserId,
        id: MessageId,
        version: Version,
    ) -> Option<Subject<'a>> {
        let drafted_message = &self.placed_messages[*self.by_id.get(&id)?];
        let is_theirs = match drafted_message.conversation {
            ConversationId::Group(_) => true,
            conversation_id => conversation_id.side_of(owner).is_some(),
        };
        let is_before = drafted_message.stored_position.version < version;
        (is_theirs && is_before && drafted_message.conversation == conversation).then_some(
            Subject::Drafted {
                message: drafted_message.message,
                conversation,
                position: drafted_message.stored_position.position,
                sent_count: drafted_message.stored_position.sent,
                is_new: drafted_message.is_new,
            },
        )
    }

    /// State of the message at a position: stored, and by the records so far.
    pub(super) fn overlay(
        &mut self,
        conversation: ConversationId,
        seq: Seq,
        is_new: bool,
    ) -> Result<Overlay, MissingFact> {
        let place = (conversation, seq);
        if let Some(drafted_overlay) = self.overlays.get(&place) {
            return Ok(drafted_overlay.clone());
        }
        if is_new {
            return Ok(Overlay::default());
        }
        let overlay = self.facts.overlays.get(&place);
        let missing_overlays = &mut self.missing_facts.overlays;
        require_fact(overlay, || _ = missing_overlays.insert(place)).cloned()
    }

    /// Whether another record hid the message from its owner before. This record itself may have done so, before a
    /// crash.
    pub(super) fn is_hidden(
        &mut self,
        record: &TaskRecord<'_>,
        key: HideKey,
    ) -> Result<bool, MissingFact> {
        if self.hidden_messages.contains(&key) {
            return Ok(true);
        }
        let mark = self.facts.hide_marks.get(&key);
        let missing_marks = &mut self.missing_facts.hide_marks;
        let mark = require_fact(mark, || _ = missing_marks.insert(key))?;
        Ok(mark.is_some_and(|mark| mark != self.version(record).mark()))
    }

    /// Changes of the batch so far.
    pub(super) fn drafted_changes(&self) -> &[ChangeRow] {
        &self.changes
    }

    /// The record of the message behind a position.
    pub(super) fn follower(
        &mut self,
        conversation: ConversationId,
        owner: UserId,
        seq: Seq,
    ) -> Result<Option<Version>, MissingFact> {
        if let Some(index) = self.by_position.get(&(conversation, seq.next())) {
            return Ok(Some(self.placed_messages[*index].stored_position.version));
        }
        let key = (Owner::of(conversation, owner), conversation, seq);
        let follower = self.facts.followers.get(&key);
        let missing_followers = &mut self.missing_facts.followers;
        require_fact(follower, || _ = missing_followers.insert(key)).copied()
    }

    pub(super) fn missing(&mut self) -> &mut Missing {
        &mut self.missing_facts
    }
}

/// A fact, or a note that it is missing.
pub(super) fn require_fact<T>(fact: Option<&T>, note: impl FnOnce()) -> Result<&T, MissingFact> {
    fact.ok_or_else(|| {
        note();
        MissingFact
    })
}
