//! The operator's side of the dead letters: look at them, count them, and have something done with them.
//!
//! The topics `dead` and `notification-dead` are only ever appended to. What was done with a letter stands
//! in the topic `operation` (`protocol::desk`): every desk reads it, and one of them works (`worker`).

mod edit;
mod log;
mod plan;
mod sent;
mod stats;
mod tasks;
mod transfer;
mod types;
mod view;
mod walk;
mod worker;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::dead_letter::{DeadLetter, LETTER};
use api::task::{NotificationTask, Task, Work};
use backend::Backends;
use backend::Error;
use backend::queue::{NewRecord, Partition, Queue, Record};
use bytes::Bytes;
use protocol::Timestamp;
use protocol::bounds::Bounds;
use protocol::desk::{Cause, Desk, Outcome, Standing, Status, Version};
use protocol::keys::Topic;
use protocol::message::{Content, Target};

pub use self::edit::{Change, Changed, Envelope};
pub use self::log::LogPage;
pub use self::plan::{Forecast, Plan, Share};
pub use self::tasks::{Refused, Request};
pub use self::transfer::{HeaderValue, PACKAGE_MAX, Package, Packed, Unpacked};
pub use self::types::{
    CauseSummary, Count, Cursor, Filter, Kind, Listed, Page, Selection, Shown, Stats, Summary, Told,
};
use self::view::View;
use crate::records::Records;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Records that are read from the log at once, before others have their turn on the thread.
const STEP: usize = 100;
/// Letters chosen at once: more than one task takes, so that it says so.
const CHOSEN: usize = 10_001;
/// The header of a record with what an operator made of a letter: the letter's name. It is no letter itself.
const EDIT_OF: &str = "edit-of";

/// The dead letters of one installation. Clones share what they know.
#[derive(Clone)]
pub struct DeadLetters {
    backends: Backends,
    /// Bounds of messages that are sent on their way again.
    bounds: Bounds,
    records: Records,
    view: Arc<View>,
}

/// A letter as it lies in the topic.
struct Found {
    cursor: Cursor,
    letter: DeadLetter,
    record: Record,
}

impl DeadLetters {
    /// `bounds`: of messages that are sent on their way again.
    pub fn new(backends: Backends, bounds: Bounds) -> DeadLetters {
        DeadLetters {
            records: Records::new(backends.queue.clone(), "operator", bounds.record_bytes),
            view: Arc::new(View::new(backends.queue.clone())),
            backends,
            bounds,
        }
    }

    /// Letters that the filter lets through, messages before notifications and the oldest first, at most
    /// `limit`; the page says where to go on.
    pub async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page> {
        let (desk, now) = (self.view.now().await?, self.backends.clock.now());
        let mut page = Page::default();
        let mut walk = self.walk(after);
        while page.letters.len() < limit {
            let Some(found) = walk.next().await? else {
                return Ok(page);
            };
            let listed = found.listed(&desk, now);
            if filter.lets_through(&listed) {
                page.letters.push(listed);
            }
        }
        page.next = walk.place();
        Ok(page)
    }

    /// One letter, if it is there; with what is in it, if that is asked for and its time is not over.
    pub async fn show(&self, id: &str, with_body: bool) -> Result<Option<Shown>> {
        let Some(found) = self.find(id).await? else {
            return Ok(None);
        };
        let (desk, now) = (self.view.now().await?, self.backends.clock.now());
        let letter = found.listed(&desk, now);
        let body = match with_body && !letter.gone {
            true => Some(self.body(&desk, &found).await?),
            false => None,
        };
        let headers = found.record.headers.iter();
        Ok(Some(Shown {
            headers: headers
                .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned()))
                .collect(),
            edit: desk.edit(&letter.id).cloned(),
            letter,
            body,
        }))
    }

    /// What it holds now, for a person.
    async fn body(&self, desk: &Desk, found: &Found) -> Result<String> {
        let held = match desk.edit(&found.letter.id()) {
            Some(_) => self.bytes(desk, found).await?,
            None => Some((found.record.key.clone(), found.record.value.clone())),
        };
        Ok(match held {
            Some((_, value)) => describe(found.cursor.kind, &value),
            None => Outcome::BytesGone.text().to_owned(),
        })
    }

    /// How many letters are meant by now.
    pub async fn count(&self, selection: &Selection) -> Result<Count> {
        let all = match selection {
            Selection::Ids(_) => selection.clone(),
            Selection::Filter { filter, .. } => Selection::Filter {
                filter: filter.clone(),
                limit: CHOSEN,
            },
        };
        let letters = self.choose(&all).await?;
        let there = letters.iter().filter(|(_, at)| at.is_some()).count();
        Ok(Count {
            letters: there.min(CHOSEN - 1) as u64,
            more: there >= CHOSEN,
        })
    }

    /// The letters that are meant, each once; those that are not there last. Of one conversation in the
    /// order in which its messages were accepted.
    async fn choose(&self, selection: &Selection) -> Result<Vec<(String, Option<Cursor>)>> {
        let (desk, now) = (self.view.now().await?, self.backends.clock.now());
        let (wanted, most) = match selection {
            Selection::Ids(ids) => (ids.iter().collect(), ids.len()),
            Selection::Filter { limit, .. } => (BTreeSet::new(), (*limit).min(CHOSEN)),
        };
        let mut chosen = Vec::new();
        let mut there = BTreeSet::new();
        let mut walk = self.walk(None);
        while chosen.len() < most
            && let Some(found) = walk.next().await?
        {
            let id = found.letter.id();
            let meant = match selection {
                Selection::Ids(_) => wanted.contains(&id),
                Selection::Filter { filter, .. } => filter.lets_through(&found.listed(&desk, now)),
            };
            if meant && there.insert(id.clone()) {
                let order = (found.letter.conversation, found.letter.message);
                chosen.push((order, id, found.cursor));
            }
        }
        chosen.sort_by_key(|(order, ..)| *order);
        let missing = wanted.into_iter().filter(|id| !there.contains(*id));
        let missing = missing.map(|id| (id.clone(), None));
        let chosen = chosen.into_iter().map(|(_, id, at)| (id, Some(at)));
        Ok(chosen.chain(missing).collect())
    }

    /// The first of that name.
    async fn find(&self, id: &str) -> Result<Option<Found>> {
        let mut walk = self.walk(None);
        while let Some(found) = walk.next().await? {
            if found.letter.id() == id {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The letter at a place.
    async fn at(&self, cursor: Cursor) -> Result<Option<Found>> {
        let partition = Partition {
            topic: cursor.kind.topic(),
            number: cursor.partition,
        };
        let record = self.record(partition, cursor.offset).await?;
        Ok(record.and_then(|record| found(cursor.kind, record)))
    }

    /// All partitions that hold letters, from the one of `after` on.
    fn partitions(&self, after: Option<Cursor>) -> Vec<(Kind, Partition)> {
        let all = Kind::ALL.into_iter().flat_map(|kind| {
            let topic = kind.topic();
            let numbers = 0..self.backends.queue.partitions(topic);
            numbers.map(move |number| (kind, Partition { topic, number }))
        });
        let first = after.map(|cursor| (cursor.kind, cursor.partition));
        all.filter(|(kind, partition)| Some((*kind, partition.number)) >= first)
            .collect()
    }

    /// Where what lies behind a place begins and ends in a partition.
    async fn behind(
        &self,
        after: Option<Cursor>,
        kind: Kind,
        partition: Partition,
    ) -> Result<(u64, u64)> {
        let (begin, end) = self.backends.queue.bounds(partition).await?;
        let here = |at: &Cursor| (at.kind, at.partition) == (kind, partition.number);
        let next = after.filter(here).map_or(0, |cursor| cursor.offset + 1);
        Ok((begin.max(next), end))
    }

    /// How many records lie behind a place.
    async fn count_behind(&self, cursor: Cursor) -> Result<u64> {
        let mut count = 0;
        for (kind, partition) in self.partitions(Some(cursor)) {
            let (from, end) = self.behind(Some(cursor), kind, partition).await?;
            count += end.saturating_sub(from);
        }
        Ok(count)
    }

    /// The next letters after a place, and where to go on; `None` at the end. Records that are no letters
    /// of ours are passed over.
    async fn read(
        &self,
        after: Option<Cursor>,
        max: usize,
    ) -> Result<(Vec<Found>, Option<Cursor>)> {
        tokio::task::yield_now().await;
        for (kind, partition) in self.partitions(after) {
            let (from, end) = self.behind(after, kind, partition).await?;
            if from >= end {
                continue;
            }
            let (records, next) = read_on(&*self.backends.queue, partition, from, max).await?;
            let next = Cursor {
                kind,
                partition: partition.number,
                offset: next - 1,
            };
            let found = records.into_iter().filter_map(|record| found(kind, record));
            return Ok((found.collect(), Some(next)));
        }
        Ok((Vec::new(), None))
    }

    /// The record that sends a letter on its way again, or why there is none.
    async fn record_again(
        &self,
        desk: &Desk,
        found: &Found,
    ) -> Result<Result<(NewRecord, Outcome), Outcome>> {
        Ok(match self.bytes(desk, found).await? {
            Some((key, value)) => self.record_of(found, key, value),
            None => Err(Outcome::BytesGone),
        })
    }

    /// The same, where a letter holds these bytes.
    fn record_of(
        &self,
        found: &Found,
        key: Bytes,
        value: Bytes,
    ) -> Result<(NewRecord, Outcome), Outcome> {
        let id = found.letter.id();
        let again = |mut record: NewRecord, outcome| {
            record.headers.push((LETTER.to_owned(), id.clone().into()));
            Ok((record, outcome))
        };
        if found.cursor.kind == Kind::Notification {
            let record = self.records.raw(Topic::Notification, key, value);
            return again(record, Outcome::ToNotification);
        }
        let Ok(mut task) = Task::decode(value.clone()) else {
            // A later version may be able to read it.
            let record = self.records.raw(Topic::Message, key, value);
            return again(record, Outcome::ToMessage);
        };
        task.retry_count = 0;
        let (topic, outcome) = match &mut task.work {
            Work::Deliver(deliver) => {
                deliver.letter = Some(id.clone());
                deliver.due_at = self.backends.clock.now();
                (Topic::Retry(1), Outcome::ToRetry)
            }
            Work::Message(message) => {
                message.letter = Some(id.clone());
                message.bounds = self.bounds;
                (Topic::Message, Outcome::ToMessage)
            }
            Work::Kickout(_) => (Topic::Message, Outcome::ToMessage),
        };
        match self.records.task(topic, &task) {
            Some(record) => again(record, outcome),
            None => Err(Outcome::BelongsNowhere),
        }
    }

    /// Key and bytes of what a letter holds now: what an operator made of it, or the original ones.
    async fn bytes(&self, desk: &Desk, found: &Found) -> Result<Option<(Bytes, Bytes)>> {
        let Some(edit) = desk.edit(&found.letter.id()) else {
            return self.original(found).await;
        };
        let at = edit.edited.at;
        let partition = Partition {
            topic: at.topic,
            number: at.partition,
        };
        let record = self.record(partition, at.offset).await?;
        let is_it = |record: &Record| Version::of(&record.value) == edit.edited.version;
        let record = record.filter(is_it);
        Ok(record.map(|record| (found.record.key.clone(), record.value)))
    }

    /// Key and original bytes: of the letter, or, where it was too large to keep them, of the record that
    /// died.
    async fn original(&self, found: &Found) -> Result<Option<(Bytes, Bytes)>> {
        let (record, letter) = (&found.record, &found.letter);
        if !record.value.is_empty() {
            return Ok(Some((record.key.clone(), record.value.clone())));
        }
        let origin = Partition {
            topic: letter.origin.topic,
            number: letter.origin.partition,
        };
        let origin = self.record(origin, letter.origin.offset).await?;
        Ok(origin.map(|origin| (record.key.clone(), origin.value)))
    }

    async fn record(&self, partition: Partition, offset: u64) -> Result<Option<Record>> {
        let (first, end) = self.backends.queue.bounds(partition).await?;
        if !(first..end).contains(&offset) {
            return Ok(None);
        }
        let (records, _) = read_on(&*self.backends.queue, partition, offset, 1).await?;
        Ok(records.into_iter().find(|record| record.offset == offset))
    }
}

/// The next records of a partition, from an offset before its end on, and the offset behind them.
///
/// # Errors
/// `Unavailable` also where the log answers none: what was not read is not taken for what is not there.
async fn read_on(
    queue: &dyn Queue,
    partition: Partition,
    from: u64,
    max: usize,
) -> Result<(Vec<Record>, u64)> {
    let records = queue.read(partition, from, max).await?;
    let Some(last) = records.last() else {
        let (topic, number) = (partition.topic.name(), partition.number);
        let why = format!("{topic}/{number} has records behind {from} and answered none");
        return Err(Error::unavailable("queue", why));
    };
    let next = last.offset + 1;
    Ok((records, next))
}

/// A letter of ours. What operators made of one lies beside it, and is none.
fn found(kind: Kind, record: Record) -> Option<Found> {
    if record.header(EDIT_OF).is_some() {
        return None;
    }
    match DeadLetter::from_headers(&record.headers) {
        Ok(letter) => Some(Found {
            cursor: Cursor {
                kind,
                partition: record.partition.number,
                offset: record.offset,
            },
            letter,
            record,
        }),
        Err(refusal) => {
            tracing::debug!(offset = record.offset, error = %refusal, "no letter of ours");
            None
        }
    }
}

impl Found {
    fn listed(&self, desk: &Desk, now: Timestamp) -> Listed {
        let letter = &self.letter;
        let name = |target: &Target| format!("{}/{}", target.user, target.platform);
        let id = letter.id();
        let standing = desk.standing(&id, now);
        let discarded_at = match desk.status(&id) {
            Status::Discarded { at, .. } => Some(*at),
            Status::Open | Status::Redriven { .. } => None,
        };
        Listed {
            cursor: self.cursor,
            reason: letter.reason,
            error: letter.error_message.clone(),
            origin_topic: letter.origin.topic.name().to_owned(),
            origin_partition: letter.origin.partition,
            origin_offset: letter.origin.offset,
            message: letter.message,
            conversation: letter
                .conversation
                .map(|conversation| conversation.to_string()),
            targets: letter.targets.iter().map(name).collect(),
            retry_count: letter.retry_count,
            first_failed_at: letter.first_failed_at,
            last_failed_at: letter.last_failed_at,
            carrier: letter.carrier.clone(),
            bytes: self.record.value.len(),
            cause: Cause::of(letter.reason, &letter.error_message),
            redriven: standing == Standing::Redriven,
            discarded: discarded_at.is_some(),
            discarded_at,
            gone: standing == Standing::Gone,
            edited: desk.edit(&id).is_some(),
            parent: letter.parent.clone(),
            id,
        }
    }
}

/// What is in a letter, for a person.
fn describe(kind: Kind, value: &Bytes) -> String {
    let told = match kind {
        Kind::Message => Task::decode(value.clone()).map(|task| match content(&task) {
            Some(content) => {
                let data = String::from_utf8_lossy(&content.data);
                format!("{task:#?}\ndata: {data:?}")
            }
            None => format!("{task:#?}"),
        }),
        Kind::Notification => {
            NotificationTask::decode(value.clone()).map(|task| format!("{task:#?}"))
        }
    };
    told.unwrap_or_else(|refusal| format!("{refusal}\n{}", value.escape_ascii()))
}

/// What people wrote, which no debugging output shows.
const fn content(task: &Task) -> Option<&Content> {
    match &task.work {
        Work::Message(task) => Some(&task.message.content),
        Work::Deliver(task) => Some(&task.placed.message.content),
        Work::Kickout(_) => None,
    }
}
