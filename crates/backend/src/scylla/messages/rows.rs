//! Rows of messages: written one by one, read by key or by range.

use std::collections::HashMap;
use std::fmt::Display;

use protocol::history::{IdRange, Order};
use protocol::message_row::MessageRow;
use protocol::{MessageId, Seq};
use scylla::deserialize::row::DeserializeRow as Decode;
use scylla::response::PagingState;
use scylla::serialize::row::SerializeRow;

use super::by_partition;
use super::windows::{self, Ids, Owner, Windows};
use crate::scylla::{SeamCql, Statement};
use crate::{Error, Result};

/// Rows per answer: bodies have up to 64 KiB.
const PAGE_MAX: usize = 128;

/// Row as read. All columns but the id are missing if only a register was written so far.
pub(crate) trait ScyllaRow: for<'frame, 'metadata> Decode<'frame, 'metadata> + Send {
    type Owner: Owner;

    /// Columns to be read.
    const COLUMNS: &'static str;
    /// Columns to be written.
    const NEW: &'static str;

    fn id(&self) -> i64;

    fn was_written(&self) -> bool;

    /// `None` if the columns make no sense.
    fn whole(self, owner: Self::Owner) -> Option<MessageRow>;
}

/// Rows of one table, and their windows.
pub(crate) struct Rows<R: ScyllaRow> {
    windows: Windows<R::Owner>,
    insert: Statement,
    by_ids: Statement,
    upward: Statement,
    downward: Statement,
}

impl<R: ScyllaRow> Rows<R> {
    pub(crate) fn new() -> Rows<R> {
        let id_range = |order: &str| {
            let which = format!("id >= ? AND id <= ? ORDER BY id {order}");
            select::<R::Owner>(R::COLUMNS, &which)
        };
        let (table, new) = (R::Owner::ROWS, R::NEW);
        let values = new.replace(", ", ", :");
        Rows {
            windows: Windows::new(),
            insert: Statement::new(format!(
                "INSERT INTO {table} ({new}) VALUES (:{values}) USING TIMESTAMP :written"
            )),
            by_ids: select::<R::Owner>(R::COLUMNS, "id IN ?"),
            upward: id_range("ASC"),
            downward: id_range("DESC"),
        }
    }

    /// Prepares the windows of these ids, so that rows may be saved there.
    pub(crate) async fn open(
        &self,
        cql: &SeamCql,
        keys: impl Iterator<Item = (R::Owner, MessageId)>,
    ) -> Result<()> {
        let windows = keys.map(|(owner, id)| (owner, windows::of(id)));
        self.windows.open(cql, windows.collect()).await
    }

    /// Saves rows. Each has a field per column, and `written`, the time of the write.
    pub(crate) async fn save(
        &self,
        cql: &SeamCql,
        rows: &[impl SerializeRow + Sync],
    ) -> Result<()> {
        let writes = rows.iter().map(|row| cql.write(&self.insert, row));
        cql.all(writes.collect()).await.map(drop)
    }

    /// Rows of these keys, in request order.
    pub(crate) async fn whole(
        &self,
        cql: &SeamCql,
        keys: &[(R::Owner, MessageId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        by_ids(cql, &self.by_ids, keys, |owner, row: R| {
            Ok((row.id(), decode_row(cql, owner, row)?))
        })
        .await
    }

    /// Rows at these positions; `Corrupt` if one is missing.
    pub(crate) async fn standing(
        &self,
        cql: &SeamCql,
        owner: R::Owner,
        conversation: impl Display,
        places: &[(Seq, MessageId)],
    ) -> Result<Vec<MessageRow>> {
        let keys: Vec<_> = places.iter().map(|&(_, id)| (owner, id)).collect();
        let rows = self.whole(cql, &keys).await?;
        let rows = places.iter().zip(rows);
        rows.map(|((seq, id), row)| {
            row.filter(|row| row.seq() == *seq).ok_or_else(|| {
                let text =
                    format!("{conversation}: position {seq} refers to {id}, which is missing");
                Error::corrupt(cql.seam(), text)
            })
        })
        .collect()
    }

    /// Rows of one owner by id, at most `limit`.
    pub(crate) async fn find(
        &self,
        cql: &SeamCql,
        owner: R::Owner,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let mut rows = Vec::new();
        let Some(ids) = Ids::within(range).filter(|_| limit > 0) else {
            return Ok(rows);
        };
        for window in self.windows.of(cql, owner, ids, order).await? {
            let remaining = limit - rows.len();
            let page = self.page(cql, (owner, window), ids, order, remaining);
            rows.extend(page.await?);
            if rows.len() >= limit {
                break;
            }
        }
        Ok(rows)
    }

    /// Rows of one window with these ids, at most `limit`.
    async fn page(
        &self,
        cql: &SeamCql,
        (owner, pk): (R::Owner, i16),
        ids: Ids,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let bounds = (owner.number(), pk, ids.first.get(), ids.last.get());
        let mut messages = Vec::new();
        let mut from = Some(PagingState::start());
        while let Some(start) = from.take() {
            let remaining = limit - messages.len();
            let page = cql.page(statement, bounds, start, remaining.min(PAGE_MAX));
            let (rows, next): (Vec<R>, _) = page.await?;
            for row in rows {
                messages.extend(decode_row(cql, owner, row)?);
            }
            messages.truncate(limit);
            from = next.filter(|_| messages.len() < limit);
        }
        Ok(messages)
    }
}

/// Reads columns of rows of one partition.
pub(crate) fn select<O: Owner>(columns: &str, which: &str) -> Statement {
    let (table, owner) = (O::ROWS, O::COLUMN);
    Statement::new(format!(
        "SELECT {columns} FROM {table} WHERE {owner} = ? AND pk = ? AND {which}"
    ))
}

/// `None` for a row that was never written, `Corrupt` for one that makes no sense.
fn decode_row<R: ScyllaRow>(cql: &SeamCql, owner: R::Owner, row: R) -> Result<Option<MessageRow>> {
    if !row.was_written() {
        return Ok(None);
    }
    let id = row.id();
    let row = row.whole(owner).ok_or_else(|| {
        let table = R::Owner::ROWS;
        let text = format!("{table}: row {id} of {owner} has invalid columns");
        Error::corrupt(cql.seam(), text)
    });
    row.map(Some)
}

/// Reads rows by id. `read` turns each into its id and value; values come in request order,
/// the default for a missing row. One query per partition.
pub(crate) async fn by_ids<O: Owner, R, T>(
    cql: &SeamCql,
    statement: &Statement,
    keys: &[(O, MessageId)],
    read: impl Fn(O, R) -> Result<(i64, T)>,
) -> Result<Vec<T>>
where
    R: for<'frame, 'metadata> Decode<'frame, 'metadata> + Send,
    T: Clone + Default,
{
    let queries = by_window(keys)
        .into_iter()
        .map(|((owner, pk), ids)| async move {
            let rows: Vec<R> = cql.rows(statement, (owner.number(), pk, ids)).await?;
            Ok((owner, rows))
        });
    let mut values = HashMap::with_capacity(keys.len());
    for (owner, rows) in cql.all(queries.collect()).await? {
        for row in rows {
            let (id, row) = read(owner, row)?;
            values.insert((owner, id), row);
        }
    }
    let lookup = |(owner, id): &(O, MessageId)| values.get(&(*owner, id.get())).cloned();
    Ok(keys
        .iter()
        .map(|key| lookup(key).unwrap_or_default())
        .collect())
}

/// Groups ids by partition.
fn by_window<O: Owner>(keys: &[(O, MessageId)]) -> Vec<((O, i16), Vec<i64>)> {
    let in_window = |&(owner, id)| ((owner, windows::of(id)), id.get());
    by_partition(keys.iter().map(in_window))
}

#[cfg(test)]
mod tests {
    use protocol::UserId;

    use super::*;

    #[test]
    fn keys_are_asked_by_partition_and_each_once() {
        let user = |n: i64| UserId::new(n).expect("positive");
        let id = |n: i64| MessageId::new(n).expect("positive");
        let mut keys: Vec<_> = (1..=250).map(|n| (user(1), id(n))).collect();
        keys.extend([(user(1), id(7)), (user(2), id(7)), (user(1), id(i64::MAX))]);
        let lengths: Vec<_> = by_window(&keys)
            .iter()
            .map(|((owner, pk), ids)| (owner.get(), *pk, ids.len()))
            .collect();
        assert_eq!(
            lengths,
            [(1, 0, 100), (1, 0, 100), (1, 0, 50), (1, 908, 1), (2, 0, 1)]
        );
    }
}
