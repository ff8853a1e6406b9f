//! The verification of the chain: no closed minute was changed or removed since.

use anyhow::{Result, bail};
use backend::audit::AuditStore;
use protocol::Timestamp;
use protocol::ledger::chain::{ChainFlaw, ChainHead, ChainWalk};
use protocol::ledger::minute::{Digest, minute_of};
use serde::{Deserialize, Serialize};

use super::log::{Log, Reader};
use super::minute_rows::MinuteRows;
use super::truncated::Shortlist;

/// Limit of flaws in a report.
const FLAWS: usize = 1000;
/// Attempts at a verification: it begins again if the start of the chain moved meanwhile.
const TRIES: usize = 3;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerifyQuestion {
    /// Start, milliseconds since 1970, from the minute of this time on; default: the whole chain.
    pub since: Option<i64>,
    /// Also reads the ids of each minute from the log again, as far as the log keeps them.
    pub deep: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// True if no minute was changed or removed.
    pub holds: bool,
    /// Verified minutes, `since` to `until`, in milliseconds since 1970.
    pub since: i64,
    pub until: i64,
    /// Minutes in which something was accepted.
    pub minutes: u64,
    /// Minutes whose ids were read from the log again.
    pub reread: u64,
    /// Number of the last link, and its digest: written down elsewhere, they show later whether the
    /// chain was made anew.
    pub last: u64,
    pub digest: String,
    pub flaws: Shortlist<Named>,
}

/// A minute that does not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Start of the minute, milliseconds since 1970.
    pub minute: i64,
    pub flaw: String,
}

/// Recomputes the chain from the stored rows.
///
/// # Errors
/// `Busy` if others read the log for long before a deep verification begins; a log or a store that
/// does not answer; no chain yet.
pub async fn verify(
    log: &Log,
    store: &dyn AuditStore,
    question: &VerifyQuestion,
) -> Result<Report> {
    let mut reader = log.reader();
    for _ in 0..TRIES {
        let Some(head) = store.head().await? else {
            bail!("no minute was closed yet: the first is begun when a station or a carrier runs");
        };
        let report = walk(&mut reader, store, question, &head).await?;
        let after = store.head().await?;
        // Old minutes removed meanwhile would count as missing.
        if report.holds || after.is_some_and(|after| after.start == head.start) {
            return Ok(report);
        }
    }
    bail!("old minutes are being removed: ask again in a moment")
}

async fn walk(
    reader: &mut Reader<'_>,
    store: &dyn AuditStore,
    question: &VerifyQuestion,
    head: &ChainHead,
) -> Result<Report> {
    let asked = question.since.map(Timestamp::from_millis).map(minute_of);
    let (since, mut walk) = match asked {
        Some(since) if since > head.start.minute => (since, ChainWalk::since(head, since)),
        _ => (head.start.minute, ChainWalk::whole(head)),
    };
    let (mut rows, mut reread) = (MinuteRows::of(store, since..head.until), 0);
    while let Some(rows) = rows.next().await? {
        for row in &rows {
            walk.step(row);
            let Some(closed) = row.closed.as_ref().filter(|_| question.deep) else {
                continue;
            };
            let turn = reader.turn().await?;
            if let Some(ids) = turn.ids_of(closed).await? {
                reread += 1;
                let in_log = ids.len() as u64;
                if in_log != closed.accepted || Digest::of_ids(ids) != closed.ids {
                    walk.differs(closed, in_log);
                }
            }
        }
    }
    let (flaws, minutes) = walk.end();
    let link = head.link();
    Ok(Report {
        holds: flaws.is_empty(),
        since: since.millis(),
        until: head.until.millis(),
        minutes,
        reread,
        last: link.number,
        digest: link.digest.to_string(),
        flaws: Shortlist::of(flaws.iter().map(named), FLAWS),
    })
}

fn named(flaw: &ChainFlaw) -> Named {
    Named {
        minute: flaw.minute().millis(),
        flaw: flaw.to_string(),
    }
}
