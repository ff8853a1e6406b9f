//! The verification of the chain: no closed minute was changed or removed since.

use anyhow::{Result, bail};
use backend::audit::AuditStore;
use protocol::ledger::chain::{ChainFlaw, ChainHead, ChainWalk};
use protocol::ledger::minute::{Digest, minute_start};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::log::{Log, Reader};
use super::minute_rows::MinuteRows;
use crate::answer::{List, Time};

/// Limit of flaws in a report.
const FLAWS: usize = 1000;
/// Attempts at a verification: it begins again if the start of the chain moved meanwhile.
const TRIES: usize = 3;

/// Part of the chain to verify.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerifyQuestion {
    /// From the minute of this time on: RFC 3339, or milliseconds since 1970; default: the whole
    /// chain.
    #[schemars(with = "Option<String>")]
    pub since: Option<Time>,
    /// Also reads the ids of each minute from the log again, as far as the log keeps them.
    pub deep: bool,
}

/// State of the chain.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "ChainReport")]
pub struct Report {
    /// Whether no minute was changed or removed.
    pub intact: bool,
    /// Verified minutes, `since` to `until`.
    pub since: Time,
    pub until: Time,
    /// Minutes in which something was accepted.
    pub minutes: u64,
    /// Minutes whose ids were read from the log again.
    pub minutes_in_log: u64,
    /// Number of the last link, and its digest: written down elsewhere, they show later whether the
    /// chain was made anew.
    pub link: u64,
    pub digest: String,
    pub flaws: List<MinuteFlaw>,
}

/// A minute that does not match.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct MinuteFlaw {
    /// Start of the minute.
    pub minute: Time,
    /// Flaw, in a sentence.
    pub flaw: String,
}

/// No minute of the part asked for is closed: nothing would be intact.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct NoMinutes(pub String);

/// Recomputes the chain from the stored rows.
///
/// # Errors
/// `NoMinutes` if the chain ends before the part asked for; `Busy` if others read the log for long
/// before a deep verification begins; a log or a store that does not answer; no chain yet.
pub async fn verify(
    log: &Log,
    store: &dyn AuditStore,
    question: &VerifyQuestion,
) -> Result<Report> {
    let mut reader = log.reader();
    for _ in 0..TRIES {
        let Some(head) = store.head().await? else {
            bail!(
                "no audit minute is closed yet: the first one starts when a station or a carrier runs"
            );
        };
        let report = walk(&mut reader, store, question, &head).await?;
        let new_head = store.head().await?;
        // Old minutes removed meanwhile would count as missing.
        if report.intact || new_head.is_some_and(|new_head| new_head.start == head.start) {
            return Ok(report);
        }
    }
    bail!("old minutes are being removed: try again in a moment")
}

async fn walk(
    reader: &mut Reader<'_>,
    store: &dyn AuditStore,
    question: &VerifyQuestion,
    head: &ChainHead,
) -> Result<Report> {
    let first_minute = question.since.map(|start| minute_start(start.at()));
    if let Some(start) = first_minute.filter(|start| *start >= head.until) {
        let (start, end) = (Time::from(start), Time::from(head.until));
        let text = format!("no audit minute was closed since {start}: the last one ends at {end}");
        return Err(NoMinutes(text).into());
    }
    let (start, mut walk) = match first_minute {
        Some(start) if start > head.start.minute => (start, ChainWalk::since(head, start)),
        _ => (head.start.minute, ChainWalk::whole(head)),
    };
    let (mut rows, mut minutes_in_log) = (MinuteRows::of(store, start..head.until), 0);
    while let Some(rows) = rows.next().await? {
        for row in &rows {
            walk.step(row);
            let Some(closed_minute) = row.closed_minute.as_ref().filter(|_| question.deep) else {
                continue;
            };
            let turn = reader.turn().await?;
            if let Some(ids) = turn.read_ids(closed_minute).await? {
                minutes_in_log += 1;
                let in_log = ids.len() as u64;
                if in_log != closed_minute.accepted || Digest::from_ids(ids) != closed_minute.ids {
                    walk.differs(closed_minute, in_log);
                }
            }
        }
    }
    let (flaws, minutes) = walk.end();
    let link = head.link();
    Ok(Report {
        intact: flaws.is_empty(),
        since: start.into(),
        until: head.until.into(),
        minutes,
        minutes_in_log,
        link: link.number,
        digest: link.digest.to_string(),
        flaws: List::of(flaws.iter().map(minute_flaw), FLAWS),
    })
}

fn minute_flaw(flaw: &ChainFlaw) -> MinuteFlaw {
    MinuteFlaw {
        minute: flaw.minute().into(),
        flaw: flaw.to_string(),
    }
}
