//! Progress of accepted messages, of dead letters and of the audit.

use std::time::Duration;

use protocol::Timestamp;
use protocol::keys::Topic;
use protocol::ledger::minute::MINUTE;

use super::{Check, Finding, Inspection, count, join_names, span};

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
    pub committed_offset: Option<u64>,
    /// Append time of the first uncommitted record; `None`: there is none.
    pub oldest_at: Option<Timestamp>,
    /// Time a record may lie here by design: the delay of a retry tier.
    pub delay: Duration,
}

impl Backlog {
    fn records(&self) -> u64 {
        self.end
            .saturating_sub(self.committed_offset.unwrap_or(self.first))
    }

    /// Number of records that retention removed before the group committed them.
    fn lost(&self) -> u64 {
        self.committed_offset
            .map_or(0, |next| self.first.saturating_sub(next))
    }

    /// Time the oldest record waits beyond its delay.
    fn waits(&self, now: Timestamp) -> Duration {
        let wait = self.oldest_at.map_or(Duration::ZERO, |at| now.since(at));
        wait.saturating_sub(self.delay)
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
            Err(reason) => {
                let advice = "progress is unknown until the log is back";
                return Finding::failure(check, reason, advice);
            }
        };
        let losses = backlogs.iter().filter(|backlog| backlog.lost() > 0);
        let losses =
            join_names(losses.map(|b| format!("{} in {}/{}", b.lost(), b.topic, b.partition)));
        if !losses.is_empty() {
            let evidence = format!("retention removed unprocessed records: {losses}");
            let advice = "packetboat audit lists the messages; raise the log's retention and run \
                          more of these processes";
            return Finding::failure(check, evidence, advice);
        }
        let records: u64 = backlogs.iter().map(Backlog::records).sum();
        let oldest = backlogs.iter().max_by_key(|backlog| backlog.waits(now));
        let waits = oldest.map_or(Duration::ZERO, |backlog| backlog.waits(now));
        if waits <= WAITS_LONG {
            let evidence = match records {
                0 => "no backlog".to_owned(),
                _ => format!("{} in flight", count(records, "record")),
            };
            return Finding::ok(check, evidence);
        }
        let place = oldest.map(|b| format!("{}/{}", b.topic, b.partition));
        let evidence = format!(
            "backlog of {}; the oldest, in {}, is {} overdue",
            count(records, "record"),
            place.unwrap_or_default(),
            span(waits),
        );
        if waits > WAITS_TOO_LONG {
            Finding::failure(check, evidence, lag_advice(check))
        } else {
            Finding::warning(check, evidence, lag_advice(check))
        }
    }
}

const fn lag_advice(check: Check) -> &'static str {
    match check {
        Check::Horns => {
            "is a horn running? Its log says what blocks it (often the push provider). Messages \
             are still delivered"
        }
        _ => {
            "is a carrier running? Its log and carrier_stalls_total say what blocks it: a store \
             that does not answer, or too few carriers for the load"
        }
    }
}

/// Dead letters that no operator has handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letters {
    pub now: Timestamp,
    pub waiting_letters: Inspection<WaitingLetters>,
}

/// Number of waiting letters, since when, and the main cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingLetters {
    pub letters: u64,
    /// Newer letters left uncounted.
    pub uncounted_letters: u64,
    pub oldest: Option<Timestamp>,
    /// The most frequent cause.
    pub cause: Option<String>,
}

impl Letters {
    pub fn finding(self) -> Finding {
        let advice = "packetboat dlq stats shows the causes; docs/operations/dead-letters.md says what to do";
        let waiting_letters = match self.waiting_letters.seen() {
            Ok(waiting_letters) => waiting_letters,
            Err(reason) => {
                let evidence = format!("not counted: {reason}");
                return Finding::warning(Check::DeadLetters, evidence, advice);
            }
        };
        if waiting_letters.letters == 0 && waiting_letters.uncounted_letters == 0 {
            return Finding::ok(Check::DeadLetters, "none open");
        }
        let mut evidence = format!("{} open", count(waiting_letters.letters, "letter"));
        if let Some(oldest) = waiting_letters.oldest {
            evidence += &format!(", the oldest from {} ago", span(self.now.since(oldest)));
        }
        if let Some(cause) = waiting_letters.cause {
            evidence += &format!("; most common cause: {cause}");
        }
        if waiting_letters.uncounted_letters > 0 {
            evidence += &format!("; {} more not counted", waiting_letters.uncounted_letters);
        }
        Finding::warning(Check::DeadLetters, evidence, advice)
    }
}

/// Progress of the continuous audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedMinutes {
    pub now: Timestamp,
    /// Uptime of this process: no minute can be closed right after a start.
    pub uptime: Duration,
    /// `audit.settle`
    pub settle: Duration,
    /// End of the last closed minute: everything accepted before it is closed. `None`: the chain
    /// has not begun.
    pub closed_until: Inspection<Option<Timestamp>>,
}

impl ClosedMinutes {
    pub fn finding(self) -> Finding {
        let check = Check::ClosedMinutes;
        let advice =
            "the log line 'cannot close audit minutes' says why; see docs/operations/audit.md, Lag";
        let closed_until = match self.closed_until.seen() {
            Ok(closed_until) => closed_until,
            Err(reason) => return Finding::failure(check, reason, without_store()),
        };
        let lag = match closed_until {
            Some(closed_until) => self.now.since(closed_until).saturating_sub(self.settle),
            None => self.uptime.saturating_sub(self.settle),
        };
        let lead = closed_until.map_or(Duration::ZERO, |closed_until| closed_until.since(self.now));
        if lead > MINUTE {
            let evidence = format!("minutes are closed up to {} in the future", span(lead));
            return Finding::warning(check, evidence, SET_BACK);
        }
        let evidence = match closed_until {
            Some(closed_until) => format!(
                "minutes are closed up to {} ago",
                span(self.now.since(closed_until))
            ),
            None => "no minute is closed yet".to_owned(),
        };
        match lag {
            lag if lag > LAGS_FAR => Finding::failure(check, evidence, advice),
            lag if lag > LAGS => Finding::warning(check, evidence, advice),
            _ => Finding::ok(check, evidence),
        }
    }
}

const SET_BACK: &str = "a fast clock was set back. The next minute closes once this clock has \
                        caught up, and counts everything accepted until then; see \
                        docs/operations/audit.md, Lag";

const fn without_store() -> &'static str {
    "message loss would go unnoticed: see the check audit_store"
}
