//! What is open of some messages, and what contradicts itself among them.

use std::collections::BTreeSet;

use anyhow::Result;
use backend::ledger::LedgerStore;
use protocol::MessageId;
use protocol::ledger::audit::{Audit, Fate};
use protocol::ledger::minute::Found;
use protocol::ledger::trace::Life;
use tokio::task::yield_now;

use super::audit::{LOOKS, PAGE};
use super::auditor::Term;
use super::log::Log;

/// Looks at messages, in order of their ids. What seems missing is looked at again: it may have moved while
/// it was looked for. Between two pages the others at the log have their turn, and `term` goes on.
///
/// # Errors
/// `Busy`, where another question reads the log for long; a log or a ledger that does not answer; a term that
/// is over.
pub(super) async fn find(
    log: &Log,
    ledger: &dyn LedgerStore,
    ids: &[MessageId],
    mut term: Option<&mut Term>,
) -> Result<Found> {
    let mut found = Found::default();
    let mut contradictions = BTreeSet::new();
    let mut unclear = ids.to_vec();
    for _ in 0..LOOKS {
        let carried = log.turn().await?.carried(&unclear).await?;
        let (mut audit, mut missing) = (Audit::default(), Vec::new());
        for page in unclear.chunks(PAGE) {
            for (&id, entries) in page.iter().zip(ledger.trace(page).await?) {
                let life = Life::of(id, &entries);
                audit.add(&life, &carried);
                match Fate::of(&life, &carried) {
                    Fate::Settled => {}
                    Fate::InFlight => found.in_flight.push(id),
                    Fate::Missing => missing.push(id),
                }
            }
            if let Some(term) = term.as_deref_mut() {
                term.go_on().await?;
            }
            yield_now().await;
        }
        contradictions.extend(audit.contradictions().copied());
        unclear = missing;
        if unclear.is_empty() {
            break;
        }
    }
    found.in_flight.sort_unstable();
    found.missing = unclear;
    found.contradictions = contradictions.len() as u64;
    Ok(found)
}
