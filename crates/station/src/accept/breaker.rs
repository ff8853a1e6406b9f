//! Circuit breakers of the partitions of the log. A partition that does not answer while others do is
//! away: its senders learn that at once, instead of waiting for a deadline together with every
//! other send of their batch.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::Timestamp;
use protocol::circuit::{Circuit, CircuitLimits, Pass};

/// A partition is away once a record has waited this long in it while another partition
/// acknowledged one.
pub(crate) const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of the probes that test whether a partition is back.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

const LIMITS: CircuitLimits = CircuitLimits {
    failures_max: 1,
    pause_min: PROBE_INTERVAL,
    pause_max: PROBE_INTERVAL,
};

/// The partitions of one topic, as one publisher sees them. Times are monotonic.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    /// The last acknowledgement of each partition.
    last_acks: BTreeMap<u32, Timestamp>,
    /// Open circuits of partitions that are away.
    unavailable: BTreeMap<u32, Circuit>,
}

impl Breakers {
    /// Permission to publish to a partition. Nobody waits for the answer of a probe, since none is
    /// expected.
    ///
    /// # Errors
    /// The time until the next permitted call.
    pub(crate) fn pass(&mut self, partition: u32, now: Timestamp) -> Result<Pass, Duration> {
        let circuit = self.unavailable.get_mut(&partition);
        circuit.map_or(Ok(Pass::Call), |circuit| circuit.pass(now))
    }

    pub(crate) fn acknowledged(&mut self, partition: u32, now: Timestamp) {
        self.last_acks.insert(partition, now);
        self.unavailable.remove(&partition);
    }

    /// Whether a partition is away, given that a record has waited in it since then. With no
    /// acknowledgement from any other partition either, the whole log is slow, and waiting is
    /// better than trying again.
    pub(crate) fn is_away(
        &mut self,
        partition: u32,
        waiting_since: Timestamp,
        now: Timestamp,
    ) -> bool {
        if self.unavailable.contains_key(&partition) {
            return true;
        }
        let mut other_acks = self
            .last_acks
            .iter()
            .filter(|(other, _)| **other != partition);
        let is_away = now.since(waiting_since) >= ACK_TIMEOUT
            && other_acks.any(|(_, at)| *at >= waiting_since);
        if is_away {
            let mut circuit = Circuit::new(LIMITS);
            circuit.unreachable(Pass::Call, now);
            self.unavailable.insert(partition, circuit);
        }
        is_away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    const ONE: u32 = 1;
    const OTHER: u32 = 2;

    #[test]
    fn a_partition_is_away_when_another_answered_later() {
        let mut breakers = Breakers::default();
        assert!(!breakers.is_away(ONE, at(0), at(5_000)), "nobody answers");
        breakers.acknowledged(OTHER, at(0));
        assert!(
            !breakers.is_away(ONE, at(1), at(5_000)),
            "nobody answers since"
        );
        breakers.acknowledged(OTHER, at(10));
        assert!(!breakers.is_away(ONE, at(0), at(999)), "it may be slow");
        assert_eq!(breakers.pass(ONE, at(999)), Ok(Pass::Call));
        assert!(breakers.is_away(ONE, at(0), at(1_000)));
        assert!(
            !breakers.is_away(OTHER, at(500), at(2_000)),
            "each by itself"
        );
        assert_eq!(breakers.pass(OTHER, at(1_000)), Ok(Pass::Call));
    }

    #[test]
    fn one_that_is_away_is_probed_once_a_second_until_it_answers() {
        let mut breakers = Breakers::default();
        breakers.acknowledged(OTHER, at(1));
        assert!(breakers.is_away(ONE, at(0), at(1_000)));
        assert_eq!(
            breakers.pass(ONE, at(1_400)),
            Err(Duration::from_millis(600))
        );
        assert_eq!(breakers.pass(ONE, at(2_000)), Ok(Pass::Probe));
        assert!(breakers.pass(ONE, at(2_000)).is_err());
        assert!(breakers.is_away(ONE, at(2_000), at(2_001)), "known already");
        assert_eq!(breakers.pass(ONE, at(3_000)), Ok(Pass::Probe));
        breakers.acknowledged(ONE, at(3_100));
        assert_eq!(breakers.pass(ONE, at(3_100)), Ok(Pass::Call));
    }

    #[test]
    fn its_own_answers_do_not_count_against_a_partition() {
        let mut breakers = Breakers::default();
        breakers.acknowledged(ONE, at(900));
        assert!(!breakers.is_away(ONE, at(0), at(1_000)));
    }
}
