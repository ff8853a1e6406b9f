//! Rows of `gchat`: written one by one, read by key or by range; and the register beside them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use protocol::group::GroupRow;
use protocol::history::Order;
use protocol::{GroupId, MessageId};
use scylla::deserialize::row::DeserializeRow as Decode;
use scylla::response::PagingState;

use super::row::{COLUMNS, INSERT, NewRow, StoredRow};
use super::{KEYS_MAX, message, windows};
use crate::Result;
use crate::history::scylla::rows::Ids;
use crate::scylla::{SeamCql, Statement};

/// Rows in one answer: bodies have up to 64 KiB.
const PAGE_MAX: usize = 128;

/// A partition: a group, and the number of a window.
pub(super) type Bucket = (GroupId, i16);

type Key = (GroupId, MessageId);

pub(super) struct Rows {
    insert: Statement,
    by_ids: Statement,
    upward: Statement,
    downward: Statement,
    delete: Statement,
    deleted: Statement,
}

impl Rows {
    pub(super) fn new() -> Rows {
        let range = |order: &str| {
            Statement::new(format!(
                "SELECT {COLUMNS} FROM gchat WHERE gid = ? AND pk = ? AND id >= ? AND id <= ? ORDER BY id {order}"
            ))
        };
        Rows {
            insert: Statement::new(INSERT),
            by_ids: Statement::new(format!(
                "SELECT {COLUMNS} FROM gchat WHERE gid = ? AND pk = ? AND id IN ?"
            )),
            upward: range("ASC"),
            downward: range("DESC"),
            // Nothing ever writes another value, so all such writes are of one time.
            delete: Statement::new(
                "UPDATE gchat USING TIMESTAMP 1 SET deleted = true WHERE gid = ? AND pk = ? AND id = ?",
            ),
            deleted: Statement::new(
                "SELECT id, deleted FROM gchat WHERE gid = ? AND pk = ? AND id IN ?",
            ),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, rows: &[NewRow]) -> Result<()> {
        let writes = rows.iter().map(|row| cql.write(&self.insert, row));
        cql.all(writes.collect()).await.map(drop)
    }

    /// Each of these rows, in order of the question.
    pub(super) async fn whole(&self, cql: &SeamCql, keys: &[Key]) -> Result<Vec<Option<GroupRow>>> {
        let id = |row: &StoredRow| row.id;
        let mut found = HashMap::with_capacity(keys.len());
        for (key, row) in by_ids(cql, &self.by_ids, keys, id).await? {
            found.insert(key, row.of(key.0)?);
        }
        let of = |key| found.get(key).cloned().flatten();
        Ok(keys.iter().map(of).collect())
    }

    /// Rows of one window with these ids, at most `limit`.
    pub(super) async fn page(
        &self,
        cql: &SeamCql,
        (group, pk): Bucket,
        ids: Ids,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let bounds = (group.get(), pk, ids.first.get(), ids.last.get());
        let mut found = Vec::new();
        let mut from = Some(PagingState::start());
        while let Some(start) = from.take() {
            let wanted = limit - found.len();
            let page = cql.page(statement, bounds, start, wanted.min(PAGE_MAX));
            let (rows, next): (Vec<StoredRow>, _) = page.await?;
            for row in rows {
                found.extend(row.of(group)?);
            }
            found.truncate(limit);
            from = next.filter(|_| found.len() < limit);
        }
        Ok(found)
    }

    pub(super) async fn delete(
        &self,
        cql: &SeamCql,
        group: GroupId,
        ids: &[MessageId],
    ) -> Result<()> {
        let ids: BTreeSet<MessageId> = ids.iter().copied().collect();
        let writes = ids.into_iter().map(|id| {
            let key = (group.get(), windows::of(id), id.get());
            cql.write(&self.delete, key)
        });
        cql.all(writes.collect()).await.map(drop)
    }

    pub(super) async fn deleted(
        &self,
        cql: &SeamCql,
        group: GroupId,
        ids: &[MessageId],
    ) -> Result<Vec<bool>> {
        let keys: Vec<Key> = ids.iter().map(|&id| (group, id)).collect();
        let id = |row: &(i64, Option<bool>)| row.0;
        let found = by_ids(cql, &self.deleted, &keys, id).await?;
        let deleted = |key| found.get(key).is_some_and(|(_, is)| *is == Some(true));
        Ok(keys.iter().map(deleted).collect())
    }
}

/// The keys of each partition, as many as one question may have.
fn by_bucket(keys: &[Key]) -> Vec<(Bucket, Vec<i64>)> {
    let mut of_buckets: BTreeMap<Bucket, BTreeSet<i64>> = BTreeMap::new();
    for &(group, id) in keys {
        let of_bucket = of_buckets.entry((group, windows::of(id))).or_default();
        of_bucket.insert(id.get());
    }
    let mut questions = Vec::with_capacity(of_buckets.len());
    for (bucket, ids) in of_buckets {
        let ids: Vec<i64> = ids.into_iter().collect();
        questions.extend(ids.chunks(KEYS_MAX).map(|ids| (bucket, ids.to_vec())));
    }
    questions
}

/// Asks for rows by key, one question for each partition.
async fn by_ids<R>(
    cql: &SeamCql,
    statement: &Statement,
    keys: &[Key],
    id: impl Fn(&R) -> i64,
) -> Result<HashMap<Key, R>>
where
    R: for<'frame, 'metadata> Decode<'frame, 'metadata> + Send,
{
    let questions = by_bucket(keys)
        .into_iter()
        .map(|((group, pk), ids)| async move {
            let rows: Vec<R> = cql.rows(statement, (group.get(), pk, ids)).await?;
            Ok((group, rows))
        });
    let mut found = HashMap::with_capacity(keys.len());
    for (group, rows) in cql.all(questions.collect()).await? {
        for row in rows {
            found.insert((group, message(id(&row))?), row);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_asked_by_partition_and_each_once() {
        let group = |n: i64| GroupId::new(n).expect("positive");
        let id = |n: i64| MessageId::new(n).expect("positive");
        let mut keys: Vec<_> = (1..=150).map(|n| (group(1), id(n))).collect();
        keys.extend([
            (group(1), id(7)),
            (group(2), id(7)),
            (group(1), id(i64::MAX)),
        ]);
        let lengths: Vec<_> = by_bucket(&keys)
            .iter()
            .map(|((group, pk), ids)| (group.get(), *pk, ids.len()))
            .collect();
        assert_eq!(lengths, [(1, 0, 100), (1, 0, 50), (1, 908, 1), (2, 0, 1)]);
    }
}
