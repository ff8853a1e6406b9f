//! Dead letters for operators: listing them, counting them, and having something done with them.
//!
//! The topics `dead` and `notification-dead` are append-only. The topic `operation` says what was
//! done with a letter (`crate::desk`): every desk reads it, and one of them works (`worker`).

mod edit;
mod letter_walk;
mod log;
mod log_view;
mod plan;
mod recipients;
mod stats;
mod tasks;
mod transfer;
mod types;
mod worker;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::dead_letter::{DeadLetter, LETTER};
use api::task::{NotificationTask, Value};
use backend::Backends;
use backend::Error;
use backend::queue::{NewRecord, Partition, Queue, Record};
use bytes::Bytes;
use protocol::Timestamp;
use protocol::bounds::Bounds;
use protocol::keys::Topic;
use protocol::message::{Content, Target};
use protocol::record::{Task, Work, key_of, redrive};

pub use self::edit::{EditResult, Envelope, LetterChange};
pub use self::log::LogPage;
use self::log_view::View;
pub use self::plan::{Forecast, Plan, PlanLetters, Share};
pub use self::tasks::{Request, TaskRefusal};
pub use self::transfer::{HeaderValue, ImportResult, LetterPackage, PACKAGE_MAX, Package};
pub use self::types::{
    CauseSummary, Filter, Kind, Letter, LetterCursor, LetterDetail, LetterEdit, LetterHeader,
    LetterOutcome, LetterPage, ReasonSummary, Selection, SelectionCount, Stats, Summary,
};
use crate::answer::Time;
use crate::desk::{Cause, LetterState, LetterStatus, Operations, TaskOutcome, Version};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Records read from the log at once, before other tasks get the thread.
const STEP: usize = 100;
/// Steps for one page of letters, of which few may match.
const STEPS: usize = 200;
/// Letters chosen at once: one more than a task takes, so that the task says so.
const CHOSEN: usize = 10_001;
/// Header of a record with an operator's edit of a letter; its value is the letter's name. The
/// record is no letter itself.
const EDIT_OF: &str = "edit-of";

/// Dead letters of one installation. Clones share their view of the log.
#[derive(Clone)]
pub struct DeadLetters {
    backends: Backends,
    /// Bounds of messages that are redriven.
    bounds: Bounds,
    view: Arc<View>,
}

/// A letter, and its record in the topic.
struct LocatedLetter {
    cursor: LetterCursor,
    letter: DeadLetter,
    record: Record,
}

impl DeadLetters {
    /// `bounds` are those of messages that are redriven.
    pub fn new(backends: Backends, bounds: Bounds) -> DeadLetters {
        DeadLetters {
            view: Arc::new(View::new(backends.queue.clone())),
            backends,
            bounds,
        }
    }

    /// Lists letters that pass the filter, messages before notifications and oldest first, at most
    /// `limit`. The page says where to go on; it may have fewer letters and a next one all the
    /// same, as an answer looks at a limited number of records.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<LetterCursor>,
        limit: usize,
    ) -> Result<LetterPage> {
        let (desk, now) = (self.view.now().await?, self.backends.clock.now());
        let mut page = LetterPage::default();
        let mut walk = self.walk(after).at_most(STEPS);
        while page.letters.len() < limit {
            let Some(found) = walk.next().await? else {
                page.next = walk.rest();
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

    /// Shows one letter, if it exists, with its body if that is wanted and the letter is not gone.
    pub async fn show(&self, id: &str, with_body: bool) -> Result<Option<LetterDetail>> {
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
        Ok(Some(LetterDetail {
            headers: headers
                .map(|(name, value)| LetterHeader {
                    name: name.clone(),
                    value: String::from_utf8_lossy(value).into_owned(),
                })
                .collect(),
            edit: desk.edit(&letter.id).map(LetterEdit::from),
            letter,
            body,
        }))
    }

    /// Current body of a letter, for a person.
    async fn body(&self, desk: &Operations, found: &LocatedLetter) -> Result<String> {
        let held = match desk.edit(&found.letter.id()) {
            Some(_) => self.bytes(desk, found).await?,
            None => Some((found.record.key.clone(), found.record.value.clone())),
        };
        Ok(match held {
            Some((_, value)) => describe(found.cursor.kind, &value),
            None => TaskOutcome::BytesGone.text().to_owned(),
        })
    }

    /// Number of letters in a selection now.
    pub async fn count(&self, selection: &Selection) -> Result<SelectionCount> {
        let all = match selection {
            Selection::Ids { .. } => selection.clone(),
            Selection::Filter { filter, .. } => Selection::Filter {
                filter: filter.clone(),
                limit: CHOSEN,
            },
        };
        let letters = self.choose(&all).await?;
        let there = letters.iter().filter(|(_, at)| at.is_some()).count();
        Ok(SelectionCount {
            letters: there.min(CHOSEN - 1) as u64,
            more: there >= CHOSEN,
        })
    }

    /// Letters of a selection, each once; missing ones last. Letters of one conversation are in the
    /// order in which its messages were accepted.
    async fn choose(&self, selection: &Selection) -> Result<Vec<(String, Option<LetterCursor>)>> {
        let (desk, now) = (self.view.now().await?, self.backends.clock.now());
        let (wanted, most) = match selection {
            Selection::Ids { ids } => (ids.iter().collect(), ids.len()),
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
                Selection::Ids { .. } => wanted.contains(&id),
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

    /// First letter of this name.
    async fn find(&self, id: &str) -> Result<Option<LocatedLetter>> {
        let mut walk = self.walk(None);
        while let Some(found) = walk.next().await? {
            if found.letter.id() == id {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The letter at a place.
    async fn at(&self, cursor: LetterCursor) -> Result<Option<LocatedLetter>> {
        let partition = Partition {
            topic: cursor.kind.topic(),
            number: cursor.partition,
        };
        let record = self.record(partition, cursor.offset).await?;
        Ok(record.and_then(|record| found(cursor.kind, record)))
    }

    /// All partitions that hold letters, from the one of `after` on.
    fn partitions(&self, after: Option<LetterCursor>) -> Vec<(Kind, Partition)> {
        let all = Kind::ALL.into_iter().flat_map(|kind| {
            let topic = kind.topic();
            let numbers = 0..self.backends.queue.partitions(topic);
            numbers.map(move |number| (kind, Partition { topic, number }))
        });
        let first = after.map(|cursor| (cursor.kind, cursor.partition));
        all.filter(|(kind, partition)| Some((*kind, partition.number)) >= first)
            .collect()
    }

    /// Begin and end of a partition's records behind a place.
    async fn behind(
        &self,
        after: Option<LetterCursor>,
        kind: Kind,
        partition: Partition,
    ) -> Result<(u64, u64)> {
        let (begin, end) = self.backends.queue.bounds(partition).await?;
        let here = |at: &LetterCursor| (at.kind, at.partition) == (kind, partition.number);
        let next = after.filter(here).map_or(0, |cursor| cursor.offset + 1);
        Ok((begin.max(next), end))
    }

    /// Number of records behind a place.
    async fn count_behind(&self, cursor: LetterCursor) -> Result<u64> {
        let mut count = 0;
        for (kind, partition) in self.partitions(Some(cursor)) {
            let (from, end) = self.behind(Some(cursor), kind, partition).await?;
            count += end.saturating_sub(from);
        }
        Ok(count)
    }

    /// Next letters after a place, and the place to go on from; `None` at the end. Skips records
    /// that are no letters of ours.
    async fn read(
        &self,
        after: Option<LetterCursor>,
        max: usize,
    ) -> Result<(Vec<LocatedLetter>, Option<LetterCursor>)> {
        tokio::task::yield_now().await;
        for (kind, partition) in self.partitions(after) {
            let (from, end) = self.behind(after, kind, partition).await?;
            if from >= end {
                continue;
            }
            let (records, next) = read_on(&*self.backends.queue, partition, from, max).await?;
            let next = LetterCursor {
                kind,
                partition: partition.number,
                offset: next - 1,
            };
            let found = records.into_iter().filter_map(|record| found(kind, record));
            return Ok((found.collect(), Some(next)));
        }
        Ok((Vec::new(), None))
    }

    /// Record that redrives a letter, or why there is none.
    async fn record_again(
        &self,
        desk: &Operations,
        found: &LocatedLetter,
    ) -> Result<Result<(NewRecord, TaskOutcome), TaskOutcome>> {
        Ok(match self.bytes(desk, found).await? {
            Some((key, value)) => self.record_of(found, key, value),
            None => Err(TaskOutcome::BytesGone),
        })
    }

    /// Same for a letter that holds these bytes.
    fn record_of(
        &self,
        found: &LocatedLetter,
        key: Bytes,
        value: Bytes,
    ) -> Result<(NewRecord, TaskOutcome), TaskOutcome> {
        let id = found.letter.id();
        let again = |mut record: NewRecord, outcome| {
            record.headers.push((LETTER.to_owned(), id.clone().into()));
            Ok((record, outcome))
        };
        if found.cursor.kind == Kind::Notification {
            let record = self.keyed(Topic::Notification, key, value);
            return again(record, TaskOutcome::ToNotification);
        }
        let Ok(task) = Task::decode(value.clone()) else {
            // A later version may be able to read it.
            let record = self.keyed(Topic::Message, key, value);
            return again(record, TaskOutcome::ToMessage);
        };
        let now = self.backends.clock.now();
        let (topic, task) = redrive(task, &id, self.bounds, now);
        let outcome = match topic {
            Topic::Retry(_) => TaskOutcome::ToRetry,
            _ => TaskOutcome::ToMessage,
        };
        match self.task_record(topic, &task) {
            Some(record) => again(record, outcome),
            None => Err(TaskOutcome::BelongsNowhere),
        }
    }

    /// Record of any task for this topic; `None` if the task concerns nobody.
    fn task_record(&self, topic: Topic, task: &Task) -> Option<NewRecord> {
        let key = Bytes::copy_from_slice(&key_of(&task.work)?);
        Some(NewRecord {
            headers: task.headers(),
            ..self.keyed(topic, key, task.encode())
        })
    }

    /// Record of exactly these bytes under this key.
    fn keyed(&self, topic: Topic, key: Bytes, value: Bytes) -> NewRecord {
        NewRecord::keyed(&*self.backends.queue, topic, key, value)
    }

    /// Key and bytes that a letter holds now: its newest edit, or the original.
    async fn bytes(
        &self,
        desk: &Operations,
        found: &LocatedLetter,
    ) -> Result<Option<(Bytes, Bytes)>> {
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

    /// Key and original bytes: those of the letter, or, if it was too large to keep them, those of
    /// the record that died.
    async fn original(&self, found: &LocatedLetter) -> Result<Option<(Bytes, Bytes)>> {
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

/// Reads the next records of a partition, from an offset before its end on. Returns them, and the
/// offset behind them.
///
/// # Errors
/// `Unavailable` also if the log answers with no records: unread is not taken for absent.
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

/// Reads a letter of ours. Edits lie beside their letters, and are none.
fn found(kind: Kind, record: Record) -> Option<LocatedLetter> {
    if record.header(EDIT_OF).is_some() {
        return None;
    }
    match DeadLetter::from_headers(&record.headers) {
        Ok(letter) => Some(LocatedLetter {
            cursor: LetterCursor {
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

impl LocatedLetter {
    fn listed(&self, desk: &Operations, now: Timestamp) -> Letter {
        let letter = &self.letter;
        let name = |target: &Target| format!("{}/{}", target.user, target.platform);
        let id = letter.id();
        let standing = desk.standing(&id, now);
        let discarded_at = match desk.status(&id) {
            LetterStatus::Discarded { at, .. } => Some(Time::from(*at)),
            LetterStatus::Open | LetterStatus::Redriven { .. } => None,
        };
        Letter {
            kind: self.cursor.kind,
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
            first_failed_at: letter.first_failed_at.into(),
            last_failed_at: letter.last_failed_at.into(),
            carrier: letter.carrier.clone(),
            bytes: self.record.value.len(),
            cause: Cause::of(letter.reason, &letter.error_message),
            redriven: standing == LetterState::Redriven,
            discarded: discarded_at.is_some(),
            discarded_at,
            gone: standing == LetterState::Gone,
            edited: desk.edit(&id).is_some(),
            parent: letter.parent.clone(),
            id,
        }
    }
}

/// Describes a letter's body, for a person.
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

/// Content that a user wrote, which no debug output shows.
const fn content(task: &Task) -> Option<&Content> {
    match &task.work {
        Work::Message(task) => Some(&task.message.content),
        Work::Deliver(task) => Some(&task.placed.message.content),
        Work::Kickout(_) => None,
    }
}
