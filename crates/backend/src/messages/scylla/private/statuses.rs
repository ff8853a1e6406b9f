//! Registers of rows. Each is written alone, and its value is the time of the write, so that it
//! only grows.
//!
//! | column | value | time of the write |
//! | --- | --- | --- |
//! | `tm1`, `tm2` | time of delivery, of reading | the same |
//! | `st` | 1 delivered, 2 read | the same |
//! | `deleted` | true | 1: nothing ever writes another value |

use std::collections::{BTreeMap, BTreeSet};

use protocol::history::RowStatus;
use protocol::receipt::StatusWrite;
use protocol::{MessageId, Timestamp, UserId};
use scylla::DeserializeRow;
use scylla::value::CqlValue;

use crate::Result;
use crate::messages::SEAM;
use crate::scylla::messages::{by_ids, select, windows};
use crate::scylla::{SeamCql, Statement, write_time};

type Key = (UserId, MessageId);

/// Registers per write.
const WRITES_PER_BATCH: usize = 48;

/// Bound values of a register's write.
type Values = Vec<CqlValue>;

#[derive(DeserializeRow)]
struct StatusColumns {
    id: i64,
    tm1: Option<i64>,
    tm2: Option<i64>,
    deleted: Option<bool>,
}

pub(in crate::messages::scylla) struct Statuses {
    by_ids: Statement,
    set_delivered: Statement,
    set_read: Statement,
    /// Delivered, read.
    stages: [Statement; 2],
    set_deleted: Statement,
}

impl Statuses {
    pub(in crate::messages::scylla) fn new() -> Statuses {
        Statuses {
            by_ids: select::<UserId>("id, tm1, tm2, deleted", "id IN ?"),
            set_delivered: register("tm1"),
            set_read: register("tm2"),
            stages: [1, 2].map(|stage| {
                Statement::new(format!(
                    "UPDATE pchat USING TIMESTAMP {stage} SET st = {stage} WHERE uid1 = ? AND pk = ? AND id = ?"
                ))
            }),
            set_deleted: Statement::new(
                "UPDATE pchat USING TIMESTAMP 1 SET deleted = true WHERE uid1 = ? AND pk = ? AND id = ?",
            ),
        }
    }

    pub(in crate::messages::scylla) async fn read(
        &self,
        cql: &SeamCql,
        keys: &[Key],
    ) -> Result<Vec<RowStatus>> {
        let status = |_, row: StatusColumns| {
            let status = RowStatus {
                delivered_at: row.tm1.map(Timestamp::from_millis),
                read_at: row.tm2.map(Timestamp::from_millis),
                deleted: row.deleted.unwrap_or(false),
            };
            Ok((row.id, status))
        };
        by_ids(cql, &self.by_ids, keys, status).await
    }

    /// Advances registers. Two calls that advance one register at once may both report success; the
    /// register keeps the larger value.
    pub(in crate::messages::scylla) async fn advance(
        &self,
        cql: &SeamCql,
        writes: Vec<StatusWrite>,
    ) -> Result<Vec<bool>> {
        for write in &writes {
            write_time::from_time(SEAM, write.at)?;
        }
        let keys: Vec<Key> = writes.iter().map(|write| (write.owner, write.id)).collect();
        let previous = self.read(cql, &keys).await?;
        let mut current: BTreeMap<Key, RowStatus> =
            keys.iter().copied().zip(previous.clone()).collect();
        let mut results = Vec::with_capacity(writes.len());
        for write in writes {
            let status = current.entry((write.owner, write.id)).or_default();
            results.push(status.tell(write.kind, write.at));
        }
        let previous: BTreeMap<Key, RowStatus> = keys.into_iter().zip(previous).collect();
        let mut writes_by_window: BTreeMap<(UserId, i16), Vec<(&Statement, Values)>> =
            BTreeMap::new();
        for (key, current) in current {
            let previous = previous.get(&key).copied().unwrap_or_default();
            if previous != current {
                let window_writes = writes_by_window
                    .entry((key.0, windows::of(key.1)))
                    .or_default();
                self.moves(window_writes, key, previous, current)?;
            }
        }
        let chunks = writes_by_window
            .values()
            .flat_map(|moves| moves.chunks(WRITES_PER_BATCH));
        let writes = chunks.map(|moves| cql.write_together(moves.to_vec()));
        cql.all(writes.collect()).await?;
        Ok(results)
    }

    /// Collects the register writes of one row.
    pub(in crate::messages::scylla) fn moves<'a>(
        &'a self,
        writes: &mut Vec<(&'a Statement, Values)>,
        (owner, id): Key,
        previous: RowStatus,
        current: RowStatus,
    ) -> Result<()> {
        let key = [
            CqlValue::BigInt(owner.get()),
            CqlValue::SmallInt(windows::of(id)),
            CqlValue::BigInt(id.get()),
        ];
        for (statement, stage, previous, current) in [
            (
                &self.set_delivered,
                &self.stages[0],
                previous.delivered_at,
                current.delivered_at,
            ),
            (
                &self.set_read,
                &self.stages[1],
                previous.read_at,
                current.read_at,
            ),
        ] {
            if let Some(at) = current.filter(|_| previous.is_none()) {
                let time = write_time::from_time(SEAM, at)?;
                let value = [CqlValue::BigInt(time), CqlValue::BigInt(at.millis())];
                writes.push((statement, value.into_iter().chain(key.clone()).collect()));
                writes.push((stage, key.to_vec()));
            }
        }
        Ok(())
    }

    pub(in crate::messages::scylla) async fn delete(
        &self,
        cql: &SeamCql,
        keys: Vec<Key>,
    ) -> Result<()> {
        let keys: BTreeSet<Key> = keys.into_iter().collect();
        let writes = keys.into_iter().map(|(owner, id)| {
            let key = (owner.get(), windows::of(id), id.get());
            cql.write(&self.set_deleted, key)
        });
        cql.all(writes.collect()).await.map(drop)
    }
}

fn register(column: &str) -> Statement {
    Statement::new(format!(
        "UPDATE pchat USING TIMESTAMP ? SET {column} = ? WHERE uid1 = ? AND pk = ? AND id = ?"
    ))
}
