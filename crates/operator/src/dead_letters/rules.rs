//! The dead-letter desk: letters handled by operators, tasks they started, and the tasks' progress.
//!
//! All state is a fold over one log, the topic `operation`: any process that reads the entries in
//! order knows the state of every letter that was touched and of every task. One process at a time
//! does the work (the owner of the topic's only partition). It logs each step before it starts
//! (*claimed*) and the result after (*done*), so after a crash the next owner checks whether a
//! claim was carried out instead of repeating it.

mod cause;
mod edit;
mod task;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use protocol::keys::Topic;
use protocol::{BoatId, Code, Platform, Refusal, Timestamp, UserId};
use serde::{Deserialize, Serialize};

pub use self::cause::Cause;
pub use self::edit::{Edit, EditPosition, EditRefusal, EditedLetter, Version};
pub use self::task::{
    OperatorTask, OperatorWork, Pace, Progress, StartedTask, TaskId, TaskOutcome,
};

/// One line of the log of operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationEntry {
    pub at: Timestamp,
    /// Name of an operator, or of the process that works.
    pub by: String,
    pub act: OperatorAction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorAction {
    /// An operator started a task; its letters follow.
    Begun(StartedTask),
    /// Letters of a task, in processing order.
    Chosen {
        task: TaskId,
        letters: Vec<String>,
    },
    /// Letters the worker is about to process.
    Claimed {
        task: TaskId,
        claims: Vec<TaskClaim>,
    },
    /// Outcomes of claimed letters.
    Done {
        task: TaskId,
        outcomes: Vec<(String, TaskOutcome)>,
    },
    Paused {
        task: TaskId,
        why: String,
        /// Whether the pause is automatic: too many letters died again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_itself: bool,
    },
    /// Letters of a task died again, as these new letters.
    DiedAgain {
        task: TaskId,
        letters: Vec<String>,
        /// Parent of each new letter, in the same order. Absent in older entries.
        #[serde(default)]
        parents: Vec<String>,
    },
    Resumed {
        task: TaskId,
    },
    /// The remaining letters of the task are left alone.
    Cancelled {
        task: TaskId,
    },
    /// An operator read message content.
    Looked {
        letter: String,
        why: String,
    },
    /// An operator exported this many letters, message content included, starting at `from`.
    Exported {
        from: String,
        letters: u64,
        why: String,
    },
    /// An operator imported letters.
    Imported {
        letters: Vec<String>,
        why: String,
    },
    /// An operator applied these repairs to stored data of a user.
    Repaired {
        user: UserId,
        what: Vec<String>,
        why: String,
    },
    /// An operator ended sessions of a user and revoked tokens issued before a time.
    SignedOut {
        user: UserId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        platform: Option<Platform>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revoked_before: Option<Timestamp>,
        why: String,
        /// Result, logged in a separate entry; unset in the entry that precedes the work.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
    },
    /// An operator drained a boat, or cancelled its drain.
    Drained {
        boat: BoatId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cancel: bool,
        /// Clients per second; unset: as the boat's settings say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pace: Option<NonZeroU32>,
    },
    /// An operator edited a letter; the new bytes are in the log already.
    Edited(EditedLetter),
    /// The log has dropped these letters.
    Forgotten {
        letters: Vec<String>,
    },
}

impl OperatorAction {
    /// Whether an operator asked for the action, or looked; false for steps of the work itself.
    pub const fn is_decision(&self) -> bool {
        match self {
            OperatorAction::Begun(_)
            | OperatorAction::Resumed { .. }
            | OperatorAction::Cancelled { .. }
            | OperatorAction::Looked { .. }
            | OperatorAction::Exported { .. }
            | OperatorAction::Imported { .. }
            | OperatorAction::Repaired { .. }
            | OperatorAction::Drained { .. }
            | OperatorAction::Edited(_) => true,
            OperatorAction::Paused { by_itself, .. } => !*by_itself,
            OperatorAction::SignedOut { outcome, .. } => outcome.is_none(),
            OperatorAction::Chosen { .. }
            | OperatorAction::Claimed { .. }
            | OperatorAction::Done { .. }
            | OperatorAction::DiedAgain { .. }
            | OperatorAction::Forgotten { .. } => false,
        }
    }
}

/// A letter that the worker is about to process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskClaim {
    pub letter: String,
    /// Time before the record was published.
    pub at: Timestamp,
    /// Destination of the record, if the letter gets one.
    pub to: Option<LetterPosition>,
    /// Version of the letter's bytes, by the edit known at claim time. A claim of other bytes does
    /// not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

/// A partition from an offset on: the record of a claim lies behind it, or was never published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterPosition {
    pub topic: Topic,
    pub partition: u32,
    pub from: u64,
}

/// Last operation on a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LetterStatus {
    Open,
    Redriven {
        at: Timestamp,
        task: TaskId,
    },
    /// Put away; can be restored during the grace period.
    Discarded {
        at: Timestamp,
        task: TaskId,
    },
}

/// State of a letter at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LetterState {
    Open,
    Redriven,
    Discarded,
    /// Discarded too long ago to be restored: gone for operators.
    Gone,
}

#[derive(Clone, Debug)]
pub struct DeskLimits {
    /// Letters of one task.
    pub letters: usize,
    /// Unfinished tasks.
    pub tasks: usize,
    /// Finished tasks still listed.
    pub finished_tasks: usize,
    /// Letters whose status is remembered.
    pub marks: usize,
    /// Letters whose edit is remembered.
    pub edits: usize,
    /// Time during which a discarded letter can be restored.
    pub grace: Duration,
}

impl Default for DeskLimits {
    fn default() -> Self {
        DeskLimits {
            letters: 10_000,
            tasks: 20,
            finished_tasks: 100,
            marks: 500_000,
            edits: 10_000,
            grace: Duration::from_secs(7 * 86_400),
        }
    }
}

/// Next step of the worker.
#[derive(Debug, PartialEq, Eq)]
pub enum FoldStep<'a> {
    /// Claims without a logged outcome.
    Finish {
        task: &'a OperatorTask,
        claims: Vec<TaskClaim>,
    },
    /// The next letters of a task, at most as many as the caller asked for.
    Claim {
        task: &'a OperatorTask,
        letters: Vec<String>,
    },
}

/// State of the desk: see the module's head.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    limits: DeskLimits,
    marks: BTreeMap<String, LetterStatus>,
    /// Newest edit of each letter.
    edits: BTreeMap<String, Edit>,
    /// Ordered by start.
    tasks: Vec<OperatorTask>,
}

impl Operations {
    pub fn new(limits: DeskLimits) -> Operations {
        Operations {
            limits,
            ..Operations::default()
        }
    }

    /// Reads the next entry of the log. Skips an entry that cannot follow from those before it: a
    /// worker that had lost its partition may have written it.
    pub fn read(&mut self, entry: &OperationEntry) {
        match &entry.act {
            OperatorAction::Begun(start) => {
                if self.task(&start.task).is_none() {
                    self.tasks
                        .push(OperatorTask::new(start.clone(), &entry.by, entry.at));
                    self.drop_finished_tasks();
                }
            }
            OperatorAction::Done { task, outcomes } => {
                for (letter, outcome) in outcomes {
                    self.read_outcome(task, letter, *outcome, entry.at);
                }
            }
            OperatorAction::Claimed { task, claims } => self.read_claims(task, claims),
            OperatorAction::Chosen { task, .. }
            | OperatorAction::Paused { task, .. }
            | OperatorAction::DiedAgain { task, .. }
            | OperatorAction::Resumed { task }
            | OperatorAction::Cancelled { task } => {
                let matching_task = self
                    .tasks
                    .iter_mut()
                    .find(|candidate| candidate.id() == task);
                if let Some(task) = matching_task {
                    task.read(entry);
                }
            }
            OperatorAction::Edited(edited_letter) => self.read_edit(edited_letter, entry),
            OperatorAction::Forgotten { letters } => {
                for letter in letters {
                    self.marks.remove(letter);
                    self.edits.remove(letter);
                }
            }
            OperatorAction::Looked { .. }
            | OperatorAction::Exported { .. }
            | OperatorAction::Imported { .. }
            | OperatorAction::Repaired { .. }
            | OperatorAction::SignedOut { .. }
            | OperatorAction::Drained { .. } => {}
        }
    }

    /// Skips claims made without knowledge of the letter's newest edit: the record has other bytes
    /// now, so the letter is claimed again.
    fn read_claims(&mut self, task: &TaskId, claims: &[TaskClaim]) {
        let matching_task = self
            .tasks
            .iter_mut()
            .find(|candidate| candidate.id() == task);
        let Some(task) = matching_task else { return };
        for claim in claims {
            let newest = self.edits.get(&claim.letter);
            if newest.map(|edit| &edit.letter.version) == claim.version.as_ref() {
                task.claim(claim);
            }
        }
    }

    fn read_edit(&mut self, edited_letter: &EditedLetter, entry: &OperationEntry) {
        if self.admit_edit(edited_letter).is_ok() {
            let edit = Edit {
                by: entry.by.clone(),
                at: entry.at,
                letter: edited_letter.clone(),
            };
            self.edits.insert(edited_letter.letter.clone(), edit);
        }
    }

    /// Checks whether this edit counts.
    ///
    /// # Errors
    /// The letter is not open, too many letters are edited, or the letter has changed since.
    pub fn admit_edit(&self, edited_letter: &EditedLetter) -> Result<(), EditRefusal> {
        self.may_be_edited(&edited_letter.letter)?;
        match self.edits.get(&edited_letter.letter) {
            Some(edit) if edit.letter.version != edited_letter.base => Err(EditRefusal::Changed),
            Some(_) => Ok(()),
            None if self.edits.len() < self.limits.edits => Ok(()),
            None => Err(EditRefusal::TooMany(self.limits.edits)),
        }
    }

    /// # Errors
    /// The letter is not open, or is claimed.
    pub fn may_be_edited(&self, letter: &str) -> Result<(), EditRefusal> {
        match self.status(letter) {
            LetterStatus::Open if self.is_claimed(letter) => Err(EditRefusal::IsClaimed),
            LetterStatus::Open => Ok(()),
            LetterStatus::Redriven { .. } => Err(EditRefusal::Redriven),
            LetterStatus::Discarded { .. } => Err(EditRefusal::Discarded),
        }
    }

    /// Whether a task has claimed the letter.
    pub fn is_claimed(&self, letter: &str) -> bool {
        let mut claims = self.tasks.iter().flat_map(OperatorTask::claims);
        claims.any(|claim| claim.letter == letter)
    }

    /// Newest edit of the letter by an operator.
    pub fn edit(&self, letter: &str) -> Option<&Edit> {
        self.edits.get(letter)
    }

    /// Letters with a remembered status or edit.
    pub fn remembered_letters(&self) -> impl Iterator<Item = &str> {
        let unmarked_edits = self
            .edits
            .keys()
            .filter(|name| !self.marks.contains_key(*name));
        self.marks.keys().chain(unmarked_edits).map(String::as_str)
    }

    fn read_outcome(&mut self, task: &TaskId, letter: &str, outcome: TaskOutcome, at: Timestamp) {
        let Some(matching_task) = self
            .tasks
            .iter_mut()
            .find(|matching_task| matching_task.id() == task)
        else {
            return;
        };
        if !matching_task.done(letter, outcome, at) {
            return;
        }
        let task = task.clone();
        if outcome.is_redriven() {
            let status = LetterStatus::Redriven { at, task };
            self.marks.insert(letter.to_owned(), status);
        } else if outcome == TaskOutcome::Discarded {
            let status = LetterStatus::Discarded { at, task };
            self.marks.insert(letter.to_owned(), status);
        } else if outcome == TaskOutcome::Restored {
            self.marks.remove(letter);
        }
    }

    fn drop_finished_tasks(&mut self) {
        let finished_count = self.tasks.iter().filter(|task| task.is_over()).count();
        let mut surplus = finished_count.saturating_sub(self.limits.finished_tasks);
        self.tasks.retain(|task| {
            let goes = surplus > 0 && task.is_over();
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// Checks whether this task may begin.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed task; `RateLimited` while other tasks must end first.
    pub fn admit(&self, start: &StartedTask) -> Result<(), Refusal> {
        start.check(self.limits.letters)?;
        let open = self.tasks.iter().filter(|task| !task.is_over()).count();
        if open >= self.limits.tasks {
            let text = format!("{open} tasks are still open: wait for one, or cancel it");
            return Err(Refusal::new(Code::RateLimited, text));
        }
        let letters = usize::try_from(start.letters).unwrap_or(usize::MAX);
        if self.marks.len().saturating_add(letters) > self.limits.marks {
            let text = format!(
                "{} letters are marked already, at most {}: marks are dropped when the log drops the letters",
                self.marks.len(),
                self.limits.marks
            );
            return Err(Refusal::new(Code::RateLimited, text));
        }
        Ok(())
    }

    /// Checks whether a letter allows this work now. The error is the outcome to report for it.
    pub fn may(&self, work: OperatorWork, letter: &str, now: Timestamp) -> Result<(), TaskOutcome> {
        match (work, self.standing(letter, now)) {
            (OperatorWork::Redrive | OperatorWork::Discard, LetterState::Open) => Ok(()),
            (OperatorWork::Redrive | OperatorWork::Discard, LetterState::Redriven) => {
                Err(TaskOutcome::Before)
            }
            (OperatorWork::Redrive | OperatorWork::Discard, LetterState::Discarded) => {
                Err(TaskOutcome::IsDiscarded)
            }
            (OperatorWork::Restore, LetterState::Discarded) => Ok(()),
            (OperatorWork::Restore, LetterState::Open | LetterState::Redriven) => {
                Err(TaskOutcome::NotDiscarded)
            }
            (_, LetterState::Gone) => Err(TaskOutcome::Final),
        }
    }

    pub fn status(&self, letter: &str) -> &LetterStatus {
        self.marks.get(letter).unwrap_or(&LetterStatus::Open)
    }

    /// State of the letter at `now`. A discarded letter is gone once it can no longer be restored.
    pub fn standing(&self, letter: &str, now: Timestamp) -> LetterState {
        match self.status(letter) {
            LetterStatus::Open => LetterState::Open,
            LetterStatus::Redriven { .. } => LetterState::Redriven,
            LetterStatus::Discarded { at, .. } if now < *at + self.limits.grace => {
                LetterState::Discarded
            }
            LetterStatus::Discarded { .. } => LetterState::Gone,
        }
    }

    pub fn task(&self, id: &TaskId) -> Option<&OperatorTask> {
        self.tasks.iter().find(|task| task.id() == id)
    }

    /// Tasks, newest first.
    pub fn tasks(&self) -> impl Iterator<Item = &OperatorTask> {
        self.tasks.iter().rev()
    }

    /// A task to be paused: too many of its letters have died again.
    pub fn failing(&self) -> Option<&OperatorTask> {
        self.tasks.iter().find(|task| task.is_failing())
    }

    /// Next step of the worker. Claims are finished first, even those of a task that was paused or
    /// cancelled; then the oldest task that may go on.
    pub fn next(&self, limit: usize) -> Option<FoldStep<'_>> {
        let claimed_task = self
            .tasks
            .iter()
            .find(|task| task.claims().next().is_some());
        if let Some(task) = claimed_task {
            let claims = task.claims().cloned().collect();
            return Some(FoldStep::Finish { task, claims });
        }
        let task = self.tasks.iter().find(|task| task.goes_on())?;
        let letters = task
            .waiting_letters()
            .take(limit.max(1))
            .map(str::to_owned)
            .collect();
        Some(FoldStep::Claim { task, letters })
    }
}

#[cfg(test)]
mod tests;
