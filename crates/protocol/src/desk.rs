//! The dead-letter desk: which letters operators have dealt with, what they asked for, and how far it is.
//!
//! All of it is a fold over one log, the topic `operation`: whoever reads the entries in their order knows
//! the state of every letter that was touched and of every task. One process at a time works (the owner of
//! the topic's only partition). It says in the log what it is about to do (*claimed*) and what became of
//! it (*done*), so that after a crash the next one looks whether a claim was carried out instead of doing
//! it twice.

mod cause;
mod task;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::keys::Topic;
use crate::{Code, Refusal, Timestamp, UserId};

pub use self::cause::Cause;
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
}

/// A letter that is about to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub letter: String,
    /// From before its record was published.
    pub at: Timestamp,
    /// Where its record goes, if one does.
    pub to: Option<Place>,
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
            Act::Chosen { task, .. }
            | Act::Claimed { task, .. }
            | Act::Paused { task, .. }
            | Act::Resumed { task }
            | Act::Cancelled { task } => {
                let found = self.tasks.iter_mut().find(|known| known.id() == task);
                if let Some(task) = found {
                    task.read(entry);
                }
            }
            Act::Looked { .. }
            | Act::Exported { .. }
            | Act::Imported { .. }
            | Act::Repaired { .. } => {}
        }
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
        match (work, self.status(letter)) {
            (Work::Redrive | Work::Discard, Status::Open) => Ok(()),
            (Work::Redrive | Work::Discard, Status::Redriven { .. }) => Err(Outcome::Before),
            (Work::Redrive | Work::Discard, Status::Discarded { .. }) => Err(Outcome::IsDiscarded),
            (Work::Restore, Status::Discarded { at, .. }) if now < *at + self.limits.grace => {
                Ok(())
            }
            (Work::Restore, Status::Discarded { .. }) => Err(Outcome::Final),
            (Work::Restore, Status::Open | Status::Redriven { .. }) => Err(Outcome::NotDiscarded),
        }
    }

    pub fn status(&self, letter: &str) -> &Status {
        self.marks.get(letter).unwrap_or(&Status::Open)
    }

    pub fn task(&self, id: &TaskId) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id() == id)
    }

    /// The newest first.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().rev()
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
