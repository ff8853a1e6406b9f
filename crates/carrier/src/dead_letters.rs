//! The operator's side of the dead letters: look at them, count them, send them on their way again.
//!
//! The topics `dead` and `notification-dead` are only ever appended to. That a letter was redriven stands in the ledger of its
//! message, so that nobody redrives it twice without being told.

mod types;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::dead_letter::DeadLetter;
use api::task::{NotificationTask, Task, Work};
use backend::Error;
use backend::clock::Clock;
use backend::ledger::LedgerStore;
use backend::queue::{NewRecord, Partition, Queue, Record};
use bytes::Bytes;
use protocol::keys::Topic;
use protocol::ledger::{Event, LedgerEntry};
use protocol::message::Target;
use protocol::{MessageId, Timestamp};

pub use self::types::{
    Cursor, Filter, Kind, Listed, Page, Redrive, Redriven, Selection, Shown, Stats, Summary,
};
use crate::records::Records;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Records that are read from the log at once, before others have their turn on the thread.
const STEP: usize = 100;
/// Letters that are counted at most.
const COUNTED: u64 = 200_000;

/// Reads and redrives the dead letters of one installation.
#[derive(Clone)]
pub struct DeadLetters {
    queue: Arc<dyn Queue>,
    ledger: Arc<dyn LedgerStore>,
    clock: Arc<dyn Clock>,
    records: Records,
}

/// A letter as it lies in the topic.
struct Found {
    cursor: Cursor,
    letter: DeadLetter,
    record: Record,
}

impl DeadLetters {
    pub fn new(
        queue: Arc<dyn Queue>,
        ledger: Arc<dyn LedgerStore>,
        clock: Arc<dyn Clock>,
    ) -> DeadLetters {
        DeadLetters {
            records: Records::new(queue.clone(), "operator"),
            queue,
            ledger,
            clock,
        }
    }

    /// Letters that the filter lets through, messages before notifications and the oldest first, at most `limit`; the page says where to go on.
    pub async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page> {
        let mut page = Page::default();
        let mut at = after;
        while page.letters.len() < limit {
            let (found, next) = self.read(at, STEP).await?;
            let redriven = self.redriven(&found).await?;
            for found in found {
                if page.letters.len() == limit {
                    page.next = at;
                    return Ok(page);
                }
                at = Some(found.cursor);
                let listed = found.listed(redriven.contains(&found.letter.id()));
                if filter.lets_through(&listed) {
                    page.letters.push(listed);
                }
            }
            match next {
                Some(next) => at = Some(next),
                None => return Ok(page),
            }
        }
        page.next = at;
        Ok(page)
    }

    /// One letter, if it is there; with what is in it, if that is asked for.
    pub async fn show(&self, id: &str, with_body: bool) -> Result<Option<Shown>> {
        let Some(found) = self.find(id).await? else {
            return Ok(None);
        };
        let redriven = self.redriven(std::slice::from_ref(&found)).await?;
        let headers = found.record.headers.iter();
        Ok(Some(Shown {
            letter: found.listed(redriven.contains(id)),
            headers: headers
                .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned()))
                .collect(),
            body: with_body.then(|| describe(found.cursor.kind, &found.record.value)),
        }))
    }

    /// How many there are, by kind and reason; of very many the first.
    pub async fn stats(&self) -> Result<Stats> {
        let mut stats = Stats::default();
        let mut seen = BTreeSet::new();
        let mut at = None;
        loop {
            let (found, next) = self.read(at, STEP).await?;
            let redriven = self.redriven(&found).await?;
            for found in found {
                let id = found.letter.id();
                if seen.insert(id.clone()) {
                    let listed = found.listed(redriven.contains(&id));
                    let reasons = match listed.cursor.kind {
                        Kind::Message => &mut stats.messages,
                        Kind::Notification => &mut stats.notifications,
                    };
                    reasons
                        .entry(listed.reason.name().to_owned())
                        .or_insert_with(Summary::default)
                        .count(&listed);
                }
            }
            match next {
                Some(next) if (seen.len() as u64) < COUNTED => at = Some(next),
                Some(next) => {
                    stats.left_off = self.count_behind(next).await?;
                    return Ok(stats);
                }
                None => return Ok(stats),
            }
        }
    }

    /// What [`redrive`](Self::redrive) would do, without doing it.
    pub async fn plan(&self, selection: &Selection) -> Result<Vec<Redrive>> {
        let mut plan = Vec::new();
        for chosen in self.choose(selection).await? {
            plan.push(match chosen {
                Ok((cursor, letter)) => {
                    let task = self.task(cursor, &letter).await?;
                    redrive(
                        &letter,
                        task.map_or_else(|refused| refused, |ready| ready.1),
                    )
                }
                Err(refused) => refused,
            });
        }
        Ok(plan)
    }

    /// Sends letters on their way again: one that has its place to the shortest retry topic, any other to
    /// `message`, under its own id; a notification to `notification`. Answers what became of each. A failure in between leaves the letters
    /// after it untouched, and one at most redriven without being marked: repeating that does no harm.
    pub async fn redrive(&self, selection: &Selection) -> Result<Vec<Redrive>> {
        let mut done = Vec::new();
        for chosen in self.choose(selection).await? {
            let (cursor, letter) = match chosen {
                Ok(chosen) => chosen,
                Err(refused) => {
                    done.push(refused);
                    continue;
                }
            };
            let redriven = match self.task(cursor, &letter).await? {
                Ok((record, redriven)) => {
                    let at = self.clock.now();
                    self.publish(record).await?;
                    self.mark(&letter, at).await?;
                    tracing::info!(letter = letter.id(), ?redriven, "a dead letter is redriven");
                    redriven
                }
                Err(refused) => refused,
            };
            done.push(redrive(&letter, redriven));
        }
        Ok(done)
    }

    async fn publish(&self, record: NewRecord) -> Result<()> {
        let answers = self.queue.producer().publish(vec![record]).await;
        let missing = || Err(Error::unavailable("queue", "no answer for a record"));
        answers.into_iter().next().unwrap_or_else(missing).map(drop)
    }

    /// `at` is from before the record was published: a carrier may have settled it by now.
    async fn mark(&self, letter: &DeadLetter, at: Timestamp) -> Result<()> {
        let Some(message) = letter.message else {
            return Ok(());
        };
        let entry = |target| LedgerEntry {
            message,
            at,
            target,
            event: Event::Redriven {
                letter: letter.id(),
            },
        };
        let targets = &letter.targets;
        let entries = if targets.is_empty() {
            vec![entry(None)]
        } else {
            targets.iter().map(|target| entry(Some(*target))).collect()
        };
        self.ledger.append(entries).await
    }

    /// The letters that are meant, oldest first and each once, without their bytes; those that cannot be
    /// redriven say why.
    async fn choose(
        &self,
        selection: &Selection,
    ) -> Result<Vec<Result<(Cursor, DeadLetter), Redrive>>> {
        let (wanted, most) = match selection {
            Selection::Ids(ids) => (ids.iter().collect(), ids.len()),
            Selection::Filter { limit, .. } => (BTreeSet::new(), *limit),
        };
        let mut chosen = Vec::new();
        let mut there = BTreeSet::new();
        let mut at = None;
        while chosen.len() < most {
            let (found, next) = self.read(at, STEP).await?;
            let redriven = self.redriven(&found).await?;
            for found in found {
                let id = found.letter.id();
                let redriven = redriven.contains(&id);
                let meant = match selection {
                    Selection::Ids(_) => wanted.contains(&id),
                    Selection::Filter { filter, .. } => {
                        filter.lets_through(&found.listed(redriven))
                    }
                };
                if meant && chosen.len() < most && there.insert(id) {
                    chosen.push(if redriven {
                        Err(redrive(&found.letter, Redriven::Before))
                    } else {
                        Ok((found.cursor, found.letter))
                    });
                }
            }
            match next {
                Some(next) => at = Some(next),
                None => break,
            }
        }
        let missing = wanted.into_iter().filter(|id| !there.contains(*id));
        chosen.extend(missing.map(|id| {
            Err(Redrive {
                id: id.clone(),
                redriven: Redriven::NoSuchLetter,
            })
        }));
        Ok(chosen)
    }

    async fn find(&self, id: &str) -> Result<Option<Found>> {
        let mut at = None;
        loop {
            let (found, next) = self.read(at, STEP).await?;
            if let Some(found) = found.into_iter().find(|found| found.letter.id() == id) {
                return Ok(Some(found));
            }
            match next {
                Some(next) => at = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// All partitions that hold letters, from the one of `after` on.
    fn partitions(&self, after: Option<Cursor>) -> Vec<(Kind, Partition)> {
        let all = Kind::ALL.into_iter().flat_map(|kind| {
            let topic = kind.topic();
            let numbers = 0..self.queue.partitions(topic);
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
        let (begin, end) = self.queue.bounds(partition).await?;
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
            let records = self.queue.read(partition, from, max).await?;
            let Some(last) = records.last() else {
                continue;
            };
            let next = Cursor {
                kind,
                partition: partition.number,
                offset: last.offset,
            };
            let found = records.into_iter().filter_map(|record| found(kind, record));
            return Ok((found.collect(), Some(next)));
        }
        Ok((Vec::new(), None))
    }

    /// Which of these were redriven.
    async fn redriven(&self, found: &[Found]) -> Result<BTreeSet<String>> {
        let messages: BTreeSet<MessageId> = found.iter().filter_map(|f| f.letter.message).collect();
        let messages: Vec<MessageId> = messages.into_iter().collect();
        if messages.is_empty() {
            return Ok(BTreeSet::new());
        }
        let lives = self.ledger.trace(&messages).await?;
        let redriven = lives.into_iter().flatten().filter_map(|entry| {
            if let Event::Redriven { letter } = entry.event {
                Some(letter)
            } else {
                None
            }
        });
        Ok(redriven.collect())
    }

    /// The record that sends a letter on its way again.
    async fn task(
        &self,
        cursor: Cursor,
        letter: &DeadLetter,
    ) -> Result<Result<(NewRecord, Redriven), Redriven>> {
        let Some((key, value)) = self.bytes(cursor, letter).await? else {
            return Ok(Err(Redriven::BytesGone));
        };
        if cursor.kind == Kind::Notification {
            let record = self.records.raw(Topic::Notification, key, value);
            let marked = letter.message.is_some();
            return Ok(Ok((record, Redriven::ToNotification { marked })));
        }
        let Ok(mut task) = Task::decode(value.clone()) else {
            // A later version may be able to read it.
            let record = self.records.raw(Topic::Message, key, value);
            return Ok(Ok((record, Redriven::ToMessage { marked: false })));
        };
        task.retry_count = 0;
        let (topic, redriven) = match &mut task.work {
            Work::Deliver(deliver) => {
                deliver.letter = Some(letter.id());
                deliver.due_at = self.clock.now();
                (Topic::Retry(1), Redriven::ToRetry)
            }
            Work::Message(message) => {
                message.letter = Some(letter.id());
                (Topic::Message, Redriven::ToMessage { marked: true })
            }
            Work::Kickout(_) => (Topic::Message, Redriven::ToMessage { marked: false }),
        };
        let record = self.records.task(topic, &task);
        Ok(record
            .map(|record| (record, redriven))
            .ok_or(Redriven::BelongsNowhere))
    }

    /// Key and original bytes: of the letter, or, where it was too large to keep them, of the record that
    /// died.
    async fn bytes(&self, cursor: Cursor, letter: &DeadLetter) -> Result<Option<(Bytes, Bytes)>> {
        let partition = Partition {
            topic: cursor.kind.topic(),
            number: cursor.partition,
        };
        let Some(record) = self.record(partition, cursor.offset).await? else {
            return Ok(None);
        };
        if !record.value.is_empty() {
            return Ok(Some((record.key, record.value)));
        }
        let origin = Partition {
            topic: letter.origin.topic,
            number: letter.origin.partition,
        };
        let origin = self.record(origin, letter.origin.offset).await?;
        Ok(origin.map(|origin| (record.key, origin.value)))
    }

    async fn record(&self, partition: Partition, offset: u64) -> Result<Option<Record>> {
        let records = self.queue.read(partition, offset, 1).await?;
        Ok(records.into_iter().find(|record| record.offset == offset))
    }
}

fn found(kind: Kind, record: Record) -> Option<Found> {
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
    fn listed(&self, redriven: bool) -> Listed {
        let letter = &self.letter;
        let name = |target: &Target| format!("{}/{}", target.user, target.platform);
        Listed {
            id: letter.id(),
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
            redriven,
        }
    }
}

fn redrive(letter: &DeadLetter, redriven: Redriven) -> Redrive {
    Redrive {
        id: letter.id(),
        redriven,
    }
}

/// What is in a letter, for a person.
fn describe(kind: Kind, value: &Bytes) -> String {
    let told = match kind {
        Kind::Message => Task::decode(value.clone()).map(|task| format!("{task:#?}")),
        Kind::Notification => {
            NotificationTask::decode(value.clone()).map(|task| format!("{task:#?}"))
        }
    };
    told.unwrap_or_else(|refusal| format!("{refusal}\n{}", value.escape_ascii()))
}
