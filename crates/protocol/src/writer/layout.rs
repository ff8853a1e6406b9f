//! Layout: rows, frames and effects of a batch whose records have their rulings.

use std::collections::BTreeMap;

use super::draft::{ChangeDraft, Death, DraftStep, GroupDraft, HeadAfter, MessageDraft, Readers};
use super::plan::{
    ChangedPlaces, DeadRecord, Effect, GroupChange, Handover, HeadMove, ListOp, Plan,
    RecordOutcome, Stage, TimelineEntry,
};
use super::{Facts, Rules};
use crate::cache::{CacheKey, Invalidation};
use crate::change::{ChangeRow, MessageChange};
use crate::conversation::ConversationRow;
use crate::delivery::{
    self, DeliveryTask, Notice, Obligation, SessionEvent, group_obligations, live_only,
};
use crate::event::{Event, GroupRoles, own_frames};
use crate::frame::PlacedEcho;
use crate::group::Audience;
use crate::ledger::{DeadReason, LedgerEntry, LedgerEvent};
use crate::message::Content;
use crate::message_row::{MessageRow, Owner};
use crate::record::{MessageTask, TaskRecord, Work, shared_letter};
use crate::{
    ConversationId, GroupId, Message, MessageId, Placed, Platform, Position, Recipient, Refusal,
    Seq, Timestamp, UserId,
};

/// Layout of the records so far, in their order.
pub(super) struct Layout<'a> {
    facts: &'a Facts,
    rules: &'a Rules<'a>,
    now: Timestamp,
    groups: Vec<GroupChange>,
    rows: Vec<MessageRow>,
    changes: Vec<ChangeRow>,
    heads: BTreeMap<ConversationId, HeadMove>,
    list_rows: BTreeMap<(UserId, ConversationId), ConversationRow>,
    list_ops: Vec<ListOp>,
    timeline: BTreeMap<GroupId, Vec<TimelineEntry>>,
    handover: Handover,
    outcomes: Vec<RecordOutcome>,
}

/// Layout of one record.
pub(super) enum RecordLayout {
    Placed {
        rows: Vec<MessageRow>,
        conversation: ConversationId,
        head: HeadAfter,
        page: Option<(GroupId, TimelineEntry)>,
        task: Box<DeliveryTask>,
    },
    Changed {
        row: Box<ChangeRow>,
        head: HeadAfter,
        page: Option<(GroupId, TimelineEntry)>,
        task: Box<DeliveryTask>,
    },
    Listed {
        op: ListOp,
        task: Box<DeliveryTask>,
    },
    Granted {
        change: Option<Box<GroupChange>>,
        head: Option<(ConversationId, HeadAfter)>,
        task: Box<DeliveryTask>,
    },
    Retry(Box<DeliveryTask>),
    Ended {
        outcome: RecordOutcome,
        ledger: Vec<LedgerEntry>,
        notice: Option<Notice>,
    },
    Kickout,
    Dead(Option<ConversationId>, Death),
}

impl RecordLayout {
    fn dead(reason: DeadReason, error: String) -> RecordLayout {
        RecordLayout::Dead(None, Death::new(reason, error))
    }
}

impl<'a> Layout<'a> {
    pub(super) fn new(facts: &'a Facts, rules: &'a Rules<'a>, now: Timestamp) -> Layout<'a> {
        Layout {
            facts,
            rules,
            now,
            groups: Vec::new(),
            rows: Vec::new(),
            changes: Vec::new(),
            heads: BTreeMap::new(),
            list_rows: BTreeMap::new(),
            list_ops: Vec::new(),
            timeline: BTreeMap::new(),
            handover: Handover::default(),
            outcomes: Vec::new(),
        }
    }

    /// Lays out one record, and leaves the layout of the others as it is.
    pub(super) fn of(&self, record: &TaskRecord<'_>, step: DraftStep<'_>) -> RecordLayout {
        let task = match (&record.task.work, step) {
            (Work::Message(task), DraftStep::Placed(placing)) => {
                return self.placed(record, task, placing);
            }
            (Work::Message(task), DraftStep::Changed(changing)) => {
                return self.changed(record, task, *changing);
            }
            (Work::Message(task), DraftStep::Listed { op, position }) => {
                return self.listed(record, task, op, position);
            }
            (Work::Message(task), DraftStep::Granted(granting)) => {
                return self.granted(record, task, *granting);
            }
            (Work::Message(task), DraftStep::Refused(refusal)) => {
                return self.refused(task, refusal);
            }
            (Work::Message(task), DraftStep::Unchanged { subject, refusal }) => {
                return self.unchanged(task, subject, refusal);
            }
            (Work::Message(task), DraftStep::Repeat { first, position }) => {
                return self.repeat(task, first, position);
            }
            (Work::Deliver(retry), DraftStep::Retry(message)) => {
                super::retry::delivery(record.task, retry, *message, self.rules.encode)
            }
            (_, DraftStep::Dead(reason, error)) => return RecordLayout::dead(reason, error),
            (work, DraftStep::Died(dead)) => return RecordLayout::Dead(work.conversation(), dead),
            (_, _) => return RecordLayout::Kickout,
        };
        RecordLayout::Retry(Box::new(task))
    }

    fn placed(
        &self,
        record: &TaskRecord<'_>,
        task: &MessageTask,
        draft: MessageDraft,
    ) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let mut placed_message = Placed {
            message: task.message.clone(),
            conversation,
            position: draft.position,
        };
        let rows = MessageRow::from_placed(&placed_message, draft.sent_count, draft.version);
        if rows.is_empty() {
            let error = "messages of this kind of conversation are not stored".to_owned();
            return RecordLayout::dead(DeadReason::StoreRejected, error);
        }
        if draft.is_recalled {
            placed_message.message.content = placed_message.message.content.emptied();
        }
        let (obligations, audience) = match placed_message.message.to {
            Recipient::User(to) => {
                let platforms = self.known_platforms(to);
                (delivery::obligations(&placed_message, platforms), None)
            }
            Recipient::Group(_) => {
                let platforms_of_user = |user| self.known_platforms(user);
                reader_obligations(draft.readers, &placed_message, platforms_of_user)
            }
        };
        let event = LedgerEvent::Placed {
            conversation,
            seq: placed_message.position.seq,
            from: placed_message.message.from,
            send_id: placed_message.message.send_id,
            partition: record.source.partition,
            offset: record.source.offset,
        };
        let trace = record.placing();
        let own_frames = own_frames(
            &placed_message,
            &GroupRoles::new(),
            trace,
            self.rules.encode,
        );
        let mut delivery = self.first_delivery(record, placed_message, 0, obligations, event);
        delivery.audience = audience;
        delivery.own_frames = own_frames;
        delivery.origin.clone_from(&task.origin);
        let frame = trace.is_none().then(|| delivery.frame.clone());
        let page = self.page(&delivery.placed, draft.changed_content, frame);
        RecordLayout::Placed {
            rows,
            conversation,
            head: draft.head,
            page,
            task: Box::new(delivery),
        }
    }

    fn changed(
        &self,
        record: &TaskRecord<'_>,
        task: &MessageTask,
        draft: ChangeDraft<'_>,
    ) -> RecordLayout {
        let ChangeDraft {
            row,
            subject,
            head,
            overlay,
            readers,
            ..
        } = draft;
        let conversation = row.conversation;
        // An edit that is resent has no text if the message was recalled meanwhile.
        let mut message = task.message.clone();
        if overlay.recalled.is_some() {
            message.content = message.content.without_text();
        }
        // A change goes out at the position of the message that it changes.
        let placed_message = Placed {
            message,
            conversation,
            position: Position {
                seq: row.changed.seq,
                prev: None,
            },
        };
        let (obligations, audience) = match conversation {
            ConversationId::Group(_) => {
                reader_obligations(readers, &placed_message, |_| Vec::new())
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                (delivery::obligations(&placed_message, Vec::new()), None)
            }
        };
        let event = LedgerEvent::Changed {
            conversation,
            subject: row.changed.asked.subject,
            rev: row.changed.rev,
            from: placed_message.message.from,
            send_id: placed_message.message.send_id,
            partition: record.source.partition,
            offset: record.source.offset,
        };
        let is_shown = matches!(
            row.changed.asked.change,
            MessageChange::Recall | MessageChange::Edit(_)
        );
        let page = match conversation {
            ConversationId::Group(_) if is_shown => {
                let original = subject.placed();
                let content = overlay.shown(&original.message.content);
                self.page(&original, Some(content), None)
            }
            _ => None,
        };
        let mut delivery =
            self.first_delivery(record, placed_message, row.changed.rev, obligations, event);
        delivery.audience = audience;
        RecordLayout::Changed {
            row: Box::new(row),
            head,
            page,
            task: Box::new(delivery),
        }
    }

    fn listed(
        &self,
        record: &TaskRecord<'_>,
        task: &MessageTask,
        op: ListOp,
        position: Position,
    ) -> RecordLayout {
        let conversation = op.conversation;
        let placed_message = Placed {
            message: task.message.clone(),
            conversation,
            position,
        };
        let obligations = vec![live_only(op.owner)];
        let event = LedgerEvent::Listed { conversation };
        let delivery = self.first_delivery(record, placed_message, 0, obligations, event);
        RecordLayout::Listed {
            op,
            task: Box::new(delivery),
        }
    }

    /// Goes to all sessions of those whose membership it changed, and of the requester.
    fn granted(
        &self,
        record: &TaskRecord<'_>,
        task: &MessageTask,
        draft: GroupDraft,
    ) -> RecordLayout {
        let conversation = ConversationId::Group(draft.group);
        let by = task.message.from;
        let changed_members = draft.update.members.keys().copied();
        let role = |user| (user, draft.updated_group.role(user));
        let roles: GroupRoles = changed_members.chain([by]).map(role).collect();
        let obligations = roles.keys().map(|user| live_only(*user)).collect();
        let placed_message = Placed {
            message: task.message.clone(),
            conversation,
            position: draft.position,
        };
        let own_frames = own_frames(&placed_message, &roles, record.placing(), self.rules.encode);
        let event = LedgerEvent::Listed { conversation };
        let mut delivery = self.first_delivery(record, placed_message, 0, obligations, event);
        delivery.own_frames = own_frames;
        let change = (!draft.update.is_nothing()).then(|| {
            Box::new(GroupChange {
                group: draft.group,
                partition: record.source.partition,
                update: draft.update,
                updated_group: draft.updated_group,
            })
        });
        RecordLayout::Granted {
            change,
            head: (draft.head).map(|head| (conversation, HeadAfter { head, moves: true })),
            task: Box::new(delivery),
        }
    }

    fn refused(&self, task: &MessageTask, refusal: Refusal) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let event = LedgerEvent::Refused {
            conversation,
            why: refusal.text.clone(),
        };
        RecordLayout::Ended {
            outcome: RecordOutcome::Refused,
            ledger: self.end_entries(task.message.id, event),
            notice: refusal_notice(task, Some(refusal)),
        }
    }

    fn unchanged(
        &self,
        task: &MessageTask,
        subject: MessageId,
        refusal: Option<Refusal>,
    ) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let event = LedgerEvent::Unchanged {
            conversation,
            subject,
            refused: refusal.as_ref().map(|refusal| refusal.text.clone()),
        };
        RecordLayout::Ended {
            outcome: RecordOutcome::Unchanged,
            ledger: self.end_entries(task.message.id, event),
            notice: refusal_notice(task, refusal),
        }
    }

    /// The message stands as `first`: the copy is dropped, and its sender gets the position of the first one.
    fn repeat(&self, task: &MessageTask, first: MessageId, position: Position) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let id = task.message.id;
        let mut ledger = self.end_entries(id, LedgerEvent::Repeat { of: first });
        if first == id {
            // The same id lives on as the first one.
            ledger.truncate(1);
        }
        let notice = task.origin.as_ref().map(|origin| Notice {
            life: origin.life.clone(),
            session: origin.session,
            event: SessionEvent::Placed(PlacedEcho {
                send_id: task.message.send_id,
                id: first,
                conversation,
                position,
            }),
        });
        RecordLayout::Ended {
            outcome: RecordOutcome::Repeat,
            ledger,
            notice,
        }
    }

    fn first_delivery(
        &self,
        record: &TaskRecord<'_>,
        placed_message: Placed,
        rev: u64,
        obligations: Vec<Obligation>,
        event: LedgerEvent,
    ) -> DeliveryTask {
        let trace = record.placing();
        DeliveryTask {
            obligations,
            audience: None,
            frame: self
                .rules
                .encode
                .encode(&Event::of(&placed_message, rev), trace),
            own_frames: BTreeMap::new(),
            rev,
            retry_count: record.task.retry_count,
            first_at: record.task.first_at,
            origin: None,
            letter: shared_letter(&record.task.work),
            trace,
            earlier_entries: vec![self.entry(placed_message.message.id, event)],
            placed: placed_message,
        }
    }

    /// A message as pages of its group show it, with `changed_content` where it has changed.
    /// `frame` has its bytes, if they are made already.
    fn page(
        &self,
        placed_message: &Placed,
        changed_content: Option<Content>,
        frame: Option<bytes::Bytes>,
    ) -> Option<(GroupId, TimelineEntry)> {
        let ConversationId::Group(group) = placed_message.conversation else {
            return None;
        };
        let encode = self.rules.encode;
        let body = match (changed_content, frame) {
            (None, Some(frame)) => frame,
            (None, None) => encode.encode(&Event::Message(placed_message), None),
            (Some(content), _) => {
                let changed_message = Placed {
                    message: Message {
                        content,
                        ..placed_message.message.clone()
                    },
                    ..*placed_message
                };
                encode.encode(&Event::Message(&changed_message), None)
            }
        };
        let entry = TimelineEntry {
            seq: placed_message.position.seq,
            id: placed_message.message.id,
            body,
        };
        Some((group, entry))
    }

    fn known_platforms(&self, user: UserId) -> Vec<Platform> {
        self.facts.platforms.get(&user).cloned().unwrap_or_default()
    }

    fn entry(&self, message: MessageId, event: LedgerEvent) -> LedgerEntry {
        LedgerEntry {
            message,
            at: self.now,
            target: None,
            event,
        }
    }

    fn end_entries(&self, message: MessageId, event: LedgerEvent) -> Vec<LedgerEntry> {
        vec![
            self.entry(message, event),
            self.entry(message, LedgerEvent::Settled),
        ]
    }

    /// Adds the layout of a record.
    pub(super) fn admit(&mut self, index: usize, record: &TaskRecord<'_>, layout: RecordLayout) {
        let source = record.source;
        let outcome = match layout {
            RecordLayout::Placed {
                rows,
                conversation,
                head,
                page,
                task,
            } => {
                self.move_head(source.partition, conversation, head);
                self.rows.extend(rows);
                self.add_page(page);
                self.handover.deliver.push((source, *task));
                RecordOutcome::Placed
            }
            RecordLayout::Changed {
                row,
                head,
                page,
                task,
            } => {
                self.move_head(source.partition, row.conversation, head);
                self.add_page(page);
                self.changes.push(*row);
                self.handover.deliver.push((source, *task));
                RecordOutcome::Changed
            }
            RecordLayout::Listed { op, task } => {
                self.list_ops.push(op);
                self.handover.deliver.push((source, *task));
                RecordOutcome::Listed
            }
            RecordLayout::Granted { change, head, task } => {
                if let Some((conversation, head)) = head {
                    self.move_head(source.partition, conversation, head);
                }
                self.groups.extend(change.map(|change| *change));
                self.handover.deliver.push((source, *task));
                RecordOutcome::Granted
            }
            RecordLayout::Retry(task) => {
                self.handover.deliver.push((source, *task));
                RecordOutcome::NotPlaced
            }
            RecordLayout::Ended {
                outcome,
                ledger,
                notice,
            } => {
                self.handover.notices.extend(notice);
                self.handover.settled_records.push((source, ledger));
                outcome
            }
            RecordLayout::Kickout => {
                self.handover.kickouts.push(index);
                RecordOutcome::NotPlaced
            }
            RecordLayout::Dead(conversation, death) => {
                let Death {
                    reason,
                    error,
                    new_head,
                    row,
                } = death;
                self.changes.extend(row.map(|row| *row));
                if let Some((conversation, head)) = conversation.zip(new_head) {
                    let head_move = HeadMove {
                        conversation,
                        partition: source.partition,
                        head,
                    };
                    self.heads.insert(conversation, head_move);
                }
                self.handover.dead.push(DeadRecord {
                    index,
                    reason,
                    error,
                });
                RecordOutcome::Dead(reason)
            }
        };
        self.outcomes.push(outcome);
    }

    fn add_page(&mut self, page: Option<(GroupId, TimelineEntry)>) {
        if let Some((group, entry)) = page {
            self.timeline.entry(group).or_default().push(entry);
        }
    }

    /// State of the conversation after a record: its head, and the rows of its users.
    fn move_head(&mut self, partition: u32, conversation: ConversationId, state: HeadAfter) {
        let head = state.head;
        let is_group = matches!(conversation, ConversationId::Group(_));
        // A group has no list rows that are stamped with each message: its head is stamped instead.
        let is_stamped = is_group && head.seq != Seq::ZERO;
        if is_stamped || state.moves {
            let head_move = HeadMove {
                conversation,
                partition,
                head,
            };
            self.heads.insert(conversation, head_move);
        }
        let ConversationId::Private { low, high } = conversation else {
            return;
        };
        let row = |owner| ConversationRow::of(owner, conversation, &head, Timestamp::ZERO);
        for row in [low, high].into_iter().filter_map(row) {
            let newest = self.list_rows.entry((row.owner, conversation));
            let newest = newest.or_insert(row);
            if newest.source < row.source {
                *newest = row;
            }
        }
    }

    pub(super) fn plan(self) -> Plan {
        let mut stages = Stages::default();
        let touched_lists: Vec<_> = (self.groups.iter())
            .flat_map(|change| {
                let conversation = ConversationId::Group(change.group);
                let members = change.update.members.keys();
                members.map(move |user| (*user, conversation))
            })
            .collect();
        let invalidations: Vec<_> = self.groups.iter().flat_map(invalidations).collect();
        let groups = self.groups.into_iter();
        stages.add(groups.map(|change| Effect::Group(Box::new(change))));
        let at = Timestamp::ZERO;
        stages.add((!touched_lists.is_empty()).then_some(Effect::Touch {
            lists: touched_lists,
            at,
        }));
        stages.add(non_empty(invalidations).map(Effect::Invalidate));

        let group_ids = self
            .heads
            .keys()
            .filter_map(|conversation| match conversation {
                ConversationId::Group(group) => Some(*group),
                ConversationId::Private { .. } | ConversationId::System(_) => None,
            });
        let group_ids: Vec<GroupId> = group_ids.collect();
        let mut places: BTreeMap<ConversationId, ChangedPlaces> = BTreeMap::new();
        for row in &self.changes {
            let places = places.entry(row.conversation).or_default();
            places.insert(row.changed.rev, row.changed.seq);
        }
        let renewals = group_ids.iter().map(|group| {
            let places = places.remove(&ConversationId::Group(*group));
            (*group, places.unwrap_or_default())
        });
        let renewals: Vec<_> = renewals.collect();
        let permits = non_empty(group_ids).map(Effect::Permits);
        let messages = non_empty(self.rows).map(Effect::Messages);
        stages.add(permits.into_iter().chain(messages));

        let recalled: Vec<_> = self.changes.iter().filter_map(recalled).collect();
        stages.add(non_empty(self.changes).map(Effect::Changes));
        stages.add(non_empty(recalled).map(Effect::Recalled));
        stages.add(non_empty(self.heads.into_values().collect()).map(Effect::Heads));

        let timeline: Vec<_> = self.timeline.into_iter().collect();
        let list_rows: Vec<_> = self.list_rows.into_values().collect();
        let last = [
            non_empty(renewals).map(Effect::Renew),
            non_empty(timeline).map(Effect::Timeline),
            non_empty(list_rows).map(Effect::ListRows),
        ];
        // One call for each kind, with its own stamp, so that a slow one does not delay the others.
        let mut ops: [Vec<ListOp>; 3] = Default::default();
        for op in self.list_ops {
            ops[op.kind.index()].push(op);
        }
        let ops = ops.into_iter().filter_map(non_empty);
        let ops = ops.map(|ops| Effect::ListOps { ops, at });
        stages.add(last.into_iter().flatten().chain(ops));
        Plan {
            stages: stages.0,
            handover: self.handover,
            outcomes: self.outcomes,
        }
    }
}

/// Stages with effects in them.
#[derive(Default)]
struct Stages(Vec<Stage>);

impl Stages {
    fn add(&mut self, effects: impl IntoIterator<Item = Effect>) {
        let effects: Vec<Effect> = effects.into_iter().collect();
        self.0.extend(non_empty(effects).map(Stage));
    }
}

fn non_empty<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}

/// Neither former members, nor anybody after new settings, may find what follows by a cache.
fn invalidations(change: &GroupChange) -> Vec<Invalidation> {
    let former_members = change.update.members.iter();
    let former_members = former_members.filter(|(_, member)| member.role.is_none());
    let former_members = former_members.map(|(user, _)| CacheKey::User(*user));
    let group = (change.update.changes_settings).then_some(CacheKey::Group(change.group));
    former_members.chain(group).map(Invalidation::of).collect()
}

/// Row of the message that a change recalls: its author's, or its group's.
fn recalled(row: &ChangeRow) -> Option<(Owner, MessageId)> {
    let request = &row.changed.asked;
    let owner = Owner::of(row.conversation, row.author);
    (request.change == MessageChange::Recall).then_some((owner, request.subject))
}

/// Obligations towards readers, and the audience of a large group.
fn reader_obligations(
    readers: Readers,
    placed_message: &Placed,
    platforms_of_user: impl Fn(UserId) -> Vec<Platform>,
) -> (Vec<Obligation>, Option<Audience>) {
    match readers {
        Readers::Few(readers) => (
            group_obligations(readers, placed_message, platforms_of_user),
            None,
        ),
        Readers::Many(audience) => {
            let from = placed_message.message.from;
            (vec![live_only(from)], Some(audience))
        }
    }
}

/// Refusal for the session that sent it.
fn refusal_notice(task: &MessageTask, refusal: Option<Refusal>) -> Option<Notice> {
    let (origin, refusal) = (task.origin.as_ref()?, refusal?);
    let send_id = task.message.send_id;
    Some(Notice {
        life: origin.life.clone(),
        session: origin.session,
        event: SessionEvent::Refused { send_id, refusal },
    })
}

fn misplaced() -> RecordLayout {
    let error = "it belongs to no conversation".to_owned();
    RecordLayout::dead(DeadReason::Misplaced, error)
}
