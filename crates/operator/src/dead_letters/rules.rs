//! The dead-letter desk: letters handled by operators, tasks they started, and the tasks' progress.
//!
//! All state is a fold over one log, the topic `operation`: any process that reads the entries in
//! order knows the state of every letter that was touched and of every task. One process at a time
//! does the work (the owner of the topic's only partition), and logs the outcomes afterwards
//! (*done*). It works only on letters *in hand*: the next few of one task. A letter leaves the hand
//! by its outcome alone, not by a pause, an end of its task, or an edit. So a worker that reads the
//! log late, or takes over from one that died, publishes what that one may have published, and
//! nothing else: a second record with the same id.

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
    /// Letters that a worker of an earlier version was about to process.
    Claimed {
        task: TaskId,
        claims: Vec<TaskClaim>,
    },
    /// Outcomes of letters.
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

/// A letter that a worker of an earlier version was about to process.
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
                if let Some(task) = self.task_mut(task) {
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
        self.fill_hand();
    }

    /// Takes the next letters of the oldest task that goes on in hand, once the hand is empty.
    fn fill_hand(&mut self) {
        if self
            .tasks
            .iter()
            .all(|task| task.letters_in_hand.is_empty())
            && let Some(task) = self.tasks.iter_mut().find(|task| task.goes_on())
        {
            task.fill_hand();
        }
    }

    /// A version that claimed letters skipped those claims that it had made without knowledge of
    /// the letter's newest edit.
    fn read_claims(&mut self, task: &TaskId, claims: &[TaskClaim]) {
        for claim in claims {
            let edit = self.edit(&claim.letter);
            if edit.map(|edit| &edit.letter.version) == claim.version.as_ref()
                && let Some(task) = self.task_mut(task)
            {
                task.claim(&claim.letter);
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
    /// The letter is not open, or is in hand.
    pub fn may_be_edited(&self, letter: &str) -> Result<(), EditRefusal> {
        match self.status(letter) {
            LetterStatus::Open if self.is_in_hand(letter) => Err(EditRefusal::IsInHand),
            LetterStatus::Open => Ok(()),
            LetterStatus::Redriven { .. } => Err(EditRefusal::Redriven),
            LetterStatus::Discarded { .. } => Err(EditRefusal::Discarded),
        }
    }

    /// Whether a worker may be processing the letter.
    pub fn is_in_hand(&self, letter: &str) -> bool {
        let mut letters = self.tasks.iter().flat_map(|task| &task.letters_in_hand);
        letters.any(|in_hand| in_hand == letter)
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
        let is_news = self
            .task_mut(task)
            .is_some_and(|task| task.done(letter, outcome, at));
        if !is_news {
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

    fn task_mut(&mut self, id: &TaskId) -> Option<&mut OperatorTask> {
        self.tasks.iter_mut().find(|task| task.id() == id)
    }

    /// Tasks, newest first.
    pub fn tasks(&self) -> impl Iterator<Item = &OperatorTask> {
        self.tasks.iter().rev()
    }

    /// A task to be paused: too many of its letters have died again.
    pub fn failing(&self) -> Option<&OperatorTask> {
        self.tasks.iter().find(|task| task.is_failing())
    }

    /// Letters for the worker to process now, and their task: those in hand, or the next ones of a
    /// task that an earlier version began.
    pub fn next(&self) -> Option<(&OperatorTask, Vec<String>)> {
        let in_hand = |task: &&OperatorTask| !task.letters_in_hand.is_empty();
        if let Some(task) = self.tasks.iter().find(in_hand) {
            return Some((task, task.letters_in_hand.clone()));
        }
        let task = self.tasks.iter().find(|task| task.goes_on())?;
        Some((task, task.next_letters()))
    }
}

#[cfg(test)]
mod tests;
