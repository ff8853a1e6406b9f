//! Time of a write, which decides between two writes of one column: the larger wins, whichever came
//! last.
//!
//! ```text
//! writes by a conversation's writer    epoch · 2^42 + offset + 1     1 to 2^50
//! registers that only grow             its own value                 1 to 2^50
//! ```
//!
//! A zombie's late row therefore loses to the row of the writer that took over, a redelivery writes
//! the same columns at the same time, which changes nothing, and a register never moves back. If
//! two writes of one time differ, the larger value wins: values that may differ this way (a head's
//! `rev`, a list row's stamp) only grow.
//!
//! The bounds: both servers read the number as microseconds since 1970, and ScyllaDB refuses a time
//! more than three days ahead (`restrict_future_timestamp`). 2^50 is September 2005: below every
//! clock, so that a write without such a time (an operator's `DELETE`) counts as later than all of
//! ours. We delete nothing ourselves: *deleted* is a register like the others, and no rewrite names
//! it. Epochs are below 256, offsets below 2^42: a partition of ten thousand records a second lasts
//! fourteen years. Leave Cassandra's guardrail `minimum_timestamp_fail_threshold` unset, and use no
//! time windows for compaction of these tables: their times are not the day's.

use protocol::history::{MARK_OFFSET_BITS, Version};
use protocol::{Seq, Timestamp};

use crate::{Error, Result};

const EPOCHS: u32 = 1 << 8;
const TIME_MAX: i64 = 1 << 50;

/// Time of writes by the record of this version. `Conflict` beyond the bounds.
pub(crate) fn from_version(seam: &'static str, version: Version) -> Result<i64> {
    if version.epoch >= EPOCHS {
        let epoch = version.epoch;
        return Err(range_error(
            seam,
            "the log's epoch",
            epoch.into(),
            EPOCHS.into(),
        ));
    }
    if version.offset >= 1 << MARK_OFFSET_BITS {
        let offset = version.offset;
        return Err(range_error(
            seam,
            "the record's offset",
            offset,
            1 << MARK_OFFSET_BITS,
        ));
    }
    Ok(version.mark() as i64)
}

/// Reverse of [`from_version`]; `None` for a time that it never returns.
pub(crate) fn to_version(time: i64) -> Option<Version> {
    if !(1..=TIME_MAX).contains(&time) {
        return None;
    }
    Version::from_mark(time as u64)
}

/// Time at which a register of milliseconds takes this value: the value itself.
pub(crate) fn from_time(seam: &'static str, at: Timestamp) -> Result<i64> {
    let millis = at.millis();
    if (1..=TIME_MAX).contains(&millis) {
        Ok(millis)
    } else {
        Err(range_error(
            seam,
            "a time in ms",
            millis as u64,
            TIME_MAX as u64,
        ))
    }
}

/// Time at which a register of positions takes this value: the value itself. `None` for zero, the
/// initial value of every register.
pub(crate) fn from_seq(seam: &'static str, seq: Seq) -> Result<Option<i64>> {
    match seq.0 {
        0 => Ok(None),
        seq if seq <= TIME_MAX as u64 => Ok(Some(seq as i64)),
        seq => Err(range_error(seam, "a position", seq, TIME_MAX as u64)),
    }
}

fn range_error(seam: &'static str, quantity: &str, value: u64, max: u64) -> Error {
    let text = format!("{quantity} is {value}, and the store orders writes by numbers below {max}");
    Error::conflict(seam, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Kind;

    fn version(epoch: u32, offset: u64) -> Version {
        Version { epoch, offset }
    }

    #[test]
    fn times_lie_in_the_past_of_every_clock() {
        let first = from_version("test", version(0, 0)).expect("fits");
        let last = from_version("test", version(255, (1 << 42) - 1)).expect("fits");
        assert_eq!((first, last), (1, TIME_MAX));
        const DAYS_UNTIL_2005: i64 = 35 * 365;
        assert!(last / 86_400_000_000 < DAYS_UNTIL_2005 + 365);
    }

    #[test]
    fn versions_that_cannot_be_ordered_are_refused() {
        for bad in [version(256, 0), version(0, 1 << 42), version(0, u64::MAX)] {
            let error = from_version("test", bad).expect_err("refused");
            assert_eq!(error.kind, Kind::Conflict);
        }
        assert_eq!(to_version(0), None);
        assert_eq!(to_version(TIME_MAX + 1), None);
        assert!(from_time("test", Timestamp::ZERO).is_err());
        assert!(from_time("test", Timestamp::MAX).is_err());
        assert_eq!(from_seq("test", Seq::ZERO).expect("begins"), None);
        assert!(from_seq("test", Seq(u64::MAX)).is_err());
    }

    proptest! {
        #[test]
        fn times_order_as_versions_do(
            a in (0..256u32, 0..1u64 << 42),
            b in (0..256u32, 0..1u64 << 42),
        ) {
            let (a, b) = (version(a.0, a.1), version(b.0, b.1));
            let (x, y) = (from_version("test", a).expect("fits"), from_version("test", b).expect("fits"));
            prop_assert_eq!(a.cmp(&b), x.cmp(&y));
            prop_assert_eq!(to_version(x), Some(a));
        }
    }
}
