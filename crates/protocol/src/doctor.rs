//! What the doctor says of an installation and of one user, and what is to be done about it.
//!
//! Rules over facts. Whoever gathers facts (`server::admin::doctor`, and the command for its own view) decides
//! nothing: each fact is a value whose `finding` says whether it is ok, why not, and what to do. Of one user
//! [`user::Chart::differences`] says what contradicts itself.

mod check;
mod clocks;
mod flow;
mod limits;
mod parts;
mod settings;
pub mod user;
mod visit;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::check::Check;
pub use self::clocks::{Clocks, LogClock, Reading};
pub use self::flow::{Backlog, ClosedMinutes, Letters, Progress, Waiting};
pub use self::limits::{OpenFiles, Space};
pub use self::parts::{Answer, Deviation, Members, Readiness, Tables, Topics};
pub use self::settings::{
    AdminPort, Auditing, Copies, DeskCertificate, Link, ServiceIdentity, SessionTickets, TokenKey,
};
pub use self::visit::{Stranger, Unseen, Visit};

/// Things that one finding names; of more it tells the number.
const NAMED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Somebody should look this week.
    Warning,
    /// Somebody should look now.
    Failure,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "failure",
        }
    }
}

/// What one check came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub check: Check,
    pub verdict: Verdict,
    /// What was seen, in a sentence.
    pub seen: String,
    /// What to do; empty where all is well.
    pub advice: String,
}

impl Finding {
    pub fn ok(check: Check, seen: impl Into<String>) -> Finding {
        Finding {
            check,
            verdict: Verdict::Ok,
            seen: seen.into(),
            advice: String::new(),
        }
    }

    pub fn warning(check: Check, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding {
            check,
            verdict: Verdict::Warning,
            seen: seen.into(),
            advice: advice.into(),
        }
    }

    pub fn failure(check: Check, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Failure,
            ..Finding::warning(check, seen, advice)
        }
    }
}

/// The worst of some findings; ok where there are none.
pub fn worst<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Verdict {
    let verdicts = findings.into_iter().map(|finding| finding.verdict);
    verdicts.max().unwrap_or(Verdict::Ok)
}

/// What came of looking at something outside the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked<T> {
    Saw(T),
    /// It said no, in these words.
    Failed(String),
    /// It said nothing within this time.
    Late(Duration),
}

impl<T> Looked<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Looked<U> {
        match self {
            Looked::Saw(seen) => Looked::Saw(change(seen)),
            Looked::Failed(error) => Looked::Failed(error),
            Looked::Late(patience) => Looked::Late(patience),
        }
    }

    /// What was seen, or why nothing was.
    pub fn seen(self) -> Result<T, String> {
        match self {
            Looked::Saw(seen) => Ok(seen),
            Looked::Failed(error) => Err(error),
            Looked::Late(patience) => Err(format!("no answer within {}", span(patience))),
        }
    }
}

/// `3s`, `2m 5s`, `40ms`: not more exact than a person asks for.
fn span(time: Duration) -> String {
    let exact = match (time.as_secs(), time.subsec_millis()) {
        (0, 0) => return "less than 1ms".to_owned(),
        (0, millis) => Duration::from_millis(millis.into()),
        (secs, _) => Duration::from_secs(secs),
    };
    humantime::format_duration(exact).to_string()
}

/// `1 letter`, `2 letters`.
fn count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// The first of some names, and how many more there are.
fn named(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(NAMED).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests;
