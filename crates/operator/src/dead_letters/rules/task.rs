//! A task started by an operator, and its progress.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use protocol::keys::Topic;
use protocol::{Code, Refusal, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OperationEntry, OperatorAction};

/// Outcomes that a task lists letter by letter; beyond these it only counts.
const TOLD: usize = 1000;
/// Byte limit of an operator's text.
const TEXT_MAX: usize = 500;
/// Redriven letters below which a failure percentage means nothing.
const SAMPLE: u64 = 20;
/// Letters in hand at most; at a lower pace, those of a quarter of a second.
const LETTERS_IN_HAND_MAX: u32 = 50;

/// Name of a task, chosen by the requester: a repeated request does not start a second task.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct TaskId(String);

impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<TaskId, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match text.len() {
            1..=64 if text.chars().all(fits) => Ok(TaskId(text.to_owned())),
            _ => Err(format!(
                "{text:?} is not a task name: use 1 to 64 letters, digits, - and _"
            )),
        }
    }
}

impl TryFrom<String> for TaskId {
    type Error = String;

    fn try_from(text: String) -> Result<TaskId, String> {
        text.parse()
    }
}

impl From<TaskId> for String {
    fn from(id: TaskId) -> String {
        id.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Work of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TaskWork")]
pub enum OperatorWork {
    /// Publish letters again.
    Redrive,
    /// Put letters away.
    Discard,
    /// Take back a discard.
    Restore,
}

impl OperatorWork {
    pub const fn name(self) -> &'static str {
        match self {
            OperatorWork::Redrive => "redrive",
            OperatorWork::Discard => "discard",
            OperatorWork::Restore => "restore",
        }
    }
}

/// Speed, and when to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// Letters per second.
    pub per_second: u32,
    /// Pause when more than this percentage of the redriven letters has died again.
    pub pause_above: u8,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            per_second: 50,
            pause_above: 20,
        }
    }
}

impl Pace {
    /// Letters to have in hand at a time.
    pub fn batch(&self) -> NonZeroU32 {
        let quarter = (self.per_second / 4).min(LETTERS_IN_HAND_MAX);
        NonZeroU32::new(quarter).unwrap_or(NonZeroU32::MIN)
    }

    /// Whether too many of the redriven letters have died again to go on.
    pub fn is_exceeded(&self, redriven: u64, died_again: u64) -> bool {
        redriven >= SAMPLE
            && died_again.saturating_mul(100) > redriven.saturating_mul(self.pause_above.into())
    }
}

/// The request that starts a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedTask {
    pub task: TaskId,
    pub work: OperatorWork,
    /// Number of letters to follow.
    pub letters: u64,
    pub pace: Pace,
    /// Description of the selected letters, for people.
    pub about: String,
    /// The operator's reason.
    pub why: String,
    /// Letters in hand at a time. Absent in entries of versions whose workers claimed letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<NonZeroU32>,
}

impl StartedTask {
    pub(super) fn check(&self, letters_max: usize) -> Result<(), Refusal> {
        let refuse = |text: String| Err(Refusal::new(Code::InvalidArgument, text));
        if self.letters == 0 {
            return refuse("no letters match".to_owned());
        }
        if self.letters > letters_max as u64 {
            return refuse(format!(
                "{} letters; one task takes at most {letters_max}",
                self.letters
            ));
        }
        if !(1..=1000).contains(&self.pace.per_second) {
            return refuse(format!(
                "{} letters per second: use 1 to 1000",
                self.pace.per_second
            ));
        }
        if self.pace.pause_above > 100 {
            return refuse(format!("{} percent: use 0 to 100", self.pace.pause_above));
        }
        if self.why.len() > TEXT_MAX || self.about.len() > TEXT_MAX {
            return refuse(format!("at most {TEXT_MAX} bytes of text"));
        }
        Ok(())
    }
}

/// Outcome of one letter.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskOutcome {
    /// The message had its position: only delivery is retried.
    ToRetry,
    /// The message had no position, and gets one now.
    ToMessage,
    /// The user is notified again.
    ToNotification,
    Discarded,
    Restored,
    /// Redriven before, so left alone.
    Before,
    /// Discarded, so left alone: restore it first.
    IsDiscarded,
    NotDiscarded,
    /// Discarded too long ago to be restored.
    Final,
    NoSuchLetter,
    /// The letter was too large to keep its bytes, and the log has dropped them since.
    BytesGone,
    /// The letter names no user, so it has no partition.
    BelongsNowhere,
}

impl TaskOutcome {
    /// Outcome of a redrive to this topic; `None` for topics that no redrive writes to.
    pub const fn from_topic(topic: Topic) -> Option<TaskOutcome> {
        match topic {
            Topic::Retry(_) => Some(TaskOutcome::ToRetry),
            Topic::Message => Some(TaskOutcome::ToMessage),
            Topic::Notification => Some(TaskOutcome::ToNotification),
            Topic::Dead | Topic::NotificationDead | Topic::Operation => None,
        }
    }

    /// Whether the letter was redriven, discarded or restored as asked.
    pub const fn is_success(self) -> bool {
        self.is_redriven() || matches!(self, TaskOutcome::Discarded | TaskOutcome::Restored)
    }

    /// Serialized name.
    pub const fn name(self) -> &'static str {
        match self {
            TaskOutcome::ToRetry => "to_retry",
            TaskOutcome::ToMessage => "to_message",
            TaskOutcome::ToNotification => "to_notification",
            TaskOutcome::Discarded => "discarded",
            TaskOutcome::Restored => "restored",
            TaskOutcome::Before => "before",
            TaskOutcome::IsDiscarded => "is_discarded",
            TaskOutcome::NotDiscarded => "not_discarded",
            TaskOutcome::Final => "final",
            TaskOutcome::NoSuchLetter => "no_such_letter",
            TaskOutcome::BytesGone => "bytes_gone",
            TaskOutcome::BelongsNowhere => "belongs_nowhere",
        }
    }

    pub const fn is_redriven(self) -> bool {
        matches!(
            self,
            TaskOutcome::ToRetry | TaskOutcome::ToMessage | TaskOutcome::ToNotification
        )
    }

    /// Predicate of a sentence about the letter.
    pub const fn text(self) -> &'static str {
        match self {
            TaskOutcome::ToRetry => "redriven: delivery will be retried",
            TaskOutcome::ToMessage => "redriven: will be placed and delivered",
            TaskOutcome::ToNotification => "redriven: the user will be notified again",
            TaskOutcome::Discarded => "discarded",
            TaskOutcome::Restored => "restored",
            TaskOutcome::Before => "skipped: already redriven",
            TaskOutcome::IsDiscarded => "skipped: discarded",
            TaskOutcome::NotDiscarded => "skipped: not discarded",
            TaskOutcome::Final => "discarded too long ago",
            TaskOutcome::NoSuchLetter => "no such letter",
            TaskOutcome::BytesGone => "its bytes are no longer in the log",
            TaskOutcome::BelongsNowhere => "names no user: no partition for it",
        }
    }
}

/// State of a task.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "TaskState")]
pub enum Progress {
    /// Letters are still being added. A task that stays in this state was broken off, and does
    /// nothing.
    Choosing,
    Running,
    Paused {
        by: String,
        why: String,
    },
    Cancelled {
        by: String,
    },
    Over,
}

/// A request and the outcomes of its letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorTask {
    pub start: StartedTask,
    pub by: String,
    pub at: Timestamp,
    pub progress: Progress,
    /// Number of letters by outcome.
    pub outcomes: BTreeMap<TaskOutcome, u64>,
    /// First outcomes, letter by letter.
    pub first_outcomes: Vec<(String, TaskOutcome)>,
    /// Number of new letters that letters of this task died again as.
    pub died_again: u64,
    /// First of the new letters.
    pub died_again_as: Vec<String>,
    /// Letters of the task that died again. A letter with several targets may die again as several
    /// letters, so these are fewer than `died_again`.
    parents: BTreeSet<String>,
    pub ended_at: Option<Timestamp>,
    /// Counts of redriven letters and of letters that died again, at the last resume by an
    /// operator, who has judged these.
    judged_counts: (u64, u64),
    pub(super) waiting_letters: VecDeque<String>,
    /// Letters that a worker may be processing, in order.
    pub(super) letters_in_hand: Vec<String>,
    /// Letters named so far, kept while the task is choosing: two requests with the same name may
    /// interleave.
    named_letters: BTreeSet<String>,
}

impl OperatorTask {
    pub(super) fn new(start: StartedTask, by: &str, at: Timestamp) -> OperatorTask {
        OperatorTask {
            start,
            by: by.to_owned(),
            at,
            progress: Progress::Choosing,
            outcomes: BTreeMap::new(),
            first_outcomes: Vec::new(),
            died_again: 0,
            died_again_as: Vec::new(),
            parents: BTreeSet::new(),
            judged_counts: (0, 0),
            ended_at: None,
            waiting_letters: VecDeque::new(),
            letters_in_hand: Vec::new(),
            named_letters: BTreeSet::new(),
        }
    }

    pub fn id(&self) -> &TaskId {
        &self.start.task
    }

    pub fn is_over(&self) -> bool {
        matches!(self.progress, Progress::Over | Progress::Cancelled { .. }) && self.is_at_rest()
    }

    /// Whether nothing happens to its letters until an operator decides.
    pub fn is_at_rest(&self) -> bool {
        let goes_on = matches!(self.progress, Progress::Choosing | Progress::Running);
        !goes_on && self.letters_in_hand.is_empty()
    }

    /// Number of letters with an outcome.
    pub fn done_letters(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub fn redriven_count(&self) -> u64 {
        let redriven_count = self
            .outcomes
            .iter()
            .filter(|(outcome, _)| outcome.is_redriven());
        redriven_count.map(|(_, count)| count).sum()
    }

    /// Whether the task is to be paused: too many of its redriven letters have died again.
    pub fn is_failing(&self) -> bool {
        let (redriven_count, died_again_count) = self.fresh();
        self.progress == Progress::Running
            && self
                .start
                .pace
                .is_exceeded(redriven_count, died_again_count)
    }

    /// Counts of redriven letters and of letters that died again, since the last resume by an
    /// operator.
    pub fn fresh(&self) -> (u64, u64) {
        let (judged_redriven, judged_deaths) = self.judged_counts;
        (
            self.redriven_count().saturating_sub(judged_redriven),
            self.failed_count().saturating_sub(judged_deaths),
        )
    }

    /// Number of the task's letters that died again.
    fn failed_count(&self) -> u64 {
        self.parents.len() as u64
    }

    /// Whether `letter` is not yet listed as one that the task's letters died again as.
    pub fn is_news(&self, letter: &str) -> bool {
        !self
            .died_again_as
            .iter()
            .any(|new_letter| new_letter == letter)
    }

    /// Whether the list of new letters is full.
    pub fn tells_no_more(&self) -> bool {
        self.died_again_as.len() >= TOLD
    }

    fn record_new_letter(&mut self, letter: &str, parent: &str) {
        if !self.is_news(letter) {
            return;
        }
        self.parents.insert(parent.to_owned());
        self.died_again += 1;
        if !self.tells_no_more() {
            self.died_again_as.push(letter.to_owned());
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.progress == Progress::Running && !self.waiting_letters.is_empty()
    }

    /// Next waiting letters, as many as its pace takes in hand.
    pub(super) fn next_letters(&self) -> Vec<String> {
        let batch = self.start.batch.unwrap_or_else(|| self.start.pace.batch());
        let letters = self.waiting_letters.iter();
        letters.take(batch.get() as usize).cloned().collect()
    }

    pub(super) fn read(&mut self, entry: &OperationEntry) {
        match (&entry.act, &self.progress) {
            (OperatorAction::Chosen { letters, .. }, Progress::Choosing) => {
                for letter in letters {
                    if self.named_letters.insert(letter.clone()) {
                        self.waiting_letters.push_back(letter.clone());
                    }
                }
                if self.named_letters.len() as u64 >= self.start.letters {
                    self.progress = Progress::Running;
                    self.named_letters.clear();
                }
            }
            (
                OperatorAction::DiedAgain {
                    letters, parents, ..
                },
                _,
            ) => {
                for (place, letter) in letters.iter().enumerate() {
                    // Older entries name no parents: each letter counts as one.
                    self.record_new_letter(letter, parents.get(place).unwrap_or(letter));
                }
            }
            (OperatorAction::Paused { why: reason, .. }, Progress::Running) => {
                self.progress = Progress::Paused {
                    by: entry.by.clone(),
                    why: reason.clone(),
                };
            }
            (OperatorAction::Resumed { .. }, Progress::Paused { .. }) => {
                self.progress = Progress::Running;
                self.judged_counts = (self.redriven_count(), self.failed_count());
                self.end_if_done(entry.at);
            }
            (
                OperatorAction::Cancelled { .. },
                Progress::Choosing | Progress::Running | Progress::Paused { .. },
            ) => {
                self.progress = Progress::Cancelled {
                    by: entry.by.clone(),
                };
                self.waiting_letters.clear();
                self.ended_at = Some(entry.at);
            }
            _ => {}
        }
    }

    pub(super) fn fill_hand(&mut self) {
        if self.start.batch.is_some() {
            self.letters_in_hand = self.next_letters();
            self.waiting_letters.drain(..self.letters_in_hand.len());
        }
    }

    /// Takes a waiting letter in hand that a worker of an earlier version has claimed.
    pub(super) fn claim(&mut self, letter: &str) {
        if self.start.batch.is_none() && self.remove_waiting(letter) {
            self.letters_in_hand.push(letter.to_owned());
        }
    }

    fn remove_waiting(&mut self, letter: &str) -> bool {
        let mut letters = self.waiting_letters.iter();
        let place = letters.position(|waiting| waiting == letter);
        place
            .and_then(|place| self.waiting_letters.remove(place))
            .is_some()
    }

    /// Records the outcome of a letter. Returns false if the task does not wait for it.
    pub(super) fn done(&mut self, letter: &str, outcome: TaskOutcome, at: Timestamp) -> bool {
        let mut letters = self.letters_in_hand.iter();
        if let Some(place) = letters.position(|in_hand| in_hand == letter) {
            self.letters_in_hand.remove(place);
        } else if self.start.batch.is_some() || !self.remove_waiting(letter) {
            return false;
        }
        *self.outcomes.entry(outcome).or_default() += 1;
        if self.first_outcomes.len() < TOLD {
            self.first_outcomes.push((letter.to_owned(), outcome));
        }
        self.end_if_done(at);
        true
    }

    fn end_if_done(&mut self, at: Timestamp) {
        let is_done = self.waiting_letters.is_empty() && self.letters_in_hand.is_empty();
        if is_done && matches!(self.progress, Progress::Running | Progress::Paused { .. }) {
            self.progress = Progress::Over;
            self.ended_at = Some(at);
        }
    }
}
