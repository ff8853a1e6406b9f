//! Windows of 28 days: a partition holds the messages of one owner in one window.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::hash::Hash;

use protocol::MessageId;
use protocol::history::{IdRange, Order};
use protocol::id::snowflake::EPOCH;

use crate::Result;
use crate::scylla::{SeamCql, Statement, WrittenCache};

const WINDOW_MILLIS: i64 = 28 * 86_400 * 1_000;

/// Number of the window of an id: ids of 139 years have 1818.
pub(crate) fn of(id: MessageId) -> i16 {
    ((id.timestamp().millis() - EPOCH.millis()) / WINDOW_MILLIS) as i16
}

/// Owner of a partition of messages.
pub(crate) trait Owner: Copy + Display + Ord + Hash + Send + Sync {
    /// Column of the owner in both tables.
    const COLUMN: &'static str;
    /// Table of rows.
    const ROWS: &'static str;
    /// Table of the windows in use.
    const WINDOWS: &'static str;

    fn number(self) -> i64;
}

/// Range of ids, both ends included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) first: MessageId,
    pub(super) last: MessageId,
}

impl Ids {
    /// `None` if the range holds no id.
    pub(super) fn within(range: IdRange) -> Option<Ids> {
        let first = match range.after_id {
            Some(after) => after.get().checked_add(1)?,
            None => 1,
        };
        let last = match range.before_id {
            Some(before) => before.get() - 1,
            None => i64::MAX,
        };
        let ids = Ids {
            first: MessageId::new(first).ok()?,
            last: MessageId::new(last).ok()?,
        };
        (ids.first <= ids.last).then_some(ids)
    }
}

/// Windows in which owners have rows. A window is written before its first row; absence is not
/// remembered but queried each time.
pub(super) struct Windows<O: Owner> {
    insert: Statement,
    upward: Statement,
    downward: Statement,
    known_windows: WrittenCache<(O, i16)>,
}

impl<O: Owner> Windows<O> {
    pub(super) fn new() -> Windows<O> {
        let (table, owner) = (O::WINDOWS, O::COLUMN);
        let range = |order: &str| {
            Statement::new(format!(
                "SELECT pk FROM {table} WHERE {owner} = ? AND pk >= ? AND pk <= ? ORDER BY pk {order}"
            ))
        };
        Windows {
            insert: Statement::new(format!("INSERT INTO {table} ({owner}, pk) VALUES (?, ?)")),
            upward: range("ASC"),
            downward: range("DESC"),
            known_windows: WrittenCache::default(),
        }
    }

    /// Writes the windows, so that rows may be written there.
    pub(super) async fn open(&self, cql: &SeamCql, all: BTreeSet<(O, i16)>) -> Result<()> {
        let unknown = all
            .into_iter()
            .filter(|window| !self.known_windows.has(window));
        let writes = unknown.map(|(owner, pk)| async move {
            cql.write(&self.insert, (owner.number(), pk)).await?;
            self.known_windows.add((owner, pk));
            Ok(())
        });
        cql.all(writes.collect()).await.map(drop)
    }

    /// Windows that may hold these ids, in order.
    pub(super) async fn of(
        &self,
        cql: &SeamCql,
        owner: O,
        ids: Ids,
        order: Order,
    ) -> Result<Vec<i16>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let bounds = (owner.number(), of(ids.first), of(ids.last));
        let rows: Vec<(i16,)> = cql.rows(statement, bounds).await?;
        Ok(rows.into_iter().map(|(pk,)| pk).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_ids::at;

    #[test]
    fn a_window_is_28_days() {
        let window = Duration::from_millis(WINDOW_MILLIS as u64);
        assert_eq!(of(MessageId::new(1).expect("positive")), 0);
        assert_eq!(of(MessageId::floor_of(EPOCH + window)), 1);
        let last = MessageId::floor_of(EPOCH + window).get() - 1;
        assert_eq!(of(MessageId::new(last).expect("positive")), 0);
        assert_eq!(of(MessageId::floor_of(at(0) + 13 * window)), 13);
        assert_eq!(of(MessageId::new(i64::MAX).expect("positive")), 908);
    }

    fn ids(lower: Option<i64>, upper: Option<i64>) -> Option<(i64, i64)> {
        let id = |n: i64| MessageId::new(n).expect("positive");
        let range = IdRange {
            after_id: lower.map(id),
            before_id: upper.map(id),
        };
        Ids::within(range).map(|ids| (ids.first.get(), ids.last.get()))
    }

    #[test]
    fn exclusive_bounds_become_inclusive_ones() {
        assert_eq!(ids(None, None), Some((1, i64::MAX)));
        assert_eq!(ids(Some(4), Some(6)), Some((5, 5)));
        for (after, before) in [(Some(4), Some(5)), (Some(5), Some(4)), (None, Some(1))] {
            assert_eq!(ids(after, before), None);
        }
        assert_eq!(ids(Some(i64::MAX), None), None);
    }
}
