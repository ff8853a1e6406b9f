//! All stores of a writer, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::sample::Index;

use super::log::EncodeAll;
use super::{NOON, rules};
use crate::change::{ChangeRow, ChangeSearch, ListArrangement, Overlay};
use crate::conversation::{ConversationRow, Head};
use crate::delivery::Source;
use crate::group::{Group, GroupInfo, Member};
use crate::history::Version;
use crate::message_row::{MessageRow, Owner};
use crate::record::TaskRecord;
use crate::unread::Tally;
use crate::writer::{
    Batch, Effect, Facts, ListOpKind, Missing, NoPlan, Parts, Plan, ROUNDS_MAX, RecordOutcome,
    Rules, Stage, decide,
};
use crate::{ConversationId, GroupId, MessageId, Placed, Platform, Seq, Timestamp, UserId};

pub(crate) type GroupState = (Option<GroupInfo>, BTreeMap<UserId, Member>);

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Store {
    pub(crate) heads: BTreeMap<ConversationId, Head>,
    /// Heads that the writer remembers otherwise.
    pub(crate) cached_heads: BTreeMap<ConversationId, Head>,
    pub(crate) rows: BTreeMap<(Owner, MessageId), MessageRow>,
    pub(crate) groups: BTreeMap<GroupId, GroupState>,
    pub(crate) overlays: BTreeMap<(ConversationId, Seq), Overlay>,
    pub(crate) changes: BTreeMap<(ConversationId, u64), ChangeRow>,
    pub(crate) list_rows: BTreeMap<(UserId, ConversationId), ConversationRow>,
    pub(crate) clears: BTreeMap<(UserId, ConversationId), Tally>,
    pub(crate) arrangements: BTreeMap<(UserId, ConversationId), (Version, ListArrangement)>,
    pub(crate) hide_marks: BTreeMap<(UserId, ConversationId, u64), Seq>,
    /// False: some frames cannot be made.
    pub(crate) makes_all_frames: bool,
}

/// Frames of plans, by record.
pub(crate) fn delivery_frames(plans: &[Plan]) -> BTreeMap<Source, String> {
    let tasks = plans.iter().flat_map(|plan| &plan.handover.deliver);
    let tasks = tasks.map(|(source, task)| {
        let frames = format!("{} {:?} {:?}", task.rev, task.frame, task.own_frames);
        (*source, frames)
    });
    tasks.collect()
}

/// Deliveries that say what was recalled meanwhile.
pub(crate) fn leaks(plans: &[Plan], store: &Store) -> BTreeMap<Source, String> {
    let mut leaks = delivery_frames(plans);
    for (source, task) in plans.iter().flat_map(|plan| &plan.handover.deliver) {
        let frames = &leaks[source];
        let is_leak = frames.matches(" bytes)").count() > frames.matches("(0 bytes)").count();
        if !store.is_recalled(&task.placed) || !is_leak {
            leaks.remove(source);
        }
    }
    leaks
}

impl Store {
    /// True of a recalled message, and of a change of one.
    pub(crate) fn is_recalled(&self, message: &Placed) -> bool {
        let place = (message.conversation, message.position.seq);
        let overlay = self.overlays.get(&place);
        overlay.is_some_and(|overlay| overlay.recalled.is_some())
    }

    pub(crate) fn new() -> Store {
        Store::default()
    }

    /// Writes records part by part.
    pub(crate) fn write(&mut self, records: &[TaskRecord<'_>]) -> Vec<Plan> {
        let mut parts = Parts::of(records, usize::MAX);
        let mut plans = Vec::new();
        while let Some(plan) = self.next_plan(records, &mut parts) {
            self.apply_plan(&plan);
            plans.push(plan);
        }
        plans
    }

    pub(crate) fn rules(&self) -> Rules<'static> {
        if self.makes_all_frames {
            Rules {
                encode: &EncodeAll,
                ..rules()
            }
        } else {
            rules()
        }
    }

    /// Positions without a row, or with several, and rows that are not where the head is.
    pub(crate) fn holes(&self) -> Vec<String> {
        let mut seqs: BTreeMap<(Owner, ConversationId), Vec<u64>> = BTreeMap::new();
        for ((owner, _), row) in &self.rows {
            let conversation = row.placed.conversation;
            seqs.entry((*owner, conversation))
                .or_default()
                .push(row.seq().0);
        }
        let holes = seqs
            .into_iter()
            .filter_map(|((owner, conversation), mut seqs)| {
                seqs.sort_unstable();
                let last = self.heads.get(&conversation).map_or(0, |head| head.seq.0);
                let is_dense = seqs.iter().copied().eq(1..=last);
                (!is_dense).then(|| {
                    format!("{owner:?} of {conversation}: {seqs:?}, and the head at {last}")
                })
            });
        holes.chain(self.change_holes()).collect()
    }

    /// Revs without a row, rows out of the order of their records, and overlays that are not the sum of the rows.
    fn change_holes(&self) -> Vec<String> {
        let mut rows_by_conversation: BTreeMap<ConversationId, Vec<(u64, &ChangeRow)>> =
            BTreeMap::new();
        let mut overlays: BTreeMap<(ConversationId, Seq), Overlay> = BTreeMap::new();
        for ((conversation, rev), row) in &self.changes {
            rows_by_conversation
                .entry(*conversation)
                .or_default()
                .push((*rev, row));
            if row.changed.asked.change.has_effect() {
                let overlay = overlays
                    .entry((*conversation, row.changed.seq))
                    .or_default();
                overlay.apply(row.version, &row.changed);
            }
        }
        let mut holes = Vec::new();
        for (conversation, head) in &self.heads {
            let rows = rows_by_conversation
                .remove(conversation)
                .unwrap_or_default();
            let is_dense = rows.iter().map(|(rev, _)| *rev).eq(1..=head.rev);
            if !is_dense || !rows.is_sorted_by(|a, b| a.1.version < b.1.version) {
                holes.push(format!(
                    "changes of {conversation}: {rows:?}, and the head at {}",
                    head.rev
                ));
            }
        }
        if overlays != self.overlays {
            holes.push(format!(
                "overlays are {:?}, by the rows {overlays:?}",
                self.overlays
            ));
        }
        holes
    }

    pub(crate) fn next_plan(&self, records: &[TaskRecord<'_>], parts: &mut Parts) -> Option<Plan> {
        let part = parts.take()?;
        let batch = Batch {
            epoch: 1,
            records: &records[part.clone()],
        };
        let (plan, _) = self.decide(&batch, NOON);
        parts.planned(part, plan.outcomes.len());
        Some(plan)
    }

    /// Applies some plans, and of the next one as many single writes as luck has it. Returns the outcomes of those that
    /// were applied whole.
    pub(crate) fn crash_in(
        &mut self,
        records: &[TaskRecord<'_>],
        plan: Index,
        write: Index,
    ) -> Vec<RecordOutcome> {
        let last = plan.index(self.clone().write(records).len());
        let mut parts = Parts::of(records, usize::MAX);
        let mut outcomes = Vec::new();
        for _ in 0..last {
            let plan = self
                .next_plan(records, &mut parts)
                .expect("as many as before");
            self.apply_plan(&plan);
            outcomes.extend(plan.outcomes);
        }
        let plan = self.next_plan(records, &mut parts);
        let atoms = plan.iter().flat_map(effects).flat_map(atoms);
        let atoms: Vec<Atom> = atoms.collect();
        let count = write.index(atoms.len() + 1);
        atoms[..count].iter().for_each(|atom| self.apply_atom(atom));
        outcomes
    }

    /// Applies so many single writes of the first plan. Returns the number of all.
    pub(crate) fn crash_behind(&mut self, records: &[TaskRecord<'_>], writes: usize) -> usize {
        let plan = self.next_plan(records, &mut Parts::of(records, usize::MAX));
        let atoms = plan.iter().flat_map(effects).flat_map(atoms);
        let atoms: Vec<Atom> = atoms.collect();
        atoms
            .iter()
            .take(writes)
            .for_each(|atom| self.apply_atom(atom));
        atoms.len()
    }

    /// Writes records, and answers all effects.
    pub(crate) fn list_effects(&mut self, records: &[TaskRecord<'_>]) -> Vec<Effect> {
        let plans = self.write(records);
        plans.iter().flat_map(effects).cloned().collect()
    }

    /// Rounds of reading until records are decided, as one batch.
    pub(crate) fn rounds(&self, records: &[TaskRecord<'_>]) -> usize {
        let batch = Batch { epoch: 1, records };
        let (mut facts, mut rounds) = (Facts::default(), 0);
        while let Err(NoPlan::Missing(missing_facts)) = decide(&batch, &facts, &rules(), NOON) {
            self.answer(&missing_facts, &mut facts);
            rounds += 1;
        }
        rounds
    }

    /// Decides a batch. No key is asked for twice, and none after the last round.
    pub(crate) fn decide(&self, batch: &Batch<'_>, now: Timestamp) -> (Plan, Facts) {
        let mut facts = Facts::default();
        let rules = self.rules();
        for _ in 0..=ROUNDS_MAX {
            match decide(batch, &facts, &rules, now) {
                Ok(plan) => return (plan, facts),
                Err(NoPlan::Missing(missing_facts)) => {
                    assert!(!missing_facts.is_empty());
                    assert_absent(&missing_facts, &facts);
                    self.answer(&missing_facts, &mut facts);
                }
                Err(NoPlan::Overtaken(conversation)) => panic!("overtaken in {conversation}"),
            }
        }
        panic!("not decided after {ROUNDS_MAX} rounds");
    }

    pub(crate) fn answer(&self, missing_facts: &Missing, facts: &mut Facts) {
        for group in missing_facts.groups.keys() {
            facts.groups.insert(*group, self.group(*group));
        }
        for conversation in &missing_facts.heads {
            let head = self
                .cached_heads
                .get(conversation)
                .or_else(|| self.heads.get(conversation));
            facts
                .heads
                .insert(*conversation, head.copied().unwrap_or_default());
        }
        for conversation in &missing_facts.stored_heads {
            let head = self.heads.get(conversation).copied().unwrap_or_default();
            facts.stored_heads.insert(*conversation, head);
        }
        for group in missing_facts.stored_groups.keys() {
            facts.stored_groups.insert(*group, self.group(*group));
        }
        for key in &missing_facts.rows {
            facts.rows.insert(*key, self.rows.get(key).cloned());
        }
        for key in &missing_facts.first_sends {
            let mut rows = self.rows.values();
            let first = rows.find(|row| {
                let message = &row.placed.message;
                row.owner == Owner::of(key.conversation, key.from)
                    && row.placed.conversation == key.conversation
                    && (message.from, message.send_id) == (key.from, key.send_id)
                    && row.id() >= key.min_id
            });
            let first = first.map(|row| (row.id(), row.position()));
            facts.first_sends.insert(*key, first);
        }
        for place in &missing_facts.overlays {
            let overlay = self.overlays.get(place).cloned().unwrap_or_default();
            facts.overlays.insert(*place, overlay);
        }
        for (key, last) in &missing_facts.first_changes {
            let conversation = key.conversation;
            let mut rows = self
                .changes
                .range((conversation, 0)..=(conversation, *last));
            let first = rows.find(|(_, row)| {
                let request = &row.changed.asked;
                (request.by, request.send_id) == (key.by, key.send_id)
            });
            let first = first.map(|(_, row)| (row.version, row.changed.clone()));
            facts.first_changes.insert(*key, first);
        }
        for ((conversation, record), search) in &missing_facts.own_changes {
            let (first, last) = search.revs().into_inner();
            let mut rows = self
                .changes
                .range((*conversation, first)..=(*conversation, last));
            let own = rows.find(|(_, row)| row.version == *record);
            let own = own.map(|(_, row)| row.changed.clone());
            facts.own_changes.insert((*conversation, *record), own);
        }
        for (owner, conversation, seq) in &missing_facts.followers {
            let mut rows = self.rows.values();
            let next = rows.find(|row| {
                row.owner == *owner
                    && row.placed.conversation == *conversation
                    && row.seq() == seq.next()
            });
            let next = next.map(|row| row.version);
            facts.followers.insert((*owner, *conversation, *seq), next);
        }
        for key in &missing_facts.clears {
            let tally = self.clears.get(key).copied().unwrap_or_default();
            facts.clears.insert(*key, tally);
        }
        for user in &missing_facts.platforms {
            facts.platforms.insert(*user, vec![Platform::Ios]);
        }
        for (owner, conversation, seq) in &missing_facts.hide_marks {
            let mut hidden_seqs = self
                .hide_marks
                .range((*owner, *conversation, 0)..=(*owner, *conversation, u64::MAX));
            let first = hidden_seqs.find(|(_, hidden_seq)| *hidden_seq == seq);
            let mark = first.map(|((.., mark), _)| *mark);
            facts.hide_marks.insert((*owner, *conversation, *seq), mark);
        }
        for (group, user) in &missing_facts.members {
            let stored_group = self.group(*group);
            let member = stored_group.and_then(|group| {
                let member = group.members.get(*user)?;
                Some((group.info, *member))
            });
            facts.members.insert((*group, *user), member);
        }
    }

    /// Adds to `facts` all others that a log could ask for.
    pub(crate) fn all_facts(&self, records: &[TaskRecord<'_>], facts: Facts) -> Facts {
        let mut all_keys = Missing::default();
        for record in records {
            let work = &record.task.work;
            let (Some(conversation), Some(id)) = (work.conversation(), work.message()) else {
                continue;
            };
            all_keys.heads.insert(conversation);
            all_keys.stored_heads.insert(conversation);
            for user in (1..=3).map(super::user) {
                all_keys.rows.insert((Owner::of(conversation, user), id));
                all_keys.clears.insert((user, conversation));
                all_keys.platforms.insert(user);
                for seq in (0..30).map(Seq) {
                    all_keys
                        .followers
                        .insert((Owner::of(conversation, user), conversation, seq));
                    all_keys.overlays.insert((conversation, seq));
                    all_keys.hide_marks.insert((user, conversation, seq));
                }
            }
            if let ConversationId::Group(group) = conversation {
                all_keys.groups.insert(group, 0);
                all_keys.stored_groups.insert(group, 0);
            }
            let head = self.heads.get(&conversation).copied().unwrap_or_default();
            let own = (conversation, record.version(1));
            let search = if head.has_handled(own.1) {
                ChangeSearch::UpTo(head.rev)
            } else {
                ChangeSearch::Behind(head.rev)
            };
            all_keys.own_changes.insert(own, search);
        }
        let mut all_facts = Facts::default();
        self.answer(&all_keys, &mut all_facts);
        // The first answer counts.
        all_facts.first_sends.extend(facts.first_sends);
        all_facts.first_changes.extend(facts.first_changes);
        all_facts
    }

    fn group(&self, group: GroupId) -> Option<Arc<Group>> {
        let (info, members) = self.groups.get(&group)?;
        Some(Arc::new(Group {
            info: (*info)?,
            members: members.clone().into_iter().collect(),
        }))
    }

    pub(crate) fn apply_plan(&mut self, plan: &Plan) {
        effects(plan).for_each(|effect| self.apply(effect));
    }

    fn save_change(&mut self, row: &ChangeRow) {
        let key = (row.conversation, row.changed.rev);
        let old = self.changes.get(&key);
        if old.is_none_or(|old| old.version <= row.version) {
            self.changes.insert(key, row.clone());
        }
    }

    fn save_overlay(&mut self, row: &ChangeRow) {
        if !row.changed.asked.change.has_effect() {
            return;
        }
        let place = (row.conversation, row.changed.seq);
        let overlay = self.overlays.entry(place).or_default();
        overlay.apply(row.version, &row.changed);
    }

    fn apply_atom(&mut self, atom: &Atom) {
        match atom {
            Atom::Effect(effect) => self.apply(effect),
            Atom::Change(row) => self.save_change(row),
            Atom::Overlay(row) => self.save_overlay(row),
        }
    }

    /// Applies an effect by the promise of the stores: an earlier version never replaces a later one.
    pub(crate) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Group(change) => {
                let (info, members) = self.groups.entry(change.group).or_default();
                for (user, member) in &change.update.members {
                    let old = members.entry(*user).or_insert(*member);
                    if old.version <= member.version {
                        *old = *member;
                    }
                }
                if let Some(new) = change.update.info
                    && info.is_none_or(|old| old.version <= new.version)
                {
                    *info = Some(new);
                }
            }
            Effect::Messages(rows) => {
                for row in rows {
                    let key = (row.owner, row.id());
                    let old = self.rows.get(&key);
                    if old.is_none_or(|old| old.version <= row.version) {
                        self.rows.insert(key, row.clone());
                    }
                }
            }
            Effect::Changes(rows) => {
                rows.iter().for_each(|row| self.save_change(row));
                rows.iter().for_each(|row| self.save_overlay(row));
            }
            Effect::Heads(heads) => {
                for head_move in heads {
                    let old = self.heads.entry(head_move.conversation).or_default();
                    if old.version <= head_move.head.version {
                        *old = head_move.head;
                    }
                }
            }
            Effect::ListRows(rows) => {
                for row in rows {
                    let key = (row.owner, row.conversation);
                    let old = self.list_rows.entry(key).or_insert(*row);
                    if old.source <= row.source {
                        *old = *row;
                    }
                }
            }
            Effect::ListOps { ops, .. } => {
                for op in ops {
                    let key = (op.owner, op.conversation);
                    match op.kind {
                        ListOpKind::Clear(up_to) => {
                            let tally = self.clears.entry(key).or_default();
                            if tally.seq < up_to.seq {
                                *tally = up_to;
                            }
                        }
                        ListOpKind::Arrange(arrangement) => {
                            let new = (op.version, arrangement);
                            let old = self.arrangements.entry(key).or_insert(new);
                            if old.0 <= op.version {
                                *old = new;
                            }
                        }
                        ListOpKind::Hide(seq) => {
                            let mark = op.version.mark();
                            self.hide_marks.insert((key.0, key.1, mark), seq);
                        }
                    }
                }
            }
            Effect::Touch { .. }
            | Effect::Invalidate(_)
            | Effect::Permits(_)
            | Effect::Recalled(_)
            | Effect::Renew(_)
            | Effect::Timeline(_) => {}
        }
    }
}

fn effects(plan: &Plan) -> impl Iterator<Item = &Effect> {
    plan.stages.iter().flat_map(|Stage(effects)| effects)
}

/// Write that a store does at once.
enum Atom {
    Effect(Effect),
    Change(ChangeRow),
    Overlay(ChangeRow),
}

/// Single writes of an effect.
fn atoms(effect: &Effect) -> Vec<Atom> {
    if let Effect::Changes(rows) = effect {
        let changes = rows.iter().cloned().map(Atom::Change);
        return changes
            .chain(rows.iter().cloned().map(Atom::Overlay))
            .collect();
    }
    list_effects(effect).into_iter().map(Atom::Effect).collect()
}

/// An effect in effects of one write each.
fn list_effects(effect: &Effect) -> Vec<Effect> {
    match effect {
        Effect::Group(change) => {
            let part = |update| {
                let mut part = change.clone();
                part.update = update;
                Effect::Group(part)
            };
            let members = change.update.members.iter().map(|(user, member)| {
                part(crate::group::GroupUpdate {
                    members: [(*user, *member)].into(),
                    ..Default::default()
                })
            });
            let info = change.update.info.map(|info| {
                part(crate::group::GroupUpdate {
                    info: Some(info),
                    ..Default::default()
                })
            });
            members.chain(info).collect()
        }
        Effect::Messages(rows) => (rows.iter().cloned())
            .map(|row| Effect::Messages(vec![row]))
            .collect(),
        Effect::Heads(heads) => heads
            .iter()
            .map(|head_move| Effect::Heads(vec![*head_move]))
            .collect(),
        Effect::ListRows(rows) => rows
            .iter()
            .map(|row| Effect::ListRows(vec![*row]))
            .collect(),
        Effect::ListOps { ops, at } => {
            let op = |op: &_| Effect::ListOps {
                ops: vec![*op],
                at: *at,
            };
            ops.iter().map(op).collect()
        }
        other => vec![other.clone()],
    }
}

fn assert_absent(missing_facts: &Missing, facts: &Facts) {
    let is_repeated = missing_facts
        .groups
        .keys()
        .any(|key| facts.groups.contains_key(key))
        || missing_facts
            .heads
            .iter()
            .any(|key| facts.heads.contains_key(key))
        || missing_facts
            .rows
            .iter()
            .any(|key| facts.rows.contains_key(key))
        || (missing_facts.first_sends.iter()).any(|key| facts.first_sends.contains_key(key))
        || (missing_facts.overlays.iter()).any(|key| facts.overlays.contains_key(key))
        || (missing_facts.first_changes.keys()).any(|key| facts.first_changes.contains_key(key))
        || (missing_facts.own_changes.keys()).any(|key| facts.own_changes.contains_key(key))
        || (missing_facts.followers.iter()).any(|key| facts.followers.contains_key(key))
        || missing_facts
            .clears
            .iter()
            .any(|key| facts.clears.contains_key(key))
        || missing_facts
            .platforms
            .iter()
            .any(|key| facts.platforms.contains_key(key));
    assert!(!is_repeated, "asked again: {missing_facts:?}");
}
