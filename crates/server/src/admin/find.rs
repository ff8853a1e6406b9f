//! What is open of some messages, and what contradicts itself among them.

use std::collections::BTreeSet;

use anyhow::Result;
use backend::ledger::LedgerStore;
use protocol::MessageId;
use protocol::ledger::audit::{Audit, Contradiction, Fate};
use protocol::ledger::minute::Found;
use protocol::ledger::trace::Life;
use tokio::task::yield_now;

use super::audit::{LOOKS, PAGE};
use super::auditor::Term;
use super::log::{CarriedScan, Log};

/// What a look at the messages of several minutes found.
#[derive(Debug, Default)]
pub(super) struct Finding {
    pub(super) in_flight: BTreeSet<MessageId>,
    pub(super) missing: BTreeSet<MessageId>,
    contradictions: BTreeSet<Contradiction>,
}

impl Finding {
    /// What was found of these. Two messages that contradict each other count where the later one is.
    pub(super) fn among(&self, ids: &[MessageId]) -> Found {
        let ids: BTreeSet<MessageId> = ids.iter().copied().collect();
        let contradicted = |contradiction: &&Contradiction| match **contradiction {
            Contradiction::PlacedTwice { message } => ids.contains(&message),
            Contradiction::SeqReused { first, second, .. } => ids.contains(&first.max(second)),
        };
        Found {
            in_flight: self.in_flight.intersection(&ids).copied().collect(),
            missing: self.missing.intersection(&ids).copied().collect(),
            contradictions: self.contradictions.iter().filter(contradicted).count() as u64,
        }
    }
}

/// Looks at messages, in order of their ids. What seems missing is looked at again: it may have moved while
/// it was looked for. Every few pages the others at the log have their turn, and `term` goes on; it also
/// waits for its turn as long as it takes.
///
/// # Errors
/// `Busy`, where there is no term and another question reads the log for long; a log or a ledger that does not
/// answer; a term that is over.
pub(super) async fn find(
    log: &Log,
    ledger: &dyn LedgerStore,
    ids: &[MessageId],
    mut term: Option<&mut Term>,
) -> Result<Finding> {
    let mut found = Finding::default();
    let mut unclear = ids.to_vec();
    for _ in 0..LOOKS {
        let mut scan = CarriedScan::of(&unclear);
        loop {
            let turn = match term.as_deref_mut() {
                Some(term) => term.turn_at(log).await?,
                None => log.turn().await?,
            };
            if turn.go_over(&mut scan).await? {
                break;
            }
            drop(turn);
            if let Some(term) = term.as_deref_mut() {
                term.go_on().await?;
            }
        }
        let carried = scan.carried();
        let (mut audit, mut missing) = (Audit::default(), Vec::new());
        for page in unclear.chunks(PAGE) {
            for (&id, entries) in page.iter().zip(ledger.trace(page).await?) {
                let life = Life::of(id, &entries);
                audit.add(&life, &carried);
                match Fate::of(&life, &carried) {
                    Fate::Settled => {}
                    Fate::InFlight => _ = found.in_flight.insert(id),
                    Fate::Missing => missing.push(id),
                }
            }
            if let Some(term) = term.as_deref_mut() {
                term.go_on().await?;
            }
            yield_now().await;
        }
        found.contradictions.extend(audit.contradictions().copied());
        unclear = missing;
        if unclear.is_empty() {
            break;
        }
    }
    found.missing = unclear.into_iter().collect();
    Ok(found)
}
