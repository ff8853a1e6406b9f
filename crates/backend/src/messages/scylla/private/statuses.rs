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
const TOGETHER: usize = 48;

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
    delivered: Statement,
    read: Statement,
    /// Delivered, read.
    stages: [Statement; 2],
    deleted: Statement,
}

impl Statuses {
    pub(in crate::messages::scylla) fn new() -> Statuses {
        Statuses {
            by_ids: select::<UserId>("id, tm1, tm2, deleted", "id IN ?"),
            delivered: register("tm1"),
            read: register("tm2"),
            stages: [1, 2].map(|stage| {
                Statement::new(format!(
                    "UPDATE pchat USING TIMESTAMP {stage} SET st = {stage} WHERE uid1 = ? AND pk = ? AND id = ?"
                ))
            }),
            deleted: Statement::new(
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
            write_time::of_time(SEAM, write.at)?;
        }
        let keys: Vec<Key> = writes.iter().map(|write| (write.owner, write.id)).collect();
        let before = self.read(cql, &keys).await?;
        let mut now: BTreeMap<Key, RowStatus> = keys.iter().copied().zip(before.clone()).collect();
        let mut advanced = Vec::with_capacity(writes.len());
        for write in writes {
            let status = now.entry((write.owner, write.id)).or_default();
            advanced.push(status.tell(write.kind, write.at));
        }
        let before: BTreeMap<Key, RowStatus> = keys.into_iter().zip(before).collect();
        let mut of_windows: BTreeMap<(UserId, i16), Vec<(&Statement, Values)>> = BTreeMap::new();
        for (key, now) in now {
            let before = before.get(&key).copied().unwrap_or_default();
            if before != now {
                let of_window = of_windows.entry((key.0, windows::of(key.1))).or_default();
                self.moves(of_window, key, before, now)?;
            }
        }
        let chunks = of_windows.values().flat_map(|moves| moves.chunks(TOGETHER));
        let writes = chunks.map(|moves| cql.write_together(moves.to_vec()));
        cql.all(writes.collect()).await?;
        Ok(advanced)
    }

    /// Collects the register writes of one row.
    pub(in crate::messages::scylla) fn moves<'a>(
        &'a self,
        moves: &mut Vec<(&'a Statement, Values)>,
        (owner, id): Key,
        before: RowStatus,
        now: RowStatus,
    ) -> Result<()> {
        let key = [
            CqlValue::BigInt(owner.get()),
            CqlValue::SmallInt(windows::of(id)),
            CqlValue::BigInt(id.get()),
        ];
        for (statement, stage, before, now) in [
            (
                &self.delivered,
                &self.stages[0],
                before.delivered_at,
                now.delivered_at,
            ),
            (&self.read, &self.stages[1], before.read_at, now.read_at),
        ] {
            if let Some(at) = now.filter(|_| before.is_none()) {
                let time = write_time::of_time(SEAM, at)?;
                let value = [CqlValue::BigInt(time), CqlValue::BigInt(at.millis())];
                moves.push((statement, value.into_iter().chain(key.clone()).collect()));
                moves.push((stage, key.to_vec()));
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
            cql.write(&self.deleted, key)
        });
        cql.all(writes.collect()).await.map(drop)
    }
}

fn register(column: &str) -> Statement {
    Statement::new(format!(
        "UPDATE pchat USING TIMESTAMP ? SET {column} = ? WHERE uid1 = ? AND pk = ? AND id = ?"
    ))
}
