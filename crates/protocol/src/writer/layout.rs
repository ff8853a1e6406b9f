//! Layout: rows, frames, effects of a batch that is ruled.

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
use crate::record::{MessageTask, TaskRecord, Work, letter_of};
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

    /// Lays out one record. Changes nothing of the others.
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
            (Work::Deliver(retry), DraftStep::Retry(retried)) => {
                super::retry::delivery(record.task, retry, *retried, self.rules.encode)
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
        placing: MessageDraft,
    ) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let mut placed = Placed {
            message: task.message.clone(),
            conversation,
            position: placing.position,
        };
        let rows = MessageRow::rows_of(&placed, placing.sent, placing.version);
        if rows.is_empty() {
            let error = "a message of this kind of conversation is not kept".to_owned();
            return RecordLayout::dead(DeadReason::StoreRejected, error);
        }
        if placing.is_recalled {
            placed.message.content = placed.message.content.emptied();
        }
        let (owed, audience) = match placed.message.to {
            Recipient::User(to) => {
                let known = self.platforms_of(to);
                (delivery::obligations(&placed, known), None)
            }
            Recipient::Group(_) => {
                let known = |user| self.platforms_of(user);
                owed_by(placing.readers, &placed, known)
            }
        };
        let event = LedgerEvent::Placed {
            conversation,
            seq: placed.position.seq,
            from: placed.message.from,
            send_id: placed.message.send_id,
            partition: record.source.partition,
            offset: record.source.offset,
        };
        let trace = record.placing();
        let own_frames = own_frames(&placed, &GroupRoles::new(), trace, self.rules.encode);
        let mut delivery = self.first_delivery(record, placed, 0, owed, event);
        delivery.audience = audience;
        delivery.own_frames = own_frames;
        delivery.origin.clone_from(&task.origin);
        let frame = trace.is_none().then(|| delivery.frame.clone());
        let page = self.page(&delivery.placed, placing.shown, frame);
        RecordLayout::Placed {
            rows,
            conversation,
            head: placing.head,
            page,
            task: Box::new(delivery),
        }
    }

    fn changed(
        &self,
        record: &TaskRecord<'_>,
        task: &MessageTask,
        changing: ChangeDraft<'_>,
    ) -> RecordLayout {
        let ChangeDraft {
            row,
            subject,
            head,
            overlay,
            readers,
            ..
        } = changing;
        let conversation = row.conversation;
        // An edit that is resent has no text if the message was recalled meanwhile.
        let mut message = task.message.clone();
        if overlay.recalled.is_some() {
            message.content = message.content.without_text();
        }
        // A change goes out at the position of the message that it changes.
        let placed = Placed {
            message,
            conversation,
            position: Position {
                seq: row.changed.seq,
                prev: None,
            },
        };
        let (owed, audience) = match conversation {
            ConversationId::Group(_) => owed_by(readers, &placed, |_| Vec::new()),
            ConversationId::Private { .. } | ConversationId::System(_) => {
                (delivery::obligations(&placed, Vec::new()), None)
            }
        };
        let event = LedgerEvent::Changed {
            conversation,
            subject: row.changed.asked.subject,
            rev: row.changed.rev,
            from: placed.message.from,
            send_id: placed.message.send_id,
            partition: record.source.partition,
            offset: record.source.offset,
        };
        let is_shown = matches!(
            row.changed.asked.change,
            MessageChange::Recall | MessageChange::Edit(_)
        );
        let page = match conversation {
            ConversationId::Group(_) if is_shown => {
                let placed = subject.placed();
                let shown = overlay.shown(&placed.message.content);
                self.page(&placed, Some(shown), None)
            }
            _ => None,
        };
        let mut delivery = self.first_delivery(record, placed, row.changed.rev, owed, event);
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
        let placed = Placed {
            message: task.message.clone(),
            conversation,
            position,
        };
        let owed = vec![live_only(op.owner)];
        let event = LedgerEvent::Listed { conversation };
        let delivery = self.first_delivery(record, placed, 0, owed, event);
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
        granting: GroupDraft,
    ) -> RecordLayout {
        let conversation = ConversationId::Group(granting.group);
        let by = task.message.from;
        let changed = granting.update.members.keys().copied();
        let role = |user| (user, granting.after.role(user));
        let roles: GroupRoles = changed.chain([by]).map(role).collect();
        let owed = roles.keys().map(|user| live_only(*user)).collect();
        let placed = Placed {
            message: task.message.clone(),
            conversation,
            position: granting.position,
        };
        let own_frames = own_frames(&placed, &roles, record.placing(), self.rules.encode);
        let event = LedgerEvent::Listed { conversation };
        let mut delivery = self.first_delivery(record, placed, 0, owed, event);
        delivery.own_frames = own_frames;
        let change = (!granting.update.is_nothing()).then(|| {
            Box::new(GroupChange {
                group: granting.group,
                partition: record.source.partition,
                update: granting.update,
                after: granting.after,
            })
        });
        RecordLayout::Granted {
            change,
            task: Box::new(delivery),
        }
    }

    fn refused(&self, task: &MessageTask, refusal: Refusal) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let refused = LedgerEvent::Refused {
            conversation,
            why: refusal.text.clone(),
        };
        RecordLayout::Ended {
            outcome: RecordOutcome::Refused,
            ledger: self.ended(task.message.id, refused),
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
        let unchanged = LedgerEvent::Unchanged {
            conversation,
            subject,
            refused: refusal.as_ref().map(|refusal| refusal.text.clone()),
        };
        RecordLayout::Ended {
            outcome: RecordOutcome::Unchanged,
            ledger: self.ended(task.message.id, unchanged),
            notice: refusal_notice(task, refusal),
        }
    }

    /// The message stands as `first`: the copy is dropped, and its sender gets the position of the first one.
    fn repeat(&self, task: &MessageTask, first: MessageId, position: Position) -> RecordLayout {
        let Some(conversation) = task.message.conversation() else {
            return misplaced();
        };
        let id = task.message.id;
        let mut ledger = self.ended(id, LedgerEvent::Repeat { of: first });
        if first == id {
            // The same id lives on as the first one.
            ledger.truncate(1);
        }
        let notice = task.origin.as_ref().map(|origin| Notice {
            life: origin.life.clone(),
            session: origin.session,
            word: SessionEvent::Placed(PlacedEcho {
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
        placed: Placed,
        rev: u64,
        owed: Vec<Obligation>,
        event: LedgerEvent,
    ) -> DeliveryTask {
        let trace = record.placing();
        DeliveryTask {
            owed,
            audience: None,
            frame: self.rules.encode.encode(&Event::of(&placed, rev), trace),
            own_frames: BTreeMap::new(),
            rev,
            retry_count: record.task.retry_count,
            first_at: record.task.first_at,
            origin: None,
            letter: letter_of(&record.task.work),
            trace,
            noted: vec![self.entry(placed.message.id, event)],
            placed,
        }
    }

    /// A message as pages of its group show it, with this content where it has changed. `frame`: its bytes, where they
    /// are made already.
    fn page(
        &self,
        placed: &Placed,
        shown: Option<Content>,
        frame: Option<bytes::Bytes>,
    ) -> Option<(GroupId, TimelineEntry)> {
        let ConversationId::Group(group) = placed.conversation else {
            return None;
        };
        let encode = self.rules.encode;
        let body = match (shown, frame) {
            (None, Some(frame)) => frame,
            (None, None) => encode.encode(&Event::Message(placed), None),
            (Some(content), _) => {
                let shown = Placed {
                    message: Message {
                        content,
                        ..placed.message.clone()
                    },
                    ..*placed
                };
                encode.encode(&Event::Message(&shown), None)
            }
        };
        let entry = TimelineEntry {
            seq: placed.position.seq,
            id: placed.message.id,
            body,
        };
        Some((group, entry))
    }

    fn platforms_of(&self, user: UserId) -> Vec<Platform> {
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

    fn ended(&self, message: MessageId, event: LedgerEvent) -> Vec<LedgerEntry> {
        vec![
            self.entry(message, event),
            self.entry(message, LedgerEvent::Settled),
        ]
    }

    /// Adds what a record comes to.
    pub(super) fn admit(&mut self, index: usize, record: &TaskRecord<'_>, laid: RecordLayout) {
        let source = record.source;
        let outcome = match laid {
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
            RecordLayout::Granted { change, task } => {
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
                self.handover.settled.push((source, ledger));
                outcome
            }
            RecordLayout::Kickout => {
                self.handover.kickouts.push(index);
                RecordOutcome::NotPlaced
            }
            RecordLayout::Dead(conversation, dead) => {
                let Death {
                    reason,
                    error,
                    passed,
                    row,
                } = dead;
                self.changes.extend(row.map(|row| *row));
                if let Some((conversation, head)) = conversation.zip(passed) {
                    let moved = HeadMove {
                        conversation,
                        partition: source.partition,
                        head,
                    };
                    self.heads.insert(conversation, moved);
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
    fn move_head(&mut self, partition: u32, conversation: ConversationId, after: HeadAfter) {
        let head = after.head;
        let is_group = matches!(conversation, ConversationId::Group(_));
        // No row of a group says when something came: its head is stamped anew.
        let is_stamped = is_group && head.seq != Seq::ZERO;
        if is_stamped || after.moves {
            let moved = HeadMove {
                conversation,
                partition,
                head,
            };
            self.heads.insert(conversation, moved);
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
        let touched: Vec<_> = (self.groups.iter())
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
        stages.add((!touched.is_empty()).then_some(Effect::Touch { lists: touched, at }));
        stages.add(some(invalidations).map(Effect::Invalidate));

        let of_groups = self
            .heads
            .keys()
            .filter_map(|conversation| match conversation {
                ConversationId::Group(group) => Some(*group),
                ConversationId::Private { .. } | ConversationId::System(_) => None,
            });
        let of_groups: Vec<GroupId> = of_groups.collect();
        let mut places: BTreeMap<ConversationId, ChangedPlaces> = BTreeMap::new();
        for row in &self.changes {
            let places = places.entry(row.conversation).or_default();
            places.insert(row.changed.rev, row.changed.seq);
        }
        let renewed = of_groups.iter().map(|group| {
            let places = places.remove(&ConversationId::Group(*group));
            (*group, places.unwrap_or_default())
        });
        let renewed: Vec<_> = renewed.collect();
        let permits = some(of_groups).map(Effect::Permits);
        let messages = some(self.rows).map(Effect::Messages);
        stages.add(permits.into_iter().chain(messages));

        let recalled: Vec<_> = self.changes.iter().filter_map(recalled).collect();
        stages.add(some(self.changes).map(Effect::Changes));
        stages.add(some(recalled).map(Effect::Recalled));
        stages.add(some(self.heads.into_values().collect()).map(Effect::Heads));

        let timeline: Vec<_> = self.timeline.into_iter().collect();
        let list_rows: Vec<_> = self.list_rows.into_values().collect();
        let last = [
            some(renewed).map(Effect::Renew),
            some(timeline).map(Effect::Timeline),
            some(list_rows).map(Effect::ListRows),
        ];
        // A call a kind, under a stamp of its own: a slow one makes none of the others late.
        let mut ops: [Vec<ListOp>; 3] = Default::default();
        for op in self.list_ops {
            ops[op.kind.index()].push(op);
        }
        let ops = ops.into_iter().filter_map(some);
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
        self.0.extend(some(effects).map(Stage));
    }
}

fn some<T>(all: Vec<T>) -> Option<Vec<T>> {
    (!all.is_empty()).then_some(all)
}

/// Former members, and everybody where the settings changed, must not find by a cache what is written next.
fn invalidations(change: &GroupChange) -> Vec<Invalidation> {
    let left = change.update.members.iter();
    let left = left.filter(|(_, member)| member.role.is_none());
    let left = left.map(|(user, _)| CacheKey::User(*user));
    let settings = change
        .update
        .settings
        .map(|_| CacheKey::Group(change.group));
    left.chain(settings).map(Invalidation::of).collect()
}

/// Row of the message that a change recalls: its author's, or its group's.
fn recalled(row: &ChangeRow) -> Option<(Owner, MessageId)> {
    let asked = &row.changed.asked;
    let owner = Owner::of(row.conversation, row.author);
    (asked.change == MessageChange::Recall).then_some((owner, asked.subject))
}

/// Obligations towards readers, and the audience of a large group.
fn owed_by(
    readers: Readers,
    placed: &Placed,
    known: impl Fn(UserId) -> Vec<Platform>,
) -> (Vec<Obligation>, Option<Audience>) {
    match readers {
        Readers::Few(readers) => (group_obligations(readers, placed, known), None),
        Readers::Many(audience) => {
            let from = placed.message.from;
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
        word: SessionEvent::Refused { send_id, refusal },
    })
}

fn misplaced() -> RecordLayout {
    let error = "it belongs to no conversation".to_owned();
    RecordLayout::dead(DeadReason::Misplaced, error)
}
