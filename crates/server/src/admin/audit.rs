//! The audit: of what the log accepted, everything is settled or in flight, or it is named.

use anyhow::Result;
use backend::ledger::LedgerStore;
use backend::queue::Queue;
use protocol::ledger::audit::{Audit, Balance, Carried};
use protocol::ledger::trace::Life;
use protocol::{MessageId, Timestamp};
use serde::{Deserialize, Serialize};

use super::log;

/// Lives read from the ledger at a time.
const PAGE: usize = 500;
/// What seems missing is looked at again so often: it may have moved while it was looked for.
const LOOKS: usize = 4;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Question {
    /// Milliseconds since 1970; default: everything the log keeps.
    pub since: Option<i64>,
    pub until: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub even: bool,
    pub accepted: u64,
    pub settled: u64,
    pub in_flight: u64,
    /// Message ids that neither the ledger nor the log accounts for.
    pub missing: Vec<String>,
    /// Two entries of the ledger that cannot both be.
    pub contradictions: Vec<String>,
    /// Records of the log that are none of ours (they are dead letters).
    pub unreadable: u64,
    pub minutes: Vec<Minute>,
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

/// Accounts for every message that was accepted in the time asked for.
pub async fn audit(
    queue: &dyn Queue,
    ledger: &dyn LedgerStore,
    question: &Question,
) -> Result<Report> {
    let since = question
        .since
        .map_or(Timestamp::ZERO, Timestamp::from_millis);
    let until = question
        .until
        .map_or(Timestamp::MAX, Timestamp::from_millis);
    let accepted = log::accepted(queue, since, until).await?;
    let ids: Vec<MessageId> = accepted.messages.into_keys().collect();
    let mut audit = look(queue, ledger, &ids).await?;
    for _ in 1..LOOKS {
        let missing = audit.total().missing;
        if missing.is_empty() {
            break;
        }
        // A record may have been read before it moved to a retry topic, and that topic before it came.
        if look(queue, ledger, &missing)
            .await?
            .total()
            .missing
            .is_empty()
        {
            audit = look(queue, ledger, &ids).await?;
        }
    }
    Ok(report(&audit, accepted.unreadable))
}

async fn look(queue: &dyn Queue, ledger: &dyn LedgerStore, ids: &[MessageId]) -> Result<Audit> {
    let carried: Carried = log::carried(queue).await?;
    let mut audit = Audit::default();
    for ids in ids.chunks(PAGE) {
        for (id, entries) in ids.iter().zip(ledger.trace(ids).await?) {
            audit.add(&Life::of(*id, &entries), &carried);
        }
    }
    Ok(audit)
}

fn report(audit: &Audit, unreadable: u64) -> Report {
    let Balance {
        accepted,
        settled,
        in_flight,
        missing,
    } = audit.total();
    Report {
        even: audit.is_even(),
        accepted,
        settled,
        in_flight,
        missing: missing.iter().map(MessageId::to_string).collect(),
        contradictions: audit.contradictions().map(|c| format!("{c:?}")).collect(),
        unreadable,
        minutes: audit
            .minutes()
            .map(|(at, balance)| Minute {
                at: at.millis(),
                accepted: balance.accepted,
                settled: balance.settled,
                in_flight: balance.in_flight,
                missing: balance.missing.len() as u64,
            })
            .collect(),
    }
}
