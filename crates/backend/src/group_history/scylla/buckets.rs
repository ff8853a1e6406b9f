//! Which windows of 28 days a group has rows in. A window is written before its first row; that a group lacks
//! one is asked each time.

use std::collections::BTreeSet;

use protocol::GroupId;
use protocol::history::Order;

use crate::Result;
use crate::history::scylla::buckets::of;
use crate::history::scylla::rows::Ids;
use crate::scylla::{Known, SeamCql, Statement};

pub(super) struct Buckets {
    insert: Statement,
    upward: Statement,
    downward: Statement,
    known: Known<(GroupId, i16)>,
}

impl Buckets {
    pub(super) fn new() -> Buckets {
        let range = |order: &str| {
            Statement::new(format!(
                "SELECT pk FROM gchat_bucket WHERE gid = ? AND pk >= ? AND pk <= ? ORDER BY pk {order}"
            ))
        };
        Buckets {
            insert: Statement::new("INSERT INTO gchat_bucket (gid, pk) VALUES (?, ?)"),
            upward: range("ASC"),
            downward: range("DESC"),
            known: Known::default(),
        }
    }

    /// Rows may be written there from now on.
    pub(super) async fn open(&self, cql: &SeamCql, all: BTreeSet<(GroupId, i16)>) -> Result<()> {
        let unknown = all.into_iter().filter(|bucket| !self.known.has(bucket));
        let writes = unknown.map(|(group, pk)| async move {
            cql.write(&self.insert, (group.get(), pk)).await?;
            self.known.add((group, pk));
            Ok(())
        });
        cql.all(writes.collect()).await.map(drop)
    }

    /// The windows of a group where these ids may be, in order.
    pub(super) async fn of(
        &self,
        cql: &SeamCql,
        group: GroupId,
        ids: Ids,
        order: Order,
    ) -> Result<Vec<i16>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let bounds = (group.get(), of(ids.first), of(ids.last));
        let rows: Vec<(i16,)> = cql.rows(statement, bounds).await?;
        Ok(rows.into_iter().map(|(pk,)| pk).collect())
    }
}
