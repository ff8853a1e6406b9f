//! Comparison of clocks, as far as they can be compared.

use std::time::Duration;

use protocol::Timestamp;

use super::{Check, Finding, Inspection, named, span};

/// Largest skew of machines that run NTP.
const APART: Duration = Duration::from_secs(1);
/// Skew that tokens tolerate, in either direction.
const TOO_FAR_APART: Duration = Duration::from_secs(30);

const ADVICE: &str = "let all machines follow one time (chrony, ntpd): ids, tokens and lists rest on it; docs/operations/alarms.md, Clocks";

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
            Ok(None) => return Finding::ok(check, "nothing is there yet to compare with"),
            Err(why) => {
                let seen = format!("not compared: {why}");
                return Finding::warning(check, seen, "it is compared when the log answers");
            }
        };
        let behind = newest.since(self.now);
        if behind <= APART {
            let seen = "nothing was written after this process's now; a clock that is ahead does not show here: ask \
                        several processes at once";
            return Finding::ok(check, seen);
        }
        let seen = format!(
            "{place} has an entry from {} after this process's now: another machine's clock is ahead, this one is behind, \
             or one was set back",
            span(behind)
        );
        graded(check, behind, seen)
    }
}

/// A process's clock, read over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub address: String,
    /// Local clock before the question and after the answer.
    pub asked: Timestamp,
    pub heard: Timestamp,
    /// Remote clock in between.
    pub there: Timestamp,
}

impl Reading {
    /// Lower and upper bound, in milliseconds, of how far the remote clock is ahead.
    fn ahead(&self) -> (i64, i64) {
        let there = self.there.millis();
        let least = there.saturating_sub(self.heard.millis());
        let most = there.saturating_sub(self.asked.millis());
        (least.min(most), most.max(least))
    }
}

/// Clocks of processes, compared with the clock of the asking machine and so with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clocks(pub Vec<Reading>);

impl Clocks {
    pub fn finding(self) -> Finding {
        let check = Check::Clock;
        // Lower bound of the skew between the two clocks furthest apart, the local one included.
        let here = ("this machine".to_owned(), (0, 0));
        let others = self.0.iter().map(|r| (r.address.clone(), r.ahead()));
        let all: Vec<_> = std::iter::once(here).chain(others).collect();
        let latest = all.iter().max_by_key(|(_, (least, _))| *least);
        let earliest = all.iter().min_by_key(|(_, (_, most))| *most);
        let (Some((latest, (least, _))), Some((earliest, (_, most)))) = (latest, earliest) else {
            return Finding::ok(check, "no clock could be read");
        };
        let apart = Duration::from_millis(least.saturating_sub(*most).max(0) as u64);
        if apart <= APART {
            let names = named(self.0.iter().map(|reading| reading.address.clone()));
            return Finding::ok(check, format!("{names} and this machine agree on the time"));
        }
        let seen = format!(
            "{latest} is ahead of {earliest} by {} at least",
            span(apart)
        );
        graded(check, apart, seen)
    }
}

fn graded(check: Check, apart: Duration, seen: String) -> Finding {
    match apart > TOO_FAR_APART {
        true => Finding::failure(check, seen, ADVICE),
        false => Finding::warning(check, seen, ADVICE),
    }
}
