//! Progress of accepted messages, of dead letters and of the audit.

use std::time::Duration;

use protocol::Timestamp;
use protocol::keys::Topic;
use protocol::ledger::minute::MINUTE;

use super::{Check, Finding, Inspection, count, named, span};

/// Excess wait of a record that is worth a warning, and one that is a failure.
const WAITS_LONG: Duration = Duration::from_secs(60);
const WAITS_TOO_LONG: Duration = Duration::from_secs(300);
/// The same for unclosed minutes.
const LAGS: Duration = Duration::from_secs(300);
const LAGS_FAR: Duration = Duration::from_secs(3600);

/// Backlog of a consumer group in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub topic: Topic,
    pub partition: u32,
    /// First retained offset, and offset of the next record to be written.
    pub first: u64,
    pub end: u64,
    pub committed: Option<u64>,
    /// Append time of the first uncommitted record; `None`: there is none.
    pub since: Option<Timestamp>,
    /// Time a record may lie here by design: the delay of a retry tier.
    pub delay: Duration,
}

impl Backlog {
    fn records(&self) -> u64 {
        self.end
            .saturating_sub(self.committed.unwrap_or(self.first))
    }

    /// Number of records that retention removed before the group committed them.
    fn lost(&self) -> u64 {
        self.committed
            .map_or(0, |next| self.first.saturating_sub(next))
    }

    /// Time the oldest record waits beyond its delay.
    fn waits(&self, now: Timestamp) -> Duration {
        let since = self.since.map_or(Duration::ZERO, |at| now.since(at));
        since.saturating_sub(self.delay)
    }
}

/// Progress of a role's consumers: carriers or horns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub check: Check,
    pub now: Timestamp,
    pub backlogs: Inspection<Vec<Backlog>>,
}

impl Progress {
    pub fn finding(self) -> Finding {
        let Progress {
            check,
            now,
            backlogs,
        } = self;
        let backlogs = match backlogs.seen() {
            Ok(backlogs) => backlogs,
            Err(why) => {
                let advice = "how far they are cannot be told while the log does not answer";
                return Finding::failure(check, why, advice);
            }
        };
        let lost = backlogs.iter().filter(|backlog| backlog.lost() > 0);
        let lost = named(lost.map(|b| format!("{} in {}/{}", b.lost(), b.topic, b.partition)));
        if !lost.is_empty() {
            let seen = format!("records were removed before they were done: {lost}");
            let advice = "packetboat audit names the messages; let the log keep records longer, and run more of these";
            return Finding::failure(check, seen, advice);
        }
        let records: u64 = backlogs.iter().map(Backlog::records).sum();
        let oldest = backlogs.iter().max_by_key(|backlog| backlog.waits(now));
        let waits = oldest.map_or(Duration::ZERO, |backlog| backlog.waits(now));
        if waits <= WAITS_LONG {
            let seen = match records {
                0 => "nothing waits".to_owned(),
                _ => format!("{} on the way", count(records, "record")),
            };
            return Finding::ok(check, seen);
        }
        let place = oldest.map(|b| format!("{}/{}", b.topic, b.partition));
        let seen = format!(
            "{} wait, the oldest in {} for {} longer than it has to",
            count(records, "record"),
            place.unwrap_or_default(),
            span(waits),
        );
        match waits > WAITS_TOO_LONG {
            true => Finding::failure(check, seen, behind(check)),
            false => Finding::warning(check, seen, behind(check)),
        }
    }
}

const fn behind(check: Check) -> &'static str {
    match check {
        Check::Horns => {
            "does a horn run? Its log says what holds it (a provider that does not answer); messages are delivered \
             meanwhile"
        }
        _ => {
            "does a carrier run? Its log and carrier_stalls_total say what holds it: a store that does not answer, or more \
             work than there are carriers for"
        }
    }
}

/// Dead letters that no operator has handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letters {
    pub now: Timestamp,
    pub waiting: Inspection<WaitingLetters>,
}

/// Number of waiting letters, since when, and the main cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingLetters {
    pub letters: u64,
    /// Newer letters left uncounted.
    pub uncounted: u64,
    pub oldest: Option<Timestamp>,
    /// The most frequent cause.
    pub cause: Option<String>,
}

impl Letters {
    pub fn finding(self) -> Finding {
        let advice = "packetboat dlq stats says what they died of; docs/operations/dead-letters.md what to do";
        let waiting = match self.waiting.seen() {
            Ok(waiting) => waiting,
            Err(why) => {
                let seen = format!("not counted: {why}");
                return Finding::warning(Check::DeadLetters, seen, advice);
            }
        };
        if waiting.letters == 0 && waiting.uncounted == 0 {
            return Finding::ok(Check::DeadLetters, "none waits");
        }
        let mut seen = format!("{} wait", count(waiting.letters, "letter"));
        if let Some(oldest) = waiting.oldest {
            seen += &format!(", the oldest for {}", span(self.now.since(oldest)));
        }
        if let Some(cause) = waiting.cause {
            seen += &format!("; most often {cause}");
        }
        if waiting.uncounted > 0 {
            seen += &format!("; {} more were not counted", waiting.uncounted);
        }
        Finding::warning(Check::DeadLetters, seen, advice)
    }
}

/// Progress of the continuous audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedMinutes {
    pub now: Timestamp,
    /// Uptime of this process: no minute can be closed right after a start.
    pub up: Duration,
    /// `audit.settle`
    pub settle: Duration,
    /// End of the last closed minute: everything accepted before it is closed. `None`: the chain
    /// has not begun.
    pub until: Inspection<Option<Timestamp>>,
}

impl ClosedMinutes {
    pub fn finding(self) -> Finding {
        let check = Check::ClosedMinutes;
        let advice =
            "docs/operations/audit.md, Lag: the log line 'no minute can be closed now' says why";
        let until = match self.until.seen() {
            Ok(until) => until,
            Err(why) => return Finding::failure(check, why, without_store()),
        };
        let lag = match until {
            Some(until) => self.now.since(until).saturating_sub(self.settle),
            None => self.up.saturating_sub(self.settle),
        };
        let ahead = until.map_or(Duration::ZERO, |until| until.since(self.now));
        if ahead > MINUTE {
            let seen = format!("minutes are closed up to {} after now", span(ahead));
            return Finding::warning(check, seen, SET_BACK);
        }
        let seen = match until {
            Some(until) => format!(
                "minutes are closed up to {} ago",
                span(self.now.since(until))
            ),
            None => "no minute is closed yet".to_owned(),
        };
        match lag {
            lag if lag > LAGS_FAR => Finding::failure(check, seen, advice),
            lag if lag > LAGS => Finding::warning(check, seen, advice),
            _ => Finding::ok(check, seen),
        }
    }
}

const SET_BACK: &str = "a clock was ahead and was set back: the next minute is closed when this clock has caught up, and counts what is \
                        accepted until then; docs/operations/audit.md, Lag";

const fn without_store() -> &'static str {
    "a loss would not be seen: look at the check audit_store"
}
