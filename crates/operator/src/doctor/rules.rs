//! Findings of the doctor about an installation or one user, with advice.
//!
//! Rules over facts. Gatherers of facts (the doctor of a process, and the command for its own view)
//! decide nothing: each fact is a value whose `finding` says whether it is ok, why not, and what to
//! do. For one user, [`super::user::UserSnapshot::differences`] lists the contradictions.

mod check;
mod clocks;
mod flow;
mod limits;
mod parts;
mod probe;
mod settings;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::check::Check;
pub use self::clocks::{Clocks, LogClock, Reading};
pub use self::flow::{Backlog, ClosedMinutes, Letters, Progress, WaitingLetters};
pub use self::limits::{ClientAddresses, OpenFiles, Space};
pub use self::parts::{Answer, Deviation, Members, Readiness, Tables, Topics};
pub use self::probe::{ProcessProbe, UnknownProcess, Unreachable};
pub use self::settings::{
    AdminPort, AuditState, Copies, DeskCertificate, Link, ServiceIdentity, SessionTickets, TokenKey,
};

/// Names listed in one finding; beyond these it gives a count.
const MAX_NAMES: usize = 5;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Verdict")]
pub enum CheckVerdict {
    Ok,
    /// Somebody should look this week.
    Warning,
    /// Somebody should look now.
    Failure,
}

impl CheckVerdict {
    pub const fn name(self) -> &'static str {
        match self {
            CheckVerdict::Ok => "ok",
            CheckVerdict::Warning => "warning",
            CheckVerdict::Failure => "failure",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Finding {
    pub check: Check,
    pub verdict: CheckVerdict,
    /// Observation, in a sentence.
    pub observation: String,
    /// Advice to the operator; empty if the verdict is ok.
    pub advice: String,
}

impl Finding {
    pub fn ok(check: Check, observation: impl Into<String>) -> Finding {
        Finding {
            check,
            verdict: CheckVerdict::Ok,
            observation: observation.into(),
            advice: String::new(),
        }
    }

    pub fn warning(
        check: Check,
        observation: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            check,
            verdict: CheckVerdict::Warning,
            observation: observation.into(),
            advice: advice.into(),
        }
    }

    pub fn failure(
        check: Check,
        observation: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            verdict: CheckVerdict::Failure,
            ..Finding::warning(check, observation, advice)
        }
    }
}

/// The worst verdict; ok if there are no findings.
pub fn worst<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> CheckVerdict {
    let verdicts = findings.into_iter().map(|finding| finding.verdict);
    verdicts.max().unwrap_or(CheckVerdict::Ok)
}

/// Result of looking at something outside the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection<T> {
    Saw(T),
    /// Refused, with this error.
    Failed(String),
    /// No answer within this time.
    Late(Duration),
}

impl<T> Inspection<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Inspection<U> {
        match self {
            Inspection::Saw(seen) => Inspection::Saw(change(seen)),
            Inspection::Failed(error) => Inspection::Failed(error),
            Inspection::Late(patience) => Inspection::Late(patience),
        }
    }

    /// The value seen, or why there is none.
    pub fn seen(self) -> Result<T, String> {
        match self {
            Inspection::Saw(seen) => Ok(seen),
            Inspection::Failed(error) => Err(error),
            Inspection::Late(patience) => Err(format!("no answer within {}", span(patience))),
        }
    }
}

/// `3s`, `2m 5s`, `40ms`: no more precise than a person needs.
fn span(time: Duration) -> String {
    let exact = match (time.as_secs(), time.subsec_millis()) {
        (0, 0) => return "less than 1ms".to_owned(),
        (0, millis) => Duration::from_millis(millis.into()),
        (secs, _) => Duration::from_secs(secs),
    };
    humantime::format_duration(exact).to_string()
}

/// `1 letter`, `2 letters`.
fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// The first few names, and how many more there are.
fn join_names(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let mut text = names
        .by_ref()
        .take(MAX_NAMES)
        .collect::<Vec<_>>()
        .join(", ");
    let more = names.count();
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests;
