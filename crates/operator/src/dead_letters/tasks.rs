//! Tasks of operators, and the entries about them.

use std::num::NonZeroU32;
use std::time::Duration;

use backend::Error;
use backend::queue::NewRecord;
use protocol::{BoatId, Code, Platform, Refusal, Timestamp, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::rules::{
    EditRefusal, OperationEntry, Operations, OperatorAction, OperatorTask, OperatorWork, Pace,
    Progress, StartedTask, TaskId,
};
use super::types::{LetterOutcome, Selection};
use super::{DeadLetters, Result, log_view};

/// Letters named in one entry.
const LETTERS_PER_ENTRY: usize = 500;
/// Interval of looking at a task that is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Request of an operator.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TaskRequest")]
pub struct Request {
    /// Name of the task. A second request under this name gets the same task; `None` gets a new
    /// one.
    #[serde(default)]
    pub task: Option<TaskId>,
    pub work: OperatorWork,
    pub selection: Selection,
    #[serde(default)]
    pub pace: Pace,
    /// The operator's reason.
    #[serde(default)]
    pub why: String,
}

/// Errors of a request, which began nothing.
#[derive(Debug, Error)]
pub enum TaskRefusal {
    /// Not possible, or not now.
    #[error("{0}")]
    Refusal(Refusal),
    #[error("{0}")]
    NotEdited(EditRefusal),
    /// A task of other work, or of another selection, bears this name.
    #[error("task {0} already exists with other work or other letters: use another name")]
    OtherTask(TaskId),
    #[error("{}: {}", .0, .0.source)]
    Failed(Error),
}

impl From<Refusal> for TaskRefusal {
    fn from(refusal: Refusal) -> TaskRefusal {
        TaskRefusal::Refusal(refusal)
    }
}

impl From<EditRefusal> for TaskRefusal {
    fn from(refusal: EditRefusal) -> TaskRefusal {
        TaskRefusal::NotEdited(refusal)
    }
}

impl From<Error> for TaskRefusal {
    fn from(error: Error) -> TaskRefusal {
        TaskRefusal::Failed(error)
    }
}

impl DeadLetters {
    /// Begins a task, or returns the one that was begun under this name. The letters that it takes
    /// are fixed now.
    ///
    /// # Errors
    /// `InvalidArgument` or `RateLimited` with the reason; `OtherTask` if the name is that of
    /// another task, and nothing is done then. A failure of the log leaves open whether the task
    /// began: ask again under the same name.
    pub async fn begin(&self, by: &str, request: Request) -> Result<OperatorTask, TaskRefusal> {
        let id = match request.task {
            Some(id) => id,
            None => self.new_id()?,
        };
        let (work, description) = (request.work, request.selection.about());
        let mut operations = self.view.now().await?;
        if let Some(task) = operations.task(&id) {
            check_same(task, work, &description)?;
            if task.progress != Progress::Choosing {
                return Ok(task.clone());
            }
        }
        let letters = self.choose(&request.selection).await?;
        let letters: Vec<String> = letters.into_iter().map(|(letter, _)| letter).collect();
        let count = letters.len() as u64;
        let is_new = operations.task(&id).is_none();
        if is_new {
            let started_task = StartedTask {
                task: id.clone(),
                work,
                letters: count,
                pace: request.pace,
                batch: Some(request.pace.batch()),
                about: description.clone(),
                why: request.why,
            };
            operations.admit(&started_task)?;
            self.say(by, vec![OperatorAction::Begun(started_task)])
                .await?;
            // Another request may have taken the name meanwhile.
            operations = self.view.now().await?;
        }
        let task = known(&operations, &id)?;
        check_same(task, work, &description)?;
        let mut acts = Vec::new();
        // Not all of its letters were named. With fewer of them now, the task ends, and must be
        // asked for anew.
        if !is_new && count < task.start.letters {
            acts.push(OperatorAction::Cancelled { task: id.clone() });
        }
        acts.extend(
            letters
                .chunks(LETTERS_PER_ENTRY)
                .map(|letters| OperatorAction::Chosen {
                    task: id.clone(),
                    letters: letters.to_vec(),
                }),
        );
        self.say(by, acts).await?;
        self.task(&id).await
    }

    fn new_id(&self) -> Result<TaskId, TaskRefusal> {
        let (at, chance) = (
            self.backends.clock.now().millis(),
            self.backends.entropy.next(),
        );
        let id = format!("t{at}-{:08x}", chance as u32).parse();
        id.map_err(|text| Refusal::new(Code::InvalidArgument, text).into())
    }

    /// Returns a task.
    ///
    /// # Errors
    /// `NotFound` if the task is over and forgotten, or never existed.
    pub async fn task(&self, id: &TaskId) -> Result<OperatorTask, TaskRefusal> {
        let operations = self.view.now().await?;
        Ok(known(&operations, id)?.clone())
    }

    /// All tasks, newest first.
    pub async fn tasks(&self) -> Result<Vec<OperatorTask>> {
        Ok(self.view.now().await?.tasks().cloned().collect())
    }

    pub async fn pause(
        &self,
        by: &str,
        id: &TaskId,
        reason: &str,
    ) -> Result<OperatorTask, TaskRefusal> {
        let reason = reason.to_owned();
        let task = id.clone();
        let action = OperatorAction::Paused {
            task,
            why: reason,
            by_itself: false,
        };
        self.change(by, id, action).await
    }

    pub async fn resume(&self, by: &str, id: &TaskId) -> Result<OperatorTask, TaskRefusal> {
        let task = id.clone();
        self.change(by, id, OperatorAction::Resumed { task }).await
    }

    /// Cancels a task. Letters not done yet are left alone.
    pub async fn cancel(&self, by: &str, id: &TaskId) -> Result<OperatorTask, TaskRefusal> {
        let task = id.clone();
        self.change(by, id, OperatorAction::Cancelled { task })
            .await
    }

    async fn change(
        &self,
        by: &str,
        id: &TaskId,
        act: OperatorAction,
    ) -> Result<OperatorTask, TaskRefusal> {
        known(&*self.view.now().await?, id)?;
        self.say(by, vec![act]).await?;
        self.task(id).await
    }

    /// Waits until a task is over or paused and none of its letters is in hand, or until patience
    /// ends, and returns its state then.
    pub async fn wait(&self, id: &TaskId, patience: Duration) -> Result<OperatorTask, TaskRefusal> {
        let start = Instant::now();
        loop {
            let task = self.task(id).await?;
            if task.is_at_rest() || start.elapsed() >= patience {
                return Ok(task);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Redrives a few letters at once, and returns the outcome of each. For tests: the desk's route
    /// begins the task and waits by itself. Letters not done when patience ends go on.
    pub async fn redrive(
        &self,
        by: &str,
        selection: &Selection,
        patience: Duration,
    ) -> Result<Vec<LetterOutcome>, TaskRefusal> {
        match self.begin_redrive(by, selection).await? {
            Some(task) => self.wait_for_outcomes(&task, patience).await,
            None => Ok(Vec::new()),
        }
    }

    /// Outcomes of a task's letters, as far as patience lasts.
    pub async fn wait_for_outcomes(
        &self,
        task: &OperatorTask,
        patience: Duration,
    ) -> Result<Vec<LetterOutcome>, TaskRefusal> {
        let task = self.wait(task.id(), patience).await?;
        let outcomes = task.first_outcomes.into_iter();
        Ok(outcomes
            .map(|(id, outcome)| LetterOutcome { id, outcome })
            .collect())
    }

    /// Begins a redrive; `None` if no letter matches.
    pub async fn begin_redrive(
        &self,
        by: &str,
        selection: &Selection,
    ) -> Result<Option<OperatorTask>, TaskRefusal> {
        let request = Request {
            task: None,
            work: OperatorWork::Redrive,
            selection: selection.clone(),
            pace: Pace {
                per_second: 1000,
                ..Pace::default()
            },
            why: String::new(),
        };
        match self.begin(by, request).await {
            Ok(task) => Ok(Some(task)),
            Err(TaskRefusal::Refusal(refusal)) if self.choose(selection).await?.is_empty() => {
                tracing::debug!(%refusal, "nothing to redrive");
                Ok(None)
            }
            Err(refused) => Err(refused),
        }
    }

    /// Logs that an operator reads a letter's body, before it is shown.
    pub async fn log_look(&self, by: &str, letter: &str, reason: &str) -> Result<()> {
        let (letter, reason) = (letter.to_owned(), reason.to_owned());
        let actions = vec![OperatorAction::Looked {
            letter,
            why: reason,
        }];
        self.say(by, actions).await.map(drop)
    }

    /// Logs a repair of a user's stored data, before it is done.
    pub async fn log_repair(
        &self,
        by: &str,
        user: UserId,
        steps: Vec<String>,
        reason: &str,
    ) -> Result<()> {
        let reason = reason.to_owned();
        let actions = vec![OperatorAction::Repaired {
            user,
            what: steps,
            why: reason,
        }];
        self.say(by, actions).await.map(drop)
    }

    /// Logs a sign-out: once before it is done, and once with its `outcome`.
    pub async fn log_sign_out(
        &self,
        by: &str,
        (user, platform): (UserId, Option<Platform>),
        revoked_before: Option<Timestamp>,
        reason: &str,
        outcome: Option<String>,
    ) -> Result<()> {
        let signed_out = vec![OperatorAction::SignedOut {
            user,
            platform,
            revoked_before,
            why: reason.to_owned(),
            outcome,
        }];
        self.say(by, signed_out).await.map(drop)
    }

    /// Logs that a boat drains, or takes clients again, before it is asked to.
    pub async fn log_drain(
        &self,
        by: &str,
        boat: &BoatId,
        cancel: bool,
        pace: Option<NonZeroU32>,
    ) -> Result<()> {
        let boat = boat.clone();
        let actions = vec![OperatorAction::Drained { boat, cancel, pace }];
        self.say(by, actions).await.map(drop)
    }

    /// Writes entries, and returns the offset of the last.
    pub(super) async fn say(&self, by: &str, acts: Vec<OperatorAction>) -> Result<u64> {
        let at = self.backends.clock.now();
        let records: Result<Vec<NewRecord>> = (acts.into_iter())
            .map(|act| {
                let by = by.to_owned();
                log_view::record(&OperationEntry { at, by, act })
            })
            .collect();
        let answers = self.backends.queue.producer().publish(records?).await;
        let no_answer = || Err(Error::unavailable("queue", "no answer for a record"));
        answers
            .into_iter()
            .reduce(|previous, answer| previous.and(answer))
            .unwrap_or_else(no_answer)
    }
}

/// Checks that a known task is the one asked for: roles go by its work.
fn check_same(
    task: &OperatorTask,
    work: OperatorWork,
    description: &str,
) -> Result<(), TaskRefusal> {
    if task.start.work == work && task.start.about == description {
        Ok(())
    } else {
        Err(TaskRefusal::OtherTask(task.id().clone()))
    }
}

fn known<'a>(operations: &'a Operations, id: &TaskId) -> Result<&'a OperatorTask, Refusal> {
    let unknown = || Refusal::new(Code::NotFound, format!("no task {id}"));
    operations.task(id).ok_or_else(unknown)
}
