//! Carries out the tasks of operators, in one process at a time: the owner of the log of
//! operations.
//!
//! ```text
//! letters in hand ─▶ publish their records ─▶ ledger: redriven ─▶ done (in the log)
//! ```
//!
//! The owner's knowledge comes back to it from the log, so that the next owner knows the same. An
//! owner that dies before the log says *done* leaves the letters in hand to its successor, which
//! publishes their records again. So does a worker that lost its partition and does not know it
//! yet. Both records have the same id, and are shown once.

mod gauges;
mod index;

use std::collections::BTreeMap;
use std::time::Duration;

use backend::Error;
use backend::queue::{Consumer, NewRecord, Polled};
use bytes::Bytes;
use protocol::Timestamp;
use protocol::keys::Topic;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::index::{Again, Index};
use super::log_view::{self, OPERATIONS};
use super::recipients::RecordSubject;
use super::rules::{
    LetterStatus, OperationEntry, Operations, OperatorAction, OperatorTask, OperatorWork, TaskId,
    TaskOutcome,
};
use super::types::Kind;
use super::{DeadLetters, Result};

/// The consumer group of workers.
const GROUP: &str = "desk";
/// Entries of one poll.
const POLL: usize = 500;
/// Letters named in one entry, and letters reported in one round as dropped by the log.
const LETTERS_PER_ENTRY: usize = 500;
const FORGOTTEN: usize = 20 * LETTERS_PER_ENTRY;
/// Interval of looking for new letters while there is nothing to do.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a failure.
const REST: Duration = Duration::from_secs(1);

impl DeadLetters {
    /// Works until `stop`, whenever this process owns the log of operations. `name` signs its
    /// entries.
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
    owner: Option<OwnerState>,
}

/// Knowledge of the owner.
struct OwnerState {
    operations: Operations,
    /// Offset of the next entry.
    next: u64,
    /// Entries before this offset were there when the partition came, or are the owner's own.
    end: u64,
    index: Index,
    /// New letters whose parents are about to be done, or that are not reported yet.
    repeat_deaths: Vec<Again>,
    /// Time of the last look for new letters.
    looked_at: Option<Instant>,
    /// Records that the owner published for letters in hand: published once, whatever fails behind.
    published_letters: BTreeMap<String, PublishedLetter>,
}

/// Record of a letter and its outcome once published, or its outcome without a record.
type PreparedLetter = Result<(NewRecord, TaskOutcome), TaskOutcome>;

struct PublishedLetter {
    /// Time before it was published: a carrier may have settled it by now.
    at: Timestamp,
    topic: Topic,
    value: Bytes,
    outcome: TaskOutcome,
}

impl Worker {
    fn new(letters: DeadLetters, name: String, consumer: Box<dyn Consumer>) -> Worker {
        Worker {
            letters,
            name,
            consumer,
            owner: None,
        }
    }

    async fn run(mut self) {
        gauges::rest();
        loop {
            let next_pause = match self.step().await {
                Ok(next_pause) => next_pause,
                Err(error) => {
                    tracing::warn!(%error, source = %error.source, "dead-letter tasks are waiting \
                                                                    for a store or the log");
                    self.rest(REST).await;
                    continue;
                }
            };
            match next_pause {
                Some(pause) => self.rest(pause).await,
                None => drop(timeout(LOOK_INTERVAL, self.poll()).await),
            }
        }
    }

    /// Pauses, and stays a member of the group meanwhile.
    async fn rest(&mut self, pause: Duration) {
        let deadline = Instant::now() + pause;
        while timeout_at(deadline, self.poll()).await.is_ok() {}
    }

    /// Polls the log of operations. Cancel safe, as the consumer's own poll is.
    async fn poll(&mut self) {
        match self.consumer.poll(POLL).await {
            Ok(Polled::Records(records)) => {
                let Some(owner) = &mut self.owner else { return };
                for record in &records {
                    if let Some(entry) = log_view::entry(record) {
                        owner.read(&entry);
                    }
                    owner.next = record.offset + 1;
                }
            }
            Ok(Polled::Assigned(partitions)) => {
                if partitions.contains(&OPERATIONS) {
                    self.owner = Some(OwnerState::default());
                }
            }
            Ok(Polled::Revoked(_) | Polled::Lost(_)) => {
                self.owner = None;
                gauges::rest();
            }
            Err(error) => {
                tracing::warn!(%error, source = %error.source, "the log of operations does not answer");
                sleep(REST).await;
            }
        }
    }

    /// Does the next thing, and returns the pause after it; `None` if there is nothing to do now.
    async fn step(&mut self) -> Result<Option<Duration>> {
        let Some(owner) = &mut self.owner else {
            return Ok(None);
        };
        if owner.end == u64::MAX {
            let (first, end) = self.letters.backends.queue.bounds(OPERATIONS).await?;
            owner.end = end;
            owner.next = owner.next.max(first);
        }
        if owner.next < owner.end {
            return Ok(None);
        }
        let has_looked = owner.look(&self.letters).await?;
        let news = owner.news(has_looked);
        if !news.is_empty() {
            self.say(news).await?;
            if let Some(owner) = &mut self.owner {
                owner.drop_reported();
            }
            return Ok(Some(Duration::ZERO));
        }
        let Some((task, letters)) = owner.operations.next() else {
            return Ok(None);
        };
        let (id, work, pace) = (task.id().clone(), task.start.work, task.start.pace);
        let count = letters.len() as u32;
        self.process(&id, work, letters).await?;
        if work != OperatorWork::Redrive {
            return Ok(Some(Duration::ZERO));
        }
        Ok(Some(
            Duration::from_secs(1) * count / pace.per_second.max(1),
        ))
    }

    /// Publishes the records of these letters, then writes the outcomes.
    async fn process(
        &mut self,
        task: &TaskId,
        work: OperatorWork,
        letters: Vec<String>,
    ) -> Result<()> {
        let Some(owner) = &mut self.owner else {
            return Ok(());
        };
        // Of letters of an earlier version's task, which a cancel can put aside in between.
        (owner.published_letters).retain(|published, _| letters.contains(published));
        let now = self.letters.backends.clock.now();
        let mut outcomes = Vec::with_capacity(letters.len());
        let mut records = Vec::new();
        for letter in &letters {
            if owner.published_letters.contains_key(letter) {
                continue;
            }
            match owner.prepare(&self.letters, work, letter, now).await? {
                Ok((record, outcome)) => records.push((letter.clone(), record, outcome)),
                Err(outcome) => outcomes.push((letter.clone(), outcome)),
            }
        }
        let failure = owner.publish(&self.letters, now, records).await;
        for letter in letters {
            if let Some(published) = owner.published_letters.get(&letter) {
                self.letters.mark(&owner.index, &letter, published).await?;
                outcomes.push((letter, published.outcome));
            }
        }
        for (letter, outcome) in &outcomes {
            tracing::info!(%task, letter, ?outcome, "dead letter handled");
        }
        if !outcomes.is_empty() {
            let task = task.clone();
            let ends: Vec<TaskOutcome> = outcomes.iter().map(|(_, outcome)| *outcome).collect();
            self.say(vec![OperatorAction::Done { task, outcomes }])
                .await?;
            if work == OperatorWork::Redrive {
                ends.into_iter().for_each(gauges::count_redriven);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Writes entries. The worker does nothing more until it has read them back from the log.
    async fn say(&mut self, acts: Vec<OperatorAction>) -> Result<()> {
        let offset = self.letters.say(&self.name, acts).await?;
        if let Some(owner) = &mut self.owner {
            owner.end = owner.end.max(offset + 1);
        }
        Ok(())
    }
}

impl Default for OwnerState {
    fn default() -> OwnerState {
        OwnerState {
            operations: Operations::default(),
            next: 0,
            // Not known yet.
            end: u64::MAX,
            index: Index::new(),
            repeat_deaths: Vec::new(),
            looked_at: None,
            published_letters: BTreeMap::new(),
        }
    }
}

impl OwnerState {
    fn read(&mut self, entry: &OperationEntry) {
        self.operations.read(entry);
        if let OperatorAction::Done { outcomes, .. } = &entry.act {
            for (letter, _) in outcomes {
                self.index.settle(letter, &self.operations);
                self.published_letters.remove(letter);
            }
        }
    }

    /// Refreshes the index: before anything is done, and now and then while nothing is. Returns
    /// true if it looked.
    async fn look(&mut self, letters: &DeadLetters) -> Result<bool> {
        let is_fresh = |at: Instant| at.elapsed() < LOOK_INTERVAL;
        if self.operations.next().is_none() && self.looked_at.is_some_and(is_fresh) {
            return Ok(false);
        }
        let repeat_deaths = &mut self.repeat_deaths;
        self.index
            .refresh(letters, &self.operations, repeat_deaths)
            .await?;
        if self.looked_at.is_none() {
            // Letters that an earlier worker may have reported without their names are not reported
            // again.
            let mut repeat_deaths = std::mem::take(&mut self.repeat_deaths);
            repeat_deaths.retain(|repeat_death| {
                !self
                    .find_task(repeat_death)
                    .is_some_and(OperatorTask::tells_no_more)
            });
            self.repeat_deaths = repeat_deaths;
        }
        self.looked_at = Some(Instant::now());
        gauges::show(&self.index, letters.backends.clock.now());
        Ok(true)
    }

    /// Task that redrove the parent of a letter.
    fn find_task(&self, repeat_death: &Again) -> Option<&OperatorTask> {
        match self.operations.status(&repeat_death.parent) {
            LetterStatus::Redriven { task, .. } => self.operations.task(task),
            LetterStatus::Open | LetterStatus::Discarded { .. } => None,
        }
    }

    /// Entries to write before anything is done: letters that died again, a task that pauses
    /// because of them, and letters that the log has dropped. The last only after a look, as the
    /// desk may otherwise know of newer letters. Asked anew once these have come back.
    fn news(&mut self, has_looked: bool) -> Vec<OperatorAction> {
        let mut letters_by_task: BTreeMap<TaskId, Vec<Again>> = BTreeMap::new();
        let mut repeat_deaths = std::mem::take(&mut self.repeat_deaths);
        repeat_deaths.retain(|repeat_death| {
            if let Some(task) = self
                .find_task(repeat_death)
                .filter(|task| task.is_news(&repeat_death.letter))
            {
                let letters = letters_by_task.entry(task.id().clone()).or_default();
                letters.push(repeat_death.clone());
                return true;
            }
            self.is_coming(repeat_death)
        });
        self.repeat_deaths = repeat_deaths;
        let mut news = Vec::new();
        for (task, letters) in letters_by_task {
            news.extend(letters.chunks(LETTERS_PER_ENTRY).map(|repeat_deaths| {
                OperatorAction::DiedAgain {
                    task: task.clone(),
                    letters: repeat_deaths
                        .iter()
                        .map(|repeat_death| repeat_death.letter.clone())
                        .collect(),
                    parents: repeat_deaths
                        .iter()
                        .map(|repeat_death| repeat_death.parent.clone())
                        .collect(),
                }
            }));
        }
        if news.is_empty() {
            news.extend(self.operations.failing().map(pause));
        }
        let forgotten_letters = if has_looked {
            self.index.find_forgotten(&self.operations, FORGOTTEN)
        } else {
            Vec::new()
        };
        news.extend(forgotten_letters.chunks(LETTERS_PER_ENTRY).map(|letters| {
            OperatorAction::Forgotten {
                letters: letters.to_vec(),
            }
        }));
        news
    }

    /// Whether the parent is about to be done: the entry that says so comes soon.
    fn is_coming(&self, repeat_death: &Again) -> bool {
        self.operations.is_in_hand(&repeat_death.parent)
    }

    /// Drops the letters whose repeated death is logged by now.
    fn drop_reported(&mut self) {
        let repeat_deaths = std::mem::take(&mut self.repeat_deaths).into_iter();
        self.repeat_deaths = repeat_deaths
            .filter(|repeat_death| self.is_coming(repeat_death))
            .collect();
    }

    /// Publishes records of letters, and notes those that the log has. Returns the failure of one.
    async fn publish(
        &mut self,
        letters: &DeadLetters,
        at: Timestamp,
        records: Vec<(String, NewRecord, TaskOutcome)>,
    ) -> Option<Error> {
        let new_records = records.iter().map(|(_, record, _)| record.clone());
        let producer = letters.backends.queue.producer();
        let answers = producer.publish(new_records.collect()).await;
        let mut failure = None;
        for ((letter, record, outcome), answer) in records.into_iter().zip(answers) {
            match answer {
                Ok(_) => {
                    let published_letter = PublishedLetter {
                        at,
                        topic: record.partition.topic,
                        value: record.value,
                        outcome,
                    };
                    self.published_letters.insert(letter, published_letter);
                }
                Err(error) => failure = Some(error),
            }
        }
        failure
    }

    /// Record to publish for a letter, or its outcome without one.
    async fn prepare(
        &self,
        letters: &DeadLetters,
        work: OperatorWork,
        letter: &str,
        now: Timestamp,
    ) -> Result<PreparedLetter> {
        if let Err(outcome) = self.operations.may(work, letter, now) {
            return Ok(Err(outcome));
        }
        match work {
            OperatorWork::Restore => Ok(Err(TaskOutcome::Restored)),
            OperatorWork::Discard => {
                if self.index.has(letters, letter).await? {
                    Ok(Err(TaskOutcome::Discarded))
                } else {
                    Ok(Err(TaskOutcome::NoSuchLetter))
                }
            }
            OperatorWork::Redrive => match self.index.find(letters, letter).await? {
                Some(found) => letters.record_again(&self.operations, &found).await,
                None => Ok(Err(TaskOutcome::NoSuchLetter)),
            },
        }
    }
}

/// Entry by which a task pauses by itself.
fn pause(task: &OperatorTask) -> OperatorAction {
    let (redriven_count, died_again_count) = task.fresh();
    OperatorAction::Paused {
        task: task.id().clone(),
        why: format!("{died_again_count} of {redriven_count} redriven letters died again"),
        by_itself: true,
    }
}

impl DeadLetters {
    /// Marks a letter as redriven in the ledger of its message, for the targets of its record.
    async fn mark(&self, index: &Index, id: &str, published: &PublishedLetter) -> Result<()> {
        let located_letter = index.find(self, id).await?;
        let letter = located_letter.map(|located_letter| located_letter.letter);
        let kind = match published.topic {
            Topic::Notification => Kind::Notification,
            _ => Kind::Message,
        };
        let subject = RecordSubject::of(kind, &published.value);
        let letter_message = letter.as_ref().and_then(|letter| letter.message);
        let Some(message) = subject.message.or(letter_message) else {
            return Ok(());
        };
        let entry = |target| LedgerEntry {
            message,
            at: published.at,
            target,
            event: LedgerEvent::Redriven {
                letter: id.to_owned(),
            },
        };
        let targets = subject.on_its_way(letter.as_ref()).into_iter();
        let entries = targets.map(entry).collect();
        self.backends.ledger.append(entries).await
    }
}

#[cfg(test)]
mod tests {
    use crate::dead_letters::rules::{EditPosition, EditedLetter, Version};

    use super::*;

    /// The letter died after the last look, and was edited since.
    #[test]
    fn entries_after_the_last_look_are_not_forgotten() {
        let mut owner = OwnerState::default();
        owner.read(&OperationEntry {
            at: Timestamp::from_millis(1),
            by: "ann".to_owned(),
            act: OperatorAction::Edited(EditedLetter {
                letter: "message-0-1".to_owned(),
                base: Version::of(b"a"),
                version: Version::of(b"b"),
                at: EditPosition {
                    topic: Topic::Dead,
                    partition: 0,
                    offset: 2,
                },
                fields: Vec::new(),
                why: String::new(),
            }),
        });
        assert_eq!(owner.news(false), []);
        let letters = vec!["message-0-1".to_owned()];
        assert_eq!(owner.news(true), [OperatorAction::Forgotten { letters }]);
    }
}
