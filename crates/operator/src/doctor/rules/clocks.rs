//! Comparison of clocks, as far as they can be compared.

use std::time::Duration;

use protocol::Timestamp;

use super::{Check, Finding, Inspection, join_names, span};

/// Largest skew of machines that run NTP.
const APART: Duration = Duration::from_secs(1);
/// Skew that tokens tolerate, in either direction.
const TOO_FAR_APART: Duration = Duration::from_secs(30);

const ADVICE: &str = "run NTP on every machine (chrony, ntpd): ids, tokens and lists depend on it; \
                      see docs/operations/alarms.md, Clocks";

/// Timestamps that other machines wrote, or this one before its clock was set back, seen from this
/// process. They reveal a local clock that is behind; one that is ahead goes unnoticed, as no part says
/// what time it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogClock {
    pub now: Timestamp,
    /// Newest timestamp written by another clock, and where; `None`: nothing is written yet.
    pub newest: Inspection<Option<(Timestamp, String)>>,
}

impl LogClock {
    pub fn finding(self) -> Finding {
        let check = Check::LogClock;
        let (newest, place) = match self.newest.seen() {
            Ok(Some(newest)) => newest,
            Ok(None) => return Finding::ok(check, "the log is empty: nothing to compare with yet"),
            Err(reason) => {
                let evidence = format!("not compared: {reason}");
                return Finding::warning(
                    check,
                    evidence,
                    "run the doctor again when the log is back",
                );
            }
        };
        let skew = newest.since(self.now);
        if skew <= APART {
            let evidence = "no record is newer than this process's clock; a fast local clock does not \
                        show here: ask several processes at once";
            return Finding::ok(check, evidence);
        }
        let evidence = format!(
            "{place} has a record {} ahead of this process's clock: another machine's clock is \
             fast, this one is slow, or one was set back",
            span(skew)
        );
        graded(check, skew, evidence)
    }
}

/// A process's clock, read over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub address: String,
    /// Local clock before the question and after the answer.
    pub asked_at: Timestamp,
    pub answered_at: Timestamp,
    /// Remote clock in between.
    pub remote_at: Timestamp,
}

impl Reading {
    /// Lower and upper bound, in milliseconds, of how far the remote clock is ahead.
    fn offset_bounds(&self) -> (i64, i64) {
        let remote_at = self.remote_at.millis();
        let lower = remote_at.saturating_sub(self.answered_at.millis());
        let upper = remote_at.saturating_sub(self.asked_at.millis());
        (lower.min(upper), upper.max(lower))
    }
}

/// Clocks of processes, compared with the clock of the asking machine and so with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clocks(pub Vec<Reading>);

impl Clocks {
    pub fn finding(self) -> Finding {
        let check = Check::Clock;
        // Lower bound of the skew between the two clocks furthest apart, the local one included.
        let local_clock = ("this machine".to_owned(), (0, 0));
        let remote_clocks = self
            .0
            .iter()
            .map(|r| (r.address.clone(), r.offset_bounds()));
        let all: Vec<_> = std::iter::once(local_clock).chain(remote_clocks).collect();
        let latest = all.iter().max_by_key(|(_, (lower, _))| *lower);
        let earliest = all.iter().min_by_key(|(_, (_, upper))| *upper);
        let (Some((latest, (lower, _))), Some((earliest, (_, upper)))) = (latest, earliest) else {
            return Finding::ok(check, "no clock could be read");
        };
        let skew = Duration::from_millis(lower.saturating_sub(*upper).max(0) as u64);
        if skew <= APART {
            let names = join_names(self.0.iter().map(|reading| reading.address.clone()));
            return Finding::ok(
                check,
                format!("the clocks of {names} and this machine agree"),
            );
        }
        let evidence = format!("{latest} is ahead of {earliest} by at least {}", span(skew));
        graded(check, skew, evidence)
    }
}

fn graded(check: Check, skew: Duration, evidence: String) -> Finding {
    if skew > TOO_FAR_APART {
        Finding::failure(check, evidence, ADVICE)
    } else {
        Finding::warning(check, evidence, ADVICE)
    }
}
