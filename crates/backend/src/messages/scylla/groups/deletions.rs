//! Deletions of messages: the register of a row of `gchat`.

use std::collections::BTreeSet;

use protocol::{GroupId, MessageId};

use crate::Result;
use crate::scylla::messages::{by_ids, select, windows};
use crate::scylla::{SeamCql, Statement};

pub(super) struct Deletions {
    write: Statement,
    by_ids: Statement,
}

impl Deletions {
    pub(super) fn new() -> Deletions {
        Deletions {
            // True is the only value ever written, so all writes share one time.
            write: Statement::new(
                "UPDATE gchat USING TIMESTAMP 1 SET deleted = true WHERE gid = ? AND pk = ? AND id = ?",
            ),
            by_ids: select::<GroupId>("id, deleted", "id IN ?"),
        }
    }

    pub(super) async fn write(&self, cql: &SeamCql, keys: &[(GroupId, MessageId)]) -> Result<()> {
        let keys: BTreeSet<_> = keys.iter().copied().collect();
        let writes = keys.into_iter().map(|(group, id)| {
            let key = (group.get(), windows::of(id), id.get());
            cql.write(&self.write, key)
        });
        cql.all(writes.collect()).await.map(drop)
    }

    /// Reads deletions, in request order.
    pub(super) async fn of(
        &self,
        cql: &SeamCql,
        keys: &[(GroupId, MessageId)],
    ) -> Result<Vec<bool>> {
        let flag = |_, (id, flag): (i64, Option<bool>)| Ok((id, flag == Some(true)));
        by_ids(cql, &self.by_ids, keys, flag).await
    }
}
