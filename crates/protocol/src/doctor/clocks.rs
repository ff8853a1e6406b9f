//! Clocks, as far as they can be compared.

use std::time::Duration;

use super::{Check, Finding, Looked, named, span};
use crate::Timestamp;

/// Clocks that differ more belong to nobody who runs NTP.
const APART: Duration = Duration::from_secs(1);
/// Tokens are taken up to so much too early or too late.
const TOO_FAR_APART: Duration = Duration::from_secs(30);

const ADVICE: &str =
    "let all machines follow one time (chrony, ntpd): ids, tokens and lists rest on it";

/// What others wrote with their clocks, seen from this process. It shows a clock that is behind theirs; one
/// that is ahead cannot be told from here, as no part says what time it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogClock {
    pub now: Timestamp,
    /// The newest that another clock wrote, and where; `None`: nothing is there.
    pub newest: Looked<Option<(Timestamp, String)>>,
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
            "{place} has an entry from {} after this process's now",
            span(behind)
        );
        graded(check, behind, seen)
    }
}

/// A process's clock, read over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub address: String,
    /// This side's clock, before the question and after the answer.
    pub asked: Timestamp,
    pub heard: Timestamp,
    /// The other side's clock in between.
    pub there: Timestamp,
}

impl Reading {
    /// The other clock is ahead of this one by something in between, in milliseconds.
    fn ahead(&self) -> (i64, i64) {
        let there = self.there.millis();
        let least = there.saturating_sub(self.heard.millis());
        let most = there.saturating_sub(self.asked.millis());
        (least.min(most), most.max(least))
    }
}

/// Clocks of processes, against the clock of whoever asks and so against each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clocks(pub Vec<Reading>);

impl Clocks {
    pub fn finding(self) -> Finding {
        let check = Check::Clock;
        // The least by which the two that are furthest apart must differ; this side's is one of them.
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
