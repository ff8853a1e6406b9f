//! The single writer of conversations: what the records of a batch come to.
//!
//! ```text
//!  loop {                              Facts: what was read, Missing: what has to be read
//!      decide(batch, facts, rules)
//!          Missing    => read, add to the facts
//!          Overtaken  => forget what is remembered of the conversation, repeat the batch later
//!          Plan       => apply its stages in order, each whole, then hand over; after any failure repeat all of it
//!  }
//! ```
//!
//! [`decide`] is a pure function. It runs twice over the records: *ruling* gives each its position, against facts and
//! against the draft of the records before it, and names the keys of facts that are missing; *layout* turns
//! a ruled batch into rows, frames and effects. A record that is decided again after a crash, in whatever batch,
//! comes to the same: see [`crate::conversation`], [`crate::change`] and [`crate::group`] for why.
//!
//! | record | facts | only sometimes |
//! | --- | --- | --- |
//! | message to a user | head, platforms of the receiver | first send where it is unsure; the row of its id where the head cannot do without; then the first send; overlay where it keeps a position |
//! | message to a group | group, head, platforms of its readers up to `push_max` | the same |
//! | recall, edit, reaction | (group,) head, row of its subject, overlay there | first change of a possible repeat; own change of a redelivery, behind a crash, or of one that dies |
//! | clear, arrange, hide | (group,) subject's row | clear: what is cleared, and the record of the message behind; hide: what hid it before |
//! | group command | group, head | |
//! | retry | row of the message, overlay | members who are owed it, where it was edited or tells of a group command |

mod change;
mod command;
mod draft;
mod facts;
mod layout;
mod list;
mod parts;
mod place;
mod plan;
mod retry;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use self::draft::{Death, Draft, DraftStep};
use self::facts::MissingFact;
pub use self::facts::{ChangeKey, Facts, HideKey, Missing, ROUNDS_MAX, SendKey};
use self::layout::Layout;
pub use self::parts::Parts;
pub use self::plan::{
    ChangedPlaces, DeadRecord, Effect, EffectKind, GroupChange, Handover, HeadMove, ListOp,
    ListOpKind, Plan, RecordOutcome, Stage, TimelineEntry, stamp_holds,
};
pub use self::retry::{RetryFailure, retry};
use crate::event::Encode;
use crate::ledger::DeadReason;
use crate::record::{TaskRecord, Work};
use crate::{ConversationId, Timestamp};

/// Records of one part, in log order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Epoch of the log.
    pub epoch: u32,
    pub records: &'a [TaskRecord<'a>],
}

/// Settings. The bounds that a record carries come first: two carriers never rule differently about it.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// Members of a group up to which each is owed a message; in a larger one only live sessions get it.
    pub push_max: usize,
    /// Added to the age of an unsure send: clocks of stations differ by less.
    pub unsure_margin: Duration,
    pub encode: &'a dyn Encode,
}

/// No plan yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlan {
    /// Keys to be read first.
    Missing(Box<Missing>),
    /// A later writer is ahead in this conversation: forget its head and group, repeat the records later.
    Overtaken(ConversationId),
}

/// Decides a batch, or the first records of it: [`Plan::outcomes`] has one for each. `now` dates ledger entries, and
/// decides nothing.
///
/// A record whose ruling or layout panics becomes a dead letter without a position, or a change with a row that says
/// so; the others are decided as if it were not there. A plan ends with such a record where others of its conversation
/// follow: its death is written before anything of them is. It also ends so with a list operation or a change whose
/// layout panics: what follows was ruled as if that one stood, and may need other facts.
///
/// # Errors
/// [`NoPlan`]: facts are missing, or another writer is ahead.
pub fn decide(
    batch: &Batch<'_>,
    facts: &Facts,
    rules: &Rules<'_>,
    now: Timestamp,
) -> Result<Plan, NoPlan> {
    let (mut batch, mut panicked_indexes) = (*batch, BTreeSet::new());
    loop {
        let mut steps = rule_records(&batch, facts, rules, &panicked_indexes)?;
        steps.truncate(decided_count(batch.records, &steps));
        match lay_out(&batch, steps, facts, rules, now) {
            Ok(plan) => return Ok(plan),
            Err(new_indexes) => {
                let mut followed_indexes = new_indexes
                    .iter()
                    .filter(|index| is_followed(batch.records, **index));
                if let Some(last) = followed_indexes.next() {
                    batch.records = &batch.records[..=*last];
                }
                panicked_indexes.extend(new_indexes);
            }
        }
    }
}

/// Buries a record that a store refuses, alone: it becomes a dead letter with this error. `batch` has no other record.
///
/// # Errors
/// As [`decide`].
pub fn bury(
    batch: &Batch<'_>,
    facts: &Facts,
    rules: &Rules<'_>,
    error: &str,
    now: Timestamp,
) -> Result<Plan, NoPlan> {
    let (mut draft, mut layout) = (
        Draft::new(batch, facts, rules),
        Layout::new(facts, rules, now),
    );
    for (index, record) in batch.records.iter().enumerate() {
        let death = Death::new(DeadReason::StoreRejected, error.to_owned());
        match draft.record_death(record, death) {
            Ok(step) => layout.admit(index, record, layout.of(record, step)),
            Err(_) => draft.leave_open(record),
        }
    }
    let missing_facts = draft.into_missing();
    if missing_facts.is_empty() {
        Ok(layout.plan())
    } else {
        Err(NoPlan::Missing(Box::new(missing_facts)))
    }
}

/// Number of records up to the first death that others of its conversation follow, or of all.
fn decided_count(records: &[TaskRecord<'_>], steps: &[DraftStep<'_>]) -> usize {
    let passes =
        |step: &DraftStep<'_>| matches!(step, DraftStep::Died(death) if death.new_head.is_some());
    let mut deaths = (0..steps.len()).filter(|index| passes(&steps[*index]));
    deaths
        .find(|index| is_followed(records, *index))
        .map_or(records.len(), |index| index + 1)
}

/// Whether a later record is of the same conversation.
fn is_followed(records: &[TaskRecord<'_>], index: usize) -> bool {
    let conversation = |record: &TaskRecord<'_>| record.task.work.conversation();
    let conversation_id = conversation(&records[index]);
    let mut later_records = records[index + 1..].iter();
    later_records.any(|record| conversation(record) == conversation_id)
}

/// Error of a dead letter whose handling panicked.
const PANICKED: &str = "handling it panicked";

/// The plan, or the indexes of records whose layout panics, in order.
fn lay_out(
    batch: &Batch<'_>,
    steps: Vec<DraftStep<'_>>,
    facts: &Facts,
    rules: &Rules<'_>,
    now: Timestamp,
) -> Result<Plan, Vec<usize>> {
    let (mut layout, mut panicked_indexes) = (Layout::new(facts, rules, now), Vec::new());
    for (index, (record, step)) in batch.records.iter().zip(steps).enumerate() {
        match catch_unwind(AssertUnwindSafe(|| layout.of(record, step))) {
            Ok(record_layout) => layout.admit(index, record, record_layout),
            Err(_) => panicked_indexes.push(index),
        }
    }
    if panicked_indexes.is_empty() {
        Ok(layout.plan())
    } else {
        Err(panicked_indexes)
    }
}

/// One step a record.
fn rule_records<'a>(
    batch: &Batch<'a>,
    facts: &'a Facts,
    rules: &Rules<'_>,
    panicked_indexes: &BTreeSet<usize>,
) -> Result<Vec<DraftStep<'a>>, NoPlan> {
    let mut draft = Draft::new(batch, facts, rules);
    let mut steps = Vec::with_capacity(batch.records.len());
    let mut overtaken = None;
    for (index, record) in batch.records.iter().enumerate() {
        let is_dead = panicked_indexes.contains(&index);
        let step = if is_dead && !is_change(record) {
            draft.panicked_step(record)
        } else {
            match catch_unwind(AssertUnwindSafe(|| draft.step(record))) {
                Ok(Ok(step)) if is_dead => draft.panicked_behind(record, step),
                Ok(step) => step,
                Err(_) => draft.panicked_step(record),
            }
        };
        match step {
            Ok(DraftStep::Overtaken(conversation)) => {
                overtaken.get_or_insert(conversation);
                draft.leave_open(record);
            }
            Ok(step) => {
                draft.admit(record, &step);
                draft.stay_open(record);
                steps.push(step);
            }
            Err(_) => draft.leave_open(record),
        }
    }
    let missing_facts = draft.into_missing();
    match overtaken {
        _ if !missing_facts.is_empty() => Err(NoPlan::Missing(Box::new(missing_facts))),
        Some(conversation) => Err(NoPlan::Overtaken(conversation)),
        None => Ok(steps),
    }
}

impl<'a> Draft<'a> {
    fn panicked_step(&mut self, record: &TaskRecord<'a>) -> Result<DraftStep<'a>, MissingFact> {
        let death = Death::new(DeadReason::HandlerPanic, PANICKED.to_owned());
        self.record_death(record, death)
    }

    /// The layout of the record panics: a change that was ruled dies at its place.
    fn panicked_behind(
        &mut self,
        record: &TaskRecord<'a>,
        step: DraftStep<'a>,
    ) -> Result<DraftStep<'a>, MissingFact> {
        match step {
            DraftStep::Changed(draft) if draft.head.moves => self.panicked_step(record),
            // It changes nothing, or did so before: it has no place to keep.
            DraftStep::Changed(_) | DraftStep::Unchanged { .. } => {
                let death = Death::new(DeadReason::HandlerPanic, PANICKED.to_owned());
                Ok(DraftStep::Died(death))
            }
            DraftStep::Died(death) => Ok(DraftStep::Died(death)),
            _ => self.panicked_step(record),
        }
    }
}

fn is_change(record: &TaskRecord<'_>) -> bool {
    match &record.task.work {
        Work::Message(task) => task.message.content.change.is_some(),
        Work::Deliver(_) | Work::Kickout(_) => false,
    }
}

#[cfg(test)]
pub(crate) mod tests;
