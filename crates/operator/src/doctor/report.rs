//! Answers of the doctor, as JSON over HTTP.

use protocol::UserId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{CheckVerdict, Finding};
use super::user::{Damage, Difference, Unread};
use crate::answer::{List, Time, id};

/// Limit of differences in a report.
const TOLD: usize = 200;

/// Version and time of the process that answers.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ProcessClock {
    pub version: String,
    pub now: Time,
}

/// Findings of a process about the installation.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Checkup {
    /// `boat`, `station`, `carrier`, `horn`, or `all`.
    pub role: String,
    pub version: String,
    /// The worst of the findings.
    pub verdict: CheckVerdict,
    pub findings: Vec<Finding>,
}

/// Examination of a user's data in the stores.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct UserReport {
    #[serde(with = "id")]
    #[schemars(with = "String")]
    pub user: UserId,
    pub verdict: CheckVerdict,
    pub differences: List<UserFinding>,
    pub sessions: u64,
    /// Messages that wait in mailboxes.
    pub mails: u64,
    pub conversations: u64,
    /// Rows of history.
    pub rows: u64,
    /// Parts left out because there is too much of them, a sentence each.
    pub omissions: Vec<String>,
}

/// One difference, or one part that was not read.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct UserFinding {
    /// Kind of the difference: `hole`, `list_behind`, `not_looked_at` …
    pub kind: String,
    pub verdict: CheckVerdict,
    /// The contradiction, in a sentence.
    pub observation: String,
    /// Step of a repair; null if a repair does nothing about it.
    pub repair: Option<String>,
    /// Advice to a person, if a repair does nothing.
    pub advice: Option<String>,
}

impl From<&Difference> for UserFinding {
    fn from(difference: &Difference) -> UserFinding {
        let Difference { damage, mend } = difference;
        UserFinding {
            kind: damage.name().to_owned(),
            verdict: damage.verdict(),
            observation: damage.to_string(),
            repair: mend.as_ref().map(ToString::to_string),
            advice: mend.is_none().then(|| damage.advice().to_owned()),
        }
    }
}

impl From<&Unread> for UserFinding {
    fn from(unread: &Unread) -> UserFinding {
        UserFinding {
            kind: Unread::NAME.to_owned(),
            verdict: unread.verdict(),
            observation: unread.to_string(),
            repair: None,
            advice: Some(unread.advice().to_owned()),
        }
    }
}

/// Lists parts that were not read first: the differences are to be read with them in mind.
pub(super) fn summarize(
    unread: &[Unread],
    differences: &[Difference],
) -> (CheckVerdict, List<UserFinding>) {
    let verdicts = differences.iter().map(|d| Damage::verdict(&d.damage));
    let worst = verdicts.chain(unread.iter().map(Unread::verdict)).max();
    let findings = unread.iter().map(UserFinding::from);
    let findings = findings.chain(differences.iter().map(UserFinding::from));
    (worst.unwrap_or(CheckVerdict::Ok), List::of(findings, TOLD))
}
