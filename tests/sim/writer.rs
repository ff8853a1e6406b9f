//! The carrier's writer over a disk that takes one atom at a time: decides, adds missing facts,
//! applies the plan.
//!
//! Another event, also a crash, may come between any two atoms. All decisions are those of
//! [`protocol::writer`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use protocol::cache::Invalidation;
use protocol::change::ChangeRow;
use protocol::conversation::{ConversationRow, Head};
use protocol::delivery::{DeliveryTask, Notice, Obligation, SessionEvent, Source};
use protocol::frame::ServerFrame;
use protocol::group::{GroupInfo, Member};
use protocol::ledger::{DeadReason, LedgerEntry, LedgerEvent};
use protocol::message_row::{MessageRow, Owner};
use protocol::record::{Task, TaskRecord, Work};
use protocol::writer::{
    self, ChangedPlaces, DeadRecord, Effect, Facts, Handover, HeadMove, ListOp, ListOpKind,
    Missing, NoPlan, Parts, Plan, ROUNDS_MAX, RecordOutcome, Rules, Stage,
};
use protocol::{ConversationId, GroupId, Recipient, UserId};
use rand::Rng;

use crate::boat;
use crate::cache::Permits;
use crate::carrier::CarrierEvent;
use crate::effects;
use crate::plan::{Sabotage, StoreKey};
use crate::world::{Event, World};

/// Largest group in which each member is owed a message; no group here is larger.
const PUSH_MAX: usize = 100;

/// As in the carrier's settings.
const UNSURE_MARGIN: Duration = Duration::from_secs(2);

/// Longest pause after a write that failed.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Records of a poll on their way through the writer.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Life of the carrier that writes it.
    life: u32,
    records: Vec<(Source, Arc<Task>)>,
    /// Parts that are not begun yet, and the one that is being written.
    parts: Parts,
    part: Option<Range<usize>>,
    facts: Facts,
    /// Facts that are being read, one after the other.
    pending_reads: VecDeque<Missing>,
    rounds: usize,
    /// Error of the store that refuses the part, which is one record and is buried.
    store_error: Option<&'static str>,
    /// Records of the part that the plan deals with.
    planned_count: usize,
    /// Remaining stages of the planned part.
    stages: Option<VecDeque<Vec<Atoms>>>,
    /// Handover of that part: gone with its plan where a store fails.
    handover: Handover,
    /// Permits to renew cache entries, and heads that the plan moves.
    permits: Permits,
    moved_heads: Vec<ConversationId>,
    /// Work of all parts so far.
    outcome: PollOutcome,
}

/// Work that follows once a poll is written.
#[derive(Debug, Default)]
struct PollOutcome {
    deliver: Vec<(Source, DeliveryTask)>,
    notices: Vec<Notice>,
    settled_records: Vec<(Source, Vec<LedgerEntry>)>,
    dead: Vec<(Source, Arc<Task>, DeadReason)>,
}

/// Atoms of one effect, in order.
type Atoms = VecDeque<Atom>;

/// Write that a store does at once.
#[derive(Clone, Debug)]
enum Atom {
    Member(GroupId, UserId, Member),
    Info(GroupId, GroupInfo),
    Touch(UserId, ConversationId),
    Invalidate(Vec<Invalidation>),
    Permits(Vec<GroupId>),
    Row(Box<MessageRow>),
    Change(Box<ChangeRow>),
    /// State of a message behind a change.
    Overlay(Box<ChangeRow>),
    Head(HeadMove),
    Renew(Vec<(GroupId, ChangedPlaces)>),
    ListRow(ConversationRow),
    /// The mark of a hidden message, before its register.
    HiddenMark(ListOp),
    Register(ListOp),
}

impl Batch {
    pub(crate) fn of(life: u32, records: Vec<(Source, Arc<Task>)>) -> Batch {
        let mut parts = Parts::of(&task_records(&records), usize::MAX);
        Batch {
            life,
            records,
            part: parts.take(),
            parts,
            facts: Facts::default(),
            pending_reads: VecDeque::new(),
            rounds: 0,
            store_error: None,
            planned_count: 0,
            stages: None,
            handover: Handover::default(),
            permits: Permits::new(),
            moved_heads: Vec::new(),
            outcome: PollOutcome::default(),
        }
    }
}

fn task_records(records: &[(Source, Arc<Task>)]) -> Vec<TaskRecord<'_>> {
    let records = records.iter().map(|(source, task)| TaskRecord {
        source: *source,
        task,
    });
    records.collect()
}

impl World {
    pub(crate) fn write_later(&mut self, batch: Box<Batch>) {
        let wait = if self.plan.moments {
            self.write_step_time(&batch)
        } else {
            self.hop()
        };
        self.write_after(wait, batch);
    }

    fn write_after(&mut self, wait: Duration, batch: Box<Batch>) {
        let life = batch.life;
        self.after(wait, Event::Carrier(CarrierEvent::Write { life, batch }));
    }

    /// Time of a step where facts are read at moments of their own: long enough for another writer
    /// to write in between. An older carrier is the slower one.
    fn write_step_time(&mut self, batch: &Batch) -> Duration {
        let most = match (batch.pending_reads.is_empty(), self.is_older) {
            (false, true) => 12_000,
            (false, false) => 800,
            (true, true) => 300,
            (true, false) => 80,
        };
        Duration::from_millis(self.dice.random_range(0..=most))
    }

    /// One step: a round of reading, an atom, or the handover of all parts.
    pub(crate) fn write_step(&mut self, mut batch: Box<Batch>) {
        let Some(part) = batch.part.clone() else {
            return self.finish(*batch);
        };
        if self.fails(&mut batch) {
            let pause = self.up_to(MAX_RETRY_PAUSE);
            return self.write_after(pause, batch);
        }
        if let Some(missing) = batch.pending_reads.pop_front() {
            self.answer(&missing, &mut batch.facts);
            if self.sabotage == Some(Sabotage::GroupFromBefore) {
                let (facts, groups) = (&mut batch.facts, missing.stored_groups.keys());
                let old_groups =
                    groups.map(|group| (*group, facts.groups.get(group).cloned().flatten()));
                let old_groups: Vec<_> = old_groups.collect();
                facts.stored_groups.extend(old_groups);
            }
            return self.write_later(batch);
        }
        match &mut batch.stages {
            None => {
                if let Some(wait) = self.decide(&mut batch, part) {
                    return self.write_after(wait, batch);
                }
            }
            Some(stages) => match next_atom(stages, &mut self.rng) {
                Some(atom) if self.refuses_atom(&atom) => self.refused(&mut batch, part),
                Some(atom) => {
                    if let Some(atom_to_repeat) = self.apply_atom(atom, &mut batch.permits) {
                        let first = stages.front_mut().expect("its stage");
                        first.push(VecDeque::from([atom_to_repeat]));
                    }
                }
                None => {
                    let handover = std::mem::take(&mut batch.handover);
                    batch.outcome.add(&batch.records[part.clone()], handover);
                    batch.parts.planned(part, batch.planned_count);
                    batch.part = batch.parts.take();
                    batch.forget_part();
                }
            },
        }
        self.write_later(batch);
    }

    /// Fails the part by chance, as if a store did not answer: finished writes stay, nothing of the
    /// part is remembered, and all of it is repeated.
    fn fails(&mut self, batch: &mut Batch) -> bool {
        if self.plan.call_loss == 0.0 || !self.rng.random_bool(self.plan.call_loss / 8.0) {
            return false;
        }
        for conversation in std::mem::take(&mut batch.moved_heads) {
            self.carrier.heads.remove(&conversation);
        }
        if let (Some(_), Some(part)) = (&batch.stages, &batch.part) {
            let records = batch.records[part.clone()].iter();
            let messages = records.filter_map(|(_, task)| task.work.message());
            self.witness.failed_messages.extend(messages);
        }
        batch.forget_part();
        true
    }

    /// Treats a part that a store refuses as the carrier does: it falls into halves, until one
    /// record is to blame, which is buried. Finished writes stay.
    fn refused(&mut self, batch: &mut Batch, part: Range<usize>) {
        let records = batch.records[part.clone()].iter();
        let messages = records.filter_map(|(_, task)| task.work.message());
        self.witness.failed_messages.extend(messages);
        batch.forget_part();
        batch.part = match batch.parts.refused(part) {
            Some(index) => {
                batch.store_error = Some("planned");
                Some(index..index + 1)
            }
            None => batch.parts.take(),
        };
    }

    /// True for a plan with a row that history refuses. It does so before it writes any.
    fn refuses_rows(&self, stages: &[Stage]) -> bool {
        if self.plan.letters.refusals.is_empty() {
            return false;
        }
        let mut effects = stages.iter().flat_map(|stage| &stage.0);
        effects.any(|effect| match effect {
            Effect::Messages(rows) => {
                let mut send_ids = rows.iter().map(|row| row.placed.message.send_id);
                send_ids.any(|send_id| self.refuses(StoreKey::Rows(send_id)))
            }
            Effect::Changes(rows) => {
                let mut change_send_ids = rows.iter().map(|row| row.changed.asked.send_id);
                change_send_ids.any(|send_id| self.refuses(StoreKey::Change(send_id)))
            }
            _ => false,
        })
    }

    /// True for a list row that cannot be read, and so not be written.
    fn refuses_atom(&self, atom: &Atom) -> bool {
        match atom {
            Atom::ListRow(row) => self.refuses(StoreKey::ListRow(row.owner, row.conversation)),
            _ => false,
        }
    }

    /// Decides the part, or reads facts it lacks. Returns a pause before the next step, if there is
    /// one: another writer is ahead, or a planted bug makes the plan wait.
    fn decide(&mut self, batch: &mut Batch, part: Range<usize>) -> Option<Duration> {
        let frames = self.frames();
        let rules = Rules {
            push_max: PUSH_MAX,
            unsure_margin: UNSURE_MARGIN,
            encode: &frames,
        };
        let records = task_records(&batch.records[part.clone()]);
        let request = writer::Batch {
            epoch: 1,
            records: &records,
        };
        let (facts, now) = (&batch.facts, self.carrier_wall());
        let decision = match batch.store_error {
            Some(error) => writer::bury(&request, facts, &rules, error, now),
            None => writer::decide(&request, facts, &rules, now),
        };
        match self.plant_in_decision(&records, &batch.facts, decision) {
            Err(NoPlan::Missing(missing)) if batch.rounds == ROUNDS_MAX => {
                self.judge
                    .record_finding(format!("not decided in time: {missing:?}"));
            }
            Err(NoPlan::Missing(missing)) if self.plan.moments => {
                batch.pending_reads = self.in_turn(&records, *missing);
                batch.rounds += 1;
            }
            Err(NoPlan::Missing(missing)) => {
                let mut facts = std::mem::take(&mut batch.facts);
                self.answer(&missing, &mut facts);
                self.plant_in_facts(&records, &mut facts);
                batch.facts = facts;
                batch.rounds += 1;
            }
            Err(NoPlan::Overtaken(conversation)) => {
                if !self.is_older {
                    self.judge.record_overtaking(conversation);
                }
                self.carrier.heads.remove(&conversation);
                batch.forget_part();
                return Some(self.up_to(MAX_RETRY_PAUSE));
            }
            Ok(mut plan) => {
                self.note_panics(&records, &mut plan);
                let is_late = self.plant_in_plan(&records, &batch.facts, &mut plan);
                let Plan {
                    stages,
                    handover,
                    outcomes,
                } = plan;
                if self.refuses_rows(&stages) {
                    self.refused(batch, part);
                    return None;
                }
                if !self.is_older {
                    self.witness_repeats(&batch.records[part], &outcomes, &handover);
                }
                batch.planned_count = outcomes.len();
                batch.moved_heads = moved_heads(&stages);
                batch.stages = Some(self.atoms(stages));
                batch.handover = handover;
                return is_late.then(|| self.up_to(Duration::from_secs(1)));
            }
        }
        None
    }

    /// Facts in the order in which carriers read them: groups, heads, and the rest side by side.
    fn in_turn(&mut self, records: &[TaskRecord<'_>], missing: Missing) -> VecDeque<Missing> {
        let mut turns = VecDeque::new();
        if self.sabotage == Some(Sabotage::RowsBeforeHeads) && !missing.heads.is_empty() {
            turns.push_back(own_rows(records));
        }
        let none = Missing::default;
        turns.extend([
            Missing {
                groups: missing.groups,
                ..none()
            },
            Missing {
                heads: missing.heads,
                ..none()
            },
            Missing {
                stored_heads: missing.stored_heads,
                ..none()
            },
            Missing {
                stored_groups: missing.stored_groups,
                ..none()
            },
        ]);
        let mut rest = vec![
            Missing {
                rows: missing.rows,
                ..none()
            },
            Missing {
                first_sends: missing.first_sends,
                ..none()
            },
            Missing {
                overlays: missing.overlays,
                ..none()
            },
            Missing {
                first_changes: missing.first_changes,
                own_changes: missing.own_changes,
                ..none()
            },
            Missing {
                followers: missing.followers,
                clears: missing.clears,
                hide_marks: missing.hide_marks,
                ..none()
            },
            Missing {
                platforms: missing.platforms,
                members: missing.members,
                ..none()
            },
        ];
        while !rest.is_empty() {
            let next = self.dice.random_range(0..rest.len());
            turns.push_back(rest.swap_remove(next));
        }
        turns.retain(|turn| !turn.is_empty());
        turns
    }

    /// Notes duplicates that were dropped for an earlier message.
    fn witness_repeats(
        &mut self,
        records: &[(Source, Arc<Task>)],
        outcomes: &[RecordOutcome],
        handover: &Handover,
    ) {
        for ((source, task), outcome) in records.iter().zip(outcomes) {
            let Some(id) = task.work.message() else {
                continue;
            };
            if *outcome != RecordOutcome::Repeat {
                continue;
            }
            let mut settled_records = handover.settled_records.iter();
            let ledger = settled_records
                .find_map(|(settled_source, ledger)| (settled_source == source).then_some(ledger));
            for entry in ledger.into_iter().flatten() {
                match entry.event {
                    LedgerEvent::Repeat { of } if of != id => self.judge.record_repeat(id, of),
                    _ => {}
                }
            }
        }
    }

    fn atoms(&mut self, stages: Vec<Stage>) -> VecDeque<Vec<Atoms>> {
        let mut queues = VecDeque::new();
        for Stage(effects) in stages {
            let overlays: Vec<_> = effects.iter().flat_map(overlays_of).collect();
            let effects = effects.into_iter();
            let rows = effects
                .flat_map(|effect| self.effect_atoms(effect))
                .collect();
            queues.extend(match self.sabotage {
                Some(Sabotage::OverlaysFirst) => [overlays, rows],
                _ => [rows, overlays],
            });
        }
        queues
    }

    /// Queues of atoms that go side by side.
    fn effect_atoms(&mut self, effect: Effect) -> Vec<Atoms> {
        let each = |atoms: Vec<Atom>| atoms.into_iter().map(|atom| [atom].into()).collect();
        match effect {
            Effect::Group(change) => {
                let (group, update) = (change.group, change.update);
                let members = update.members.into_iter();
                let members = members.map(|(user, member)| Atom::Member(group, user, member));
                let info = update.info.map(|info| Atom::Info(group, info));
                vec![members.chain(info).collect()]
            }
            Effect::Touch { lists, .. } => {
                let touches = lists
                    .into_iter()
                    .map(|(user, conversation)| Atom::Touch(user, conversation));
                each(touches.collect())
            }
            Effect::Invalidate(invalidations) => each(vec![Atom::Invalidate(invalidations)]),
            Effect::Permits(groups) => each(vec![Atom::Permits(groups)]),
            Effect::Messages(rows) => {
                let rows = rows.into_iter().map(|row| Atom::Row(Box::new(row)));
                each(rows.collect())
            }
            Effect::Changes(rows) => {
                let rows = rows.into_iter().map(|row| Atom::Change(Box::new(row)));
                each(rows.collect())
            }
            // Deletion marks and the timeline have no part in these worlds.
            Effect::Recalled(_) | Effect::Timeline(_) => Vec::new(),
            Effect::Heads(heads) => each(heads.into_iter().map(Atom::Head).collect()),
            Effect::Renew(groups) => each(vec![Atom::Renew(groups)]),
            Effect::ListRows(rows) => each(rows.into_iter().map(Atom::ListRow).collect()),
            Effect::ListOps { ops, .. } => {
                let ops = ops.into_iter().map(|op| match op.kind {
                    ListOpKind::Hide(_) => [Atom::HiddenMark(op), Atom::Register(op)].into(),
                    ListOpKind::Clear(_) | ListOpKind::Arrange(_) => [Atom::Register(op)].into(),
                });
                ops.collect()
            }
        }
    }

    /// Applies an atom. Returns it if it must be repeated.
    fn apply_atom(&mut self, atom: Atom, permits: &mut Permits) -> Option<Atom> {
        let now = self.carrier_wall();
        match atom {
            Atom::Member(group, user, member) => self.apply(effects::Effect::Member {
                group,
                user,
                member,
            }),
            Atom::Info(group, info) => self.apply(effects::Effect::Info { group, info }),
            Atom::Touch(user, conversation) => self.apply(effects::Effect::Touched {
                user,
                conversation,
                at: now,
            }),
            Atom::Invalidate(invalidations) => {
                if self.is_invalidation_down() {
                    return Some(Atom::Invalidate(invalidations));
                }
                self.invalidate_entries(&invalidations);
                return None;
            }
            Atom::Permits(groups) => {
                *permits = self.ask_permits(groups);
                return None;
            }
            Atom::Row(row) => self.apply(effects::Effect::Rows(vec![*row])),
            Atom::Overlay(row) => self.apply(effects::Effect::Altered(vec![*row])),
            Atom::Change(row) => self.apply(effects::Effect::Changes(vec![*row])),
            Atom::Head(head_move) => {
                let head = Head {
                    stamp: now,
                    ..head_move.head
                };
                self.apply_head(head_move.conversation, head);
                return None;
            }
            Atom::Renew(groups) => {
                self.renew_entries(permits.clone(), groups);
                return None;
            }
            Atom::ListRow(row) => {
                let row = ConversationRow {
                    version: now,
                    ..row
                };
                self.apply(effects::Effect::ConversationRows(vec![row]))
            }
            Atom::HiddenMark(op) => self.apply(effects::Effect::hidden_mark(&op)?),
            Atom::Register(op) => self.apply(effects::Effect::register(&op, now)),
        };
        None
    }

    fn apply_head(&mut self, conversation: ConversationId, head: Head) {
        let head = self.plant_in_head(conversation, head);
        self.apply(effects::Effect::Head { conversation, head });
        self.carrier.heads.insert(conversation, head);
    }

    fn finish(&mut self, batch: Batch) {
        // The poll of an older carrier says so: nothing is handed over.
        if self.is_older {
            return;
        }
        let PollOutcome {
            deliver,
            notices,
            settled_records,
            dead,
        } = batch.outcome;
        for notice in notices {
            self.send_notice(notice);
        }
        self.deliver(deliver);
        for (source, task, reason) in dead {
            if let Some(id) = task.work.message() {
                self.judge.record_death(id, reason);
            }
            if self.plan.letters.has_operator() {
                self.bury(source, task, reason)
            } else {
                _ = self.carrier.offsets.settle(source)
            }
        }
        for (source, ledger) in settled_records {
            self.apply(effects::Effect::Ledger(ledger));
            self.carrier.offsets.settle(source);
        }
        self.commit_later();
        self.carrier.is_writing = false;
        self.wake_carrier();
    }

    pub(crate) fn deliver(&mut self, deliveries: Vec<(Source, DeliveryTask)>) {
        for (source, task) in deliveries {
            let message = &task.placed.message;
            if message.content.change.is_none() && matches!(message.to, Recipient::User(_)) {
                let targets = task.obligations.iter().flat_map(Obligation::targets);
                self.witness.record_targets(message.id, targets);
            }
            let now = self.carrier_moment();
            let accepted = self.carrier.delivery.handle_task(now, source, task);
            assert!(accepted.is_ok(), "there was room");
            self.drive_carrier();
        }
    }

    pub(crate) fn send_notice(&mut self, notice: Notice) {
        let event = match notice.event {
            SessionEvent::Placed(echo) => {
                boat::Notice::Frame(api::codec::encode_server(&ServerFrame::Placed(echo)))
            }
            SessionEvent::Refused { send_id, refusal } => {
                let frame = ServerFrame::Refused { send_id, refusal };
                boat::Notice::Frame(api::codec::encode_server(&frame))
            }
            SessionEvent::Hint => boat::Notice::Hint,
            SessionEvent::Resync => boat::Notice::Resync,
        };
        self.notify(notice.life, notice.session, event);
    }
}

impl Batch {
    /// Clears the part, so that the next one, or this one again, begins from nothing.
    fn forget_part(&mut self) {
        self.facts = Facts::default();
        self.pending_reads.clear();
        self.rounds = 0;
        self.store_error = None;
        self.planned_count = 0;
        self.stages = None;
        self.handover = Handover::default();
        self.permits.clear();
        self.moved_heads.clear();
    }
}

impl PollOutcome {
    fn add(&mut self, records: &[(Source, Arc<Task>)], handover: Handover) {
        let Handover {
            deliver,
            notices,
            kickouts,
            settled_records,
            dead,
        } = handover;
        assert!(
            kickouts.is_empty(),
            "sessions are ended when they are polled"
        );
        self.deliver.extend(deliver);
        self.notices.extend(notices);
        self.settled_records.extend(settled_records);
        let dead = dead.into_iter().map(|DeadRecord { index, reason, .. }| {
            let (source, task) = &records[index];
            (*source, task.clone(), reason)
        });
        self.dead.extend(dead);
    }
}

/// Rows of the records' own messages, as missing facts.
fn own_rows(records: &[TaskRecord<'_>]) -> Missing {
    let rows = records.iter().filter_map(|record| {
        let Work::Message(task) = &record.task.work else {
            return None;
        };
        let message = &task.message;
        let owner = Owner::of(message.conversation()?, message.from);
        Some((owner, message.id))
    });
    Missing {
        rows: rows.collect(),
        ..Missing::default()
    }
}

/// Takes the next atom of some effect in the first stage; `None` once all stages are done.
fn next_atom(stages: &mut VecDeque<Vec<Atoms>>, rng: &mut impl Rng) -> Option<Atom> {
    loop {
        let stage = stages.front_mut()?;
        stage.retain(|atoms| !atoms.is_empty());
        if stage.is_empty() {
            stages.pop_front();
            continue;
        }
        let effect = rng.random_range(0..stage.len());
        return stage[effect].pop_front();
    }
}

/// Second half of a write of changes: no overlay is written before all change rows are.
fn overlays_of(effect: &Effect) -> Vec<Atoms> {
    let Effect::Changes(rows) = effect else {
        return Vec::new();
    };
    let overlays = rows
        .iter()
        .map(|row| [Atom::Overlay(Box::new(row.clone()))].into());
    overlays.collect()
}

/// Conversations whose heads a plan moves.
fn moved_heads(stages: &[Stage]) -> Vec<ConversationId> {
    let effects = stages.iter().flat_map(|stage| &stage.0);
    let heads = effects.filter_map(|effect| match effect {
        Effect::Heads(heads) => Some(heads),
        _ => None,
    });
    heads
        .flatten()
        .map(|head_move| head_move.conversation)
        .collect()
}
