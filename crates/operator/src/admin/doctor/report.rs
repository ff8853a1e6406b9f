//! Answers of the doctor, as JSON over HTTP.

use protocol::UserId;
use serde::{Deserialize, Serialize};

use crate::admin::Shortlist;
use crate::doctor::user::{Damage, Difference, Unread};
use crate::doctor::{CheckVerdict, Finding};

/// Limit of differences in a report.
const TOLD: usize = 200;

/// Version and time of the process that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub version: String,
    /// Milliseconds since 1970.
    pub now: i64,
}

/// Findings of a process about the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkup {
    /// `boat`, `station`, `carrier`, `horn`, or `all`.
    pub role: String,
    pub version: String,
    /// The worst of the findings.
    pub verdict: CheckVerdict,
    pub findings: Vec<Finding>,
}

/// Examination of a user's data in the stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserReport {
    pub user: UserId,
    pub verdict: CheckVerdict,
    pub differences: Shortlist<DoctorAnswer>,
    pub sessions: u64,
    /// Messages that wait in mailboxes.
    pub mails: u64,
    pub conversations: u64,
    /// Rows of history.
    pub rows: u64,
    /// Parts left out because there is too much of them, a sentence each.
    pub left_off: Vec<String>,
}

/// One difference, or one part that was not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorAnswer {
    /// Kind of the difference: `hole`, `list-behind`, `not-looked-at` …
    pub kind: String,
    pub verdict: CheckVerdict,
    /// The contradiction, in a sentence.
    pub seen: String,
    /// Step of a repair; `None` if a repair does nothing about it.
    pub mend: Option<String>,
    /// Advice to a person, if a repair does nothing.
    pub advice: Option<String>,
}

impl From<&Difference> for DoctorAnswer {
    fn from(difference: &Difference) -> DoctorAnswer {
        let Difference { damage, mend } = difference;
        DoctorAnswer {
            kind: damage.name().to_owned(),
            verdict: damage.verdict(),
            seen: damage.to_string(),
            mend: mend.as_ref().map(ToString::to_string),
            advice: mend.is_none().then(|| damage.advice().to_owned()),
        }
    }
}

impl From<&Unread> for DoctorAnswer {
    fn from(unread: &Unread) -> DoctorAnswer {
        DoctorAnswer {
            kind: Unread::NAME.to_owned(),
            verdict: unread.verdict(),
            seen: unread.to_string(),
            mend: None,
            advice: Some(unread.advice().to_owned()),
        }
    }
}

/// Lists parts that were not read first: the differences are to be read with them in mind.
pub(super) fn told(
    unread: &[Unread],
    differences: &[Difference],
) -> (CheckVerdict, Shortlist<DoctorAnswer>) {
    let verdicts = differences.iter().map(|d| Damage::verdict(&d.damage));
    let worst = verdicts.chain(unread.iter().map(Unread::verdict)).max();
    let told = unread.iter().map(DoctorAnswer::from);
    let told = told.chain(differences.iter().map(DoctorAnswer::from));
    (worst.unwrap_or(CheckVerdict::Ok), Shortlist::of(told, TOLD))
}
