//! Dead letters for operators: listing them, counting them, and having something done with them.
//!
//! The topics `dead` and `notification-dead` are append-only. The topic `operation` says what was
//! done with a letter (`crate::dead_letters::rules`): every desk reads it, and one of them works (`worker`).

mod edit;
mod letter_walk;
mod log;
mod log_view;
pub mod operation;
mod plan;
mod recipients;
pub mod routes;
pub mod rules;
mod stats;
pub mod task_view;
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
use protocol::record::{Task, Work, publish_key, redrive};

pub use self::edit::{EditResult, Envelope, LetterChange};
pub use self::log::LogPage;
use self::log_view::View;
pub use self::plan::{Forecast, Plan, PlanLetters, Share};
use self::rules::{Cause, LetterState, LetterStatus, Operations, TaskOutcome, Version};
pub use self::tasks::{Request, TaskRefusal};
pub use self::transfer::{HeaderValue, ImportResult, LetterPackage, PACKAGE_MAX, Package};
pub use self::types::{
    CauseSummary, Filter, Kind, Letter, LetterCursor, LetterDetail, LetterEdit, LetterHeader,
    LetterOutcome, LetterPage, ReasonSummary, Selection, SelectionCount, Stats, Summary,
};
use crate::answer::Time;

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
        cursor: Option<LetterCursor>,
        limit: usize,
    ) -> Result<LetterPage> {
        let (operations, now) = (self.view.now().await?, self.backends.clock.now());
        let mut page = LetterPage::default();
        let mut walk = self.walk(cursor).at_most(STEPS);
        while page.letters.len() < limit {
            let Some(located_letter) = walk.next().await? else {
                page.next = walk.rest();
                return Ok(page);
            };
            let letter = located_letter.to_letter(&operations, now);
            if filter.lets_through(&letter) {
                page.letters.push(letter);
            }
        }
        page.next = walk.place();
        Ok(page)
    }

    /// Shows one letter, if it exists, with its body if that is wanted and the letter is not gone.
    pub async fn show(&self, id: &str, with_body: bool) -> Result<Option<LetterDetail>> {
        let Some(located_letter) = self.find(id).await? else {
            return Ok(None);
        };
        let (operations, now) = (self.view.now().await?, self.backends.clock.now());
        let letter = located_letter.to_letter(&operations, now);
        let body = if with_body && !letter.gone {
            Some(self.body(&operations, &located_letter).await?)
        } else {
            None
        };
        let headers = located_letter.record.headers.iter();
        Ok(Some(LetterDetail {
            headers: headers
                .map(|(name, value)| LetterHeader {
                    name: name.clone(),
                    value: String::from_utf8_lossy(value).into_owned(),
                })
                .collect(),
            edit: operations.edit(&letter.id).map(LetterEdit::from),
            letter,
            body,
        }))
    }

    /// Current body of a letter, for a person.
    async fn body(
        &self,
        operations: &Operations,
        located_letter: &LocatedLetter,
    ) -> Result<String> {
        let record_bytes = match operations.edit(&located_letter.letter.id()) {
            Some(_) => self.bytes(operations, located_letter).await?,
            None => Some((
                located_letter.record.key.clone(),
                located_letter.record.value.clone(),
            )),
        };
        Ok(match record_bytes {
            Some((_, value)) => describe(located_letter.cursor.kind, &value),
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
        let letter_count = letters.iter().filter(|(_, at)| at.is_some()).count();
        Ok(SelectionCount {
            letters: letter_count.min(CHOSEN - 1) as u64,
            more: letter_count >= CHOSEN,
        })
    }

    /// Letters of a selection, each once; missing ones last. Letters of one conversation are in the
    /// order in which its messages were accepted.
    async fn choose(&self, selection: &Selection) -> Result<Vec<(String, Option<LetterCursor>)>> {
        let (operations, now) = (self.view.now().await?, self.backends.clock.now());
        let (requested_ids, max_count) = match selection {
            Selection::Ids { ids } => (ids.iter().collect(), ids.len()),
            Selection::Filter { limit, .. } => (BTreeSet::new(), (*limit).min(CHOSEN)),
        };
        let mut matches = Vec::new();
        let mut seen_ids = BTreeSet::new();
        let mut walk = self.walk(None);
        while matches.len() < max_count
            && let Some(located_letter) = walk.next().await?
        {
            let id = located_letter.letter.id();
            let is_match = match selection {
                Selection::Ids { .. } => requested_ids.contains(&id),
                Selection::Filter { filter, .. } => {
                    filter.lets_through(&located_letter.to_letter(&operations, now))
                }
            };
            if is_match && seen_ids.insert(id.clone()) {
                let order = (
                    located_letter.letter.conversation,
                    located_letter.letter.message,
                );
                matches.push((order, id, located_letter.cursor));
            }
        }
        matches.sort_by_key(|(order, ..)| *order);
        let missing_ids = requested_ids
            .into_iter()
            .filter(|id| !seen_ids.contains(*id));
        let missing_ids = missing_ids.map(|id| (id.clone(), None));
        let matches = matches.into_iter().map(|(_, id, at)| (id, Some(at)));
        Ok(matches.chain(missing_ids).collect())
    }

    /// First letter of this name.
    async fn find(&self, id: &str) -> Result<Option<LocatedLetter>> {
        let mut walk = self.walk(None);
        while let Some(located_letter) = walk.next().await? {
            if located_letter.letter.id() == id {
                return Ok(Some(located_letter));
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
        Ok(record.and_then(|record| locate(cursor.kind, record)))
    }

    /// All partitions that hold letters, from the one of `last_cursor` on.
    fn partitions(&self, last_cursor: Option<LetterCursor>) -> Vec<(Kind, Partition)> {
        let all = Kind::ALL.into_iter().flat_map(|kind| {
            let topic = kind.topic();
            let numbers = 0..self.backends.queue.partitions(topic);
            numbers.map(move |number| (kind, Partition { topic, number }))
        });
        let first = last_cursor.map(|cursor| (cursor.kind, cursor.partition));
        all.filter(|(kind, partition)| Some((*kind, partition.number)) >= first)
            .collect()
    }

    /// Begin and end of a partition's records behind a place.
    async fn range_after(
        &self,
        last_cursor: Option<LetterCursor>,
        kind: Kind,
        partition: Partition,
    ) -> Result<(u64, u64)> {
        let (begin, end) = self.backends.queue.bounds(partition).await?;
        let is_same_partition =
            |at: &LetterCursor| (at.kind, at.partition) == (kind, partition.number);
        let next = last_cursor
            .filter(is_same_partition)
            .map_or(0, |cursor| cursor.offset + 1);
        Ok((begin.max(next), end))
    }

    /// Number of records behind a place.
    async fn count_after(&self, cursor: LetterCursor) -> Result<u64> {
        let mut count = 0;
        for (kind, partition) in self.partitions(Some(cursor)) {
            let (from, end) = self.range_after(Some(cursor), kind, partition).await?;
            count += end.saturating_sub(from);
        }
        Ok(count)
    }

    /// Next letters after a place, and the place to go on from; `None` at the end. Skips records
    /// that are no letters of ours.
    async fn read(
        &self,
        last_cursor: Option<LetterCursor>,
        max: usize,
    ) -> Result<(Vec<LocatedLetter>, Option<LetterCursor>)> {
        tokio::task::yield_now().await;
        for (kind, partition) in self.partitions(last_cursor) {
            let (from, end) = self.range_after(last_cursor, kind, partition).await?;
            if from >= end {
                continue;
            }
            let (records, next) = read_on(&*self.backends.queue, partition, from, max).await?;
            let next = LetterCursor {
                kind,
                partition: partition.number,
                offset: next - 1,
            };
            let letters = records
                .into_iter()
                .filter_map(|record| locate(kind, record));
            return Ok((letters.collect(), Some(next)));
        }
        Ok((Vec::new(), None))
    }

    /// Record that redrives a letter, or why there is none.
    async fn record_again(
        &self,
        operations: &Operations,
        located_letter: &LocatedLetter,
    ) -> Result<Result<(NewRecord, TaskOutcome), TaskOutcome>> {
        Ok(match self.bytes(operations, located_letter).await? {
            Some((key, value)) => self.to_redrive_record(located_letter, key, value),
            None => Err(TaskOutcome::BytesGone),
        })
    }

    /// Same for a letter that holds these bytes.
    fn to_redrive_record(
        &self,
        located_letter: &LocatedLetter,
        key: Bytes,
        value: Bytes,
    ) -> Result<(NewRecord, TaskOutcome), TaskOutcome> {
        let id = located_letter.letter.id();
        let with_letter_id = |mut record: NewRecord, outcome| {
            record.headers.push((LETTER.to_owned(), id.clone().into()));
            Ok((record, outcome))
        };
        if located_letter.cursor.kind == Kind::Notification {
            let task = NotificationTask::decode(value.clone());
            let task = task.map(|task| NotificationTask {
                letter: Some(id.clone()),
                ..task
            });
            // A later version may be able to read it.
            let value = task.map_or(value, |task| task.encode());
            let record = self.keyed(Topic::Notification, key, value);
            return with_letter_id(record, TaskOutcome::ToNotification);
        }
        let Ok(task) = Task::decode(value.clone()) else {
            // As above.
            let record = self.keyed(Topic::Message, key, value);
            return with_letter_id(record, TaskOutcome::ToMessage);
        };
        let now = self.backends.clock.now();
        let (topic, task) = redrive(task, &id, self.bounds, now);
        let outcome = match topic {
            Topic::Retry(_) => TaskOutcome::ToRetry,
            _ => TaskOutcome::ToMessage,
        };
        match self.task_record(topic, &task) {
            Some(record) => with_letter_id(record, outcome),
            None => Err(TaskOutcome::BelongsNowhere),
        }
    }

    /// Record of any task for this topic; `None` if the task concerns nobody.
    fn task_record(&self, topic: Topic, task: &Task) -> Option<NewRecord> {
        let key = Bytes::copy_from_slice(&publish_key(&task.work)?);
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
        operations: &Operations,
        located_letter: &LocatedLetter,
    ) -> Result<Option<(Bytes, Bytes)>> {
        let Some(edit) = operations.edit(&located_letter.letter.id()) else {
            return self.original(located_letter).await;
        };
        let at = edit.letter.at;
        let partition = Partition {
            topic: at.topic,
            number: at.partition,
        };
        let record = self.record(partition, at.offset).await?;
        let is_it = |record: &Record| Version::of(&record.value) == edit.letter.version;
        let record = record.filter(is_it);
        Ok(record.map(|record| (located_letter.record.key.clone(), record.value)))
    }

    /// Key and original bytes: those of the letter, or, if it was too large to keep them, those of
    /// the record that died.
    async fn original(&self, located_letter: &LocatedLetter) -> Result<Option<(Bytes, Bytes)>> {
        let (record, letter) = (&located_letter.record, &located_letter.letter);
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
        let reason = format!("{topic}/{number} has records after {from} but returned none");
        return Err(Error::unavailable("queue", reason));
    };
    let next = last.offset + 1;
    Ok((records, next))
}

/// Reads a letter of ours. Edits lie beside their letters, and are none.
fn locate(kind: Kind, record: Record) -> Option<LocatedLetter> {
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
            tracing::debug!(offset = record.offset, error = %refusal, "skipped a record that is \
                                                                       not a dead letter of this \
                                                                       installation");
            None
        }
    }
}

impl LocatedLetter {
    fn to_letter(&self, operations: &Operations, now: Timestamp) -> Letter {
        let letter = &self.letter;
        let name = |target: &Target| format!("{}/{}", target.user, target.platform);
        let id = letter.id();
        let standing = operations.standing(&id, now);
        let discarded_at = match operations.status(&id) {
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
            edited: operations.edit(&id).is_some(),
            parent: letter.parent.clone(),
            id,
        }
    }
}

/// Describes a letter's body, for a person.
fn describe(kind: Kind, value: &Bytes) -> String {
    let description = match kind {
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
    description.unwrap_or_else(|refusal| format!("{refusal}\n{}", value.escape_ascii()))
}

/// Content that a user wrote, which no debug output shows.
const fn content(task: &Task) -> Option<&Content> {
    match &task.work {
        Work::Message(task) => Some(&task.message.content),
        Work::Deliver(task) => Some(&task.placed.message.content),
        Work::Kickout(_) => None,
    }
}
