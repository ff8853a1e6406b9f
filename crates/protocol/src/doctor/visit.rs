//! What the command sees of a process before that says anything of itself.

use super::{Check, Finding, Looked, Verdict};

/// A call at an admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    pub address: String,
    /// The version of the program that asks.
    pub own: String,
    /// The version of the process that answers.
    pub theirs: Looked<String>,
}

impl Visit {
    /// Whether it answers, and, if so, whether it is the same program.
    pub fn findings(self) -> Vec<Finding> {
        let Visit {
            address,
            own,
            theirs,
        } = self;
        let theirs = match theirs.seen() {
            Ok(theirs) => theirs,
            Err(why) => {
                let advice =
                    "does it run, is that its admin.listen, and may you see it (--operator-token)?";
                return vec![Finding::failure(Check::AdminPort, why, advice)];
            }
        };
        let answers = Finding::ok(Check::AdminPort, format!("{address} answers"));
        let version = match own == theirs {
            true => Finding::ok(Check::Version, format!("{theirs}, as this program")),
            false => Finding::warning(
                Check::Version,
                format!("it is {theirs}, this program is {own}"),
                "ask with the program of the same version: another may not know all that there is to see",
            ),
        };
        vec![answers, version]
    }
}

/// A process that answers, and whose view of the installation was not had. In a rolling update both are normal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// It examines something for somebody else.
    Busy,
    /// Its answer is that of another version, and cannot be read.
    Foreign,
}

impl Unseen {
    pub fn finding(self) -> Finding {
        let (seen, advice) = match self {
            Unseen::Busy => (
                "what it sees was not looked at: it is busy with another examination",
                "ask again in a moment",
            ),
            Unseen::Foreign => (
                "what it sees was not looked at: its answer is that of another version",
                "ask with the program of its version",
            ),
        };
        Finding::warning(Check::AdminPort, seen, advice)
    }
}

/// What a process says of a check that this program does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    pub check: String,
    /// `None`: a word that this program does not know either.
    pub verdict: Option<Verdict>,
    pub seen: String,
}

impl Stranger {
    /// What it calls a failure is one.
    pub fn finding(self) -> Finding {
        let Stranger {
            check,
            verdict,
            seen,
        } = self;
        let seen = format!("{check}, which this program does not know: {seen}");
        let advice = "ask with the program of its version";
        match verdict {
            Some(Verdict::Failure) => Finding::failure(Check::Version, seen, advice),
            Some(Verdict::Ok | Verdict::Warning) | None => {
                Finding::warning(Check::Version, seen, advice)
            }
        }
    }
}
