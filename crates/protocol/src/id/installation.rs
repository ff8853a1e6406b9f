//! The number of an installation, which clients know it by, and the node numbers of its ids: each is kept by
//! discovery and, beside it, by the store, so that the loss of either one takes nothing away.

use std::time::Duration;

use crate::Timestamp;

/// How often the two copies of the number are compared.
pub const COMPARE_EVERY: Duration = Duration::from_secs(60);

/// One copy of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replica {
    Number(u64),
    Missing,
    /// Whoever keeps it does not answer.
    Unreachable,
}

/// What two copies say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Number {
        number: u64,
        /// Where it is to be put (back).
        to_discovery: bool,
        to_store: bool,
    },
    /// One of the two belongs to another installation: nobody but an operator knows which.
    Differ { discovery: u64, store: u64 },
    /// Whether there is a number cannot be known now.
    Unknown,
}

/// The number by its two copies; `drawn` is for an installation that has none.
pub fn compare(discovery: Replica, store: Replica, drawn: u64) -> Verdict {
    let number = |number| Verdict::Number {
        number,
        to_discovery: discovery == Replica::Missing,
        to_store: store == Replica::Missing,
    };
    match (discovery, store) {
        (Replica::Number(discovery), Replica::Number(store)) if discovery != store => {
            Verdict::Differ { discovery, store }
        }
        (Replica::Number(stands), _) | (_, Replica::Number(stands)) => number(stands),
        (Replica::Missing, Replica::Missing) => number(drawn),
        (Replica::Unreachable, _) | (_, Replica::Unreachable) => Verdict::Unknown,
    }
}

/// The time behind which a leased node number makes its first id. `recorded` is what discovery says, zero where
/// it says nothing; `copied` what the store does, `None` where it does not answer. A number that neither can
/// tell of rests for as long as anybody reserves ahead: its last holder may not have noticed its loss.
pub fn node_rests_until(
    recorded: Timestamp,
    copied: Option<Timestamp>,
    now: Timestamp,
    reserve_ahead: Duration,
) -> Timestamp {
    match copied {
        Some(copied) => recorded.max(copied),
        None if recorded > Timestamp::ZERO => recorded,
        None => now + reserve_ahead,
    }
}

/// May a holder whose number discovery has forgotten go on with it? Not where somebody reserved more since.
pub fn node_is_still_ours(reserved: Timestamp, copied: Option<Timestamp>) -> bool {
    copied.is_none_or(|copied| copied <= reserved)
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
        let ahead = Duration::from_secs(600);
        let rests = |recorded, copied: Option<i64>| {
            node_rests_until(at(recorded), copied.map(at), at(1000), ahead)
        };
        assert_eq!(rests(0, Some(0)), at(0), "nobody ever had it");
        assert_eq!(rests(0, Some(1500)), at(1500), "discovery forgot it");
        assert_eq!(rests(1500, Some(0)), at(1500), "the store forgot it");
        assert_eq!(rests(1200, Some(1500)), at(1500));
        assert_eq!(rests(1500, None), at(1500), "discovery knows");
        assert_eq!(rests(0, None), at(1600), "nobody can tell");
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
        assert_eq!(COMPARE_EVERY, Duration::from_secs(60));
    }
}
