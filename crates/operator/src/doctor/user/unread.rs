//! Parts of a user's data that an examination did not see.

use std::fmt;

use crate::doctor::rules::CheckVerdict;

/// A part left out, or read only in part. Findings from the rest still count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Name of the part, such as `the head of p:1:2`.
    pub subject: String,
    pub reason: UnreadReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadReason {
    /// More data than an examination has time for.
    Late,
    /// The store failed with this error, or did not answer.
    Failed(String),
    /// The store holds malformed data.
    Corrupt(String),
}

impl Unread {
    /// Kind of finding, for machines.
    pub const NAME: &'static str = "not_looked_at";

    pub fn new(subject: impl Into<String>, reason: UnreadReason) -> Unread {
        let subject = subject.into();
        Unread { subject, reason }
    }

    pub const fn verdict(&self) -> CheckVerdict {
        match self.reason {
            UnreadReason::Late | UnreadReason::Failed(_) => CheckVerdict::Warning,
            UnreadReason::Corrupt(_) => CheckVerdict::Failure,
        }
    }

    pub const fn advice(&self) -> &'static str {
        match self.reason {
            UnreadReason::Late => {
                "too much data for one examination, or the store is slow: try again at a quieter time"
            }
            UnreadReason::Failed(_) => {
                "packetboat doctor shows which part is down: try again when it is back"
            }
            UnreadReason::Corrupt(_) => {
                "services cannot read it either. Stop the carriers and restore it from a backup; \
                 repairs never touch unreadable data"
            }
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = &self.subject;
        match &self.reason {
            UnreadReason::Late => write!(f, "{subject}: not examined: took too long"),
            UnreadReason::Failed(reason) => write!(f, "{subject}: not examined: {reason}"),
            UnreadReason::Corrupt(reason) => write!(f, "{subject}: unreadable: {reason}"),
        }
    }
}
