//! What a redrive would do now: the carrier's own decisions, without their effects.

use std::collections::BTreeMap;

use api::task::{DeliverTask, NotificationTask, Task, Work};
use backend::queue::{NewRecord, Record};
use bytes::Bytes;
use protocol::desk::{self, Desk, Outcome};
use protocol::ledger::DeadReason;
use protocol::ledger::trace::{End, Life};
use protocol::message::Target;
use protocol::presence::Denied;
use serde::{Deserialize, Serialize};

use super::types::{Cursor, Kind, Selection};
use super::{DeadLetters, Found, Result};
use crate::work;

/// Letters that are named for each forecast.
const SAMPLE: usize = 5;

/// What would become of a letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forecast {
    /// Somebody who misses it is there.
    Deliver,
    /// All who miss it are absent: it waits for them, or they find it by sync.
    Store,
    /// It gets its place in its conversation, and is delivered then.
    Place,
    /// Its user is told again.
    Notify,
    /// Everybody it was for has it, or has it waiting.
    AlreadyThere,
    /// It would die again, of this.
    FailAgain(String),
    /// Nothing is done with it.
    LeftAlone(Outcome),
}

/// What a redrive of a selection would do now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub letters: u64,
    pub forecasts: Vec<Share>,
}

/// Letters of which the same would become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub forecast: Forecast,
    pub letters: u64,
    pub sample: Vec<String>,
}

impl DeadLetters {
    /// What a redrive would do with these letters now. Does nothing.
    pub async fn plan(&self, selection: &Selection) -> Result<Plan> {
        let desk = self.view.now().await?;
        let letters = self.choose(selection).await?;
        let mut shares: BTreeMap<Forecast, (u64, Vec<String>)> = BTreeMap::new();
        for (letter, at) in &letters {
            let forecast = match at {
                Some(at) => self.forecast(&desk, letter, *at).await?,
                None => Forecast::LeftAlone(Outcome::NoSuchLetter),
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

    async fn forecast(&self, desk: &Desk, id: &str, at: Cursor) -> Result<Forecast> {
        let now = self.backends.clock.now();
        if let Err(outcome) = desk.may(desk::Work::Redrive, id, now) {
            return Ok(Forecast::LeftAlone(outcome));
        }
        let Some(found) = self.at(at).await? else {
            return Ok(Forecast::LeftAlone(Outcome::NoSuchLetter));
        };
        let record = match self.record_again(desk, &found).await? {
            Ok((record, _)) => record,
            Err(outcome) => return Ok(Forecast::LeftAlone(outcome)),
        };
        if found.cursor.kind == Kind::Notification {
            let forecast = match unreadable(record.value) {
                Some(why) => Forecast::FailAgain(why),
                None => Forecast::Notify,
            };
            return Ok(forecast);
        }
        match self.reading(record) {
            Err(why) => Ok(Forecast::FailAgain(why)),
            Ok(task) => self.delivery(&found, task).await,
        }
    }

    /// What a letter would die of at once if it held these bytes; `None`: it would be read.
    pub(super) fn dies_of(&self, found: &Found, key: Bytes, value: Bytes) -> Option<String> {
        match found.cursor.kind {
            Kind::Notification => unreadable(value),
            Kind::Message => match self.record_of(found, key, value) {
                Ok((record, _)) => self.reading(record).err(),
                Err(outcome) => Some(outcome.text().to_owned()),
            },
        }
    }

    /// How a carrier would read it.
    fn reading(&self, record: NewRecord) -> Result<Task, String> {
        let partition = record.partition;
        let partitions = self.backends.queue.partitions(partition.topic);
        let record = Record {
            partition,
            offset: 0,
            appended_at: self.backends.clock.now(),
            key: record.key,
            headers: record.headers,
            value: record.value,
        };
        work::read(record, partitions)
            .map(|read| read.task)
            .map_err(|spoilt| format!("{}: {}", spoilt.reason.name(), spoilt.error))
    }

    async fn delivery(&self, found: &Found, task: Task) -> Result<Forecast> {
        let Some(message) = found
            .letter
            .message
            .or_else(|| work::message_of(&task.work))
        else {
            return Ok(Forecast::Place);
        };
        let entries = self.backends.ledger.trace(&[message]).await?;
        let life = Life::of(message, &entries.concat());
        let has_it = |target: &Target| {
            let end = life.obligations.get(target).and_then(|o| o.end.as_ref());
            !matches!(end, None | Some(End::Dead(_)))
        };
        match task.work {
            // What is told to who is there, and stored for nobody.
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

    async fn presence(&self, task: &DeliverTask) -> Result<Forecast> {
        let users: Vec<_> = task.targets.iter().map(|target| target.user).collect();
        let sessions = self
            .backends
            .mailbox
            .sessions(&users, Denied::default())
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

/// Why horn could not read it.
fn unreadable(value: Bytes) -> Option<String> {
    let refusal = NotificationTask::decode(value).err()?;
    Some(format!("{}: {refusal}", DeadReason::Undecodable.name()))
}
