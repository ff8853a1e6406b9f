//! Partitions that know a producer.
//!
//! A broker refuses a record after a gap only if it has seen the producer in that partition before.
//! Until then it could accept a second request although the first, sent just before, failed. So the
//! first record for a partition goes alone, and later records wait for its acknowledgement.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::queue::Partition;

/// Validity of a proof. Brokers forget a producer that was silent for a day
/// (`producer.id.expiration.ms`).
const PROOF_LIFETIME: Duration = Duration::from_secs(60 * 60);

#[derive(Default)]
pub(super) struct Confirmations {
    proofs: Mutex<BTreeMap<Partition, Proof>>,
    proof_changed: Notify,
}

enum Proof {
    /// First record in flight.
    Asked,
    Given(Instant),
}

/// Records that may be sent now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Everything,
    /// One record for each of these partitions; its answer must be passed to `record_answer`.
    First(BTreeSet<Partition>),
    /// None, until a proof changes.
    Nothing,
}

impl Confirmations {
    pub(super) fn claim(&self, partitions: &BTreeSet<Partition>, now: Instant) -> Readiness {
        let mut proofs = self.proofs.lock();
        proofs.retain(|_, proof| match proof {
            Proof::Asked => true,
            Proof::Given(at) => now.duration_since(*at) < PROOF_LIFETIME,
        });
        let unknown = |partition: &&Partition| !proofs.contains_key(partition);
        let first: BTreeSet<Partition> = partitions.iter().filter(unknown).copied().collect();
        if !first.is_empty() {
            proofs.extend(first.iter().map(|&partition| (partition, Proof::Asked)));
            return Readiness::First(first);
        }
        let is_asked = |partition| matches!(proofs.get(partition), Some(Proof::Asked));
        if partitions.iter().any(is_asked) {
            return Readiness::Nothing;
        }
        Readiness::Everything
    }

    pub(super) fn record_answer(&self, partition: Partition, is_accepted: bool, now: Instant) {
        let mut proofs = self.proofs.lock();
        if is_accepted {
            proofs.insert(partition, Proof::Given(now));
        } else {
            proofs.remove(&partition);
        }
        drop(proofs);
        self.proof_changed.notify_waiters();
    }

    /// Completes at the first `record_answer` after this call.
    pub(super) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.proof_changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use protocol::keys::Topic;

    use super::*;

    #[test]
    fn the_first_record_goes_alone_and_the_rest_waits_for_it() {
        let proofs = Confirmations::default();
        let [a, b] = [0, 1].map(|number| Partition {
            topic: Topic::Message,
            number,
        });
        let (partitions, now) = (BTreeSet::from([a, b]), Instant::now());
        assert_eq!(proofs.claim(&[a].into(), now), Readiness::First([a].into()));
        assert_eq!(proofs.claim(&[a].into(), now), Readiness::Nothing);
        assert_eq!(proofs.claim(&partitions, now), Readiness::First([b].into()));
        proofs.record_answer(a, true, now);
        assert_eq!(proofs.claim(&[a].into(), now), Readiness::Everything);
        assert_eq!(proofs.claim(&partitions, now), Readiness::Nothing);
        proofs.record_answer(b, false, now);
        assert_eq!(proofs.claim(&partitions, now), Readiness::First([b].into()));
        let expiry = now + PROOF_LIFETIME;
        assert_eq!(
            proofs.claim(&[a].into(), expiry),
            Readiness::First([a].into())
        );
    }
}
