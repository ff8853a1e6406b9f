//! The answer to an operator who asks for an audit: from closed minutes where there are some, and from the log
//! before and after them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use backend::audit::AuditStore;
use backend::ledger::LedgerStore;
use protocol::ledger::chain::Head;
use protocol::ledger::minute::{Amendment, Closed, MINUTE, Row, minute_of};
use protocol::{MessageId, Timestamp};

use super::audit::{self, MESSAGES, MESSAGES_MAX, Minute, Question, Report, Sum, read, report};
use super::find::{Seeker, find};
use super::log::{CLOCKS_APART, Log, Reader};
use super::rows::Rows;

/// How far before and behind a range a row is looked for that is next to it in the chain.
const NEXT: Duration = Duration::from_secs(3600);
/// Open messages of closed minutes that are looked at for one answer; of more, the last look counts.
const OPEN: usize = 20_000;

/// Accounts for every message that was accepted in the time asked for. Where that begins within a closed
/// minute, from the beginning of the minute on; with `deep`, to the millisecond, from the log alone.
///
/// # Errors
/// `Busy`, where other questions read the log for long before this one begins; a log or a store that does not
/// answer.
pub async fn answer(
    log: &Log,
    ledger: &dyn LedgerStore,
    store: &dyn AuditStore,
    question: &Question,
    now: Timestamp,
) -> Result<Report> {
    let mut reader = log.reader();
    match from_closed(&mut reader, ledger, store, question, now).await? {
        Some(report) => Ok(report),
        None => audit::audit_from(&mut reader, ledger, question, now).await,
    }
}

/// `None` where the log alone can answer.
async fn from_closed(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    store: &dyn AuditStore,
    question: &Question,
    now: Timestamp,
) -> Result<Option<Report>> {
    if question.deep {
        return Ok(None);
    }
    let Some(head) = store.head().await? else {
        return Ok(None);
    };
    let begun = match head.start.number {
        0 => head.start.minute,
        _ => head.start.minute + MINUTE,
    };
    let mut window = question.window(now);
    let closed = minute_of(window.start).max(begun)..minute_of(window.end).min(head.until);
    if closed.is_empty() || !is_whole(store, &head, begun, &closed).await? {
        return Ok(None);
    }
    let Some(sum) = sum(reader, ledger, store, &closed).await? else {
        return Ok(None);
    };
    window.start = window.start.min(closed.start);
    let most = question.limit.unwrap_or(MESSAGES).clamp(1, MESSAGES_MAX);
    let mut parts = Vec::new();
    for part in [window.start..closed.start, closed.end..window.end] {
        if !part.is_empty() {
            let before = part.end + CLOCKS_APART;
            let part = read(reader, ledger, &part, before, most).await?;
            if !part.is_whole() && parts.is_empty() && window.start < closed.start {
                // What comes after the part that was left off is asked for next.
                return Ok(None);
            }
            parts.push(part);
        }
    }
    Ok(Some(report(
        &window,
        &parts.iter().collect::<Vec<_>>(),
        sum,
    )))
}

/// Whether the rows of these minutes are all there: an absent one is no quiet minute where the numbers around
/// it leave one out. False also where that cannot be seen, or records were dropped before they were read.
async fn is_whole(
    store: &dyn AuditStore,
    head: &Head,
    begun: Timestamp,
    minutes: &Range<Timestamp>,
) -> Result<bool> {
    let from = (minutes.start - NEXT).max(begun);
    let until = (minutes.end + NEXT).min(head.until);
    let mut last = (from == begun).then_some(head.start.number);
    let mut is_known = last.is_some();
    let mut behind = false;
    let mut rows = Rows::of(store, from..until);
    while let Some(rows) = rows.next().await? {
        for row in &rows {
            let Some(closed) = &row.closed else {
                return Ok(false);
            };
            let follows = last.is_none_or(|last| closed.number == last + 1);
            let is_asked = minutes.contains(&row.minute);
            if !follows || (is_asked && (last.is_none() || closed.unread > 0)) {
                return Ok(false);
            }
            is_known |= row.minute < minutes.start;
            behind |= row.minute >= minutes.end;
            last = Some(closed.number);
        }
    }
    let ends = until == head.until && last == Some(head.link().number);
    Ok(is_known && (behind || ends))
}

/// A closed minute whose open messages have their names.
struct Named {
    minute: Minute,
    open: BTreeSet<MessageId>,
}

/// What is kept of closed minutes, with another look at what was open; `None` where a row cannot be read.
async fn sum(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    store: &dyn AuditStore,
    minutes: &Range<Timestamp>,
) -> Result<Option<Sum>> {
    let (mut sum, mut named, mut open) = (Sum::default(), Vec::new(), BTreeSet::new());
    let mut rows = Rows::of(store, minutes.clone());
    while let Some(rows) = rows.next().await? {
        for row in &rows {
            let Some(closed) = &row.closed else {
                return Ok(None);
            };
            let figures = row
                .amendment
                .as_ref()
                .map_or(closed.then, Amendment::figures);
            sum.contradictions += figures.contradictions;
            let minute = Minute {
                at: closed.minute.millis(),
                accepted: closed.accepted,
                settled: figures.settled,
                in_flight: figures.in_flight,
                missing: figures.missing,
            };
            match names(row, closed).filter(|names| open.len() + names.len() <= OPEN) {
                Some(names) if names.is_empty() => sum.minutes.push(minute),
                Some(names) => {
                    open.extend(&names);
                    named.push(Named {
                        minute,
                        open: names,
                    });
                }
                None => {
                    sum.nameless += minute.missing;
                    sum.minutes.push(minute);
                }
            }
        }
    }
    let open: Vec<_> = open.into_iter().collect();
    let found = match open.is_empty() {
        true => Default::default(),
        false => find(Seeker::Question(reader), ledger, &open, None).await?,
    };
    for Named { mut minute, open } in named {
        minute.in_flight = found.in_flight.intersection(&open).count() as u64;
        minute.missing = found.missing.intersection(&open).count() as u64;
        minute.settled = minute.accepted - minute.in_flight - minute.missing;
        sum.minutes.push(minute);
    }
    sum.missing = found.missing.into_iter().collect();
    Ok(Some(sum))
}

/// The messages of a minute that were open when it was last looked at; `None` where not all are known.
fn names(row: &Row, closed: &Closed) -> Option<BTreeSet<MessageId>> {
    match &row.amendment {
        Some(amendment) => Some(amendment.open()?.into_iter().collect()),
        None if closed.then.settled == closed.accepted => Some(BTreeSet::new()),
        None => None,
    }
}
