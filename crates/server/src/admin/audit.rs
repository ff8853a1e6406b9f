//! The audit: of what the log accepted, everything is settled or in flight, or it is named.

use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use backend::ledger::LedgerStore;
use protocol::ledger::audit::{Audit, Balance};
use protocol::ledger::trace::Life;
use protocol::{MessageId, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

use super::log::{Accepted, Log, Reader};
use super::shortlist::Shortlist;

/// Lives read from the ledger at a time, before others have their turn on the thread.
pub(super) const PAGE: usize = 50;
/// What seems missing is looked at again so often: it may have moved while it was looked for.
pub(super) const LOOKS: usize = 4;
/// What is audited where nobody says.
pub const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
/// Messages of one audit, each about a hundred bytes of memory, where nobody says.
pub const MESSAGES: usize = 500_000;
/// Messages of one audit at most.
pub const MESSAGES_MAX: usize = 5_000_000;
/// Names of one kind in a report.
const NAMES: usize = 1000;
/// Minutes in a report: a week and some.
const MINUTES: usize = 11_000;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// Milliseconds since 1970; default: a day ago, or `until` less a day.
    pub since: Option<i64>,
    /// Default: now and what comes while it is looked.
    pub until: Option<i64>,
    /// From the beginning of the log on, unless `since` says otherwise.
    pub all: bool,
    /// The oldest so many messages of the window.
    pub limit: Option<usize>,
    /// From the log and the ledger alone, to the millisecond: closed minutes are not asked.
    pub deep: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Of what was looked at, nothing is missing and nothing contradicts itself.
    pub even: bool,
    /// Milliseconds since 1970: the window that was looked at.
    pub since: i64,
    pub until: Option<i64>,
    pub accepted: u64,
    pub settled: u64,
    pub in_flight: u64,
    /// Message ids that neither the ledger nor the log accounts for.
    pub missing: Shortlist<String>,
    /// Two entries of the ledger that cannot both be, among what was looked at.
    pub contradictions: Shortlist<String>,
    /// Records of the log that are none of ours (they are dead letters).
    pub unreadable: u64,
    pub minutes: Shortlist<Minute>,
    /// Records of messages of the window that were not looked at, as they are too many for one audit.
    pub left_off: u64,
    /// Where to go on for them: `since` of the next question.
    pub next: Option<i64>,
    /// Minutes that were answered from what is kept of them; the others were read from the log.
    #[serde(default)]
    pub closed: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Minute {
    /// Its beginning, milliseconds since 1970.
    pub at: i64,
    pub accepted: u64,
    pub settled: u64,
    pub in_flight: u64,
    pub missing: u64,
}

impl Question {
    /// The time in which the messages were accepted that this asks for.
    pub fn window(&self, now: Timestamp) -> Range<Timestamp> {
        let until = self.until.map(Timestamp::from_millis);
        let since = match (self.since, self.all) {
            (Some(since), _) => Timestamp::from_millis(since),
            (None, true) => Timestamp::ZERO,
            (None, false) => until.unwrap_or(now) - WINDOW,
        };
        since..until.unwrap_or(Timestamp::MAX)
    }
}

/// Accounts for every message that was accepted in the time asked for.
///
/// # Errors
/// `Busy`, where other questions read the log for long before this one begins; a log or a ledger that does not
/// answer.
pub async fn audit(
    log: &Log,
    ledger: &dyn LedgerStore,
    question: &Question,
    now: Timestamp,
) -> Result<Report> {
    audit_from(&mut log.reader(), ledger, question, now).await
}

/// As `audit`, for a question that may have begun.
pub(super) async fn audit_from(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    question: &Question,
    now: Timestamp,
) -> Result<Report> {
    let window = question.window(now);
    let most = question.limit.unwrap_or(MESSAGES).clamp(1, MESSAGES_MAX);
    let read = read(reader, ledger, &window, Timestamp::MAX, most).await?;
    Ok(report(&window, &[&read], Sum::default()))
}

/// What was read from log and ledger.
pub(super) struct Read {
    accepted: Accepted,
    audit: Audit,
}

impl Read {
    /// All of the window was looked at.
    pub(super) fn is_whole(&self) -> bool {
        self.accepted.left_off == 0
    }
}

/// What closed minutes add to a report.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) minutes: Vec<Minute>,
    pub(super) missing: Vec<MessageId>,
    /// Missing, and their names are not kept.
    pub(super) nameless: u64,
    pub(super) contradictions: u64,
}

/// Reads what was accepted in a window, of records that were appended before that time, and what became of
/// it.
pub(super) async fn read(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    window: &Range<Timestamp>,
    before: Timestamp,
    most: usize,
) -> Result<Read> {
    let accepted = reader.accepted(window, before, most).await?;
    let mut audit = look(reader, ledger, &accepted.messages).await?;
    for _ in 1..LOOKS {
        let missing = audit.total().missing;
        if missing.is_empty() {
            break;
        }
        audit.look_again(look(reader, ledger, &missing).await?);
    }
    Ok(Read { accepted, audit })
}

/// Adds up what was read, part by part in order of time, and what closed minutes say.
pub(super) fn report(window: &Range<Timestamp>, parts: &[&Read], mut sum: Sum) -> Report {
    let closed = sum.minutes.len() as u64;
    let (mut unreadable, mut left_off, mut next) = (0, 0, None);
    let mut contradictions = Vec::new();
    for part in parts {
        sum.minutes.extend(part.audit.minutes().map(minute));
        sum.missing.extend(part.audit.total().missing);
        contradictions.extend(part.audit.contradictions().map(|c| format!("{c:?}")));
        unreadable += part.accepted.unreadable;
        left_off += part.accepted.left_off;
        next = next.or(part.accepted.next);
    }
    sum.minutes.sort_by_key(|minute| minute.at);
    sum.missing.sort_unstable();
    let total = |of: fn(&Minute) -> u64| sum.minutes.iter().map(of).sum();
    let mut missing = Shortlist::of(sum.missing.iter().map(MessageId::to_string), NAMES);
    missing.left_off += sum.nameless;
    let mut contradictions = Shortlist::of(contradictions, NAMES);
    contradictions.left_off += sum.contradictions;
    Report {
        even: missing.total() == 0 && contradictions.total() == 0,
        since: window.start.millis(),
        until: (window.end < Timestamp::MAX).then(|| window.end.millis()),
        accepted: total(|minute| minute.accepted),
        settled: total(|minute| minute.settled),
        in_flight: total(|minute| minute.in_flight),
        missing,
        contradictions,
        unreadable,
        minutes: Shortlist::of(sum.minutes, MINUTES),
        left_off,
        next: next.map(Timestamp::millis),
        closed,
    }
}

async fn look(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    ids: &[MessageId],
) -> Result<Audit> {
    let carried = reader.carried(ids).await?;
    let mut audit = Audit::default();
    for ids in ids.chunks(PAGE) {
        for (id, entries) in ids.iter().zip(ledger.trace(ids).await?) {
            audit.add(&Life::of(*id, &entries), &carried);
        }
        yield_now().await;
    }
    Ok(audit)
}

fn minute((at, balance): (Timestamp, &Balance)) -> Minute {
    Minute {
        at: at.millis(),
        accepted: balance.accepted,
        settled: balance.settled,
        in_flight: balance.in_flight,
        missing: balance.missing.len() as u64,
    }
}
