//! Which partitions of the log take sends: one that does not answer while others do is away, and whoever sends to it
//! learns that at once, instead of waiting for a deadline with everybody who was sent along.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Timestamp;

/// A partition is away when a record waited this long in it while another partition acknowledged some.
pub const SILENCE: Duration = Duration::from_secs(1);

/// How often one call goes to a partition that is away, to see whether it is back.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Whether a call may publish to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It may, and its sender waits for the answer.
    Open,
    /// It may; its sender does not wait, since an answer is not expected.
    Probe,
    /// It may not before so long.
    Closed(Duration),
}

/// The partitions of one topic, as one publisher sees them. Times are of a timer that never steps.
#[derive(Debug, Default)]
pub struct Breakers {
    /// The last acknowledgement of each partition.
    acknowledged: BTreeMap<u32, Timestamp>,
    /// Partitions that are away, and when the next probe may go to each.
    away: BTreeMap<u32, Timestamp>,
}

impl Breakers {
    pub fn passage(&mut self, partition: u32, now: Timestamp) -> Passage {
        match self.away.get_mut(&partition) {
            None => Passage::Open,
            Some(probe_at) if *probe_at <= now => {
                *probe_at = now + PROBE_EVERY;
                Passage::Probe
            }
            Some(probe_at) => Passage::Closed(probe_at.since(now)),
        }
    }

    pub fn acknowledged(&mut self, partition: u32, now: Timestamp) {
        self.acknowledged.insert(partition, now);
        self.away.remove(&partition);
    }

    /// Whether a partition is away in which a record has waited since `since`. Where nobody else was acknowledged
    /// either, the whole log is slow: then waiting is better than asking again.
    pub fn is_away(&mut self, partition: u32, since: Timestamp, now: Timestamp) -> bool {
        if self.away.contains_key(&partition) {
            return true;
        }
        let mut others = self
            .acknowledged
            .iter()
            .filter(|(other, _)| **other != partition);
        let is_away = now.since(since) >= SILENCE && others.any(|(_, at)| *at >= since);
        if is_away {
            self.away.insert(partition, now + PROBE_EVERY);
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
