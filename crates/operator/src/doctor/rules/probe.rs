//! The command's view of a process, before the process reports anything.

use super::{Check, CheckVerdict, Finding, Inspection};

/// A call to an admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessProbe {
    pub address: String,
    /// Version of the asking program.
    pub own_version: String,
    /// Version of the answering process.
    pub remote_version: Inspection<String>,
}

impl ProcessProbe {
    /// Reports whether the process answers, and, if so, whether it runs the same version.
    pub fn findings(self) -> Vec<Finding> {
        let ProcessProbe {
            address,
            own_version,
            remote_version,
        } = self;
        let remote_version = match remote_version.seen() {
            Ok(remote_version) => remote_version,
            Err(reason) => {
                let advice = "is it running, is this its admin.listen, and do you have access (--operator-token)?";
                return vec![Finding::failure(Check::AdminPort, reason, advice)];
            }
        };
        let answers = Finding::ok(Check::AdminPort, format!("{address} answers"));
        let version = if own_version == remote_version {
            Finding::ok(
                Check::Version,
                format!("{remote_version}, same as this program"),
            )
        } else {
            Finding::warning(
                Check::Version,
                format!("it is {remote_version}, this program is {own_version}"),
                "run the doctor of the same version: another one may miss checks",
            )
        };
        vec![answers, version]
    }
}

/// A process that answers, but without its view of the installation. In a rolling update both cases
/// are normal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The process is busy with another examination.
    Busy,
    /// The answer has another version's format, and cannot be read.
    Foreign,
}

impl Unreachable {
    pub fn finding(self) -> Finding {
        let (evidence, advice) = match self {
            Unreachable::Busy => (
                "not examined: the process is busy with another examination",
                "try again in a moment",
            ),
            Unreachable::Foreign => (
                "not examined: the process runs another version and its answer cannot be read",
                "ask with the program of its version",
            ),
        };
        Finding::warning(Check::AdminPort, evidence, advice)
    }
}

/// A process's finding for a check that this program does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProcess {
    pub check: String,
    /// `None`: a verdict that this program does not know either.
    pub verdict: Option<CheckVerdict>,
    pub observation: String,
}

impl UnknownProcess {
    /// A failure stays a failure; anything else becomes a warning.
    pub fn finding(self) -> Finding {
        let UnknownProcess {
            check,
            verdict,
            observation,
        } = self;
        let evidence = format!("{check} (unknown to this program): {observation}");
        let advice = "ask with the program of its version";
        match verdict {
            Some(CheckVerdict::Failure) => Finding::failure(Check::Version, evidence, advice),
            Some(CheckVerdict::Ok | CheckVerdict::Warning) | None => {
                Finding::warning(Check::Version, evidence, advice)
            }
        }
    }
}
