//! Search for the open messages among some, and for contradictions in their ledger entries.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use backend::ledger::LedgerStore;
use protocol::MessageId;
use protocol::ledger::audit::{Audit, Contradiction, MessageFate};
use protocol::ledger::minute::MinuteVerdict;
use protocol::ledger::trace::MessageLife;
use tokio::task::yield_now;

use super::auditor::Term;
use super::log::{CarriedScan, Log, MinuteRest, Reader};
use super::{MAX_LOOKS, PAGE};

/// Result of a look at the messages of several minutes.
#[derive(Debug, Default)]
pub(super) struct Finding {
    pub(super) in_flight: BTreeSet<MessageId>,
    pub(super) missing_ids: BTreeSet<MessageId>,
    contradictions: BTreeSet<Contradiction>,
    /// Partition of topic `message` with a record of each message in flight, if it has one.
    waits_in: BTreeMap<MessageId, usize>,
}

impl Finding {
    /// Result for these messages alone. A contradiction between two messages counts with the later
    /// one.
    pub(super) fn among(&self, ids: &[MessageId]) -> MinuteVerdict {
        let ids: BTreeSet<MessageId> = ids.iter().copied().collect();
        let is_involved = |contradiction: &&Contradiction| match **contradiction {
            Contradiction::PlacedTwice { message } => ids.contains(&message),
            Contradiction::SeqReused { first, second, .. } => ids.contains(&first.max(second)),
        };
        MinuteVerdict {
            in_flight_ids: self.in_flight.intersection(&ids).copied().collect(),
            missing_ids: self.missing_ids.intersection(&ids).copied().collect(),
            contradictions: self.contradictions.iter().filter(is_involved).count() as u64,
        }
    }

    /// Counts these messages by the partition in which they wait.
    pub(super) fn count_waiting(&self, ids: &[MessageId]) -> BTreeMap<usize, u64> {
        let mut counts = BTreeMap::new();
        for partition in ids.iter().filter_map(|id| self.waits_in.get(id)) {
            *counts.entry(*partition).or_default() += 1;
        }
        counts
    }
}

/// Asker of a look, which waits for turns at the log as long as it takes.
pub(super) enum Seeker<'a, 'log> {
    Question(&'a mut Reader<'log>),
    /// The auditor, which also sends heartbeats of its term.
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

/// Looks at messages, in order of their ids. A message that seems missing is looked at again: it
/// may have moved during the look. With `backlogs`, the uncommitted rest of their minutes, the
/// first look reads no more of topic `message` than that: it may find fewer messages in flight,
/// never more, and later looks at the ones that seem missing read the whole topic.
///
/// # Errors
/// `Busy`, for a question that has not begun while others read the log for long; a log or a ledger
/// that does not answer; a term that is over.
pub(super) async fn find(
    mut seeker: Seeker<'_, '_>,
    ledger: &dyn LedgerStore,
    ids: &[MessageId],
    backlogs: Option<&[Vec<MinuteRest>]>,
) -> Result<Finding> {
    let mut finding = Finding::default();
    let mut unclear = ids.to_vec();
    for look in 0..MAX_LOOKS {
        let mut scan = match backlogs {
            Some(backlogs) if look == 0 => CarriedScan::within(&unclear, backlogs),
            _ => CarriedScan::of(&unclear),
        };
        while !seeker.go_over(&mut scan).await? {
            seeker.go_on().await?;
        }
        let (in_flight, found_in) = scan.end();
        let (mut audit, mut missing_ids) = (Audit::default(), Vec::new());
        for page in unclear.chunks(PAGE) {
            for (&id, entries) in page.iter().zip(ledger.trace(page).await?) {
                let life = MessageLife::of(id, &entries);
                audit.add(&life, &in_flight);
                match MessageFate::of(&life, &in_flight) {
                    MessageFate::Settled => {}
                    MessageFate::InFlight => {
                        finding.in_flight.insert(id);
                        let partition = found_in.get(&id).map(|partition| (id, *partition));
                        finding.waits_in.extend(partition);
                    }
                    MessageFate::Missing => missing_ids.push(id),
                }
            }
            seeker.go_on().await?;
            yield_now().await;
        }
        finding
            .contradictions
            .extend(audit.contradictions().copied());
        unclear = missing_ids;
        if unclear.is_empty() {
            break;
        }
    }
    finding.missing_ids = unclear.into_iter().collect();
    Ok(finding)
}
