//! Forecast of a redrive: the carrier's own decisions, without their effects.

use std::collections::BTreeMap;
use std::fmt;

use api::task::reading::{self, Flaw};
use api::task::{NotificationTask, Value};
use backend::queue::NewRecord;
use bytes::Bytes;
use protocol::ledger::DeadReason;
use protocol::ledger::trace::{MessageLife, TraceEnd};
use protocol::message::Target;
use protocol::presence::DeniedBoats;
use protocol::record::{RetryTask, Task, Work};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Cause, Operations, OperatorWork, TaskOutcome};
use super::types::{Kind, LetterCursor, Selection};
use super::{DeadLetters, LocatedLetter, Result};

/// Letters named for each forecast.
const SAMPLE: usize = 5;

/// Forecast for a letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Forecast {
    /// A recipient who misses it is online.
    Deliver,
    /// All recipients who miss it are offline: it waits for them, or they find it by sync.
    Store,
    /// The message gets its place in its conversation, and is delivered then.
    Place,
    /// The user is notified again.
    Notify,
    /// Every recipient has it, or has it waiting.
    AlreadyThere,
    /// Would die again. Letters that differ only in a size or a name have one cause, as in the
    /// counts.
    FailAgain { cause: Cause },
    /// Stays as it is.
    LeftAlone { outcome: TaskOutcome },
}

/// Forecast for a selection, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "RedrivePlan")]
pub struct Plan {
    pub letters: u64,
    pub forecasts: Vec<Share>,
}

/// Letters with the same forecast.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "ForecastShare")]
pub struct Share {
    pub forecast: Forecast,
    pub letters: u64,
    /// Ids of some of them, at most five.
    pub sample: Vec<String>,
}

/// Letters of a selection, each with its place if it is there.
pub struct PlanLetters(Vec<(String, Option<LetterCursor>)>);

impl DeadLetters {
    /// Forecasts a redrive of these letters now. Has no effects.
    pub async fn plan(&self, selection: &Selection) -> Result<Plan> {
        let letters = self.plan_letters(selection).await?;
        self.forecasts(letters).await
    }

    /// Chooses the letters of a plan: goes over the log.
    pub async fn plan_letters(&self, selection: &Selection) -> Result<PlanLetters> {
        self.choose(selection).await.map(PlanLetters)
    }

    /// Forecasts a redrive of these letters now: asks the stores for each.
    pub async fn forecasts(&self, letters: PlanLetters) -> Result<Plan> {
        let operations = self.view.now().await?;
        let PlanLetters(letters) = letters;
        let mut shares: BTreeMap<Forecast, (u64, Vec<String>)> = BTreeMap::new();
        for (letter, at) in &letters {
            let forecast = match at {
                Some(at) => self.forecast(&operations, letter, *at).await?,
                None => leave_alone(TaskOutcome::NoSuchLetter),
            };
            let (count, sample) = shares.entry(forecast).or_default();
            *count += 1;
            if sample.len() < SAMPLE {
                sample.push(letter.clone());
            }
        }
        let shares = shares.into_iter();
        Ok(Plan {
            letters: letters.len() as u64,
            forecasts: shares
                .map(|(forecast, (letters, sample))| Share {
                    forecast,
                    letters,
                    sample,
                })
                .collect(),
        })
    }

    async fn forecast(
        &self,
        operations: &Operations,
        id: &str,
        at: LetterCursor,
    ) -> Result<Forecast> {
        let now = self.backends.clock.now();
        if let Err(outcome) = operations.may(OperatorWork::Redrive, id, now) {
            return Ok(leave_alone(outcome));
        }
        let Some(located_letter) = self.at(at).await? else {
            return Ok(leave_alone(TaskOutcome::NoSuchLetter));
        };
        let record = match self.record_again(operations, &located_letter).await? {
            Ok((record, _)) => record,
            Err(outcome) => return Ok(leave_alone(outcome)),
        };
        if located_letter.cursor.kind == Kind::Notification {
            let forecast = match unreadable(record.value) {
                Some(death) => death.to_forecast(),
                None => Forecast::Notify,
            };
            return Ok(forecast);
        }
        match self.reading(record) {
            Err(death) => Ok(death.to_forecast()),
            Ok(task) => self.delivery(&located_letter, task).await,
        }
    }

    /// Error that a letter with these bytes would die of at once; `None` if it would be read.
    pub(super) fn flaw(
        &self,
        located_letter: &LocatedLetter,
        key: Bytes,
        value: Bytes,
    ) -> Option<String> {
        match located_letter.cursor.kind {
            Kind::Notification => unreadable(value).map(|death| death.to_string()),
            Kind::Message => match self.to_redrive_record(located_letter, key, value) {
                Ok((record, _)) => self.reading(record).err().map(|death| death.to_string()),
                Err(outcome) => Some(outcome.text().to_owned()),
            },
        }
    }

    /// Reads a record as a carrier would.
    fn reading(&self, record: NewRecord) -> Result<Task, Death> {
        let partition = record.partition;
        let partitions = self.backends.queue.partitions(partition.topic);
        let bytes = record.value.len();
        let task = reading::decode(record.value).map_err(Death::of)?;
        match reading::flaw(&task, bytes, partition.number, partitions) {
            Some(flaw) => Err(Death::of(flaw)),
            None => Ok(task),
        }
    }

    async fn delivery(&self, located_letter: &LocatedLetter, task: Task) -> Result<Forecast> {
        let Some(message) = located_letter
            .letter
            .message
            .or_else(|| task.work.message())
        else {
            return Ok(Forecast::Place);
        };
        let entries = self.backends.ledger.trace(&[message]).await?;
        let life = MessageLife::of(message, &entries.concat());
        let has_it = |target: &Target| {
            let end = life.obligations.get(target).and_then(|o| o.end.as_ref());
            !matches!(end, None | Some(TraceEnd::Dead(_)))
        };
        match task.work {
            // Delivered to live sessions, and stored for nobody.
            Work::Deliver(task) if task.targets.is_empty() && !task.live_users.is_empty() => {
                Ok(Forecast::Deliver)
            }
            Work::Deliver(task) if task.targets.iter().all(has_it) => Ok(Forecast::AlreadyThere),
            Work::Deliver(task) => self.presence(&task).await,
            Work::Message(_) if life.has_its_place() && life.settled_at.is_some() => {
                Ok(Forecast::AlreadyThere)
            }
            Work::Message(_) | Work::Kickout(_) => Ok(Forecast::Place),
        }
    }

    async fn presence(&self, task: &RetryTask) -> Result<Forecast> {
        let users: Vec<_> = task.targets.iter().map(|target| target.user).collect();
        let sessions = self
            .backends
            .mailbox
            .sessions(&users, DeniedBoats::default())
            .await;
        for (target, sessions) in task.targets.iter().zip(sessions) {
            let is_there = sessions?.iter().any(|s| s.platform == target.platform);
            if is_there {
                return Ok(Forecast::Deliver);
            }
        }
        Ok(Forecast::Store)
    }
}

/// Error of horn on reading this notification; `None` if it can be read.
fn unreadable(value: Bytes) -> Option<Death> {
    let refusal = NotificationTask::decode(value).err()?;
    Some(Death {
        reason: DeadReason::Undecodable,
        error: refusal.to_string(),
    })
}

struct Death {
    reason: DeadReason,
    error: String,
}

impl Death {
    fn of((reason, error): Flaw) -> Death {
        Death { reason, error }
    }

    fn to_forecast(&self) -> Forecast {
        Forecast::FailAgain {
            cause: Cause::of(self.reason, &self.error),
        }
    }
}

const fn leave_alone(outcome: TaskOutcome) -> Forecast {
    Forecast::LeftAlone { outcome }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.name(), self.error)
    }
}
