//! The audit: each message that the log accepted is settled, in flight, or named as missing.

mod answer;
pub mod auditor;
pub mod log;
mod minute_builder;
mod minute_rows;
mod open_messages;
pub(crate) mod routes;
#[cfg(test)]
pub(crate) mod tests;
pub mod trace;
pub mod verify;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use axum::http::StatusCode;
use backend::ledger::LedgerStore;
use protocol::ledger::audit::{self as books, Audit, Balance};
use protocol::ledger::trace::MessageLife;
use protocol::{MessageId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

use self::log::{AcceptedMessages, CLOCKS_APART, Log, Reader};
use crate::answer::{List, Time, id};
use crate::port::refusal::DeskRefusal;

/// Lives read from the ledger before the task yields its thread.
const PAGE: usize = 50;
/// Looks before a message counts as missing: it may have moved during a look.
const MAX_LOOKS: usize = 4;
/// Default window of an audit.
pub const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
/// Default limit of messages in one audit, each about a hundred bytes of memory.
pub const MESSAGES: usize = 500_000;
/// Upper limit of messages in one audit.
pub const MESSAGES_MAX: usize = 5_000_000;
/// Limit of names of one kind in a report.
const NAMES: usize = 1000;
/// Limit of minutes in a report: a week and a bit.
const MINUTES: usize = 11_000;

/// Window of an audit.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuestion {
    /// Start: RFC 3339, or milliseconds since 1970; default: a day ago, or `until` less a day.
    #[schemars(with = "Option<String>")]
    pub since: Option<Time>,
    /// End, in the same form; default: now, and messages that arrive during the audit.
    #[schemars(with = "Option<String>")]
    pub until: Option<Time>,
    /// From the start of the log, unless `since` is set.
    pub all: bool,
    /// At most this many messages, the oldest of the window, but whole minutes, and one at least;
    /// default: 500,000.
    pub limit: Option<usize>,
    /// From log and ledger alone, exact to the millisecond, without closed minutes.
    pub deep: bool,
}

/// Balance of a window.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "AuditReport")]
pub struct Report {
    /// Whether no audited message is missing and no entries contradict each other.
    pub balanced: bool,
    /// Audited window, `since` to `until`; null: up to now.
    pub since: Time,
    pub until: Option<Time>,
    pub accepted: u64,
    pub settled: u64,
    pub in_flight: u64,
    /// Message ids that neither the ledger nor the log accounts for.
    pub missing: List<String>,
    pub contradictions: List<Contradiction>,
    /// Records of the log that do not decode (each is a dead letter).
    pub unreadable: u64,
    pub minutes: List<Minute>,
    /// Records of messages in the window that were not looked at, as they are too many for one
    /// audit.
    pub truncated: u64,
    /// `since` of the next question, which continues with these records.
    pub next: Option<Time>,
    /// Minutes answered from their stored rows; the others were read from the log.
    pub closed_minutes: u64,
}

/// Balance of a minute.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "AuditMinute")]
pub struct Minute {
    /// Start of the minute.
    pub at: Time,
    pub accepted: u64,
    pub settled: u64,
    pub in_flight: u64,
    pub missing: u64,
}

/// Two entries of the ledger that cannot both be true.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Contradiction {
    /// One message has two positions.
    PlacedTwice {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        message: MessageId,
    },
    /// Two messages share one position.
    SeqReused {
        conversation: String,
        seq: u64,
        /// Ids of the two.
        messages: [String; 2],
    },
}

impl From<books::Contradiction> for Contradiction {
    fn from(contradiction: books::Contradiction) -> Contradiction {
        match contradiction {
            books::Contradiction::PlacedTwice { message } => Contradiction::PlacedTwice { message },
            books::Contradiction::SeqReused {
                conversation,
                seq,
                first,
                second,
            } => Contradiction::SeqReused {
                conversation: conversation.to_string(),
                seq: seq.0,
                messages: [first.to_string(), second.to_string()],
            },
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contradiction::PlacedTwice { message } => {
                write!(f, "message {message} has two positions")
            }
            Contradiction::SeqReused {
                conversation,
                seq,
                messages: [one, other],
            } => write!(
                f,
                "position {seq} of {conversation} has two messages, {one} and {other}"
            ),
        }
    }
}

impl AuditQuestion {
    /// Acceptance times of the messages asked for.
    pub fn window(&self, now: Timestamp) -> Range<Timestamp> {
        let end = self.until.map(Time::at);
        let start = match (self.since, self.all) {
            (Some(start), _) => start.at(),
            (None, true) => Timestamp::ZERO,
            (None, false) => end.unwrap_or(now) - WINDOW,
        };
        start..end.unwrap_or(Timestamp::MAX)
    }

    /// Refuses a window in which nothing can have been accepted: the balance of nothing is no
    /// answer.
    fn check(&self, now: Timestamp) -> Result<(), DeskRefusal> {
        let window = self.window(now);
        let (start, end) = (window.start, window.end.min(now + CLOCKS_APART));
        if start >= end {
            let (start, end) = (Time::from(start), Time::from(end));
            let text = format!("empty time window: it starts at {start} and ends at {end}");
            return Err(DeskRefusal::new(StatusCode::BAD_REQUEST, text));
        }
        Ok(())
    }
}

/// Accounts for every message accepted in the window asked for.
///
/// # Errors
/// `Busy` if other questions read the log for long before this one begins; a log or a ledger that
/// does not answer.
pub async fn audit(
    log: &Log,
    ledger: &dyn LedgerStore,
    question: &AuditQuestion,
    now: Timestamp,
) -> Result<Report> {
    audit_from(&mut log.reader(), ledger, question, now).await
}

/// Like `audit`, for a question that may have begun already.
async fn audit_from(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    question: &AuditQuestion,
    now: Timestamp,
) -> Result<Report> {
    let window = question.window(now);
    let limit = question.limit.unwrap_or(MESSAGES).clamp(1, MESSAGES_MAX);
    let read = read(reader, ledger, &window, Timestamp::MAX, limit).await?;
    Ok(report(&window, &[&read], Sum::default()))
}

/// Messages read from the log, and their audit by the ledger.
struct WindowAudit {
    accepted_messages: AcceptedMessages,
    audit: Audit,
}

impl WindowAudit {
    /// Whether the whole window was read.
    fn is_whole(&self) -> bool {
        self.accepted_messages.left_off == 0
    }
}

/// Share of closed minutes in a report.
#[derive(Debug, Default)]
struct Sum {
    minutes: Vec<Minute>,
    missing_ids: Vec<MessageId>,
    /// Missing messages whose ids are not stored.
    nameless: u64,
    contradictions: u64,
}

/// Reads the messages accepted in a window from records appended before `upper_bound`, and the
/// fate of each.
async fn read(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    window: &Range<Timestamp>,
    upper_bound: Timestamp,
    limit: usize,
) -> Result<WindowAudit> {
    let accepted_messages = reader.accepted(window, upper_bound, limit).await?;
    let mut audit = look(reader, ledger, &accepted_messages.messages).await?;
    for _ in 1..MAX_LOOKS {
        let missing_ids = audit.total().missing_ids;
        if missing_ids.is_empty() {
            break;
        }
        audit.look_again(look(reader, ledger, &missing_ids).await?);
    }
    Ok(WindowAudit {
        accepted_messages,
        audit,
    })
}

/// Adds up the parts read, in order of time, and the closed minutes.
fn report(window: &Range<Timestamp>, parts: &[&WindowAudit], mut sum: Sum) -> Report {
    let closed_minutes = sum.minutes.len() as u64;
    let (mut unreadable, mut truncated_count, mut next) = (0, 0, None);
    let mut contradictions = Vec::new();
    for part in parts {
        sum.minutes.extend(part.audit.minutes().map(minute));
        sum.missing_ids.extend(part.audit.total().missing_ids);
        contradictions.extend(part.audit.contradictions().copied());
        unreadable += part.accepted_messages.unreadable;
        truncated_count += part.accepted_messages.left_off;
        next = next.or(part.accepted_messages.next);
    }
    sum.minutes.sort_by_key(|minute| minute.at);
    sum.missing_ids.sort_unstable();
    let total = |of: fn(&Minute) -> u64| sum.minutes.iter().map(of).sum();
    let mut missing_names = List::of(sum.missing_ids.iter().map(MessageId::to_string), NAMES);
    missing_names.truncated += sum.nameless;
    let contradictions = contradictions.into_iter().map(Contradiction::from);
    let mut contradictions = List::of(contradictions, NAMES);
    contradictions.truncated += sum.contradictions;
    Report {
        balanced: missing_names.total() == 0 && contradictions.total() == 0,
        since: window.start.into(),
        until: (window.end < Timestamp::MAX).then(|| window.end.into()),
        accepted: total(|minute| minute.accepted),
        settled: total(|minute| minute.settled),
        in_flight: total(|minute| minute.in_flight),
        missing: missing_names,
        contradictions,
        unreadable,
        minutes: List::of(sum.minutes, MINUTES),
        truncated: truncated_count,
        next: next.map(Time::from),
        closed_minutes,
    }
}

async fn look(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    ids: &[MessageId],
) -> Result<Audit> {
    let carried_messages = reader.find_in_flight(ids).await?;
    let mut audit = Audit::default();
    for ids in ids.chunks(PAGE) {
        for (id, entries) in ids.iter().zip(ledger.trace(ids).await?) {
            audit.add(&MessageLife::of(*id, &entries), &carried_messages);
        }
        yield_now().await;
    }
    Ok(audit)
}

fn minute((at, balance): (Timestamp, &Balance)) -> Minute {
    Minute {
        at: at.into(),
        accepted: balance.accepted_count,
        settled: balance.settled_count,
        in_flight: balance.in_flight_count,
        missing: balance.missing_ids.len() as u64,
    }
}
