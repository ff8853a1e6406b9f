//! Tasks of operators, as answers show them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LetterOutcome;
use super::rules::{OperatorTask, OperatorWork, Pace, Progress, TaskId, TaskOutcome};
use crate::answer::{List, Time};

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
    /// Outcomes letter by letter, the first thousand. A list of tasks counts them only.
    pub results: List<LetterOutcome>,
    /// Ids of the letters that letters of this task died again as, the first thousand. A list of
    /// tasks counts them only.
    pub new_letters: List<String>,
}

impl Task {
    /// Number of letters with an outcome.
    pub fn done_letters(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// The task in a list of tasks: a hundred of them would list a hundred thousand letters.
    #[must_use]
    pub fn summary(self) -> Task {
        Task {
            results: self.results.count_only(),
            new_letters: self.new_letters.count_only(),
            ..self
        }
    }
}

/// Outcomes of a redrive, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RedriveAnswer {
    /// Task that goes on with the redrive; null if no letter matches.
    pub task: Option<TaskId>,
    pub items: Vec<LetterOutcome>,
    /// Number of further letters, which have no outcome yet.
    pub truncated: u64,
}

impl From<Task> for RedriveAnswer {
    fn from(task: Task) -> RedriveAnswer {
        let items = task.results.items;
        RedriveAnswer {
            task: Some(task.id),
            truncated: task.letters.saturating_sub(items.len() as u64),
            items,
        }
    }
}

impl From<OperatorTask> for Task {
    fn from(task: OperatorTask) -> Task {
        let outcome_count = task.done_letters();
        let results: Vec<_> = (task.first_outcomes.into_iter())
            .map(|(id, outcome)| LetterOutcome { id, outcome })
            .collect();
        let new_letters = task.died_again_as;
        Task {
            id: task.start.task,
            work: task.start.work,
            letters: task.start.letters,
            pace: task.start.pace,
            selection: task.start.about,
            why: task.start.why,
            by: task.by,
            started_at: task.at.into(),
            ended_at: task.ended_at.map(Time::from),
            state: task.progress,
            outcomes: task.outcomes,
            results: List {
                truncated: outcome_count.saturating_sub(results.len() as u64),
                items: results,
            },
            new_letters: List {
                truncated: task.died_again.saturating_sub(new_letters.len() as u64),
                items: new_letters,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_in_a_list_counts_its_letters() {
        let result = LetterOutcome {
            id: "message-0-0".to_owned(),
            outcome: TaskOutcome::ToRetry,
        };
        let task = Task {
            id: "night".parse().expect("a name"),
            work: OperatorWork::Redrive,
            letters: 9,
            pace: Pace::default(),
            selection: "9 letters by name".to_owned(),
            why: "a test".to_owned(),
            by: "ann".to_owned(),
            started_at: Time::from_ms(7),
            ended_at: None,
            state: Progress::Running,
            outcomes: BTreeMap::from([(TaskOutcome::ToRetry, 4)]),
            results: List {
                items: vec![result],
                truncated: 3,
            },
            new_letters: vec!["message-0-9".to_owned()].into(),
        };
        let summary = task.clone().summary();
        assert_eq!(
            (summary.results.items.len(), summary.results.total()),
            (0, 4)
        );
        assert_eq!(
            (summary.new_letters.items.len(), summary.new_letters.total()),
            (0, 1)
        );
        assert_eq!(summary.outcomes, task.outcomes);
        let answer = RedriveAnswer::from(task);
        assert_eq!((answer.items.len(), answer.truncated), (1, 8));
    }
}
