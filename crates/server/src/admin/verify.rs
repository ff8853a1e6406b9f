//! The verification: are the closed minutes those that were closed?

use anyhow::{Result, bail};
use backend::audit::AuditStore;
use protocol::Timestamp;
use protocol::ledger::chain::{Flaw, Head, Walk};
use protocol::ledger::minute::{Digest, minute_of};
use serde::{Deserialize, Serialize};

use super::log::{Log, Reader};
use super::rows::Rows;
use super::shortlist::Shortlist;

/// Flaws in a report.
const FLAWS: usize = 1000;
/// A verification is begun again where the chain's beginning moved meanwhile.
const TRIES: usize = 3;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// Milliseconds since 1970: from the minute of this time on; default: the whole chain.
    pub since: Option<i64>,
    /// Also reads the ids of each minute from the log again, as far as that keeps them.
    pub deep: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Nothing was changed or removed.
    pub holds: bool,
    /// Milliseconds since 1970: the minutes that were verified.
    pub since: i64,
    pub until: i64,
    /// Minutes in which something was accepted.
    pub minutes: u64,
    /// Minutes whose ids were read from the log again.
    pub reread: u64,
    /// The number of the last link and its digest: who writes it down elsewhere sees later whether the chain
    /// was made anew.
    pub last: u64,
    pub digest: String,
    pub flaws: Shortlist<Named>,
}

/// A minute that does not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its beginning, milliseconds since 1970.
    pub minute: i64,
    pub flaw: String,
}

/// Recomputes the chain from the rows that are kept.
///
/// # Errors
/// `Busy`, where others read the log for long before a deep one begins; a log or a store that does not answer; no
/// chain yet.
pub async fn verify(log: &Log, store: &dyn AuditStore, question: &Question) -> Result<Report> {
    let mut reader = log.reader();
    for _ in 0..TRIES {
        let Some(head) = store.head().await? else {
            bail!("no minute was closed yet: the first is begun when a station or a carrier runs");
        };
        let report = walk(&mut reader, store, question, &head).await?;
        let after = store.head().await?;
        // Old minutes that were removed meanwhile would count as missed.
        if report.holds || after.is_some_and(|after| after.start == head.start) {
            return Ok(report);
        }
    }
    bail!("old minutes are being removed: ask again in a moment")
}

async fn walk(
    reader: &mut Reader<'_>,
    store: &dyn AuditStore,
    question: &Question,
    head: &Head,
) -> Result<Report> {
    let asked = question.since.map(Timestamp::from_millis).map(minute_of);
    let (since, mut walk) = match asked {
        Some(since) if since > head.start.minute => (since, Walk::since(head, since)),
        _ => (head.start.minute, Walk::whole(head)),
    };
    let (mut rows, mut reread) = (Rows::of(store, since..head.until), 0);
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

fn named(flaw: &Flaw) -> Named {
    Named {
        minute: flaw.minute().millis(),
        flaw: flaw.to_string(),
    }
}
