//! Circuit breaker per partition of the log. A partition that does not answer while others do is
//! away: its senders learn that at once, instead of waiting for a deadline together with every
//! other send of their batch.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Timestamp;

/// A partition is away once a record has waited this long in it while another partition
/// acknowledged one.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of the probes that test whether a partition is back.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Permission to publish to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Granted; the sender waits for the answer.
    Open,
    /// Granted; the sender does not wait, since no answer is expected.
    Probe,
    /// Denied for this long.
    Closed(Duration),
}

/// The partitions of one topic, as one publisher sees them. Times are monotonic.
#[derive(Debug, Default)]
pub struct Breakers {
    /// The last acknowledgement of each partition.
    last_acks: BTreeMap<u32, Timestamp>,
    /// Partitions that are away, each with the time of its next probe.
    unavailable: BTreeMap<u32, Timestamp>,
}

impl Breakers {
    pub fn passage(&mut self, partition: u32, now: Timestamp) -> Passage {
        match self.unavailable.get_mut(&partition) {
            None => Passage::Open,
            Some(probe_at) if *probe_at <= now => {
                *probe_at = now + PROBE_INTERVAL;
                Passage::Probe
            }
            Some(probe_at) => Passage::Closed(probe_at.since(now)),
        }
    }

    pub fn acknowledged(&mut self, partition: u32, now: Timestamp) {
        self.last_acks.insert(partition, now);
        self.unavailable.remove(&partition);
    }

    /// Whether a partition is away, given that a record has waited in it since then. With no
    /// acknowledgement from any other partition either, the whole log is slow, and waiting is
    /// better than trying again.
    pub fn is_away(&mut self, partition: u32, waiting_since: Timestamp, now: Timestamp) -> bool {
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
            self.unavailable.insert(partition, now + PROBE_INTERVAL);
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
        assert_eq!(breakers.passage(ONE, at(999)), Passage::Open);
        assert!(breakers.is_away(ONE, at(0), at(1_000)));
        assert!(
            !breakers.is_away(OTHER, at(500), at(2_000)),
            "each by itself"
        );
        assert_eq!(breakers.passage(OTHER, at(1_000)), Passage::Open);
    }

    #[test]
    fn one_that_is_away_is_probed_once_a_second_until_it_answers() {
        let mut breakers = Breakers::default();
        breakers.acknowledged(OTHER, at(1));
        assert!(breakers.is_away(ONE, at(0), at(1_000)));
        assert_eq!(
            breakers.passage(ONE, at(1_400)),
            Passage::Closed(Duration::from_millis(600))
        );
        assert_eq!(breakers.passage(ONE, at(2_000)), Passage::Probe);
        assert!(matches!(
            breakers.passage(ONE, at(2_000)),
            Passage::Closed(_)
        ));
        assert!(breakers.is_away(ONE, at(2_000), at(2_001)), "known already");
        assert_eq!(breakers.passage(ONE, at(3_000)), Passage::Probe);
        breakers.acknowledged(ONE, at(3_100));
        assert_eq!(breakers.passage(ONE, at(3_100)), Passage::Open);
    }

    #[test]
    fn its_own_answers_do_not_count_against_a_partition() {
        let mut breakers = Breakers::default();
        breakers.acknowledged(ONE, at(900));
        assert!(!breakers.is_away(ONE, at(0), at(1_000)));
    }
}
