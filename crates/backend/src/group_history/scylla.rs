//! What groups say, in ScyllaDB or Cassandra.
//!
//! | table | partition | row | holds |
//! | --- | --- | --- | --- |
//! | `gchat` | group, 28-day window of the id | id | the row, and whether it is deleted |
//! | `gchat_bucket` | group | window | which windows the group has |
//! | `gchat_seq` | group, block of positions | seq | id |
//! | `gchat_block` | group | block | which blocks the group has |
//! | `gchat_own` | group, sender, block of positions | seq | id: counts where `gchat_seq` has the same |
//! | `gchat_own_block` | group, sender | block | which blocks the sender has |
//! | `gchat_send` | send_id | sender, group, id | |
//!
//! A message costs four small writes and the row, whatever the size of the group. Writing goes in three steps,
//! and whatever is broken off is written again by the redelivery:
//!
//! ```text
//! 1 windows                  so that a row is never where nobody looks
//! 2 rows, send_ids, own      in any order
//! 3 positions                upward in each group: a reader sees no hole that is not one, no position
//!                            without its row, and none that its sender takes for another's
//! ```

mod buckets;
mod own;
mod positions;
mod row;
mod rows;
mod sends;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::group::GroupRow;
use protocol::history::{IdRange, Order};
use protocol::{GroupId, MessageId, SendId, Seq, UserId};

use self::buckets::Buckets;
use self::own::Own;
use self::positions::{Entries, Positions};
use self::row::NewRow;
use self::rows::Rows;
use self::sends::Sends;
use super::GroupHistoryStore;
use crate::history::scylla::buckets as windows;
use crate::history::scylla::rows::Ids;
use crate::scylla::{Cql, SeamCql};
use crate::{Error, Result};

const SEAM: &str = "group history";

/// A server takes at most so many keys in one question.
const KEYS_MAX: usize = 100;
/// Positions in one write: some kilobytes.
const TOGETHER: usize = 50;

/// What groups say, in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaGroupHistory {
    cql: SeamCql,
    buckets: Buckets,
    rows: Rows,
    positions: Positions,
    own: Own,
    sends: Sends,
}

impl ScyllaGroupHistory {
    pub fn new(cql: Cql) -> ScyllaGroupHistory {
        ScyllaGroupHistory {
            cql: cql.at(SEAM),
            buckets: Buckets::new(),
            rows: Rows::new(),
            positions: Positions::new(),
            own: Own::new(),
            sends: Sends::new(),
        }
    }
}

#[async_trait]
impl GroupHistoryStore for ScyllaGroupHistory {
    async fn save(&self, rows: Vec<GroupRow>) -> Result<()> {
        let new = rows.iter().map(NewRow::of).collect::<Result<Vec<_>>>()?;
        let (mut positions, mut own) = (Entries::new(), Entries::new());
        for row in &new {
            positions::note(&mut positions, row.gid, row);
            positions::note(&mut own, (row.gid, row.uid), row);
        }
        let cql = &self.cql;
        let windows = rows.iter().map(|row| (row.group, windows::of(row.id)));
        self.buckets.open(cql, windows.collect()).await?;
        tokio::try_join!(
            self.rows.save(cql, &new),
            self.sends.save(cql, &rows),
            self.own.save(cql, own),
        )?;
        self.positions.save(cql, positions).await
    }

    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>> {
        self.rows.whole(&self.cql, keys).await
    }

    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let mut found = Vec::new();
        let Some(ids) = Ids::within(range).filter(|_| limit > 0) else {
            return Ok(found);
        };
        for bucket in self.buckets.of(&self.cql, group, ids, order).await? {
            let wanted = limit - found.len();
            let page = self
                .rows
                .page(&self.cql, (group, bucket), ids, order, wanted);
            found.extend(page.await?);
            if found.len() >= limit {
                break;
            }
        }
        Ok(found)
    }

    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let places = self.positions.page(&self.cql, group, range, limit).await?;
        let keys: Vec<_> = places.iter().map(|&(_, id)| (group, id)).collect();
        let rows = self.rows.whole(&self.cql, &keys).await?;
        let rows = places.iter().zip(rows);
        rows.map(|(&(seq, id), row)| {
            row.filter(|row| row.seq == seq).ok_or_else(|| {
                let text = format!("group {group}: position {seq} names {id}, which is not there");
                Error::corrupt(SEAM, text)
            })
        })
        .collect()
    }

    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>> {
        let number = |seq: &Seq| i64::try_from(seq.0).ok().filter(|seq| *seq > 0);
        let asked: Vec<i64> = seqs.iter().filter_map(number).collect();
        let found = self.positions.ids(&self.cql, group, &asked).await?;
        let id = |seq: &Seq| number(seq).and_then(|seq| found.get(&seq).copied());
        seqs.iter()
            .map(|seq| id(seq).map(message).transpose())
            .collect()
    }

    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>> {
        let sent = (from, group, since);
        let ids = self.sends.find(&self.cql, send_id, sent).await?;
        let keys: Vec<_> = ids.into_iter().map(|id| (group, id)).collect();
        let rows = self.rows.whole(&self.cql, &keys).await?;
        let mut rows = rows.into_iter().flatten();
        Ok(rows.find(|row| row.from == from && row.send_id == send_id))
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.sends.all(&self.cql, send_id).await
    }

    async fn own_between(
        &self,
        group: GroupId,
        user: UserId,
        after: Seq,
        last: Seq,
    ) -> Result<u64> {
        let last = i64::try_from(last.0).unwrap_or(i64::MAX);
        let first = i64::try_from(after.0)
            .ok()
            .and_then(|seq| seq.checked_add(1));
        match first.filter(|first| *first <= last) {
            Some(first) => {
                let range = first..=last;
                let own = self
                    .own
                    .count(&self.cql, &self.positions, (group, user), range);
                own.await
            }
            None => Ok(0),
        }
    }

    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()> {
        self.rows.delete(&self.cql, group, ids).await
    }

    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> Result<Vec<bool>> {
        self.rows.deleted(&self.cql, group, ids).await
    }
}

fn message(stored: i64) -> Result<MessageId> {
    MessageId::new(stored).map_err(|_| Error::corrupt(SEAM, "a column holds no message id"))
}

#[cfg(test)]
mod tests;
