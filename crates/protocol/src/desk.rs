//! The dead-letter desk: which letters operators have dealt with, what they asked for, and how far it is.
//!
//! All of it is a fold over one log, the topic `operation`: whoever reads the entries in their order knows
//! the state of every letter that was touched and of every task. One process at a time works (the owner of
//! the topic's only partition). It says in the log what it is about to do (*claimed*) and what became of
//! it (*done*), so that after a crash the next one looks whether a claim was carried out instead of doing
//! it twice.

mod cause;
mod edit;
mod task;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::keys::Topic;
use crate::{BoatId, Code, Platform, Refusal, Timestamp, UserId};

pub use self::cause::Cause;
pub use self::edit::{Edit, Edited, NotEdited, Spot, Version};
pub use self::task::{Begun, Outcome, Pace, Progress, Task, TaskId, Work};

/// One line of the log of operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub at: Timestamp,
    /// An operator's name, or that of the process that works.
    pub by: String,
    pub act: Act,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// An operator asked for something; the letters follow.
    Begun(Begun),
    /// Letters of a task, in the order in which they are to be done.
    Chosen {
        task: TaskId,
        letters: Vec<String>,
    },
    /// These are about to be done.
    Claimed {
        task: TaskId,
        claims: Vec<Claim>,
    },
    /// This became of them.
    Done {
        task: TaskId,
        outcomes: Vec<(String, Outcome)>,
    },
    Paused {
        task: TaskId,
        why: String,
        /// Nobody asked for it: too much died again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_itself: bool,
    },
    /// New letters are what letters of a task died again as.
    DiedAgain {
        task: TaskId,
        letters: Vec<String>,
        /// What each of them was before, in the same order; older entries do not say.
        #[serde(default)]
        parents: Vec<String>,
    },
    Resumed {
        task: TaskId,
    },
    /// What is not done yet is left alone.
    Cancelled {
        task: TaskId,
    },
    /// An operator read what people wrote.
    Looked {
        letter: String,
        why: String,
    },
    /// An operator takes letters out of the log, with what people wrote in them; so many, from this one on.
    Exported {
        from: String,
        letters: u64,
        why: String,
    },
    /// An operator puts letters among the others.
    Imported {
        letters: Vec<String>,
        why: String,
    },
    /// An operator has this done to what the stores keep of a user.
    Repaired {
        user: UserId,
        what: Vec<String>,
        why: String,
    },
    /// An operator ends sessions of a user, and has tokens refused that were issued before a time.
    SignedOut {
        user: UserId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        platform: Option<Platform>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revoked_before: Option<Timestamp>,
        why: String,
        /// The end of it, in an entry of its own; unset before anything is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
    },
    /// An operator has a boat emptied, or lets it take clients again.
    Drained {
        boat: BoatId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cancel: bool,
    },
    /// An operator changed what a letter holds; the new bytes are in the log already.
    Edited(Edited),
    /// The log has dropped these letters.
    Forgotten {
        letters: Vec<String>,
    },
}

impl Act {
    /// An operator asked for it, or looked; the rest is the work itself.
    pub const fn is_decision(&self) -> bool {
        match self {
            Act::Begun(_)
            | Act::Resumed { .. }
            | Act::Cancelled { .. }
            | Act::Looked { .. }
            | Act::Exported { .. }
            | Act::Imported { .. }
            | Act::Repaired { .. }
            | Act::Drained { .. }
            | Act::Edited(_) => true,
            Act::Paused { by_itself, .. } => !*by_itself,
            Act::SignedOut { outcome, .. } => outcome.is_none(),
            Act::Chosen { .. }
            | Act::Claimed { .. }
            | Act::Done { .. }
            | Act::DiedAgain { .. }
            | Act::Forgotten { .. } => false,
        }
    }
}

/// A letter that is about to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub letter: String,
    /// From before its record was published.
    pub at: Timestamp,
    /// Where its record goes, if one does.
    pub to: Option<Place>,
    /// What it holds by the edit that was known then: a claim of other bytes does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

/// A partition from an offset on: the record of a claim is behind it, or was never published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub topic: Topic,
    pub partition: u32,
    pub from: u64,
}

/// What was done with a letter last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Status {
    Open,
    Redriven {
        at: Timestamp,
        task: TaskId,
    },
    /// Put away; it can be restored for some time.
    Discarded {
        at: Timestamp,
        task: TaskId,
    },
}

/// Where a letter stands at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Open,
    Redriven,
    Discarded,
    /// It was discarded, and can be restored no more: for operators it is gone.
    Gone,
}

#[derive(Clone, Debug)]
pub struct Limits {
    /// Letters of one task.
    pub letters: usize,
    /// Tasks that are not over.
    pub tasks: usize,
    /// Tasks that are over and still told of.
    pub past: usize,
    /// Letters whose state is remembered.
    pub marks: usize,
    /// Letters whose edit is remembered.
    pub edits: usize,
    /// How long a discarded letter can be restored.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            letters: 10_000,
            tasks: 20,
            past: 100,
            marks: 500_000,
            edits: 10_000,
            grace: Duration::from_secs(7 * 86_400),
        }
    }
}

/// What the worker is to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// These were claimed, and nobody said what became of them.
    Finish { task: &'a Task, claims: Vec<Claim> },
    /// The next letters of a task, at most as many as were asked for.
    Claim {
        task: &'a Task,
        letters: Vec<String>,
    },
}

/// The state of the desk: see the module's head.
#[derive(Clone, Debug, Default)]
pub struct Desk {
    limits: Limits,
    marks: BTreeMap<String, Status>,
    /// The newest of each letter.
    edits: BTreeMap<String, Edit>,
    /// In the order in which they began.
    tasks: Vec<Task>,
}

impl Desk {
    pub fn new(limits: Limits) -> Desk {
        Desk {
            limits,
            ..Desk::default()
        }
    }

    /// Reads the next entry of the log. What cannot follow from the entries before it is passed over:
    /// a worker that lost its partition may have written it.
    pub fn read(&mut self, entry: &Entry) {
        match &entry.act {
            Act::Begun(begun) => {
                if self.task(&begun.task).is_none() {
                    self.tasks
                        .push(Task::new(begun.clone(), &entry.by, entry.at));
                    self.forget_the_past();
                }
            }
            Act::Done { task, outcomes } => {
                for (letter, outcome) in outcomes {
                    self.read_outcome(task, letter, *outcome, entry.at);
                }
            }
            Act::Claimed { task, claims } => self.read_claims(task, claims),
            Act::Chosen { task, .. }
            | Act::Paused { task, .. }
            | Act::DiedAgain { task, .. }
            | Act::Resumed { task }
            | Act::Cancelled { task } => {
                let found = self.tasks.iter_mut().find(|known| known.id() == task);
                if let Some(task) = found {
                    task.read(entry);
                }
            }
            Act::Edited(edited) => self.read_edit(edited, entry),
            Act::Forgotten { letters } => {
                for letter in letters {
                    self.marks.remove(letter);
                    self.edits.remove(letter);
                }
            }
            Act::Looked { .. }
            | Act::Exported { .. }
            | Act::Imported { .. }
            | Act::Repaired { .. }
            | Act::SignedOut { .. }
            | Act::Drained { .. } => {}
        }
    }

    /// What was edited after its claim was made is claimed anew: its record has other bytes now.
    fn read_claims(&mut self, task: &TaskId, claims: &[Claim]) {
        let found = self.tasks.iter_mut().find(|known| known.id() == task);
        let Some(task) = found else { return };
        for claim in claims {
            let newest = self.edits.get(&claim.letter);
            if newest.map(|edit| &edit.edited.version) == claim.version.as_ref() {
                task.claim(claim);
            }
        }
    }

    fn read_edit(&mut self, edited: &Edited, entry: &Entry) {
        if self.admit_edit(edited).is_ok() {
            let edit = Edit {
                by: entry.by.clone(),
                at: entry.at,
                edited: edited.clone(),
            };
            self.edits.insert(edited.letter.clone(), edit);
        }
    }

    /// Does this edit count?
    ///
    /// # Errors
    /// The letter is not open, too many are edited, or it holds something else by now.
    pub fn admit_edit(&self, edited: &Edited) -> Result<(), NotEdited> {
        self.may_be_edited(&edited.letter)?;
        match self.edits.get(&edited.letter) {
            Some(edit) if edit.edited.version != edited.base => Err(NotEdited::Changed),
            Some(_) => Ok(()),
            None if self.edits.len() < self.limits.edits => Ok(()),
            None => Err(NotEdited::TooMany(self.limits.edits)),
        }
    }

    /// # Errors
    /// It is not open, or about to be done.
    pub fn may_be_edited(&self, letter: &str) -> Result<(), NotEdited> {
        match self.status(letter) {
            Status::Open if self.is_claimed(letter) => Err(NotEdited::IsClaimed),
            Status::Open => Ok(()),
            Status::Redriven { .. } => Err(NotEdited::Redriven),
            Status::Discarded { .. } => Err(NotEdited::Discarded),
        }
    }

    /// Somebody is about to do something with it.
    pub fn is_claimed(&self, letter: &str) -> bool {
        let mut claims = self.tasks.iter().flat_map(Task::claims);
        claims.any(|claim| claim.letter == letter)
    }

    /// What an operator made of it last.
    pub fn edit(&self, letter: &str) -> Option<&Edit> {
        self.edits.get(letter)
    }

    /// Letters that something is remembered of.
    pub fn remembered(&self) -> impl Iterator<Item = &str> {
        let unmarked = self
            .edits
            .keys()
            .filter(|name| !self.marks.contains_key(*name));
        self.marks.keys().chain(unmarked).map(String::as_str)
    }

    fn read_outcome(&mut self, task: &TaskId, letter: &str, outcome: Outcome, at: Timestamp) {
        let Some(known) = self.tasks.iter_mut().find(|known| known.id() == task) else {
            return;
        };
        if !known.done(letter, outcome, at) {
            return;
        }
        let task = task.clone();
        if outcome.is_redriven() {
            let status = Status::Redriven { at, task };
            self.marks.insert(letter.to_owned(), status);
        } else if outcome == Outcome::Discarded {
            let status = Status::Discarded { at, task };
            self.marks.insert(letter.to_owned(), status);
        } else if outcome == Outcome::Restored {
            self.marks.remove(letter);
        }
    }

    fn forget_the_past(&mut self) {
        let over = self.tasks.iter().filter(|task| task.is_over()).count();
        let mut surplus = over.saturating_sub(self.limits.past);
        self.tasks.retain(|task| {
            let goes = surplus > 0 && task.is_over();
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// May this task begin?
    ///
    /// # Errors
    /// `InvalidArgument` for what cannot be; `RateLimited` while others must end first.
    pub fn admit(&self, begun: &Begun) -> Result<(), Refusal> {
        begun.check(self.limits.letters)?;
        let open = self.tasks.iter().filter(|task| !task.is_over()).count();
        if open >= self.limits.tasks {
            let text = format!("{open} tasks are not over: wait for one, or cancel it");
            return Err(Refusal::new(Code::RateLimited, text));
        }
        let letters = usize::try_from(begun.letters).unwrap_or(usize::MAX);
        if self.marks.len().saturating_add(letters) > self.limits.marks {
            let text = format!(
                "{} letters are marked already, {} at most: they are forgotten when the log drops them",
                self.marks.len(),
                self.limits.marks
            );
            return Err(Refusal::new(Code::RateLimited, text));
        }
        Ok(())
    }

    /// May this be done with a letter now? If not, what is to be said of it.
    pub fn may(&self, work: Work, letter: &str, now: Timestamp) -> Result<(), Outcome> {
        match (work, self.standing(letter, now)) {
            (Work::Redrive | Work::Discard, Standing::Open) => Ok(()),
            (Work::Redrive | Work::Discard, Standing::Redriven) => Err(Outcome::Before),
            (Work::Redrive | Work::Discard, Standing::Discarded) => Err(Outcome::IsDiscarded),
            (Work::Restore, Standing::Discarded) => Ok(()),
            (Work::Restore, Standing::Open | Standing::Redriven) => Err(Outcome::NotDiscarded),
            (_, Standing::Gone) => Err(Outcome::Final),
        }
    }

    pub fn status(&self, letter: &str) -> &Status {
        self.marks.get(letter).unwrap_or(&Status::Open)
    }

    /// A letter that was discarded is gone when nobody can take that back any more.
    pub fn standing(&self, letter: &str, now: Timestamp) -> Standing {
        match self.status(letter) {
            Status::Open => Standing::Open,
            Status::Redriven { .. } => Standing::Redriven,
            Status::Discarded { at, .. } if now < *at + self.limits.grace => Standing::Discarded,
            Status::Discarded { .. } => Standing::Gone,
        }
    }

    pub fn task(&self, id: &TaskId) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id() == id)
    }

    /// The newest first.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().rev()
    }

    /// A task of which too much has died again to go on.
    pub fn failing(&self) -> Option<&Task> {
        self.tasks.iter().find(|task| task.is_failing())
    }

    /// What the worker does next: claims are finished before anything else, whatever became of their task;
    /// then the oldest task that may go on.
    pub fn next(&self, most: usize) -> Option<Step<'_>> {
        let claimed = self
            .tasks
            .iter()
            .find(|task| task.claims().next().is_some());
        if let Some(task) = claimed {
            let claims = task.claims().cloned().collect();
            return Some(Step::Finish { task, claims });
        }
        let task = self.tasks.iter().find(|task| task.goes_on())?;
        let letters = task
            .waiting()
            .take(most.max(1))
            .map(str::to_owned)
            .collect();
        Some(Step::Claim { task, letters })
    }
}

#[cfg(test)]
mod tests;
