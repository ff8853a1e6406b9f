//! Answers an operator's audit: from closed minutes if there are any, and from the log before and
//! after them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use backend::audit::AuditStore;
use backend::ledger::LedgerStore;
use protocol::ledger::chain::ChainHead;
use protocol::ledger::minute::{Amendment, ClosedMinute, MINUTE, MinuteRow, minute_start};
use protocol::{MessageId, Timestamp};

use super::log::{CLOCKS_APART, Log, Reader};
use super::minute_rows::MinuteRows;
use super::open_messages::{Seeker, find};
use super::{AuditQuestion, MESSAGES, MESSAGES_MAX, Minute, Report, Sum, read, report};
use crate::audit;

/// Distance before and after a range in which to look for the adjacent rows of the chain.
const NEXT: Duration = Duration::from_secs(3600);
/// Open messages of closed minutes looked at for one answer; beyond it, the last look counts.
const OPEN: usize = 20_000;

/// Accounts for every message accepted in the window asked for. A window that begins within a
/// closed minute is widened to the start of that minute; with `deep` it is exact to the
/// millisecond, from the log alone.
///
/// # Errors
/// `Busy` if other questions read the log for long before this one begins; a log or a store that
/// does not answer.
pub async fn answer(
    log: &Log,
    ledger: &dyn LedgerStore,
    store: &dyn AuditStore,
    question: &AuditQuestion,
    now: Timestamp,
) -> Result<Report> {
    let mut reader = log.reader();
    match from_closed(&mut reader, ledger, store, question, now).await? {
        Some(report) => Ok(report),
        None => audit::audit_from(&mut reader, ledger, question, now).await,
    }
}

/// Answers from closed minutes; `None` if only the log can answer.
async fn from_closed(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    store: &dyn AuditStore,
    question: &AuditQuestion,
    now: Timestamp,
) -> Result<Option<Report>> {
    if question.deep {
        return Ok(None);
    }
    let Some(head) = store.head().await? else {
        return Ok(None);
    };
    let chain_start = match head.start.number {
        0 => head.start.minute,
        _ => head.start.minute + MINUTE,
    };
    let mut window = question.window(now);
    let closed_range =
        minute_start(window.start).max(chain_start)..minute_start(window.end).min(head.until);
    if closed_range.is_empty() || !is_whole(store, &head, chain_start, &closed_range).await? {
        return Ok(None);
    }
    let Some(sum) = sum(reader, ledger, store, &closed_range).await? else {
        return Ok(None);
    };
    window.start = window.start.min(closed_range.start);
    let limit = question.limit.unwrap_or(MESSAGES).clamp(1, MESSAGES_MAX);
    let mut parts = Vec::new();
    for part in [
        window.start..closed_range.start,
        closed_range.end..window.end,
    ] {
        if !part.is_empty() {
            let upper_bound = part.end + CLOCKS_APART;
            let part = read(reader, ledger, &part, upper_bound, limit).await?;
            if !part.is_whole() && parts.is_empty() && window.start < closed_range.start {
                // The next question begins at the records left off, and covers the closed minutes.
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

/// Whether all rows of these minutes are present. An absent row is a quiet minute if the numbers
/// around it are consecutive, and a lost one otherwise. False also if the numbers cannot tell, or
/// if records were dropped before they were read.
async fn is_whole(
    store: &dyn AuditStore,
    head: &ChainHead,
    chain_start: Timestamp,
    minutes: &Range<Timestamp>,
) -> Result<bool> {
    let from = (minutes.start - NEXT).max(chain_start);
    let end = (minutes.end + NEXT).min(head.until);
    let mut last = (from == chain_start).then_some(head.start.number);
    let mut is_known = last.is_some();
    let mut has_later_row = false;
    let mut rows = MinuteRows::of(store, from..end);
    while let Some(rows) = rows.next().await? {
        for row in &rows {
            let Some(closed_minute) = &row.closed_minute else {
                return Ok(false);
            };
            let follows = last.is_none_or(|last| closed_minute.number == last + 1);
            let is_asked = minutes.contains(&row.minute);
            if !follows || (is_asked && (last.is_none() || closed_minute.unread > 0)) {
                return Ok(false);
            }
            is_known |= row.minute < minutes.start;
            has_later_row |= row.minute >= minutes.end;
            last = Some(closed_minute.number);
        }
    }
    let ends = end == head.until && last == Some(head.link().number);
    Ok(is_known && (has_later_row || ends))
}

/// A closed minute whose open messages are known by id.
struct NamedMinute {
    minute: Minute,
    open: BTreeSet<MessageId>,
}

/// Sums the stored figures of closed minutes, after another look at their open messages; `None` if
/// a row cannot be read.
async fn sum(
    reader: &mut Reader<'_>,
    ledger: &dyn LedgerStore,
    store: &dyn AuditStore,
    minutes: &Range<Timestamp>,
) -> Result<Option<Sum>> {
    let (mut sum, mut named_minutes, mut open) = (Sum::default(), Vec::new(), BTreeSet::new());
    let mut rows = MinuteRows::of(store, minutes.clone());
    while let Some(rows) = rows.next().await? {
        for row in &rows {
            let Some(closed_minute) = &row.closed_minute else {
                return Ok(None);
            };
            let figures = row
                .amendment
                .as_ref()
                .map_or(closed_minute.then, Amendment::figures);
            sum.contradictions += figures.contradictions;
            let minute = Minute {
                at: closed_minute.minute.into(),
                accepted: closed_minute.accepted,
                settled: figures.settled,
                in_flight: figures.in_flight,
                missing: figures.missing,
            };
            match names(row, closed_minute).filter(|names| open.len() + names.len() <= OPEN) {
                Some(names) if names.is_empty() => sum.minutes.push(minute),
                Some(names) => {
                    open.extend(&names);
                    named_minutes.push(NamedMinute {
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
    let finding = if open.is_empty() {
        Default::default()
    } else {
        find(Seeker::Question(reader), ledger, &open, None).await?
    };
    for NamedMinute { mut minute, open } in named_minutes {
        minute.in_flight = finding.in_flight.intersection(&open).count() as u64;
        minute.missing = finding.missing_ids.intersection(&open).count() as u64;
        minute.settled = minute.accepted - minute.in_flight - minute.missing;
        sum.minutes.push(minute);
    }
    sum.missing_ids = finding.missing_ids.into_iter().collect();
    Ok(Some(sum))
}

/// Messages of a minute that were open at its last look; `None` if not all are known by id.
fn names(row: &MinuteRow, closed_minute: &ClosedMinute) -> Option<BTreeSet<MessageId>> {
    match &row.amendment {
        Some(amendment) => Some(amendment.open()?.into_iter().collect()),
        None if closed_minute.then.settled == closed_minute.accepted => Some(BTreeSet::new()),
        None => None,
    }
}
