//! Tasks of operators, as answers show them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::{List, Time};
use crate::dead_letters::LetterOutcome;
use crate::desk::{OperatorTask, OperatorWork, Pace, Progress, TaskId, TaskOutcome};

/// A task: its request, and the outcomes of its letters.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub work: OperatorWork,
    /// Number of its letters, fixed at the start.
    pub letters: u64,
    pub pace: Pace,
    /// Selection of its letters, in words.
    pub selection: String,
    /// The operator's reason.
    pub why: String,
    /// Operator who asked for it.
    pub by: String,
    pub started_at: Time,
    pub ended_at: Option<Time>,
    pub state: Progress,
    /// Number of letters by outcome.
    pub outcomes: BTreeMap<TaskOutcome, u64>,
    /// Outcomes letter by letter, the first thousand.
    pub results: List<LetterOutcome>,
    /// Ids of the letters that letters of this task died again as, the first thousand.
    pub new_letters: List<String>,
}

impl Task {
    /// Number of letters with an outcome.
    pub fn done_letters(&self) -> u64 {
        self.outcomes.values().sum()
    }
}

impl From<OperatorTask> for Task {
    fn from(task: OperatorTask) -> Task {
        let done = task.done_letters();
        let results: Vec<_> = (task.told.into_iter())
            .map(|(id, outcome)| LetterOutcome { id, outcome })
            .collect();
        let new_letters = task.died_again_as;
        Task {
            id: task.begun.task,
            work: task.begun.work,
            letters: task.begun.letters,
            pace: task.begun.pace,
            selection: task.begun.about,
            why: task.begun.why,
            by: task.by,
            started_at: task.at.into(),
            ended_at: task.ended_at.map(Time::from),
            state: task.progress,
            outcomes: task.outcomes,
            results: List {
                truncated: done.saturating_sub(results.len() as u64),
                items: results,
            },
            new_letters: List {
                truncated: task.died_again.saturating_sub(new_letters.len() as u64),
                items: new_letters,
            },
        }
    }
}
