//! Answers of the doctor, as JSON over HTTP.

use protocol::UserId;
use protocol::doctor::user::{Damage, Difference, Unread};
use protocol::doctor::{Finding, Verdict};
use serde::{Deserialize, Serialize};

use crate::admin::Shortlist;

/// Differences in a report.
const TOLD: usize = 200;

/// Who answers, and what time it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub version: String,
    /// Milliseconds since 1970.
    pub now: i64,
}

/// What a process sees of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkup {
    /// `boat`, `station`, `carrier`, `horn`, or `all`.
    pub role: String,
    pub version: String,
    /// The worst of the findings.
    pub verdict: Verdict,
    pub findings: Vec<Finding>,
}

/// What the stores say of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserReport {
    pub user: UserId,
    pub verdict: Verdict,
    pub differences: Shortlist<Told>,
    pub sessions: u64,
    /// Messages that wait.
    pub mails: u64,
    pub conversations: u64,
    /// Rows of history.
    pub rows: u64,
    /// What was not looked at because there is too much of it, a sentence each.
    pub left_off: Vec<String>,
}

/// One difference, or what was not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Its kind: `hole`, `list-behind`, `not-looked-at` …
    pub kind: String,
    pub verdict: Verdict,
    /// What contradicts what, in a sentence.
    pub seen: String,
    /// What a repair would do; `None`: it does nothing about this.
    pub mend: Option<String>,
    /// What a person does where a repair does nothing.
    pub advice: Option<String>,
}

impl From<&Difference> for Told {
    fn from(difference: &Difference) -> Told {
        let Difference { damage, mend } = difference;
        Told {
            kind: damage.name().to_owned(),
            verdict: damage.verdict(),
            seen: damage.to_string(),
            mend: mend.as_ref().map(ToString::to_string),
            advice: mend.is_none().then(|| damage.advice().to_owned()),
        }
    }
}

impl From<&Unread> for Told {
    fn from(unread: &Unread) -> Told {
        Told {
            kind: Unread::NAME.to_owned(),
            verdict: unread.verdict(),
            seen: unread.to_string(),
            mend: None,
            advice: Some(unread.advice().to_owned()),
        }
    }
}

/// What was not looked at comes first: the rest is to be read with that in mind.
pub(super) fn told(unread: &[Unread], differences: &[Difference]) -> (Verdict, Shortlist<Told>) {
    let verdicts = differences.iter().map(|d| Damage::verdict(&d.damage));
    let worst = verdicts.chain(unread.iter().map(Unread::verdict)).max();
    let told = unread.iter().map(Told::from);
    let told = told.chain(differences.iter().map(Told::from));
    (worst.unwrap_or(Verdict::Ok), Shortlist::of(told, TOLD))
}
