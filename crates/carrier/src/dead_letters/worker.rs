//! Does what operators asked for, one process at a time: the owner of the log of operations.
//!
//! ```text
//! claim (in the log) ─▶ publish the record ─▶ ledger: redriven ─▶ done (in the log)
//! ```
//!
//! What it knows comes back to it from the log, so that the next owner knows the same. A claim of which
//! nobody said that it was done is looked for among the records behind the claim: it is published again
//! only where it was not. A worker that lost its partition and does not know it yet may publish once more
//! what its successor did; the record has the same id, and is shown once.

mod gauges;
mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backend::queue::{Consumer, NewRecord, Partition, Polled};
use bytes::Bytes;
use protocol::Timestamp;
use protocol::desk::{Act, Claim, Desk, Entry, Outcome, Place, Status, Step, Task, TaskId, Work};
use protocol::keys::Topic;
use protocol::ledger::{Event, LedgerEntry};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::index::{Again, Index};
use super::sent::Sent;
use super::types::Kind;
use super::view::{self, OPERATIONS};
use super::{DeadLetters, LETTER, Result, read_on};

/// The consumer group of workers.
const GROUP: &str = "desk";
/// Entries of one poll.
const POLL: usize = 500;
/// Letters claimed at a time at most; at lower speeds a quarter of what goes in a second.
const BATCH: usize = 50;
/// Records read at a time while looking for one.
const PAGE: usize = 200;
/// Letters named in one entry, and entries of one round that tell of letters which the log has dropped.
const NAMED: usize = 500;
const FORGOTTEN: usize = 20 * NAMED;
/// How often new letters are looked for where there is nothing to do.
const LOOK: Duration = Duration::from_secs(5);
/// How long a failure is rested.
const REST: Duration = Duration::from_secs(1);

impl DeadLetters {
    /// Works until `stop`, whenever this process owns the log of operations. `name` is what it signs with.
    pub async fn work(self, name: String, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.work_on(name)).await;
    }

    async fn work_on(self, name: String) {
        loop {
            match self.backends.queue.subscribe(GROUP, OPERATIONS.topic).await {
                Ok(consumer) => Worker::new(self, name, consumer).run().await,
                Err(error) => {
                    tracing::warn!(%error, source = %error.source, "the log of operations does not answer");
                    sleep(REST).await;
                    continue;
                }
            }
            return;
        }
    }
}

struct Worker {
    letters: DeadLetters,
    name: String,
    consumer: Box<dyn Consumer>,
    /// `None` while another process works.
    owned: Option<Owned>,
}

/// What the owner knows.
struct Owned {
    desk: Desk,
    /// The offset of the next entry.
    next: u64,
    /// Entries before it were there when the partition came, or are its own.
    end: u64,
    index: Index,
    /// New letters whose parents are about to be done, or of which nothing is said yet.
    again: Vec<Again>,
    /// When new letters were looked for last.
    looked_at: Option<Instant>,
    /// Records of its own claims.
    prepared: BTreeMap<String, Prepared>,
}

/// A letter's record and what becomes of it then, or what becomes of it without one.
type Prepared = Result<(NewRecord, Outcome), Outcome>;

impl Worker {
    fn new(letters: DeadLetters, name: String, consumer: Box<dyn Consumer>) -> Worker {
        Worker {
            letters,
            name,
            consumer,
            owned: None,
        }
    }

    async fn run(mut self) {
        gauges::rest();
        loop {
            let worked = match self.step().await {
                Ok(worked) => worked,
                Err(error) => {
                    tracing::warn!(%error, source = %error.source, "letters wait: something does not answer");
                    self.rest(REST).await;
                    continue;
                }
            };
            match worked {
                Some(pause) => self.rest(pause).await,
                None => drop(timeout(LOOK, self.poll()).await),
            }
        }
    }

    /// Stays a member of its group meanwhile.
    async fn rest(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while timeout_at(until, self.poll()).await.is_ok() {}
    }

    /// Cancel safe, as the consumer's own poll is.
    async fn poll(&mut self) {
        match self.consumer.poll(POLL).await {
            Ok(Polled::Records(records)) => {
                let Some(owned) = &mut self.owned else { return };
                for record in &records {
                    if let Some(entry) = view::entry(record) {
                        owned.read(&entry);
                    }
                    owned.next = record.offset + 1;
                }
            }
            Ok(Polled::Assigned(partitions)) => {
                if partitions.contains(&OPERATIONS) {
                    self.owned = Some(Owned::default());
                }
            }
            Ok(Polled::Revoked(_) | Polled::Lost(_)) => {
                self.owned = None;
                gauges::rest();
            }
            Err(error) => {
                tracing::warn!(%error, source = %error.source, "the log of operations does not answer");
                sleep(REST).await;
            }
        }
    }

    /// Does the next thing; `None` when there is nothing to be done now, else how long to rest after it.
    async fn step(&mut self) -> Result<Option<Duration>> {
        let Some(owned) = &mut self.owned else {
            return Ok(None);
        };
        if owned.end == u64::MAX {
            let (first, end) = self.letters.backends.queue.bounds(OPERATIONS).await?;
            owned.end = end;
            owned.next = owned.next.max(first);
        }
        if owned.next < owned.end {
            return Ok(None);
        }
        let has_looked = owned.look(&self.letters).await?;
        let news = owned.news(has_looked);
        if !news.is_empty() {
            self.say(news).await?;
            if let Some(owned) = &mut self.owned {
                owned.told();
            }
            return Ok(Some(Duration::ZERO));
        }
        match owned.desk.next(BATCH) {
            None => Ok(None),
            Some(Step::Claim { task, letters }) => {
                let (id, work) = (task.id().clone(), task.begun.work);
                let quarter = (task.begun.pace.per_second as usize / 4).max(1);
                let letters: Vec<String> = letters.into_iter().take(quarter).collect();
                self.claim(id, work, letters).await?;
                Ok(Some(Duration::ZERO))
            }
            Some(Step::Finish { task, claims }) => {
                let (id, work, pace) = (task.id().clone(), task.begun.work, task.begun.pace);
                let count = claims.len() as u32;
                self.finish(&id, work, claims).await?;
                if work != Work::Redrive {
                    return Ok(Some(Duration::ZERO));
                }
                Ok(Some(
                    Duration::from_secs(1) * count / pace.per_second.max(1),
                ))
            }
        }
    }

    async fn claim(&mut self, task: TaskId, work: Work, letters: Vec<String>) -> Result<()> {
        let Some(owned) = &mut self.owned else {
            return Ok(());
        };
        let now = self.letters.backends.clock.now();
        let mut claims = Vec::with_capacity(letters.len());
        for letter in letters {
            let prepared = owned.prepare(&self.letters, work, &letter, now).await?;
            let to = match &prepared {
                Ok((record, _)) => Some(self.letters.place(record.partition).await?),
                Err(_) => None,
            };
            claims.push(Claim {
                letter: letter.clone(),
                at: now,
                to,
                version: owned
                    .desk
                    .edit(&letter)
                    .map(|edit| edit.edited.version.clone()),
            });
            owned.prepared.insert(letter, prepared);
        }
        self.say(vec![Act::Claimed { task, claims }]).await
    }

    /// Carries out claims: its own, and those that somebody before it left.
    async fn finish(&mut self, task: &TaskId, work: Work, claims: Vec<Claim>) -> Result<()> {
        let Some(owned) = &mut self.owned else {
            return Ok(());
        };
        let now = self.letters.backends.clock.now();
        let is_left = |claim: &&Claim| !owned.prepared.contains_key(&claim.letter);
        let left: Vec<&Claim> = claims.iter().filter(is_left).collect();
        let published = self.letters.published(&left).await?;
        let mut outcomes = Vec::with_capacity(claims.len());
        let mut records = Vec::new();
        for claim in claims {
            // Somebody before had come so far, whatever became of the letter since.
            if let Some((topic, value)) = published.get(&claim.letter)
                && let Some(outcome) = Outcome::of_record(*topic)
            {
                self.letters.mark(owned, &claim, *topic, value).await?;
                outcomes.push((claim.letter, outcome));
                continue;
            }
            let prepared = match owned.prepared.remove(&claim.letter) {
                Some(prepared) => prepared,
                None => {
                    let letter = &claim.letter;
                    owned.prepare(&self.letters, work, letter, now).await?
                }
            };
            match prepared {
                Ok((record, outcome)) => records.push((claim, record, outcome)),
                Err(outcome) => outcomes.push((claim.letter, outcome)),
            }
        }
        let answers = self
            .letters
            .publish(records.iter().map(|(_, record, _)| record))
            .await;
        let mut failed = None;
        for ((claim, record, outcome), answer) in records.into_iter().zip(answers) {
            match answer {
                Ok(_) => {
                    let topic = record.partition.topic;
                    self.letters
                        .mark(owned, &claim, topic, &record.value)
                        .await?;
                    outcomes.push((claim.letter, outcome));
                }
                Err(error) => failed = Some(error),
            }
        }
        for (letter, outcome) in &outcomes {
            tracing::info!(%task, letter, ?outcome, "a dead letter is done with");
        }
        if !outcomes.is_empty() {
            let task = task.clone();
            let ends: Vec<Outcome> = outcomes.iter().map(|(_, outcome)| *outcome).collect();
            self.say(vec![Act::Done { task, outcomes }]).await?;
            if work == Work::Redrive {
                ends.into_iter().for_each(gauges::redriven);
            }
        }
        match failed {
            // It is claimed, and looked for when its turn comes again.
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Writes entries; nothing more is done until they have come back.
    async fn say(&mut self, acts: Vec<Act>) -> Result<()> {
        let offset = self.letters.say(&self.name, acts).await?;
        if let Some(owned) = &mut self.owned {
            owned.end = owned.end.max(offset + 1);
        }
        Ok(())
    }
}

impl Default for Owned {
    fn default() -> Owned {
        Owned {
            desk: Desk::default(),
            next: 0,
            // Not known yet.
            end: u64::MAX,
            index: Index::new(),
            again: Vec::new(),
            looked_at: None,
            prepared: BTreeMap::new(),
        }
    }
}

impl Owned {
    fn read(&mut self, entry: &Entry) {
        self.desk.read(entry);
        if let Act::Done { outcomes, .. } = &entry.act {
            for (letter, _) in outcomes {
                self.index.settle(letter, &self.desk);
            }
        }
    }

    /// Knows the letters of now: before anything is done, and now and then where nothing is. Answers whether it
    /// looked.
    async fn look(&mut self, letters: &DeadLetters) -> Result<bool> {
        let is_fresh = |at: Instant| at.elapsed() < LOOK;
        if self.desk.next(1).is_none() && self.looked_at.is_some_and(is_fresh) {
            return Ok(false);
        }
        let again = &mut self.again;
        self.index.refresh(letters, &self.desk, again).await?;
        if self.looked_at.is_none() {
            // Those that a worker before this one may have told of without their names are not told again.
            let mut again = std::mem::take(&mut self.again);
            again.retain(|again| !self.task_of(again).is_some_and(Task::tells_no_more));
            self.again = again;
        }
        self.looked_at = Some(Instant::now());
        gauges::show(&self.index, letters.backends.clock.now());
        Ok(true)
    }

    /// The task that redrove the parent of a letter.
    fn task_of(&self, again: &Again) -> Option<&Task> {
        match self.desk.status(&again.parent) {
            Status::Redriven { task, .. } => self.desk.task(task),
            Status::Open | Status::Discarded { .. } => None,
        }
    }

    /// What is to be said before anything is done: which letters died again, that a task is paused because of
    /// them, and what the log has dropped: that only after a look, as the desk may know of newer letters else.
    /// Asked anew when that has come back.
    fn news(&mut self, has_looked: bool) -> Vec<Act> {
        let mut died: BTreeMap<TaskId, Vec<Again>> = BTreeMap::new();
        let mut again = std::mem::take(&mut self.again);
        again.retain(|again| {
            if let Some(task) = self
                .task_of(again)
                .filter(|task| task.is_news(&again.letter))
            {
                let letters = died.entry(task.id().clone()).or_default();
                letters.push(again.clone());
                return true;
            }
            self.is_coming(again)
        });
        self.again = again;
        let mut news = Vec::new();
        for (task, letters) in died {
            news.extend(letters.chunks(NAMED).map(|again| Act::DiedAgain {
                task: task.clone(),
                letters: again.iter().map(|again| again.letter.clone()).collect(),
                parents: again.iter().map(|again| again.parent.clone()).collect(),
            }));
        }
        if news.is_empty() {
            news.extend(self.desk.failing().map(pause));
        }
        let forgotten = match has_looked {
            true => self.index.forgotten(&self.desk, FORGOTTEN),
            false => Vec::new(),
        };
        news.extend(forgotten.chunks(NAMED).map(|letters| Act::Forgotten {
            letters: letters.to_vec(),
        }));
        news
    }

    /// Its parent is about to be done: the entry that says so comes soon.
    fn is_coming(&self, again: &Again) -> bool {
        self.desk.is_claimed(&again.parent)
    }

    /// The news are in the log.
    fn told(&mut self) {
        let again = std::mem::take(&mut self.again).into_iter();
        self.again = again.filter(|again| self.is_coming(again)).collect();
    }

    /// What is to be published for a letter, or what becomes of it without that.
    async fn prepare(
        &self,
        letters: &DeadLetters,
        work: Work,
        letter: &str,
        now: Timestamp,
    ) -> Result<Prepared> {
        if let Err(outcome) = self.desk.may(work, letter, now) {
            return Ok(Err(outcome));
        }
        match work {
            Work::Restore => Ok(Err(Outcome::Restored)),
            Work::Discard => match self.index.has(letters, letter).await? {
                true => Ok(Err(Outcome::Discarded)),
                false => Ok(Err(Outcome::NoSuchLetter)),
            },
            Work::Redrive => match self.index.find(letters, letter).await? {
                Some(found) => letters.record_again(&self.desk, &found).await,
                None => Ok(Err(Outcome::NoSuchLetter)),
            },
        }
    }
}

/// A task pauses by itself.
fn pause(task: &Task) -> Act {
    let (redriven, died_again) = task.fresh();
    Act::Paused {
        task: task.id().clone(),
        why: format!("{died_again} of {redriven} that were redriven died again"),
        by_itself: true,
    }
}

impl DeadLetters {
    /// The end of a partition now.
    async fn place(&self, partition: Partition) -> Result<Place> {
        let (_, end) = self.backends.queue.bounds(partition).await?;
        Ok(Place {
            topic: partition.topic,
            partition: partition.number,
            from: end,
        })
    }

    /// The letters of these claims whose records are in the log, with their topics and values: each partition is
    /// read once, from its first claim on.
    async fn published(&self, claims: &[&Claim]) -> Result<BTreeMap<String, (Topic, Bytes)>> {
        let mut places: BTreeMap<Partition, u64> = BTreeMap::new();
        for place in claims.iter().filter_map(|claim| claim.to) {
            let partition = Partition {
                topic: place.topic,
                number: place.partition,
            };
            let from = places.entry(partition).or_insert(place.from);
            *from = place.from.min(*from);
        }
        let wanted: BTreeSet<&[u8]> = claims.iter().map(|claim| claim.letter.as_bytes()).collect();
        let mut published = BTreeMap::new();
        for (partition, from) in places {
            let (first, end) = self.backends.queue.bounds(partition).await?;
            let mut next = from.max(first);
            while next < end {
                let queue = &*self.backends.queue;
                let (records, behind) = read_on(queue, partition, next, PAGE).await?;
                next = behind;
                for record in records {
                    let name = record
                        .header(LETTER)
                        .filter(|name| wanted.contains(&name[..]));
                    if let Some(name) = name.map(|name| String::from_utf8_lossy(name).into_owned())
                    {
                        published.insert(name, (partition.topic, record.value));
                    }
                }
            }
        }
        Ok(published)
    }

    async fn publish<'a>(
        &self,
        records: impl IntoIterator<Item = &'a NewRecord>,
    ) -> Vec<Result<u64>> {
        let records: Vec<NewRecord> = records.into_iter().cloned().collect();
        self.backends.queue.producer().publish(records).await
    }

    /// Says in the ledger of its message that a letter was redriven, for those whom its record is for. The time
    /// is from before it was published, as a carrier may have settled it by now.
    async fn mark(&self, owned: &Owned, claim: &Claim, topic: Topic, value: &Bytes) -> Result<()> {
        let found = owned.index.find(self, &claim.letter).await?;
        let letter = found.map(|found| found.letter);
        let kind = match topic {
            Topic::Notification => Kind::Notification,
            _ => Kind::Message,
        };
        let sent = Sent::of(kind, value);
        let named = letter.as_ref().and_then(|letter| letter.message);
        let Some(message) = sent.message.or(named) else {
            return Ok(());
        };
        let entry = |target| LedgerEntry {
            message,
            at: claim.at,
            target,
            event: Event::Redriven {
                letter: claim.letter.clone(),
            },
        };
        let targets = sent.on_its_way(letter.as_ref()).into_iter();
        let entries = targets.map(entry).collect();
        self.backends.ledger.append(entries).await
    }
}

#[cfg(test)]
mod tests {
    use protocol::desk::{Edited, Spot, Version};

    use super::*;

    /// It died after the last look, and was edited since.
    #[test]
    fn what_is_newer_than_the_last_look_is_not_forgotten() {
        let mut owned = Owned::default();
        owned.read(&Entry {
            at: Timestamp::from_millis(1),
            by: "ann".to_owned(),
            act: Act::Edited(Edited {
                letter: "message-0-1".to_owned(),
                base: Version::of(b"a"),
                version: Version::of(b"b"),
                at: Spot {
                    topic: Topic::Dead,
                    partition: 0,
                    offset: 2,
                },
                fields: Vec::new(),
                why: String::new(),
            }),
        });
        assert_eq!(owned.news(false), []);
        let letters = vec!["message-0-1".to_owned()];
        assert_eq!(owned.news(true), [Act::Forgotten { letters }]);
    }
}
