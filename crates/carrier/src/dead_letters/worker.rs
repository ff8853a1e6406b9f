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

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::dead_letter::Origin;
use backend::queue::{Consumer, NewRecord, Partition, Polled};
use protocol::desk::{Act, Claim, Desk, Outcome, Place, Step, TaskId, Work};
use protocol::ledger::{Event, LedgerEntry};
use protocol::{MessageId, Timestamp};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use self::index::{Died, Index};
use super::view::{self, OPERATIONS};
use super::{DeadLetters, Found, LETTER, Result};

/// The consumer group of workers.
const GROUP: &str = "desk";
/// Entries of one poll.
const POLL: usize = 500;
/// Letters claimed at a time at most; at lower speeds a quarter of what goes in a second.
const BATCH: usize = 50;
/// Records read at a time while looking for one.
const PAGE: usize = 200;
/// How long a failure is rested.
const REST: Duration = Duration::from_secs(1);

impl DeadLetters {
    /// Works until `stop`, whenever this process owns the log of operations. `name` is what it signs with.
    pub async fn work(self, name: String, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.work_on(name)).await;
    }

    async fn work_on(self, name: String) {
        loop {
            match self.parts.queue.subscribe(GROUP, OPERATIONS.topic).await {
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
    /// Records of its own claims.
    prepared: BTreeMap<String, Prepared>,
    watch: Watch,
}

/// A letter's record and what becomes of it then, or what becomes of it without one.
type Prepared = Result<(NewRecord, Outcome), Outcome>;

/// What became of the records that the task at hand sent on their way again.
#[derive(Default)]
struct Watch {
    task: Option<TaskId>,
    redriven: u64,
    records: BTreeSet<Origin>,
    messages: BTreeSet<MessageId>,
    died_again: u64,
}

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
                None => self.poll().await,
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
                        owned.desk.read(&entry);
                    }
                    owned.next = record.offset + 1;
                }
            }
            Ok(Polled::Assigned(partitions)) => {
                if partitions.contains(&OPERATIONS) {
                    self.owned = Some(Owned::default());
                }
            }
            Ok(Polled::Revoked(_) | Polled::Lost(_)) => self.owned = None,
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
            let (first, end) = self.letters.parts.queue.bounds(OPERATIONS).await?;
            owned.end = end;
            owned.next = owned.next.max(first);
        }
        if owned.next < owned.end {
            return Ok(None);
        }
        match owned.desk.next(BATCH) {
            None => {
                // What it remembers of letters is made anew for the next task.
                owned.index = Index::default();
                Ok(None)
            }
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
                self.look_back(&id).await?;
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
        owned.refresh(&self.letters).await?;
        let now = self.letters.parts.clock.now();
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
            });
            owned.prepared.insert(letter, prepared);
        }
        self.say(Act::Claimed { task, claims }).await
    }

    /// Carries out claims: its own, and those that somebody before it left.
    async fn finish(&mut self, task: &TaskId, work: Work, claims: Vec<Claim>) -> Result<()> {
        let Some(owned) = &mut self.owned else {
            return Ok(());
        };
        let now = self.letters.parts.clock.now();
        let is_left = |claim: &&Claim| !owned.prepared.contains_key(&claim.letter);
        let left: Vec<&Claim> = claims.iter().filter(is_left).collect();
        let published = self.letters.published(&left).await?;
        if !left.is_empty() {
            owned.refresh(&self.letters).await?;
        }
        let mut outcomes = Vec::with_capacity(claims.len());
        let mut records = Vec::new();
        for claim in claims {
            let prepared = match owned.prepared.remove(&claim.letter) {
                Some(prepared) => prepared,
                None => {
                    let letter = &claim.letter;
                    owned.prepare(&self.letters, work, letter, now).await?
                }
            };
            match prepared {
                // Somebody before had come so far.
                Ok((_, outcome)) if published.contains(&claim.letter) => {
                    self.letters.mark(owned, &claim.letter, claim.at).await?;
                    outcomes.push((claim.letter, outcome));
                }
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
                Ok(offset) => {
                    let message = self.letters.mark(owned, &claim.letter, claim.at).await?;
                    let origin = Origin {
                        topic: record.partition.topic,
                        partition: record.partition.number,
                        offset,
                    };
                    owned.watch.redriven(task, origin, message);
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
            self.say(Act::Done { task, outcomes }).await?;
        }
        match failed {
            // It is claimed, and looked for when its turn comes again.
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Pauses a task of which too much has died again.
    async fn look_back(&mut self, task: &TaskId) -> Result<()> {
        let Some(owned) = &mut self.owned else {
            return Ok(());
        };
        owned.refresh(&self.letters).await?;
        let watch = &owned.watch;
        let pace = owned.desk.task(task).map(|task| task.begun.pace);
        if !pace.is_some_and(|pace| pace.is_exceeded(watch.redriven, watch.died_again)) {
            return Ok(());
        }
        let why = format!(
            "{} of {} that were redriven died again",
            watch.died_again, watch.redriven
        );
        owned.watch = Watch::default();
        let task = task.clone();
        self.say(Act::Paused { task, why }).await
    }

    /// Writes an entry; nothing more is done until it has come back.
    async fn say(&mut self, act: Act) -> Result<()> {
        let offset = self.letters.say(&self.name, vec![act]).await?;
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
            index: Index::default(),
            prepared: BTreeMap::new(),
            watch: Watch::default(),
        }
    }
}

impl Owned {
    /// Knows the letters of now.
    async fn refresh(&mut self, letters: &DeadLetters) -> Result<()> {
        let died = self.index.refresh(letters).await?;
        self.watch.look_at(&died);
        Ok(())
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
            Work::Discard if self.index.has(letter) => Ok(Err(Outcome::Discarded)),
            Work::Discard => Ok(Err(Outcome::NoSuchLetter)),
            Work::Redrive => match self.index.find(letters, letter).await? {
                Some(found) => letters.record_again(&found).await,
                None => Ok(Err(Outcome::NoSuchLetter)),
            },
        }
    }
}

impl Watch {
    fn redriven(&mut self, task: &TaskId, record: Origin, message: Option<MessageId>) {
        if self.task.as_ref() != Some(task) {
            *self = Watch {
                task: Some(task.clone()),
                ..Watch::default()
            };
        }
        self.redriven += 1;
        self.records.insert(record);
        self.messages.extend(message);
    }

    /// These died since; what went through the retry topics is known by its message.
    fn look_at(&mut self, died: &[Died]) {
        let again = died.iter().filter(|died| {
            let message = died
                .message
                .is_some_and(|message| self.messages.contains(&message));
            message || self.records.contains(&died.origin)
        });
        let again = again.count() as u64;
        self.died_again += again;
    }
}

impl DeadLetters {
    /// The end of a partition now.
    async fn place(&self, partition: Partition) -> Result<Place> {
        let (_, end) = self.parts.queue.bounds(partition).await?;
        Ok(Place {
            topic: partition.topic,
            partition: partition.number,
            from: end,
        })
    }

    /// The letters of these claims whose records are in the log: each partition is read once, from its first
    /// claim on.
    async fn published(&self, claims: &[&Claim]) -> Result<BTreeSet<String>> {
        let mut places: BTreeMap<Partition, u64> = BTreeMap::new();
        for place in claims.iter().filter_map(|claim| claim.to) {
            let partition = Partition {
                topic: place.topic,
                number: place.partition,
            };
            let from = places.entry(partition).or_insert(place.from);
            *from = place.from.min(*from);
        }
        let mut published = BTreeSet::new();
        for (partition, from) in places {
            let (first, end) = self.parts.queue.bounds(partition).await?;
            let mut next = from.max(first);
            while next < end {
                let records = self.parts.queue.read(partition, next, PAGE).await?;
                let Some(last) = records.last() else { break };
                next = last.offset + 1;
                let letters = records.iter().filter_map(|record| record.header(LETTER));
                published.extend(letters.map(|name| String::from_utf8_lossy(name).into_owned()));
            }
        }
        Ok(published)
    }

    async fn publish<'a>(
        &self,
        records: impl IntoIterator<Item = &'a NewRecord>,
    ) -> Vec<Result<u64>> {
        let records: Vec<NewRecord> = records.into_iter().cloned().collect();
        self.parts.queue.producer().publish(records).await
    }

    /// Says in the ledger of its message that a letter was redriven; `at` is from before it was published,
    /// as a carrier may have settled it by now. Answers the message.
    async fn mark(&self, owned: &Owned, letter: &str, at: Timestamp) -> Result<Option<MessageId>> {
        let Some(Found { letter, .. }) = owned.index.find(self, letter).await? else {
            return Ok(None);
        };
        let Some(message) = letter.message else {
            return Ok(None);
        };
        let entry = |target| LedgerEntry {
            message,
            at,
            target,
            event: Event::Redriven {
                letter: letter.id(),
            },
        };
        let entries = match &letter.targets[..] {
            [] => vec![entry(None)],
            targets => targets.iter().map(|target| entry(Some(*target))).collect(),
        };
        self.parts.ledger.append(entries).await?;
        Ok(Some(message))
    }
}
