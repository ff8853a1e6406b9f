//! What the command sees of a process before that says anything of itself.

use super::{Check, Finding, Looked};

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
