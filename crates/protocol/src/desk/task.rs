//! What an operator asked for, and how far it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Act, Claim, Entry};
use crate::keys::Topic;
use crate::{Code, Refusal, Timestamp};

/// Outcomes that a task tells letter by letter; of more it tells the numbers.
const TOLD: usize = 1000;
/// Bytes of what an operator says.
const TEXT_MAX: usize = 500;
/// Before so many were redriven, a share says nothing.
const SAMPLE: u64 = 20;

/// The name of a task, chosen by who asks for it: a repeat of the request is no second task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskId(String);

impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<TaskId, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match text.len() {
            1..=64 if text.chars().all(fits) => Ok(TaskId(text.to_owned())),
            _ => Err(format!(
                "{text:?} is no name of a task: 1 to 64 letters, digits, - and _"
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Send letters on their way again.
    Redrive,
    /// Put letters away.
    Discard,
    /// Take back a discard.
    Restore,
}

impl Work {
    pub const fn name(self) -> &'static str {
        match self {
            Work::Redrive => "redrive",
            Work::Discard => "discard",
            Work::Restore => "restore",
        }
    }
}

/// How fast, and when to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// Letters a second.
    pub per_second: u32,
    /// Pause when more than this percentage of what was redriven has died again.
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
    /// Whether too much of what was redriven has died again to go on.
    pub fn is_exceeded(&self, redriven: u64, died_again: u64) -> bool {
        redriven >= SAMPLE
            && died_again.saturating_mul(100) > redriven.saturating_mul(self.pause_above.into())
    }
}

/// The request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub task: TaskId,
    pub work: Work,
    /// How many will be named.
    pub letters: u64,
    pub pace: Pace,
    /// Which letters were meant, for people.
    pub about: String,
    /// The operator's reason.
    pub why: String,
}

impl Begun {
    pub(super) fn check(&self, letters_max: usize) -> Result<(), Refusal> {
        let refuse = |text: String| Err(Refusal::new(Code::InvalidArgument, text));
        if self.letters == 0 {
            return refuse("no letter matches".to_owned());
        }
        if self.letters > letters_max as u64 {
            return refuse(format!(
                "{} letters; one task takes {letters_max} at most",
                self.letters
            ));
        }
        if !(1..=1000).contains(&self.pace.per_second) {
            return refuse(format!(
                "{} letters a second: 1 to 1000",
                self.pace.per_second
            ));
        }
        if self.pace.pause_above > 100 {
            return refuse(format!("{} of a hundred", self.pace.pause_above));
        }
        if self.why.len() > TEXT_MAX || self.about.len() > TEXT_MAX {
            return refuse(format!("at most {TEXT_MAX} bytes of text"));
        }
        Ok(())
    }
}

/// What became of one letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It had its place: only its delivery is tried again.
    ToRetry,
    /// It had none, and gets one now.
    ToMessage,
    /// Its user is told again.
    ToNotification,
    Discarded,
    Restored,
    /// It was redriven before, and is left alone.
    Before,
    /// It is put away: restore it first.
    IsDiscarded,
    NotDiscarded,
    /// It was discarded too long ago to be restored.
    Final,
    NoSuchLetter,
    /// The letter was too large to keep them, and the log has dropped them since.
    BytesGone,
    /// It names nobody, so there is no partition for it.
    BelongsNowhere,
}

impl Outcome {
    /// Of a letter whose record lies on this topic; `None` where none is sent to.
    pub const fn of_record(topic: Topic) -> Option<Outcome> {
        match topic {
            Topic::Retry(_) => Some(Outcome::ToRetry),
            Topic::Message => Some(Outcome::ToMessage),
            Topic::Notification => Some(Outcome::ToNotification),
            Topic::Dead | Topic::NotificationDead | Topic::Operation => None,
        }
    }

    /// What was asked for was done.
    pub const fn went(self) -> bool {
        self.is_redriven() || matches!(self, Outcome::Discarded | Outcome::Restored)
    }

    /// As it is written down.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::ToRetry => "to_retry",
            Outcome::ToMessage => "to_message",
            Outcome::ToNotification => "to_notification",
            Outcome::Discarded => "discarded",
            Outcome::Restored => "restored",
            Outcome::Before => "before",
            Outcome::IsDiscarded => "is_discarded",
            Outcome::NotDiscarded => "not_discarded",
            Outcome::Final => "final",
            Outcome::NoSuchLetter => "no_such_letter",
            Outcome::BytesGone => "bytes_gone",
            Outcome::BelongsNowhere => "belongs_nowhere",
        }
    }

    pub const fn is_redriven(self) -> bool {
        matches!(
            self,
            Outcome::ToRetry | Outcome::ToMessage | Outcome::ToNotification
        )
    }

    /// As a sentence after the letter's name.
    pub const fn text(self) -> &'static str {
        match self {
            Outcome::ToRetry => "on its way: its delivery is tried again",
            Outcome::ToMessage => "on its way: it will be placed and delivered",
            Outcome::ToNotification => "on its way: its user is told again",
            Outcome::Discarded => "discarded",
            Outcome::Restored => "restored",
            Outcome::Before => "left alone: it was redriven before",
            Outcome::IsDiscarded => "left alone: it is discarded",
            Outcome::NotDiscarded => "left alone: it is not discarded",
            Outcome::Final => "it was discarded too long ago",
            Outcome::NoSuchLetter => "no such letter",
            Outcome::BytesGone => "its bytes are gone: the log has dropped them",
            Outcome::BelongsNowhere => "it names nobody: there is no place for it",
        }
    }
}

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Progress {
    /// Its letters are still being named; one that stays so was broken off, and does nothing.
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

/// A request and what became of its letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub begun: Begun,
    pub by: String,
    pub at: Timestamp,
    pub progress: Progress,
    /// How many came to which end.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// The first of them, letter by letter.
    pub told: Vec<(String, Outcome)>,
    /// How many new letters its letters died again as.
    #[serde(default)]
    pub died_again: u64,
    /// The first of them.
    #[serde(default)]
    pub died_again_as: Vec<String>,
    /// Those of its letters that died again: one of several targets may do so as several.
    #[serde(skip)]
    parents: BTreeSet<String>,
    pub ended_at: Option<Timestamp>,
    /// Letters that were redriven, and of them those that died again, when an operator last let it go on: they were judged then.
    #[serde(skip)]
    judged: (u64, u64),
    #[serde(skip)]
    waiting: VecDeque<String>,
    /// In the order in which they were claimed.
    #[serde(skip)]
    claimed: Vec<Claim>,
    /// While they are being named, by whoever: two requests of one name may run into each other.
    #[serde(skip)]
    named: BTreeSet<String>,
}

impl Task {
    pub(super) fn new(begun: Begun, by: &str, at: Timestamp) -> Task {
        Task {
            begun,
            by: by.to_owned(),
            at,
            progress: Progress::Choosing,
            outcomes: BTreeMap::new(),
            told: Vec::new(),
            died_again: 0,
            died_again_as: Vec::new(),
            parents: BTreeSet::new(),
            judged: (0, 0),
            ended_at: None,
            waiting: VecDeque::new(),
            claimed: Vec::new(),
            named: BTreeSet::new(),
        }
    }

    pub fn id(&self) -> &TaskId {
        &self.begun.task
    }

    pub fn is_over(&self) -> bool {
        matches!(self.progress, Progress::Over | Progress::Cancelled { .. })
            && self.claimed.is_empty()
    }

    /// Letters that came to an end.
    pub fn done_letters(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub fn redriven(&self) -> u64 {
        let redriven = self
            .outcomes
            .iter()
            .filter(|(outcome, _)| outcome.is_redriven());
        redriven.map(|(_, count)| count).sum()
    }

    /// Whether it is to be paused, as too much of what went has died again.
    pub fn is_failing(&self) -> bool {
        let (redriven, died_again) = self.fresh();
        self.progress == Progress::Running && self.begun.pace.is_exceeded(redriven, died_again)
    }

    /// How many letters went, and how many of them died again, since an operator last let it go on.
    pub fn fresh(&self) -> (u64, u64) {
        let (redriven, died_again) = self.judged;
        (
            self.redriven().saturating_sub(redriven),
            self.failed().saturating_sub(died_again),
        )
    }

    /// Letters of it that died again.
    fn failed(&self) -> u64 {
        self.parents.len() as u64
    }

    /// It is not told yet that a letter died again as this one.
    pub fn is_news(&self, letter: &str) -> bool {
        !self.died_again_as.iter().any(|told| told == letter)
    }

    /// No more of those that died again is told by name.
    pub fn tells_no_more(&self) -> bool {
        self.died_again_as.len() >= TOLD
    }

    fn learn_of(&mut self, letter: &str, parent: &str) {
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
        self.progress == Progress::Running && !self.waiting.is_empty()
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &str> {
        self.waiting.iter().map(String::as_str)
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claimed.iter()
    }

    pub(super) fn read(&mut self, entry: &Entry) {
        match (&entry.act, &self.progress) {
            (Act::Chosen { letters, .. }, Progress::Choosing) => {
                for letter in letters {
                    if self.named.insert(letter.clone()) {
                        self.waiting.push_back(letter.clone());
                    }
                }
                if self.named.len() as u64 >= self.begun.letters {
                    self.progress = Progress::Running;
                    self.named.clear();
                }
            }
            (
                Act::DiedAgain {
                    letters, parents, ..
                },
                _,
            ) => {
                for (place, letter) in letters.iter().enumerate() {
                    // Entries of before did not say: each counts for one.
                    self.learn_of(letter, parents.get(place).unwrap_or(letter));
                }
            }
            (Act::Paused { why, .. }, Progress::Running) => {
                self.progress = Progress::Paused {
                    by: entry.by.clone(),
                    why: why.clone(),
                };
            }
            (Act::Resumed { .. }, Progress::Paused { .. }) => {
                self.progress = Progress::Running;
                self.judged = (self.redriven(), self.failed());
                self.end_if_done(entry.at);
            }
            (
                Act::Cancelled { .. },
                Progress::Choosing | Progress::Running | Progress::Paused { .. },
            ) => {
                self.progress = Progress::Cancelled {
                    by: entry.by.clone(),
                };
                self.waiting.clear();
                self.ended_at = Some(entry.at);
            }
            _ => {}
        }
    }

    /// Only what waits can be claimed, so that a letter is done once in a task.
    pub(super) fn claim(&mut self, claim: &Claim) {
        let mut waiting = self.waiting.iter();
        if let Some(place) = waiting.position(|letter| *letter == claim.letter) {
            self.waiting.remove(place);
            self.claimed.push(claim.clone());
        }
    }

    /// Answers whether it was a claim of this task.
    pub(super) fn done(&mut self, letter: &str, outcome: Outcome, at: Timestamp) -> bool {
        let Some(place) = self.claimed.iter().position(|claim| claim.letter == letter) else {
            return false;
        };
        self.claimed.remove(place);
        *self.outcomes.entry(outcome).or_default() += 1;
        if self.told.len() < TOLD {
            self.told.push((letter.to_owned(), outcome));
        }
        self.end_if_done(at);
        true
    }

    fn end_if_done(&mut self, at: Timestamp) {
        let is_done = self.waiting.is_empty() && self.claimed.is_empty();
        if is_done && matches!(self.progress, Progress::Running | Progress::Paused { .. }) {
            self.progress = Progress::Over;
            self.ended_at = Some(at);
        }
    }
}
