//! What is open of some messages, and what contradicts itself among them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use backend::ledger::LedgerStore;
use protocol::MessageId;
use protocol::ledger::audit::{Audit, Contradiction, Fate};
use protocol::ledger::minute::Found;
use protocol::ledger::trace::Life;
use tokio::task::yield_now;

use super::audit::{LOOKS, PAGE};
use super::auditor::Term;
use super::log::{CarriedScan, Left, Log, Reader};

/// What a look at the messages of several minutes found.
#[derive(Debug, Default)]
pub(super) struct Finding {
    pub(super) in_flight: BTreeSet<MessageId>,
    pub(super) missing: BTreeSet<MessageId>,
    contradictions: BTreeSet<Contradiction>,
    /// The partition of topic `message` that has a record of it, for those in flight that have one.
    waits_in: BTreeMap<MessageId, usize>,
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

    /// How many of these wait in each partition.
    pub(super) fn waiting(&self, ids: &[MessageId]) -> BTreeMap<usize, u64> {
        let mut waiting = BTreeMap::new();
        for partition in ids.iter().filter_map(|id| self.waits_in.get(id)) {
            *waiting.entry(*partition).or_default() += 1;
        }
        waiting
    }
}

/// Who looks, and waits for turns at the log as long as it takes.
pub(super) enum Seeker<'a, 'log> {
    Question(&'a mut Reader<'log>),
    /// It also has to be heard of.
    Auditor(&'log Log, &'a mut Term),
}

impl Seeker<'_, '_> {
    async fn go_over(&mut self, scan: &mut CarriedScan<'_>) -> Result<bool> {
        let turn = match self {
            Seeker::Question(reader) => reader.turn().await?,
            Seeker::Auditor(log, term) => term.turn_at(log).await?,
        };
        turn.go_over(scan).await
    }

    async fn go_on(&mut self) -> Result<()> {
        match self {
            Seeker::Question(_) => Ok(()),
            Seeker::Auditor(_, term) => term.go_on().await,
        }
    }
}

/// Looks at messages, in order of their ids. What seems missing is looked at again: it may have moved while
/// it was looked for. Where it is known what carriers have left of their minutes, the first look reads no
/// more of topic `message` than that: it sees less that is carried, never more, and the later looks at what
/// seems missing read all of it.
///
/// # Errors
/// `Busy`, for a question that has not begun and others read the log for long; a log or a ledger that does not
/// answer; a term that is over.
pub(super) async fn find(
    mut seeker: Seeker<'_, '_>,
    ledger: &dyn LedgerStore,
    ids: &[MessageId],
    left: Option<&[Vec<Left>]>,
) -> Result<Finding> {
    let mut found = Finding::default();
    let mut unclear = ids.to_vec();
    for look in 0..LOOKS {
        let mut scan = match left {
            Some(left) if look == 0 => CarriedScan::within(&unclear, left),
            _ => CarriedScan::of(&unclear),
        };
        while !seeker.go_over(&mut scan).await? {
            seeker.go_on().await?;
        }
        let (carried, found_in) = scan.end();
        let (mut audit, mut missing) = (Audit::default(), Vec::new());
        for page in unclear.chunks(PAGE) {
            for (&id, entries) in page.iter().zip(ledger.trace(page).await?) {
                let life = Life::of(id, &entries);
                audit.add(&life, &carried);
                match Fate::of(&life, &carried) {
                    Fate::Settled => {}
                    Fate::InFlight => {
                        found.in_flight.insert(id);
                        let partition = found_in.get(&id).map(|partition| (id, *partition));
                        found.waits_in.extend(partition);
                    }
                    Fate::Missing => missing.push(id),
                }
            }
            seeker.go_on().await?;
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
