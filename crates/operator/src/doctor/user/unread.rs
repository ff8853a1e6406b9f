//! Parts of a user's data that an examination did not see.

use std::fmt;

use super::super::CheckVerdict;

/// A part left out, or read only in part. Findings from the rest still count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Name of the part, such as `the head of p:1:2`.
    pub what: String,
    pub why: UnreadReason,
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

    pub fn new(what: impl Into<String>, why: UnreadReason) -> Unread {
        let what = what.into();
        Unread { what, why }
    }

    pub const fn verdict(&self) -> CheckVerdict {
        match self.why {
            UnreadReason::Late | UnreadReason::Failed(_) => CheckVerdict::Warning,
            UnreadReason::Corrupt(_) => CheckVerdict::Failure,
        }
    }

    pub const fn advice(&self) -> &'static str {
        match self.why {
            UnreadReason::Late => {
                "there is more than one examination looks at, or the store is slow: ask again when it has less to do"
            }
            UnreadReason::Failed(_) => {
                "packetboat doctor says which part is away: ask again when it answers"
            }
            UnreadReason::Corrupt(_) => {
                "services cannot read it either. Stop the carriers, and restore it from a backup of the store; no repair \
                 touches what it cannot read"
            }
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match &self.why {
            UnreadReason::Late => write!(f, "{what}: not looked at, as it took too long"),
            UnreadReason::Failed(why) => write!(f, "{what}: not looked at: {why}"),
            UnreadReason::Corrupt(why) => write!(f, "{what}: cannot be read: {why}"),
        }
    }
}
