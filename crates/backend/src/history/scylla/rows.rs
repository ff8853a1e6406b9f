//! Rows of `pchat`: written one by one, read by key or by range.

use std::collections::{BTreeMap, HashMap};

use protocol::history::{IdRange, Order, Place, PrivateRow};
use protocol::{MessageId, UserId};
use scylla::DeserializeRow;
use scylla::deserialize::row::DeserializeRow as Decode;
use scylla::response::PagingState;

use super::row::{self, COLUMNS, INSERT, NewRow, StoredRow};
use super::{KEYS_MAX, SEAM, buckets, no_id};
use crate::scylla::{SeamCql, Statement};
use crate::{Error, Result};

/// Rows in one answer: bodies have up to 64 KiB.
const PAGE_MAX: usize = 128;

/// A partition: a user, and the number of a window.
pub(super) type Bucket = (UserId, i16);

/// Both ends inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    pub(crate) first: MessageId,
    pub(crate) last: MessageId,
}

impl Ids {
    /// `None` where no id lies within.
    pub(crate) fn within(range: IdRange) -> Option<Ids> {
        let first = match range.after {
            Some(after) => after.get().checked_add(1)?,
            None => 1,
        };
        let last = match range.before {
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

/// What a receipt asks of a row; nothing where only a register was written.
#[derive(DeserializeRow)]
struct StoredPlace {
    id: i64,
    uid2: Option<i64>,
    io: Option<i8>,
    seq: Option<i64>,
    incoming: Option<i64>,
}

pub(super) struct Rows {
    insert: Statement,
    by_ids: Statement,
    places_by_ids: Statement,
    upward: Statement,
    downward: Statement,
}

impl Rows {
    pub(super) fn new() -> Rows {
        Rows {
            insert: Statement::new(INSERT),
            by_ids: Statement::new(format!(
                "SELECT {COLUMNS} FROM pchat WHERE uid1 = ? AND pk = ? AND id IN ?"
            )),
            places_by_ids: Statement::new(
                "SELECT id, uid2, io, seq, incoming FROM pchat WHERE uid1 = ? AND pk = ? AND id IN ?",
            ),
            upward: Statement::new(range("ASC")),
            downward: Statement::new(range("DESC")),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, rows: &[NewRow]) -> Result<()> {
        let writes = rows.iter().map(|row| cql.write(&self.insert, row));
        cql.all(writes.collect()).await.map(drop)
    }

    /// Each of these rows, in order of the question.
    pub(super) async fn whole(
        &self,
        cql: &SeamCql,
        keys: &[(UserId, MessageId)],
    ) -> Result<Vec<Option<PrivateRow>>> {
        let id = |row: &StoredRow| row.id;
        let mut found = HashMap::with_capacity(keys.len());
        for (key, row) in by_ids(cql, &self.by_ids, keys, id).await? {
            found.insert(key, row.of(key.0)?);
        }
        let of = |key| found.get(key).cloned().flatten();
        Ok(keys.iter().map(of).collect())
    }

    /// Where these rows stand: three columns of each.
    pub(super) async fn places(
        &self,
        cql: &SeamCql,
        keys: &[(UserId, MessageId)],
    ) -> Result<Vec<Option<Place>>> {
        let id = |place: &StoredPlace| place.id;
        let found = by_ids(cql, &self.places_by_ids, keys, id).await?;
        keys.iter()
            .map(|key| found.get(key).map_or(Ok(None), place))
            .collect()
    }

    /// Rows of one window with these ids, at most `limit`.
    pub(super) async fn page(
        &self,
        cql: &SeamCql,
        (owner, pk): Bucket,
        ids: Ids,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let bounds = (owner.get(), pk, ids.first.get(), ids.last.get());
        let mut found = Vec::new();
        let mut from = Some(PagingState::start());
        while let Some(start) = from.take() {
            let wanted = limit - found.len();
            let page = cql.page(statement, bounds, start, wanted.min(PAGE_MAX));
            let (rows, next): (Vec<StoredRow>, _) = page.await?;
            for row in rows {
                found.extend(row.of(owner)?);
            }
            found.truncate(limit);
            from = next.filter(|_| found.len() < limit);
        }
        Ok(found)
    }
}

fn range(order: &str) -> String {
    format!(
        "SELECT {COLUMNS} FROM pchat WHERE uid1 = ? AND pk = ? AND id >= ? AND id <= ? ORDER BY id {order}"
    )
}

/// The keys of each partition.
pub(super) fn by_bucket(keys: &[(UserId, MessageId)]) -> Vec<(Bucket, Vec<i64>)> {
    let mut of_buckets: BTreeMap<Bucket, Vec<i64>> = BTreeMap::new();
    for &(owner, id) in keys {
        let of_bucket = of_buckets.entry((owner, buckets::of(id))).or_default();
        of_bucket.push(id.get());
    }
    let mut questions = Vec::with_capacity(of_buckets.len());
    for (bucket, mut ids) in of_buckets {
        ids.sort_unstable();
        ids.dedup();
        questions.extend(ids.chunks(KEYS_MAX).map(|ids| (bucket, ids.to_vec())));
    }
    questions
}

/// Asks for rows by key, one question for each partition.
pub(super) async fn by_ids<R>(
    cql: &SeamCql,
    statement: &Statement,
    keys: &[(UserId, MessageId)],
    id: impl Fn(&R) -> i64,
) -> Result<HashMap<(UserId, MessageId), R>>
where
    R: for<'frame, 'metadata> Decode<'frame, 'metadata> + Send,
{
    let mut questions = Vec::new();
    for ((owner, pk), ids) in by_bucket(keys) {
        questions.push(async move {
            let rows: Vec<R> = cql.rows(statement, (owner.get(), pk, ids)).await?;
            Ok((owner, rows))
        });
    }
    let mut found = HashMap::with_capacity(keys.len());
    for (owner, rows) in cql.all(questions).await? {
        for row in rows {
            found.insert((owner, row::id(id(&row))?), row);
        }
    }
    Ok(found)
}

fn place(stored: &StoredPlace) -> Result<Option<Place>> {
    let (Some(peer), Some(io), Some(seq)) = (stored.uid2, stored.io, stored.seq) else {
        return Ok(None);
    };
    Ok(Some(Place {
        peer: UserId::new(peer).map_err(|error| Error::corrupt(SEAM, error))?,
        direction: row::direction(io).ok_or_else(no_id)?,
        seq: row::seq(seq).ok_or_else(no_id)?,
        incoming: stored.incoming.unwrap_or(0) as u64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(after: Option<i64>, before: Option<i64>) -> Option<(i64, i64)> {
        let id = |n: i64| MessageId::new(n).expect("positive");
        let range = IdRange {
            after: after.map(id),
            before: before.map(id),
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

    #[test]
    fn keys_are_asked_by_partition_and_each_once() {
        let user = |n: i64| UserId::new(n).expect("positive");
        let id = |n: i64| MessageId::new(n).expect("positive");
        let mut keys: Vec<_> = (1..=250).map(|n| (user(1), id(n))).collect();
        keys.extend([(user(1), id(7)), (user(2), id(7)), (user(1), id(i64::MAX))]);
        let lengths: Vec<_> = by_bucket(&keys)
            .iter()
            .map(|((owner, pk), ids)| (owner.get(), *pk, ids.len()))
            .collect();
        assert_eq!(
            lengths,
            [(1, 0, 100), (1, 0, 100), (1, 0, 50), (1, 908, 1), (2, 0, 1)]
        );
    }
}
