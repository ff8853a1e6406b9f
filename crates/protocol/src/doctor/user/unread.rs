//! What a look at a user did not see.

use std::fmt;

use super::super::Verdict;

/// A part that was not looked at, or not to its end. What was seen of the rest counts nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// `the head of p:1:2`.
    pub what: String,
    pub why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is more of it than an examination has time for.
    Late,
    /// Its store said no, in these words, or nothing.
    Failed(String),
    /// Its store has something there that is not what it should be.
    Corrupt(String),
}

impl Unread {
    /// What kind of finding it is, for machines.
    pub const NAME: &'static str = "not-looked-at";

    pub fn new(what: impl Into<String>, why: Why) -> Unread {
        let what = what.into();
        Unread { what, why }
    }

    pub const fn verdict(&self) -> Verdict {
        match self.why {
            Why::Late | Why::Failed(_) => Verdict::Warning,
            Why::Corrupt(_) => Verdict::Failure,
        }
    }

    pub const fn advice(&self) -> &'static str {
        match self.why {
            Why::Late => {
                "there is more than one examination looks at, or the store is slow: ask again when it has less to do"
            }
            Why::Failed(_) => {
                "packetboat doctor says which part is away: ask again when it answers"
            }
            Why::Corrupt(_) => {
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
            Why::Late => write!(f, "{what}: not looked at, as it took too long"),
            Why::Failed(why) => write!(f, "{what}: not looked at: {why}"),
            Why::Corrupt(why) => write!(f, "{what}: cannot be read: {why}"),
        }
    }
}
