//! Planted bugs of the writer: altered facts and decisions, and plans with an effect left out,
//! doubled, altered or moved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::conversation::Head;
use protocol::delivery::group_obligations;
use protocol::event::is_group_command;
use protocol::group::{Group, Member, Role};
use protocol::history::Version;
use protocol::record::{TaskRecord, Work};
use protocol::unread::Tally;
use protocol::writer::{Effect, EffectKind, Facts, HeadMove, ListOpKind, NoPlan, Plan, Stage};
use protocol::{ConversationId, Seq};

use crate::plan::Sabotage;
use crate::world::World;

/// Kinds of effects that these worlds have a store for.
pub(crate) const STORED_KINDS: [EffectKind; 10] = [
    EffectKind::Group,
    EffectKind::Touch,
    EffectKind::Invalidate,
    EffectKind::Permits,
    EffectKind::Messages,
    EffectKind::Changes,
    EffectKind::Heads,
    EffectKind::Renew,
    EffectKind::ListRows,
    EffectKind::ListOps,
];

/// A plan that differs from the one that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Without(EffectKind),
    Twice(EffectKind),
    /// The stage of this effect is swapped with the next one.
    Behind(EffectKind),
    /// Sessions get events before the last stage.
    EarlyHandover,
}

impl Mutation {
    fn apply(self, plan: &mut Plan) {
        let has = |kind| move |effect: &Effect| effect.kind() == kind;
        match self {
            Mutation::Without(kind) => {
                for stage in &mut plan.stages {
                    stage.0.retain(|effect| !has(kind)(effect));
                }
            }
            Mutation::Twice(kind) => {
                let stages = std::mem::take(&mut plan.stages);
                for stage in stages {
                    let copies: Vec<Effect> =
                        stage.0.iter().filter(|e| has(kind)(e)).cloned().collect();
                    plan.stages.push(stage);
                    plan.stages.push(Stage(copies));
                }
            }
            Mutation::Behind(kind) => {
                let has_atoms =
                    |stage: &Stage| stage.0.iter().any(|e| STORED_KINDS.contains(&e.kind()));
                plan.stages.retain(has_atoms);
                let stages = &plan.stages;
                let at = stages
                    .iter()
                    .position(|stage| stage.0.iter().any(has(kind)));
                if let Some(at) = at
                    && at + 1 < plan.stages.len()
                {
                    plan.stages.swap(at, at + 1);
                }
            }
            Mutation::EarlyHandover => {}
        }
    }
}

impl World {
    /// Alters the facts of a decision.
    pub(crate) fn plant_in_facts(&mut self, records: &[TaskRecord<'_>], facts: &mut Facts) {
        match self.sabotage {
            Some(Sabotage::OwnWorkSeen) => {
                facts.overlays.values_mut().for_each(|overlay| {
                    let zero = Version::default();
                    let recall_register = overlay.recalled.iter_mut();
                    recall_register.for_each(|register| register.version = zero);
                    let edit_register = overlay.edited.iter_mut();
                    edit_register.for_each(|register| register.version = zero);
                    let reactions = overlay.reactions.values_mut();
                    reactions.for_each(|register| register.version = zero);
                });
            }
            Some(Sabotage::AnybodySays) => {
                for record in records {
                    let Work::Message(task) = &record.task.work else {
                        continue;
                    };
                    let from = task.message.from;
                    let Some(ConversationId::Group(group)) = task.message.conversation() else {
                        continue;
                    };
                    let known_group = facts.groups.get_mut(&group);
                    if task.message.content.change.is_none()
                        && let Some(Some(group)) = known_group
                        && group.role(from).is_none()
                    {
                        let mut open_group = Group::clone(group);
                        let member = Member::new(Some(Role::Member), Seq::ZERO, Version::default());
                        open_group.members.insert(from, member);
                        *group = Arc::new(open_group);
                    }
                }
            }
            Some(Sabotage::ClearWithoutBound) => {
                facts.followers.values_mut().for_each(|next| *next = None);
            }
            _ => {}
        }
    }

    /// Alters a decision.
    pub(crate) fn plant_in_decision(
        &self,
        records: &[TaskRecord<'_>],
        facts: &Facts,
        decision: Result<Plan, NoPlan>,
    ) -> Result<Plan, NoPlan> {
        if self.sabotage != Some(Sabotage::PlacedLaterOvertaken) || decision.is_err() {
            return decision;
        }
        let mut records = records.iter();
        let overtaken_conversation = records.find_map(|record| {
            let Work::Message(task) = &record.task.work else {
                return None;
            };
            let version = record.version(1);
            let mut rows = facts.rows.iter();
            let is_later = rows.any(|((_, id), row)| {
                *id == task.message.id && row.as_ref().is_some_and(|row| row.version > version)
            });
            task.message.conversation().filter(|_| is_later)
        });
        match overtaken_conversation {
            Some(conversation) => Err(NoPlan::Overtaken(conversation)),
            None => decision,
        }
    }

    /// Alters a head that is written.
    pub(crate) fn plant_in_head(&self, conversation: ConversationId, head: Head) -> Head {
        if self.sabotage != Some(Sabotage::OlderHeadWins) || !self.is_older {
            return head;
        }
        let stored_head = self.disk.heads.get(&conversation).copied();
        let version = head.version.max(stored_head.unwrap_or_default().version);
        Head { version, ..head }
    }

    /// Alters a plan. Returns true if the plan waits before it takes effect.
    pub(crate) fn plant_in_plan(
        &mut self,
        records: &[TaskRecord<'_>],
        facts: &Facts,
        plan: &mut Plan,
    ) -> bool {
        if let Some(Sabotage::Planned(mutation)) = self.sabotage {
            mutation.apply(plan);
            if mutation == Mutation::EarlyHandover {
                let early = std::mem::take(&mut plan.handover.deliver);
                let is_late = !early.is_empty();
                self.deliver(early);
                return is_late;
            }
            return false;
        }
        let effects = plan.stages.iter_mut().flat_map(|stage| &mut stage.0);
        match self.sabotage {
            Some(Sabotage::ToldBeforeSaved) => {
                let deliver = std::mem::take(&mut plan.handover.deliver);
                let (early, rest): (Vec<_>, Vec<_>) =
                    deliver.into_iter().partition(|(_, task)| task.rev > 0);
                plan.handover.deliver = rest;
                let is_late = !early.is_empty();
                self.deliver(early);
                return is_late;
            }
            Some(Sabotage::RevReused) => {
                let mut first: BTreeMap<ConversationId, u64> = BTreeMap::new();
                for effect in effects {
                    let Effect::Changes(rows) = effect else {
                        continue;
                    };
                    for row in rows {
                        let rev = first.entry(row.conversation).or_insert(row.changed.rev);
                        row.changed.rev = *rev;
                    }
                }
            }
            Some(Sabotage::ChangeUnlisted) => {
                let conversations = records.iter().filter(|record| match &record.task.work {
                    Work::Message(task) => task.message.content.change.is_none(),
                    Work::Deliver(_) | Work::Kickout(_) => false,
                });
                let conversations =
                    conversations.filter_map(|record| record.task.work.conversation());
                let conversations: BTreeSet<ConversationId> = conversations.collect();
                for effect in effects {
                    if let Effect::ListRows(rows) = effect {
                        rows.retain(|row| conversations.contains(&row.conversation));
                    }
                }
            }
            Some(Sabotage::DeathForgotten) => {
                let stored = &self.disk.heads;
                let is_move = |head_move: &HeadMove| {
                    let stored = stored.get(&head_move.conversation).copied();
                    let stored = stored.unwrap_or_default();
                    (stored.seq, stored.rev) != (head_move.head.seq, head_move.head.rev)
                };
                for effect in effects {
                    if let Effect::Heads(heads) = effect {
                        heads.retain(is_move);
                    }
                }
            }
            Some(Sabotage::DeadChangeForgotten) => {
                let mut forgotten_revs = BTreeMap::new();
                for effect in effects {
                    match effect {
                        Effect::Changes(rows) => {
                            let dead_changes = rows.iter().filter(|row| row.changed.has_died());
                            let dead_changes =
                                dead_changes.map(|row| (row.conversation, row.changed.rev));
                            forgotten_revs.extend(dead_changes);
                            rows.retain(|row| !row.changed.has_died());
                        }
                        Effect::Heads(heads) => {
                            for HeadMove {
                                conversation, head, ..
                            } in heads
                            {
                                if forgotten_revs.get(conversation) == Some(&head.rev) {
                                    head.rev -= 1;
                                }
                            }
                        }
                        _ => {}
                    }
                }
            }
            Some(Sabotage::ClearWithoutBound) => {
                for effect in effects {
                    let Effect::ListOps { ops, .. } = effect else {
                        continue;
                    };
                    for op in ops {
                        if let ListOpKind::Clear(up_to) = &mut op.kind {
                            let head = self.disk.heads.get(&op.conversation).copied();
                            *up_to = end(head.unwrap_or_default(), op.conversation, op.owner);
                        }
                    }
                }
            }
            Some(Sabotage::HiddenUnlisted) => {
                for effect in effects {
                    if let Effect::ListOps { ops, .. } = effect {
                        for op in std::mem::take(ops) {
                            match crate::effects::Effect::hidden_mark(&op) {
                                Some(mark) => _ = self.apply(mark),
                                None => ops.push(op),
                            }
                        }
                    }
                }
            }
            Some(Sabotage::ToldToLeavers) => {
                for (_, task) in &mut plan.handover.deliver {
                    let message = &task.placed.message;
                    let ConversationId::Group(group) = task.placed.conversation else {
                        continue;
                    };
                    let group = facts.groups.get(&group).and_then(Option::as_ref);
                    if let Some(group) = group
                        && task.rev == 0
                        && !is_group_command(message)
                        && message.content.change.is_none()
                    {
                        let all_members: Vec<_> =
                            group.members.iter().map(|(user, _)| user).collect();
                        let known = |user| self.disk.platforms.get(&user).cloned();
                        let known = |user| known(user).unwrap_or_default();
                        task.obligations = group_obligations(all_members, &task.placed, known);
                    }
                }
            }
            _ => {}
        }
        false
    }
}

fn end(head: Head, conversation: ConversationId, owner: protocol::UserId) -> Tally {
    match conversation.side_of(owner) {
        Some(side) => head.tally(side),
        None => Tally {
            seq: head.seq,
            incoming: 0,
        },
    }
}
