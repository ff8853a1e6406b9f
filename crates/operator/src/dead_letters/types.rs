//! Dead letters as the command line and the console show them.

use std::fmt;
use std::str::FromStr;

use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::{MessageId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Cause, Edit, TaskOutcome, Version};
use crate::answer::reason::{self, Reason};
use crate::answer::{List, Time, id};

/// Task that died: a message's, or a notification's.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LetterKind")]
pub enum Kind {
    Message,
    Notification,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Message, Kind::Notification];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Message => "message",
            Kind::Notification => "notification",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Topic that holds its letters.
    pub(super) const fn topic(self) -> Topic {
        match self {
            Kind::Message => Topic::Dead,
            Kind::Notification => Topic::NotificationDead,
        }
    }
}

/// Place among the letters; written `message-0-17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LetterCursor {
    pub kind: Kind,
    pub partition: u32,
    pub offset: u64,
}

impl fmt::Display for LetterCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.kind.name(), self.partition, self.offset)
    }
}

impl FromStr for LetterCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<LetterCursor, String> {
        let parts: Vec<&str> = text.split('-').collect();
        let cursor = match parts[..] {
            [kind, partition, offset] => Kind::from_name(kind)
                .zip(partition.parse().ok())
                .zip(offset.parse().ok()),
            _ => None,
        };
        cursor
            .map(|((kind, partition), offset)| LetterCursor {
                kind,
                partition,
                offset,
            })
            .ok_or_else(|| format!("{text:?} is not a letter position such as message-0-17"))
    }
}

/// Selects the letters that match every condition set here.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    pub kind: Option<Kind>,
    #[serde(with = "reason::or_none")]
    #[schemars(with = "Option<Reason>")]
    pub reason: Option<DeadReason>,
    #[serde(with = "id::or_none")]
    #[schemars(with = "Option<String>")]
    pub message: Option<MessageId>,
    /// In text form: `p:12:34`.
    pub conversation: Option<String>,
    /// User whom the letter misses.
    #[serde(with = "id::or_none")]
    #[schemars(with = "Option<String>")]
    pub user: Option<UserId>,
    /// Given up at this time or later.
    pub since: Option<Time>,
    /// Given up before this time.
    pub until: Option<Time>,
    /// Cause of death, as [`Stats`] reports it.
    pub cause: Option<Cause>,
    /// Part of the error.
    pub text: Option<String>,
    pub redriven: Option<bool>,
    pub discarded: Option<bool>,
    /// Includes letters that were discarded so long ago that they are gone.
    pub with_gone: bool,
}

impl Filter {
    pub fn lets_through(&self, letter: &Letter) -> bool {
        self.kind.is_none_or(|kind| kind == letter.kind)
            && self.reason.is_none_or(|reason| reason == letter.reason)
            && self.message.is_none_or(|id| Some(id) == letter.message)
            && (self.conversation.is_none() || self.conversation == letter.conversation)
            && self.user.is_none_or(|user| letter.is_for(user))
            && self.since.is_none_or(|at| letter.last_failed_at >= at)
            && self.until.is_none_or(|at| letter.last_failed_at < at)
            && self
                .cause
                .as_ref()
                .is_none_or(|cause| *cause == letter.cause)
            && (self.text.as_ref()).is_none_or(|text| letter.error.contains(text.as_str()))
            && self.redriven.is_none_or(|is| is == letter.redriven)
            && self.discarded.is_none_or(|is| is == letter.discarded)
            && (self.with_gone || !letter.gone)
    }

    /// Conditions that are set, for people.
    fn words(&self) -> String {
        let text = |condition: &Option<String>| condition.clone();
        let is = |condition: Option<bool>| condition.map(|is| is.to_string());
        let set = [
            ("cause", self.cause.as_ref().map(Cause::to_string)),
            ("conversation", text(&self.conversation)),
            ("discarded", is(self.discarded)),
            ("kind", self.kind.map(|kind| kind.name().to_owned())),
            ("message", self.message.map(|id| id.to_string())),
            ("reason", self.reason.map(|reason| reason.name().to_owned())),
            ("redriven", is(self.redriven)),
            ("since", self.since.map(|at| at.to_string())),
            ("text", text(&self.text)),
            ("until", self.until.map(|at| at.to_string())),
            ("user", self.user.map(|user| user.to_string())),
            ("with_gone", self.with_gone.then(|| "true".to_owned())),
        ];
        let set = set.into_iter();
        let set = set.filter_map(|(name, value)| Some(format!("{name} {}", value?)));
        set.collect::<Vec<_>>().join(", ")
    }
}

/// A dead letter, without its body.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Letter {
    pub id: String,
    pub kind: Kind,
    /// Place among the letters, for parameter `after`: `message-0-17`.
    #[serde(with = "id")]
    #[schemars(with = "String")]
    pub cursor: LetterCursor,
    #[serde(with = "Reason")]
    pub reason: DeadReason,
    pub error: String,
    /// Record that died.
    pub origin_topic: String,
    pub origin_partition: u32,
    pub origin_offset: u64,
    /// Id of its message, if it could be read.
    #[serde(with = "id::or_none")]
    #[schemars(with = "Option<String>")]
    pub message: Option<MessageId>,
    /// Such as `p:12:34`, if it could be read.
    pub conversation: Option<String>,
    /// Targets that miss it, such as `12/ios`; empty if the whole record failed.
    pub targets: Vec<String>,
    pub retry_count: u32,
    pub first_failed_at: Time,
    pub last_failed_at: Time,
    /// Process that gave it up.
    pub carrier: String,
    /// Size of its body.
    pub bytes: usize,
    pub cause: Cause,
    pub redriven: bool,
    pub discarded: bool,
    pub discarded_at: Option<Time>,
    /// Beyond restoring: its body is not shown, and lists skip it.
    pub gone: bool,
    /// Holds an operator's edit.
    pub edited: bool,
    /// Letter whose redrive died again as this one.
    pub parent: Option<String>,
}

impl Letter {
    fn is_for(&self, user: UserId) -> bool {
        let mut users = self
            .targets
            .iter()
            .filter_map(|target| target.split_once('/'));
        users.any(|(name, _)| name.parse() == Ok(user.get()))
    }
}

/// Some letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterPage {
    pub letters: Vec<Letter>,
    /// Place to go on from; `None` at the end.
    pub next: Option<LetterCursor>,
}

/// Everything known about one letter.
#[derive(Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LetterDetail {
    pub letter: Letter,
    pub headers: Vec<LetterHeader>,
    /// Body in words, by its newest edit, if it was asked for; may hold what people wrote to each
    /// other.
    pub body: Option<String>,
    pub edit: Option<LetterEdit>,
}

/// Header of the record of a letter.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LetterHeader {
    pub name: String,
    pub value: String,
}

/// An edit in effect.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LetterEdit {
    /// Operator who made it.
    pub by: String,
    pub at: Time,
    /// Version that was edited.
    pub base: Version,
    /// Version after the edit.
    pub version: Version,
    /// Names of the changed fields.
    pub fields: Vec<String>,
    pub why: String,
}

impl From<&Edit> for LetterEdit {
    fn from(edit: &Edit) -> LetterEdit {
        let edited_letter = &edit.letter;
        LetterEdit {
            by: edit.by.clone(),
            at: edit.at.into(),
            base: edited_letter.base.clone(),
            version: edited_letter.version.clone(),
            fields: edited_letter.fields.clone(),
            why: edited_letter.why.clone(),
        }
    }
}

impl fmt::Debug for LetterDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LetterDetail")
            .field("letter", &self.letter)
            .field("body", &self.body.as_ref().map(protocol::Hidden::of))
            .finish_non_exhaustive()
    }
}

/// Number of letters in a selection, as of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct SelectionCount {
    /// At most 10,000, the limit of one task.
    pub letters: u64,
    /// Whether there are more.
    pub more: bool,
}

/// Counts of letters.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "LetterStats")]
pub struct Stats {
    /// Counts by kind and reason.
    pub reasons: Vec<ReasonSummary>,
    /// Counts by cause, most frequent first; only the first 500 causes that were met.
    pub causes: List<CauseSummary>,
    /// Newer letters that are not counted, as there are too many.
    pub uncounted: u64,
}

/// Letters that died for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ReasonSummary {
    pub kind: Kind,
    #[serde(with = "Reason")]
    pub reason: DeadReason,
    pub summary: Summary,
}

/// Letters that died of the same cause.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct CauseSummary {
    pub kind: Kind,
    pub cause: Cause,
    pub summary: Summary,
    /// Id of one of them.
    pub example: String,
}

/// Counts of some letters, and when they died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "LetterSummary")]
pub struct Summary {
    pub letters: u64,
    pub redriven: u64,
    pub discarded: u64,
    pub oldest: Option<Time>,
    pub newest: Option<Time>,
}

impl Summary {
    pub(super) fn count(&mut self, letter: &Letter) {
        let at = letter.last_failed_at;
        self.letters += 1;
        self.redriven += u64::from(letter.redriven);
        self.discarded += u64::from(letter.discarded);
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
        self.newest = self.newest.max(Some(at));
    }
}

/// Letters that an operation applies to.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Selection {
    /// Letters by id.
    Ids { ids: Vec<String> },
    /// At most `limit` letters that match, oldest first.
    Filter { filter: Filter, limit: usize },
}

impl Selection {
    pub fn ids(ids: Vec<String>) -> Selection {
        Selection::Ids { ids }
    }

    /// Description for the list of tasks.
    pub fn about(&self) -> String {
        match self {
            Selection::Ids { ids } if ids.len() == 1 => ids[0].clone(),
            Selection::Ids { ids } => format!("{} letters by name", ids.len()),
            Selection::Filter { filter, limit } => format!("at most {limit}: {}", filter.words()),
        }
    }
}

/// Outcome for one letter.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LetterOutcome {
    pub id: String,
    pub outcome: TaskOutcome,
}

#[cfg(test)]
mod tests {
    use protocol::Timestamp;

    use super::*;

    #[test]
    fn a_selection_says_its_type_and_describes_itself() {
        let one = Selection::ids(vec!["message-0-1".to_owned()]);
        let json = serde_json::to_string(&one).expect("JSON");
        assert_eq!(json, r#"{"type":"ids","ids":["message-0-1"]}"#);
        assert_eq!(one.about(), "message-0-1");
        let filter_json = r#"{"type":"filter","limit":50,"filter":{"reason":"too_large","user":"7",
            "kind":"message","redriven":false,"since":"2026-03-01T09:00:00Z"}}"#;
        let filter: Selection = serde_json::from_str(filter_json).expect("a selection");
        let description = "at most 50: kind message, reason too-large, redriven false, \
                     since 2026-03-01T09:00:00.000Z, user 7";
        assert_eq!(filter.about(), description);
        let json = serde_json::to_value(&filter).expect("JSON");
        let back: Selection = serde_json::from_value(json).expect("back");
        assert_eq!(back, filter);
        for wrong in [
            r#"{"ids":["message-0-1"]}"#,
            r#"{"type":"filter","limit":1,"filter":{"topic":"message"}}"#,
            r#"{"type":"ids","ids":[],"limit":1}"#,
        ] {
            assert!(serde_json::from_str::<Selection>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_summary_knows_the_first_and_the_last_death() {
        let mut summary = Summary::default();
        let dead_at = |ms| Letter {
            id: "message-0-1".to_owned(),
            kind: Kind::Message,
            cursor: "message-0-1".parse().expect("a place"),
            reason: DeadReason::Expired,
            error: String::new(),
            origin_topic: "message".to_owned(),
            origin_partition: 0,
            origin_offset: 1,
            message: None,
            conversation: None,
            targets: Vec::new(),
            retry_count: 0,
            first_failed_at: Timestamp::ZERO.into(),
            last_failed_at: Time::from_ms(ms),
            carrier: "carrier-1".to_owned(),
            bytes: 0,
            cause: Cause::of(DeadReason::Expired, ""),
            redriven: false,
            discarded: false,
            discarded_at: None,
            gone: false,
            edited: false,
            parent: None,
        };
        for ms in [5, 3, 9] {
            summary.count(&dead_at(ms));
        }
        let times = (summary.oldest.map(Time::ms), summary.newest.map(Time::ms));
        assert_eq!(times, (Some(3), Some(9)));
    }
}
