//! Message ids: 42 bits of milliseconds, 10 bits of node, 12 bits of sequence.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::IdError;
use crate::Timestamp;

/// 2024-01-01T00:00:00Z, the zero of the 42 bits; they stay positive until 2093.
pub const EPOCH: Timestamp = Timestamp::from_millis(1_704_067_200_000);
const NODE_BITS: u32 = 10;
const SEQUENCE_BITS: u32 = 12;
/// Nodes are 0 to 1023.
pub const NODES: u16 = 1 << NODE_BITS;
const SEQUENCES: u16 = 1 << SEQUENCE_BITS;

/// Unique id of a message; sorts by time, then by node and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(i64);

impl MessageId {
    pub const MIN: MessageId = MessageId(1);

    pub const fn new(value: i64) -> Result<Self, IdError> {
        if value > 0 {
            Ok(MessageId(value))
        } else {
            Err(IdError::NotPositive {
                what: "message id",
                got: value,
            })
        }
    }

    pub const fn get(self) -> i64 {
        self.0
    }

    /// Accept time in the id.
    pub const fn timestamp(self) -> Timestamp {
        Timestamp::from_millis((self.0 >> (NODE_BITS + SEQUENCE_BITS)) + EPOCH.millis())
    }

    /// The smallest id of a millisecond: every id made at or after `at` is not below it.
    pub fn floor_of(at: Timestamp) -> MessageId {
        let millis = at.millis().saturating_sub(EPOCH.millis()).max(0);
        MessageId((millis << (NODE_BITS + SEQUENCE_BITS)).max(1))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MessageId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text
            .parse()
            .map_err(|e| format!("a message id is a number: {e}"))?;
        MessageId::new(value).map_err(|e| e.to_string())
    }
}

/// No id can be made of a time before 2024 or after 2093.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the clock is before 2024 or after 2093: set it, and try again")]
pub struct TimeOutOfRange;

/// Makes message ids for one node, upwards. Never makes one twice, whatever the clock does.
#[derive(Clone, Debug)]
pub struct Snowflake {
    node: u16,
    last: Timestamp,
    sequence: u16,
}

impl Snowflake {
    /// `not_before` is the last millisecond in which an earlier holder of `node` may have made ids.
    pub fn new(node: u16, not_before: Timestamp) -> Self {
        assert!(node < NODES, "node {node} does not fit in 10 bits");
        Snowflake {
            node,
            last: not_before,
            sequence: SEQUENCES,
        }
    }

    /// The last millisecond used, to record beyond this process.
    pub fn last(&self) -> Timestamp {
        self.last
    }

    /// The next id at `now`. While the clock is behind the last id, ids go on in the millisecond of
    /// that; the 4097th of a millisecond is in the next one, whatever the clock says.
    pub fn next(&mut self, now: Timestamp) -> Result<MessageId, TimeOutOfRange> {
        let (last, sequence) = if now > self.last {
            (now, 0)
        } else if self.sequence == SEQUENCES {
            (self.last + Duration::from_millis(1), 0)
        } else {
            (self.last, self.sequence)
        };
        let millis = last.millis().saturating_sub(EPOCH.millis());
        if !(1..1 << 41).contains(&millis) {
            return Err(TimeOutOfRange);
        }
        (self.last, self.sequence) = (last, sequence + 1);
        let id = (millis << (NODE_BITS + SEQUENCE_BITS))
            | (i64::from(self.node) << SEQUENCE_BITS)
            | i64::from(sequence);
        Ok(MessageId(id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        EPOCH + Duration::from_millis(millis as u64)
    }

    // proves S0-29: 10 bits of node and 12 of sequence leave the high 42 to the milliseconds.
    #[test]
    fn the_high_42_bits_are_milliseconds() {
        let mut ids = Snowflake::new(1023, Timestamp::ZERO);
        let millis = (1 << 40) + 5;
        let id = ids.next(at(millis)).expect("an id").get();
        assert_eq!(id >> (64 - 42), millis);
        assert_eq!(id & ((1 << 22) - 1), 1023 << 12);
    }

    // proves S0-29, S0-31: the time is in the high bits and comes out again.
    #[test]
    fn an_id_carries_its_time_and_sorts_by_it() {
        let mut ids = Snowflake::new(1023, Timestamp::ZERO);
        let first = ids.next(at(5000)).expect("an id");
        let second = ids.next(at(5001)).expect("an id");
        assert_eq!(first.timestamp(), at(5000));
        assert!(first < second);
        assert!(MessageId::floor_of(at(5000)) <= first);
        assert!(MessageId::floor_of(at(5001)) > first);
    }

    // proves S0-30: the 4097th id of a millisecond borrows the next one and repeats nothing.
    #[test]
    fn a_full_millisecond_borrows_the_next() {
        let mut ids = Snowflake::new(1, Timestamp::ZERO);
        let ids_made: std::collections::BTreeSet<_> = (0..5000)
            .map(|_| ids.next(at(10)).expect("an id"))
            .collect();
        assert_eq!(ids_made.len(), 5000);
        assert_eq!(
            ids_made
                .iter()
                .filter(|id| id.timestamp() == at(10))
                .count(),
            4096
        );
        assert_eq!(ids.last(), at(11));
    }

    // proves S0 Pitfall D in part: a clock that moved back makes no id twice.
    #[test]
    fn a_clock_set_back_lets_ids_go_on_from_the_last() {
        let mut ids = Snowflake::new(1, Timestamp::ZERO);
        let last = ids.next(at(7_200_000)).expect("an id");
        let next = ids.next(at(1)).expect("an id");
        assert_eq!(next.get(), last.get() + 1);
        assert_eq!(next.timestamp(), at(7_200_000));
        let third = ids.next(at(7_200_001)).expect("an id");
        assert_eq!(third.timestamp(), at(7_200_001), "it caught up");
        assert!(ids.next(Timestamp::ZERO).expect("an id") > third);
    }

    // The clock stands two hours behind for as long as these ids last: three milliseconds of theirs.
    #[test]
    fn a_full_millisecond_ends_though_the_clock_stands() {
        let mut ids = Snowflake::new(1, Timestamp::ZERO);
        ids.next(at(7_200_000)).expect("an id");
        let ids_made: std::collections::BTreeSet<_> = (0..3 * 4096)
            .map(|_| ids.next(at(5)).expect("an id"))
            .collect();
        assert_eq!(ids_made.len(), 3 * 4096);
        assert_eq!(ids.last(), at(7_200_003));
    }

    #[test]
    fn a_time_that_no_id_can_bear_uses_nothing_up() {
        let mut ids = Snowflake::new(1, Timestamp::ZERO);
        assert_eq!(ids.next(Timestamp::ZERO), Err(TimeOutOfRange));
        assert_eq!(ids.next(at(1 << 41)), Err(TimeOutOfRange));
        assert_eq!(ids.next(at(9)).expect("an id").timestamp(), at(9));
    }

    #[test]
    fn a_successor_never_enters_its_predecessors_past() {
        let mut first = Snowflake::new(9, Timestamp::ZERO);
        let last_made = first.next(at(100)).expect("an id");
        let mut second = Snowflake::new(9, first.last());
        assert!(second.next(at(100)).expect("an id") > last_made);
    }

    proptest! {
        #[test]
        fn no_clock_makes_an_id_repeat(steps in proptest::collection::vec(-20_000i64..30_000, 1..300)) {
            let mut ids = Snowflake::new(3, Timestamp::ZERO);
            let (mut now, mut last) = (10_000i64, None);
            for step in steps {
                now = (now + step).max(1);
                let id = ids.next(at(now)).expect("a time that ids can bear");
                prop_assert!(Some(id) > last);
                last = Some(id);
            }
        }
    }
}
