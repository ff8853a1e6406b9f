//! What operators ask for: tasks, and what they did.

use std::num::NonZeroU32;
use std::time::Duration;

use backend::Error;
use backend::queue::NewRecord;
use protocol::desk::{Act, Begun, Desk, Entry, NotEdited, Pace, Progress, Task, TaskId, Work};
use protocol::{BoatId, Code, Platform, Refusal, Timestamp, UserId};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::types::{Selection, Told};
use super::{DeadLetters, Result, view};

/// Letters named in one entry.
const NAMED: usize = 500;
/// How often a task that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What an operator asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Whoever asks twice under one name gets the same task; none: a new one.
    #[serde(default)]
    pub task: Option<TaskId>,
    pub work: Work,
    pub selection: Selection,
    #[serde(default)]
    pub pace: Pace,
    /// The operator's reason.
    #[serde(default)]
    pub why: String,
}

/// Why nothing was begun.
#[derive(Debug, Error)]
pub enum Refused {
    /// It cannot be, or not now.
    #[error("{0}")]
    Refusal(Refusal),
    #[error("{0}")]
    NotEdited(NotEdited),
    #[error("{}: {}", .0, .0.source)]
    Failed(Error),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Refusal(refusal)
    }
}

impl From<NotEdited> for Refused {
    fn from(refused: NotEdited) -> Refused {
        Refused::NotEdited(refused)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Failed(error)
    }
}

impl DeadLetters {
    /// Begins a task, or answers the one that was begun under this name. Which letters it takes is fixed
    /// now.
    ///
    /// # Errors
    /// `InvalidArgument` or `RateLimited` says why not; a failure of the log leaves open whether it began:
    /// ask again under the same name.
    pub async fn begin(&self, by: &str, request: Request) -> Result<Task, Refused> {
        let id = match request.task {
            Some(id) => id,
            None => self.new_id()?,
        };
        let desk = self.view.now().await?;
        let known = desk.task(&id);
        if let Some(task) = known.filter(|task| task.progress != Progress::Choosing) {
            return Ok(task.clone());
        }
        let letters = self.choose(&request.selection).await?;
        let letters: Vec<String> = letters.into_iter().map(|(letter, _)| letter).collect();
        let begun = Begun {
            task: id.clone(),
            work: request.work,
            letters: letters.len() as u64,
            pace: request.pace,
            about: request.selection.about(),
            why: request.why,
        };
        let mut acts = Vec::new();
        match known {
            None => {
                desk.admit(&begun)?;
                acts.push(Act::Begun(begun));
            }
            // Its letters were not all named. If there are fewer now, it ends, and is asked for anew.
            Some(task) if begun.letters < task.begun.letters => {
                acts.push(Act::Cancelled { task: id.clone() });
            }
            Some(_) => {}
        }
        acts.extend(letters.chunks(NAMED).map(|letters| Act::Chosen {
            task: id.clone(),
            letters: letters.to_vec(),
        }));
        self.say(by, acts).await?;
        self.task(&id).await
    }

    fn new_id(&self) -> Result<TaskId, Refused> {
        let (at, chance) = (
            self.backends.clock.now().millis(),
            self.backends.entropy.next(),
        );
        let id = format!("t{at}-{:08x}", chance as u32).parse();
        id.map_err(|text| Refusal::new(Code::InvalidArgument, text).into())
    }

    /// # Errors
    /// `NotFound`; it is over and forgotten, or never was.
    pub async fn task(&self, id: &TaskId) -> Result<Task, Refused> {
        let desk = self.view.now().await?;
        Ok(known(&desk, id)?.clone())
    }

    /// The newest first.
    pub async fn tasks(&self) -> Result<Vec<Task>> {
        Ok(self.view.now().await?.tasks().cloned().collect())
    }

    pub async fn pause(&self, by: &str, id: &TaskId, why: &str) -> Result<Task, Refused> {
        let why = why.to_owned();
        let task = id.clone();
        let paused = Act::Paused {
            task,
            why,
            by_itself: false,
        };
        self.change(by, id, paused).await
    }

    pub async fn resume(&self, by: &str, id: &TaskId) -> Result<Task, Refused> {
        let task = id.clone();
        self.change(by, id, Act::Resumed { task }).await
    }

    /// What is not done yet is left alone.
    pub async fn cancel(&self, by: &str, id: &TaskId) -> Result<Task, Refused> {
        let task = id.clone();
        self.change(by, id, Act::Cancelled { task }).await
    }

    async fn change(&self, by: &str, id: &TaskId, act: Act) -> Result<Task, Refused> {
        known(&*self.view.now().await?, id)?;
        self.say(by, vec![act]).await?;
        self.task(id).await
    }

    /// Waits until a task is over or paused, and answers it as it is then, or when patience ends.
    pub async fn wait(&self, id: &TaskId, patience: Duration) -> Result<Task, Refused> {
        let began = Instant::now();
        loop {
            let task = self.task(id).await?;
            let goes_on = matches!(task.progress, Progress::Choosing | Progress::Running);
            if !goes_on && (task.is_over() || task.ended_at.is_none()) {
                return Ok(task);
            }
            if began.elapsed() >= patience {
                return Ok(task);
            }
            sleep(LOOK).await;
        }
    }

    /// Does it at once, and answers what became of each letter: for a few. What is not done when patience
    /// ends goes on.
    pub async fn redrive(
        &self,
        by: &str,
        selection: &Selection,
        patience: Duration,
    ) -> Result<Vec<Told>, Refused> {
        match self.begin_redrive(by, selection).await? {
            Some(task) => self.told(&task, patience).await,
            None => Ok(Vec::new()),
        }
    }

    /// What became of the letters of a task, as far as patience lasts.
    pub async fn told(&self, task: &Task, patience: Duration) -> Result<Vec<Told>, Refused> {
        let task = self.wait(task.id(), patience).await?;
        let told = task.told.into_iter();
        Ok(told.map(|(id, outcome)| Told { id, outcome }).collect())
    }

    /// `None` where no letter matches.
    pub async fn begin_redrive(
        &self,
        by: &str,
        selection: &Selection,
    ) -> Result<Option<Task>, Refused> {
        let request = Request {
            task: None,
            work: Work::Redrive,
            selection: selection.clone(),
            pace: Pace {
                per_second: 1000,
                ..Pace::default()
            },
            why: String::new(),
        };
        match self.begin(by, request).await {
            Ok(task) => Ok(Some(task)),
            Err(Refused::Refusal(refusal)) if self.choose(selection).await?.is_empty() => {
                tracing::debug!(%refusal, "nothing to redrive");
                Ok(None)
            }
            Err(refused) => Err(refused),
        }
    }

    /// Writes down that an operator reads what is in a letter, before it is shown.
    pub async fn looked(&self, by: &str, letter: &str, why: &str) -> Result<()> {
        let (letter, why) = (letter.to_owned(), why.to_owned());
        let looked = vec![Act::Looked { letter, why }];
        self.say(by, looked).await.map(drop)
    }

    /// Writes down what is done to what the stores keep of a user, before it is done.
    pub async fn repaired(
        &self,
        by: &str,
        user: UserId,
        what: Vec<String>,
        why: &str,
    ) -> Result<()> {
        let why = why.to_owned();
        let repaired = vec![Act::Repaired { user, what, why }];
        self.say(by, repaired).await.map(drop)
    }

    /// Writes down who is signed out: once before it is done, and once with its `outcome`.
    pub async fn signed_out(
        &self,
        by: &str,
        (user, platform): (UserId, Option<Platform>),
        revoked_before: Option<Timestamp>,
        why: &str,
        outcome: Option<String>,
    ) -> Result<()> {
        let signed_out = vec![Act::SignedOut {
            user,
            platform,
            revoked_before,
            why: why.to_owned(),
            outcome,
        }];
        self.say(by, signed_out).await.map(drop)
    }

    /// Writes down that a boat is emptied, or takes clients again, before it is asked to.
    pub async fn drained(
        &self,
        by: &str,
        boat: &BoatId,
        cancel: bool,
        pace: Option<NonZeroU32>,
    ) -> Result<()> {
        let boat = boat.clone();
        let drained = vec![Act::Drained { boat, cancel, pace }];
        self.say(by, drained).await.map(drop)
    }

    /// Writes entries; answers the offset of the last.
    pub(super) async fn say(&self, by: &str, acts: Vec<Act>) -> Result<u64> {
        let at = self.backends.clock.now();
        let records: Result<Vec<NewRecord>> = (acts.into_iter())
            .map(|act| {
                let by = by.to_owned();
                view::record(&Entry { at, by, act })
            })
            .collect();
        let answers = self.backends.queue.producer().publish(records?).await;
        let missing = || Err(Error::unavailable("queue", "no answer for a record"));
        answers
            .into_iter()
            .reduce(|before, answer| before.and(answer))
            .unwrap_or_else(missing)
    }
}

fn known<'a>(desk: &'a Desk, id: &TaskId) -> Result<&'a Task, Refusal> {
    let unknown = || Refusal::new(Code::NotFound, format!("no task {id}"));
    desk.task(id).ok_or_else(unknown)
}
