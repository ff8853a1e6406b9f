//! Windows of 28 days: a partition of `pchat` holds what one user has in one of them.

use std::collections::BTreeSet;

use protocol::history::Order;
use protocol::id::snowflake::EPOCH;
use protocol::{MessageId, UserId};

use super::rows::Ids;
use crate::Result;
use crate::scylla::{Known, SeamCql, Statement};

const WINDOW_MILLIS: i64 = 28 * 86_400 * 1_000;

/// The number of the window of an id: ids of 139 years have 1818.
pub(crate) fn of(id: MessageId) -> i16 {
    ((id.timestamp().millis() - EPOCH.millis()) / WINDOW_MILLIS) as i16
}

/// Which windows a user has rows in. A window is written before its first row; that a user lacks one is asked
/// each time.
pub(super) struct Buckets {
    insert: Statement,
    upward: Statement,
    downward: Statement,
    known: Known<(UserId, i16)>,
}

impl Buckets {
    pub(super) fn new() -> Buckets {
        Buckets {
            insert: Statement::new("INSERT INTO pchat_bucket (uid1, pk) VALUES (?, ?)"),
            upward: Statement::new(
                "SELECT pk FROM pchat_bucket WHERE uid1 = ? AND pk >= ? AND pk <= ? ORDER BY pk ASC",
            ),
            downward: Statement::new(
                "SELECT pk FROM pchat_bucket WHERE uid1 = ? AND pk >= ? AND pk <= ? ORDER BY pk DESC",
            ),
            known: Known::default(),
        }
    }

    /// Rows may be written there from now on.
    pub(super) async fn open(&self, cql: &SeamCql, all: BTreeSet<(UserId, i16)>) -> Result<()> {
        let unknown = all.into_iter().filter(|bucket| !self.known.has(bucket));
        let writes = unknown.map(|(owner, pk)| async move {
            cql.write(&self.insert, (owner.get(), pk)).await?;
            self.known.add((owner, pk));
            Ok(())
        });
        cql.all(writes.collect()).await.map(drop)
    }

    /// The windows of a user where these ids may be, in order.
    pub(super) async fn of(
        &self,
        cql: &SeamCql,
        owner: UserId,
        ids: Ids,
        order: Order,
    ) -> Result<Vec<i16>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let bounds = (owner.get(), of(ids.first), of(ids.last));
        let rows: Vec<(i16,)> = cql.rows(statement, bounds).await?;
        Ok(rows.into_iter().map(|(pk,)| pk).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fresh::at;

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
}
