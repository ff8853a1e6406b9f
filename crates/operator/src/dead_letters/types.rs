//! Dead letters as the command line and the console show them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::{MessageId, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use crate::desk::{Cause, Edit, TaskOutcome};

/// Task that died: a message's, or a notification's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
            .ok_or_else(|| format!("{text:?} is no place among the letters, as message-0-17 is"))
    }
}

/// Selects the letters that match every condition set here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    pub kind: Option<Kind>,
    #[serde(with = "reason_or_none")]
    pub reason: Option<DeadReason>,
    pub message: Option<MessageId>,
    /// In text form: `p:12:34`.
    pub conversation: Option<String>,
    pub user: Option<UserId>,
    /// Given up at this time or later, in milliseconds since 1970.
    pub since: Option<Timestamp>,
    /// Given up before this time.
    pub until: Option<Timestamp>,
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
    pub fn lets_through(&self, letter: &Listed) -> bool {
        self.kind.is_none_or(|kind| kind == letter.cursor.kind)
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
}

/// One line in a list of letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub id: String,
    pub cursor: LetterCursor,
    #[serde(with = "reason_name")]
    pub reason: DeadReason,
    pub error: String,
    pub origin_topic: String,
    pub origin_partition: u32,
    pub origin_offset: u64,
    pub message: Option<MessageId>,
    pub conversation: Option<String>,
    /// Targets that miss it, such as `12/ios`; empty if the whole record failed.
    pub targets: Vec<String>,
    pub retry_count: u32,
    pub first_failed_at: Timestamp,
    pub last_failed_at: Timestamp,
    pub carrier: String,
    /// Size of its body.
    pub bytes: usize,
    pub cause: Cause,
    pub redriven: bool,
    pub discarded: bool,
    #[serde(default)]
    pub discarded_at: Option<Timestamp>,
    /// Beyond restoring: its body is not shown, and lists skip it.
    #[serde(default)]
    pub gone: bool,
    /// Holds an operator's edit.
    #[serde(default)]
    pub edited: bool,
    /// Letter whose redrive died again as this one.
    #[serde(default)]
    pub parent: Option<String>,
}

impl Listed {
    fn is_for(&self, user: UserId) -> bool {
        let mut users = self
            .targets
            .iter()
            .filter_map(|target| target.split_once('/'));
        users.any(|(name, _)| name.parse() == Ok(user.get()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterPage {
    pub letters: Vec<Listed>,
    /// Place to go on from; `None` at the end.
    pub next: Option<LetterCursor>,
}

/// Everything known about one letter.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterDetail {
    pub letter: Listed,
    pub headers: Vec<(String, String)>,
    /// Readable body, by its newest edit; may hold what people wrote to each other.
    pub body: Option<String>,
    #[serde(default)]
    pub edit: Option<Edit>,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectionCount {
    /// At most 10,000, the limit of one task.
    pub letters: u64,
    pub more: bool,
}

/// Counts of letters by kind, and by name of their reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub messages: BTreeMap<String, Summary>,
    pub notifications: BTreeMap<String, Summary>,
    /// Counts by cause, most frequent first; only the first causes if there are very many.
    pub causes: Vec<CauseSummary>,
    /// Newer letters left out of the counts, as there are too many.
    pub left_off: u64,
}

/// Letters that died of the same cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseSummary {
    pub kind: Kind,
    pub cause: Cause,
    pub summary: Summary,
    /// Name of one of them.
    pub example: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub letters: u64,
    pub redriven: u64,
    pub discarded: u64,
    pub oldest: Option<Timestamp>,
    pub newest: Option<Timestamp>,
}

impl Summary {
    pub(super) fn count(&mut self, letter: &Listed) {
        let at = letter.last_failed_at;
        self.letters += 1;
        self.redriven += u64::from(letter.redriven);
        self.discarded += u64::from(letter.discarded);
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
        self.newest = self.newest.max(Some(at));
    }
}

/// Letters that an operation applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    Ids(Vec<String>),
    /// At most `limit`, oldest first.
    Filter {
        filter: Filter,
        limit: usize,
    },
}

impl Selection {
    /// Description for the list of tasks.
    pub fn about(&self) -> String {
        match self {
            Selection::Ids(ids) if ids.len() == 1 => ids[0].clone(),
            Selection::Ids(ids) => format!("{} letters by name", ids.len()),
            Selection::Filter { filter, limit } => {
                let told = serde_json::to_value(filter).unwrap_or_default();
                let set = told.as_object().into_iter().flatten();
                let set: Vec<String> = set
                    .filter(|(_, value)| !value.is_null())
                    .map(|(name, value)| match value.as_str() {
                        Some(text) => format!("{name} {text}"),
                        None => format!("{name} {value}"),
                    })
                    .collect();
                format!("at most {limit}: {}", set.join(", "))
            }
        }
    }
}

/// Outcome for one letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAnswer {
    pub id: String,
    pub outcome: TaskOutcome,
}

mod reason_name {
    use protocol::ledger::DeadReason;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(reason: &DeadReason, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(reason.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DeadReason, D::Error> {
        let name = String::deserialize(from)?;
        DeadReason::from_name(&name)
            .ok_or_else(|| de::Error::custom(format!("{name:?} is no reason of a dead letter")))
    }
}

mod reason_or_none {
    use protocol::ledger::DeadReason;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(
        reason: &Option<DeadReason>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        reason.map(DeadReason::name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<DeadReason>, D::Error> {
        let Some(name) = Option::<String>::deserialize(from)? else {
            return Ok(None);
        };
        DeadReason::from_name(&name)
            .map(Some)
            .ok_or_else(|| de::Error::custom(format!("{name:?} is no reason of a dead letter")))
    }
}
