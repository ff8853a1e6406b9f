//! The number by which clients know an installation, and the node numbers of its ids. Discovery has
//! each of them and the store a second copy, so that the loss of either one loses nothing.

use std::time::Duration;

use crate::Timestamp;

/// Interval between comparisons of the two copies.
pub const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// One copy of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replica {
    Number(u64),
    Missing,
    /// The service that has the copy does not answer.
    Unreachable,
}

/// Verdict on the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Number {
        number: u64,
        /// Copies to write or restore.
        to_discovery: bool,
        to_store: bool,
    },
    /// One of the two belongs to another installation: only an operator can know which.
    Differ { discovery: u64, store: u64 },
    /// Unknown for now: a number may or may not exist.
    Unknown,
}

/// Compares the two copies; `random_number` is for an installation without a number.
pub fn compare(discovery: Replica, store: Replica, random_number: u64) -> Verdict {
    let number = |number| Verdict::Number {
        number,
        to_discovery: discovery == Replica::Missing,
        to_store: store == Replica::Missing,
    };
    match (discovery, store) {
        (Replica::Number(discovery), Replica::Number(store)) if discovery != store => {
            Verdict::Differ { discovery, store }
        }
        (Replica::Number(existing), _) | (_, Replica::Number(existing)) => number(existing),
        (Replica::Missing, Replica::Missing) => number(random_number),
        (Replica::Unreachable, _) | (_, Replica::Unreachable) => Verdict::Unknown,
    }
}

/// Time after which a leased node number makes its first id. `discovery_time` is discovery's
/// record, zero if there is none; `store_time` the store's, `None` if it does not answer. A number
/// unknown to both is not used for as long as any holder reserves ahead: its last holder may not
/// have noticed the loss.
pub fn node_rests_until(
    discovery_time: Timestamp,
    store_time: Option<Timestamp>,
    now: Timestamp,
    reserve_ahead: Duration,
) -> Timestamp {
    match store_time {
        Some(store_time) => discovery_time.max(store_time),
        None if discovery_time > Timestamp::ZERO => discovery_time,
        None => now + reserve_ahead,
    }
}

/// Whether a holder whose number discovery has forgotten may continue with it: unless another one
/// has reserved more since.
pub fn node_is_still_ours(reserved_until: Timestamp, store_time: Option<Timestamp>) -> bool {
    store_time.is_none_or(|store_time| store_time <= reserved_until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    #[test]
    fn each_pair_of_copies_has_one_verdict() {
        use Replica::{Missing, Number, Unreachable};
        let number = |number, to_discovery, to_store| Verdict::Number {
            number,
            to_discovery,
            to_store,
        };
        let differ = Verdict::Differ {
            discovery: 1,
            store: 2,
        };
        for (discovery, store, verdict) in [
            (Number(1), Number(1), number(1, false, false)),
            (Number(1), Number(2), differ),
            (Number(1), Missing, number(1, false, true)),
            (Missing, Number(1), number(1, true, false)),
            (Number(1), Unreachable, number(1, false, false)),
            (Unreachable, Number(1), number(1, false, false)),
            (Missing, Missing, number(9, true, true)),
            (Missing, Unreachable, Verdict::Unknown),
            (Unreachable, Missing, Verdict::Unknown),
            (Unreachable, Unreachable, Verdict::Unknown),
        ] {
            assert_eq!(
                compare(discovery, store, 9),
                verdict,
                "{discovery:?} {store:?}"
            );
        }
    }

    #[test]
    fn a_node_number_rests_as_long_as_its_past_may_last() {
        let reserve_ahead = Duration::from_secs(600);
        let rests_until = |discovery_time, store_time: Option<i64>| {
            node_rests_until(
                at(discovery_time),
                store_time.map(at),
                at(1000),
                reserve_ahead,
            )
        };
        assert_eq!(rests_until(0, Some(0)), at(0), "nobody ever had it");
        assert_eq!(rests_until(0, Some(1500)), at(1500), "discovery forgot it");
        assert_eq!(rests_until(1500, Some(0)), at(1500), "the store forgot it");
        assert_eq!(rests_until(1200, Some(1500)), at(1500));
        assert_eq!(rests_until(1500, None), at(1500), "discovery knows");
        assert_eq!(rests_until(0, None), at(1600), "nobody can tell");
    }

    #[test]
    fn a_holder_goes_on_unless_somebody_reserved_more() {
        assert!(node_is_still_ours(at(5), Some(at(5))));
        assert!(node_is_still_ours(at(5), Some(at(4))));
        assert!(node_is_still_ours(at(5), None));
        assert!(!node_is_still_ours(at(5), Some(at(6))));
    }

    #[test]
    fn copies_are_compared_each_minute() {
        assert_eq!(COMPARE_INTERVAL, Duration::from_secs(60));
    }
}
